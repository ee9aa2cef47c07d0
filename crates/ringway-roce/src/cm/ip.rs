//! What rdma_cm adds: services that are ports, and IP addresses at the beginning of a REQ's private data (annex A11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The service of a TCP port in rdma_cm (`RDMA_PS_TCP`).
pub const fn service_id(port: u16) -> u64 {
    0x0106_0000 | port as u64
}

/// The port of a service, if it is one of rdma_cm's TCP ports.
pub const fn service_port(service_id: u64) -> Option<u16> {
    if service_id & !0xffff == 0x0106_0000 {
        Some(service_id as u16)
    } else {
        None
    }
}

/// The addresses of a connection, as its initiator sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The initiator's address.
    pub source: IpAddr,
    /// Its port.
    pub source_port: u16,
    /// The listener's address, of the same family.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads the header from the front of private data; None if its version is unknown.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [version, family, p0, p1, addresses @ ..] = *bytes;
        let (source, destination) = addresses.split_at(16);
        let read = |address: &[u8]| -> Option<IpAddr> {
            let octets: [u8; 16] = address.try_into().ok()?;
            match family >> 4 {
                // In the last four bytes.
                4 => {
                    let [.., a, b, c, d] = octets;
                    Some(Ipv4Addr::new(a, b, c, d).into())
                }
                6 => Some(Ipv6Addr::from(octets).into()),
                _ => None,
            }
        };
        if version != 0 {
            return None;
        }
        Some(Self {
            source: read(source)?,
            source_port: u16::from_be_bytes([p0, p1]),
            destination: read(destination)?,
        })
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = if self.source.is_ipv4() { 4 } else { 6 } << 4;
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }

    /// An address as a GID: IPv4 as a mapped one.
    pub const fn gid(address: IpAddr) -> Ipv6Addr {
        match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        }
    }
}
