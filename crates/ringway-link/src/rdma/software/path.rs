//! What the interface with an address can carry.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    path::Path,
};

use ringway_roce::{rc::Mtu, wire::MAX_OVERHEAD};
use ringway_sys::{InterfaceAddress, interface_addresses};

/// The interface that packets of an address leave by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Its number, without which a link-local address says nothing.
    index: u32,
    /// The most payload of a RoCE packet that goes into its frames.
    pub(super) mtu: Mtu,
    /// In bytes per second; None if it has none, as loopback and virtual ones.
    pub(super) rate: Option<u64>,
}

impl Interface {
    /// The one that has this address.
    pub(super) fn of(ip: IpAddr) -> io::Result<Self> {
        let all = interface_addresses()?;
        // All of 127.0.0.0/8 are this host's, though loopback tells of one.
        let is_loopback = |interface: &InterfaceAddress| {
            interface.address.is_loopback() && ip.is_loopback() && ip.is_ipv4()
        };
        let found = all
            .into_iter()
            .find(|interface| interface.address == ip || is_loopback(interface));
        let Some(found) = found else {
            let text = format!(
                "no interface that is up has the address {ip}; `ip address` shows those that there are"
            );
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        };
        let (mtu, rate) = read(Path::new("/sys/class/net"), &found.name);
        Ok(Self {
            name: found.name,
            index: found.index,
            mtu: mtu.map_or(Mtu::M1024, |frame| fitting(frame, ip)),
            rate,
        })
    }

    /// A socket address at this interface, of this host or of a peer that is reached by it.
    pub(super) fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, self.index).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// An interface's frame size in bytes, and its rate in bytes per second.
fn read(folder: &Path, name: &str) -> (Option<u32>, Option<u64>) {
    let number = |file: &str| -> Option<i64> {
        let text = fs::read_to_string(folder.join(name).join(file)).ok()?;
        text.trim().parse().ok()
    };
    let mtu = number("mtu").and_then(|mtu| u32::try_from(mtu).ok());
    // In Mb/s; -1 is "unknown".
    let rate = number("speed").and_then(|rate| u64::try_from(rate).ok());
    (
        mtu,
        rate.filter(|rate| *rate > 0).map(|rate| rate * 125_000),
    )
}

/// The largest MTU whose packets fit into frames of so many bytes with IP and UDP headers.
fn fitting(frame: u32, ip: IpAddr) -> Mtu {
    let headers = if ip.is_ipv4() { 20 } else { 40 } + 8 + MAX_OVERHEAD as u32;
    Mtu::ALL
        .into_iter()
        .rev()
        .find(|mtu| mtu.bytes() + headers <= frame)
        .unwrap_or(Mtu::M256)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_largest_mtu_that_fits() {
        let (v4, v6) = (
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        );
        for (frame, expected) in [
            (1280, Mtu::M1024),
            (1500, Mtu::M1024),
            (4200, Mtu::M4096),
            (4150, Mtu::M2048),
            (9000, Mtu::M4096),
            (65_536, Mtu::M4096),
            (68, Mtu::M256),
        ] {
            assert_eq!(fitting(frame, v4), expected, "{frame}");
        }
        assert_eq!(fitting(4180, v4), Mtu::M4096);
        assert_eq!(fitting(4180, v6), Mtu::M2048);
    }

    #[test]
    fn loopback_takes_the_largest_and_has_no_rate() {
        let interface = Interface::of(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(
            (interface.name.as_str(), interface.mtu, interface.rate),
            ("lo", Mtu::M4096, None)
        );
        let error = Interface::of(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }
}
