//! Addresses and names of interfaces.
//!
//! Links have no addresses: each host has one for each NIC, or one in all if it forwards, each switch has one, and routes
//! name an interface and the address behind it. So an address says who, and nothing has to be numbered by link.

use std::net::Ipv4Addr;

use ringway_fabric::{Fabric, NodeId, Port};

/// What the second byte of switches' addresses is; those of hosts have the NIC there.
const SWITCHES: u8 = 255;

/// NICs that a host can have at most.
pub(crate) const MOST_NICS: usize = SWITCHES as usize;

fn numbered(second: u8, number: usize) -> Ipv4Addr {
    // .0 and .255 look like networks and broadcasts to some programs.
    let (high, low) = (number / 254, number % 254 + 1);
    Ipv4Addr::new(10, second, high as u8, low as u8)
}

/// The address of a host's NIC, such as 10.0.0.1 for NIC 0 of host 0. A host that forwards has that of NIC 0 only.
pub fn host_address(fabric: &Fabric, port: Port) -> Ipv4Addr {
    let nic = match fabric.forwards(NodeId(port.host)) {
        true => 0,
        false => port.nic as u8,
    };
    numbered(nic, port.host)
}

/// What other nodes send to when they send to this one.
pub(crate) fn node_address(fabric: &Fabric, node: NodeId) -> Ipv4Addr {
    match node.0.checked_sub(fabric.hosts()) {
        Some(switch) => numbered(SWITCHES, switch),
        None => host_address(
            fabric,
            Port {
                host: node.0,
                nic: 0,
            },
        ),
    }
}

/// The name of the interface at a node's end of a link: `eth0` is NIC 0 of a host, `port3` the fourth link of a switch.
/// `None` if the link is none of the node's.
pub fn interface(fabric: &Fabric, node: NodeId, link: usize) -> Option<String> {
    let at = fabric.links_of(node).iter().position(|l| l.0 == link)?;
    Some(match node.0 < fabric.hosts() {
        true => format!("eth{at}"),
        false => format!("port{at}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::HashSet;

    use ringway_fabric::Shape;

    use super::*;

    #[test]
    fn addresses_are_all_different() {
        let shape = Shape::LeafSpine {
            hosts: 512,
            leaves: 16,
            spines: 4,
            gpus: 1,
        };
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let addresses: HashSet<_> = (0..fabric.nodes())
            .map(|n| node_address(&fabric, NodeId(n)))
            .collect();
        assert_eq!(addresses.len(), fabric.nodes());
        let first = host_address(&fabric, Port { host: 0, nic: 1 });
        assert_eq!(first, Ipv4Addr::new(10, 1, 0, 1));
        assert!(!addresses.contains(&first));
    }
}
