//! The IP and UDP headers around a packet, as far as the invariant CRC covers them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{ICRC_LEN, Malformed, icrc, identification::identification};

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

const UDP_HEADER: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// What of the headers follows on the identification: the rest of IPv4's and UDP's.
const AFTER_IDENTIFICATION: usize = 14 + UDP_HEADER;

/// The headers of a flow: what the invariant CRC covers of them.
///
/// An IPv4 packet's identification counts. Linux sends 0 from an unconnected UDP socket that asks for "don't
/// fragment"; of other packets, only a raw socket tells the identification, or the CRC: see
/// [`Flow::verify_icrc_identified`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The addresses.
    pub addresses: Addresses,
    /// The sender's UDP port, by which switches spread flows over paths.
    pub source_port: u16,
    /// The receiver's UDP port: [`ROCE_PORT`], or any other that both sides have agreed on.
    pub destination_port: u16,
}

/// The addresses of a flow, and what else of its IP header the CRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4 without options.
    V4 {
        /// The sender.
        source: Ipv4Addr,
        /// The receiver.
        destination: Ipv4Addr,
        /// The identification field.
        identification: u16,
        /// The flags and the fragment offset, as the header has them.
        fragment: u16,
    },
    /// IPv6 without extension headers.
    V6 {
        /// The sender.
        source: Ipv6Addr,
        /// The receiver.
        destination: Ipv6Addr,
    },
}

/// A received IP packet taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket<'a> {
    /// Its flow.
    pub flow: Flow,
    /// The type of service or traffic class byte: DSCP, and in the two low bits ECN.
    pub traffic_class: u8,
    /// The UDP payload: a RoCE packet with its CRC.
    pub datagram: &'a [u8],
}

impl Flow {
    /// A flow to [`ROCE_PORT`], of packets as an unconnected Linux UDP socket with "don't fragment" sends them. None if
    /// the two addresses are of different families.
    pub fn new(source: IpAddr, destination: IpAddr, source_port: u16) -> Option<Self> {
        Self::between(
            SocketAddr::new(source, source_port),
            SocketAddr::new(destination, ROCE_PORT),
        )
    }

