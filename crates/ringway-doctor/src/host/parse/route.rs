//! Routes, as /proc/net/route has them.

use std::{fmt, net::Ipv4Addr};

/// The network that a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    /// Its first address.
    pub address: Ipv4Addr,
    /// The length of its prefix, in bits.
    pub prefix: u32,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A route of IPv4's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network interface it leaves by.
    pub interface: String,
    /// Where it leads.
    pub network: Network,
    /// The router on the way; none: the network is on the link.
    pub gateway: Option<Ipv4Addr>,
    /// Of several routes to a network the one with the least counts.
    pub metric: u32,
}

impl Route {
    /// Whether it is for all that no other route is for.
    pub fn is_default(&self) -> bool {
        self.network.prefix == 0
    }
}

/// All routes: `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, addresses as 8 hexadecimal digits in the host's
/// order.
pub fn routes(table: &str) -> Vec<Route> {
    table.lines().skip(1).filter_map(route).collect()
}

fn route(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [interface, destination, gateway, _, _, _, metric, mask, ..] = words[..] else {
        return None;
    };
    let address = |word: &str| {
        let number = u32::from_str_radix(word, 16).ok()?;
        Some(Ipv4Addr::from(number.to_ne_bytes()))
    };
    Some(Route {
        interface: interface.to_owned(),
        network: Network {
            address: address(destination)?,
            prefix: address(mask)?.to_bits().count_ones(),
        },
        gateway: address(gateway).filter(|it| !it.is_unspecified()),
        metric: metric.parse().ok()?,
    })
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_and_a_link() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                     eth2\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\nbroken\n";
        let [default, link] = &routes(table)[..] else {
            panic!("{:?}", routes(table));
        };
        assert!(default.is_default() && default.metric == 100);
        assert_eq!(default.gateway, Some(Ipv4Addr::new(192, 168, 2, 1)));
        assert_eq!(link.network.to_string(), "10.0.0.0/16");
        assert_eq!((link.interface.as_str(), link.gateway), ("eth2", None));
        assert_eq!(routes(""), []);
    }
}