    /// The same to any port.
    pub fn between(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let addresses = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4 {
                source,
                destination,
                identification: 0,
                fragment: DONT_FRAGMENT,
            },
            (IpAddr::V6(source), IpAddr::V6(destination)) => Addresses::V6 {
                source,
                destination,
            },
            _ => return None,
        };
        Some(Self {
            addresses,
            source_port: source.port(),
            destination_port: destination.port(),
        })
    }

    /// Whether the CRC at the end of a UDP payload is right.
    pub fn verify_icrc(&self, datagram: &[u8]) -> bool {
        datagram
            .split_last_chunk::<ICRC_LEN>()
            .is_some_and(|(covered, found)| icrc(self, covered).to_le_bytes() == *found)
    }

    /// Whether the CRC at the end of a UDP payload is right for the packet with whichever identification it had. Over
    /// IPv4 that is a weaker check, which 1 in 2^16 packets of random bits passes, and the only one for a peer that counts
    /// identifications, as Linux's rxe and NICs do. Over IPv6 it is [`Flow::verify_icrc`].
    pub fn verify_icrc_identified(&self, datagram: &[u8]) -> bool {
        let Some((covered, found)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            return false;
        };
        let difference = icrc(self, covered) ^ u32::from_le_bytes(*found);
        if difference == 0 {
            return true;
        }
        let Ok(following) = u16::try_from(AFTER_IDENTIFICATION + datagram.len()) else {
            return false;
        };
        matches!(self.addresses, Addresses::V4 { .. })
            && identification(difference, following).is_some()
    }

    /// The UDP checksum of a payload. IPv6 demands it; over IPv4, 0 in its place means none.
    pub fn udp_checksum(&self, datagram: &[u8]) -> u16 {
        let length = (UDP_HEADER + datagram.len()) as u16;
        let mut sum = Sum::default();
        match self.addresses {
            Addresses::V4 {
                source,
                destination,
                ..
            } => {
                sum.add(&source.octets());
                sum.add(&destination.octets());
            }
            Addresses::V6 {
                source,
                destination,
            } => {
                sum.add(&source.octets());
                sum.add(&destination.octets());
            }
        }
        sum.add(&[0, PROTOCOL_UDP]);
        sum.add(&length.to_be_bytes());
        sum.add(&self.source_port.to_be_bytes());
        sum.add(&self.destination_port.to_be_bytes());
        sum.add(&length.to_be_bytes());
        sum.add(datagram);
        // A sum of 0 is sent as its other representation, for 0 means "none".
        match sum.complement() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

impl<'a> IpPacket<'a> {
    /// Takes an IP packet apart, as a raw socket or a capture has it. The IP and UDP checksums are the kernel's
    /// business and not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (addresses, traffic_class, udp) = match bytes.first().map(|byte| byte >> 4) {
            Some(4) => parse_v4(bytes)?,
            Some(6) => parse_v6(bytes)?,
            _ => return Err(Malformed::NotRoce),
        };
        let (header, rest) = udp
            .split_first_chunk::<UDP_HEADER>()
            .ok_or(Malformed::Truncated)?;
        let [s0, s1, d0, d1, l0, l1, _, _] = *header;
        let destination_port = u16::from_be_bytes([d0, d1]);
        if destination_port != ROCE_PORT {
            return Err(Malformed::NotRoce);
        }
        let datagram = usize::from(u16::from_be_bytes([l0, l1]))
            .checked_sub(UDP_HEADER)
            .and_then(|len| rest.get(..len))
            .ok_or(Malformed::Truncated)?;
        Ok(Self {
            flow: Flow {
                addresses,
                source_port: u16::from_be_bytes([s0, s1]),
                destination_port,
            },
            traffic_class,
            datagram,
        })
    }

    /// Whether a switch marked the packet "congestion experienced".
    pub const fn congestion_experienced(&self) -> bool {
        self.traffic_class & 3 == 3
    }
}

fn parse_v4(bytes: &[u8]) -> Result<(Addresses, u8, &[u8]), Malformed> {
    let (header, udp) = bytes
        .split_first_chunk::<20>()
        .ok_or(Malformed::Truncated)?;
    let [
        version,
        tos,
        _,
        _,
        i0,
        i1,
        f0,
        f1,
        _,
        protocol,
        _,
        _, //
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = *header;
    let fragment = u16::from_be_bytes([f0, f1]);
    // More fragments, or not the first one.
    if version != 0x45 || protocol != PROTOCOL_UDP || fragment & 0x3fff != 0 {
        return Err(Malformed::NotRoce);
    }
    let addresses = Addresses::V4 {
        source: Ipv4Addr::new(s0, s1, s2, s3),
        destination: Ipv4Addr::new(d0, d1, d2, d3),
        identification: u16::from_be_bytes([i0, i1]),
        fragment,
    };
    Ok((addresses, tos, udp))
}

fn parse_v6(bytes: &[u8]) -> Result<(Addresses, u8, &[u8]), Malformed> {
    let (header, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::Truncated)?;
    let (source, rest) = rest.split_first_chunk::<16>().ok_or(Malformed::Truncated)?;
    let (destination, udp) = rest.split_first_chunk::<16>().ok_or(Malformed::Truncated)?;
    let [c0, c1, _, _, _, _, next_header, _] = *header;
    if next_header != PROTOCOL_UDP {
        return Err(Malformed::NotRoce);
    }
    let addresses = Addresses::V6 {
        source: Ipv6Addr::from(*source),
        destination: Ipv6Addr::from(*destination),
    };
    Ok((addresses, c0 << 4 | c1 >> 4, udp))
}

/// The ones' complement sum of the internet checksum (RFC 1071). Each part is taken as padded to an even length.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let (pairs, last) = bytes.as_chunks::<2>();
        self.0 += pairs
            .iter()
            .map(|pair| u64::from(u16::from_be_bytes(*pair)))
            .sum::<u64>();
        if let [byte] = last {
            self.0 += u64::from(*byte) << 8;
        }
    }

    const fn complement(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
