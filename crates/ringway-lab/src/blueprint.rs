//! What a lab is made of, as scripts of `ip`, `tc` and `sh`. Nothing is run here.

use std::fmt::Write as _;

use ringway_fabric::{Fabric, NodeId, Port, Routes};
use serde::{Deserialize, Serialize};

use crate::{
    address::{MOST_NICS, host_address, interface, node_address},
    error::LabError,
    shaping::Shaping,
};

/// Nodes that a lab can have at most: the processors have to move all their packets.
const MOST_NODES: usize = 1024;

/// What switches hash (`fib_multipath_hash_fields`): addresses, protocol and ports. By policy 1, which is the same by name, they would
/// take a number that the sender's TCP has drawn for the connection and left in the packet: no switch would have a hash of its own, and none
/// would say before which way a connection takes.
const HASHED: u32 = 0x37;

/// The routing table of what is sent from the address of NIC 0; those of others follow.
const TABLE: usize = 100;

/// What is the same in all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes of a packet, at most.
    pub mtu: u32,
    /// TCP's congestion control, such as `bbr`.
    pub congestion: String,
    /// Bytes of a TCP connection's buffers, which bound what it has under way; the kernel's choice if none.
    pub window: Option<u32>,
    /// Switches with another seed hash flows onto other paths.
    pub seed: u32,
    /// What waits for a link.
    pub queues: Queues,
}

/// In what packets wait for a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queues {
    /// One queue for all, which drops what is more than 50 ms of the rate.
    #[default]
    One,
    /// A queue for each connection, of up to 1,000 packets or trains of packets, served in turns.
    Fair,
}

#[cfg(test)]
impl Settings {
    pub(crate) fn sample() -> Self {
        Self {
            mtu: 9000,
            congestion: "cubic".into(),
            window: None,
            seed: 0,
            queues: Queues::One,
        }
    }
}

/// The scripts of a fabric's lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blueprint<'a> {
    fabric: &'a Fabric,
    settings: &'a Settings,
}

impl<'a> Blueprint<'a> {
    pub(crate) fn new(fabric: &'a Fabric, settings: &'a Settings) -> Result<Self, LabError> {
        let nics = (0..fabric.hosts())
            .map(|h| fabric.links_of(NodeId(h)).len())
            .max();
        for (what, found, most) in [
            ("hosts and switches", fabric.nodes(), MOST_NODES),
            ("NICs in a host", nics.unwrap_or(0), MOST_NICS),
        ] {
            if found > most {
                return Err(LabError::Large { what, found, most });
            }
        }
        Ok(Self { fabric, settings })
    }

    /// For `ip -batch`: all nodes, and the links between them.
    pub(crate) fn network(self) -> String {
        let (fabric, mtu) = (self.fabric, self.settings.mtu);
        let mut text = String::new();
        for node in (0..fabric.nodes()).map(NodeId) {
            let _ = writeln!(text, "netns add {}", fabric.node_name(node));
        }
        for (number, link) in fabric.links().iter().enumerate() {
            let end = |node| {
                let interface = interface(fabric, node, number).unwrap_or_default();
                let name = fabric.node_name(node);
                format!("name {interface} netns {name} mtu {mtu}")
            };
            let (a, b) = (end(link.a), end(link.b));
            let _ = writeln!(text, "link add {a} type veth peer {b}");
        }
        text
    }

    /// For `sh` in a node: its kernel's settings, addresses and links, these with the rates of the file.
    pub(crate) fn node(self, node: NodeId) -> String {
        let fabric = self.fabric;
        let Settings {
            congestion,
            seed,
            window,
            ..
        } = self.settings;
        let window = window.map_or_else(String::new, |bytes| {
            format!(
                "for buffer in tcp_rmem tcp_wmem; do echo 4096 {bytes} {bytes} > $buffer; done\n"
            )
        });
        // Each switch has a hash of its own, else all would choose alike (polarisation). Linux before 6.11 cannot.
        let seed = (seed ^ (node.0 as u32 + 1).wrapping_mul(0x9e37_79b9)).max(1);
        let mut text = format!(
            "\
[ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
cd /proc/sys/net/ipv4
echo {forwards} > ip_forward
echo 1 > fib_multipath_hash_policy
if [ -e fib_multipath_hash_fields ]; then echo {HASHED} > fib_multipath_hash_fields; echo 3 > fib_multipath_hash_policy; fi
[ ! -e fib_multipath_hash_seed ] || echo {seed} > fib_multipath_hash_seed
for filter in conf/*/rp_filter; do echo 0 > $filter; done
echo 0 > conf/all/send_redirects
[ \"$(cat tcp_congestion_control)\" = {congestion} ] || echo {congestion} 2> /dev/null > tcp_congestion_control ||
    {{ echo no congestion control {congestion} >&2; exit 1; }}
echo 1 > tcp_no_metrics_save
{window}ip -batch - << 'END'
link set lo up
",
            forwards = u8::from(fabric.forwards(node)),
        );
        let host = node.0 < fabric.hosts();
        if !host {
            let _ = writeln!(text, "address add {}/32 dev lo", node_address(fabric, node));
        }
        let mut shapes = String::new();
        for (at, &(link, _)) in fabric.links_of(node).iter().enumerate() {
            let Some(interface) = interface(fabric, node, link) else {
                continue;
            };
            if host && (at == 0 || !fabric.forwards(node)) {
                let address = host_address(
                    fabric,
                    Port {
                        host: node.0,
                        nic: at,
                    },
                );
                let _ = writeln!(text, "address add {address}/32 dev {interface}");
            }
            let shaping = Shaping::new(fabric.links()[link].rate, self.settings.mtu);
            let train = shaping.largest_train();
            let _ = writeln!(text, "link set {interface} gso_max_size {train} up");
            shapes += &shaping.lines(&interface, self.settings.queues);
        }
        let _ = write!(text, "END\ntc -batch - << 'END'\n{shapes}END\n");
        text
    }

    /// For `ip -batch` in a node: its routes; what there is no way to is unreachable.
    pub(crate) fn routes(self, routes: &Routes, node: NodeId) -> String {
        match self.fabric.forwards(node) {
            true => self.switch_routes(routes, node),
            false => self.host_routes(routes, node),
        }
    }

    fn switch_routes(self, routes: &Routes, node: NodeId) -> String {
        let fabric = self.fabric;
        let mut text = String::new();
        for host in (0..fabric.hosts()).filter(|&h| h != node.0) {
            let nics = match fabric.forwards(NodeId(host)) {
                true => 1,
                false => fabric.links_of(NodeId(host)).len(),
            };
            for port in (0..nics).map(|nic| Port { host, nic }) {
                let to = host_address(fabric, port);
                let mut ways = String::new();
                for (hop, next) in routes.next_hops(fabric, node, port) {
                    let interface = interface(fabric, node, hop.link).unwrap_or_default();
                    // A NIC answers for its own address only.
                    let via = match next.0 == host {
                        true => to,
                        false => node_address(fabric, next),
                    };
                    let _ = write!(ways, " nexthop via {via} dev {interface} onlink");
                }
                let _ = match ways.is_empty() {
                    true => writeln!(text, "route replace unreachable {to}/32"),
                    false => writeln!(text, "route replace {to}/32{ways}"),
                };
            }
        }
        text
    }

    /// What comes from the address of a NIC leaves by it; else the NIC on the rail of the receiver's is taken, or, where
    /// there is none, one by the hash.
    fn host_routes(self, routes: &Routes, node: NodeId) -> String {
        let fabric = self.fabric;
        let links = fabric.links_of(node);
        let mut text = String::new();
        let mut ways = String::new();
        for (nic, &(link, switch)) in links.iter().enumerate() {
            let (rail, table) = (format!("10.{nic}.0.0/16"), TABLE + nic);
            let port = Port { host: node.0, nic };
            let up = !routes.next_hops(fabric, switch, port).is_empty();
            let interface = interface(fabric, node, link).unwrap_or_default();
            let via = format!(
                "via {} dev {interface} onlink",
                node_address(fabric, switch)
            );
            let from = host_address(fabric, port);
            if up {
                let _ = write!(ways, " nexthop {via}");
            }
            if links.len() > 1 {
                let _ = match up {
                    true => writeln!(
                        text,
                        "route replace default {via} table {table}\nroute replace {rail} {via} src {from}"
                    ),
                    false => writeln!(
                        text,
                        "route replace unreachable default table {table}\nroute flush {rail}"
                    ),
                };
            }
        }
        let _ = match ways.is_empty() {
            true => writeln!(text, "route replace unreachable default"),
            false => writeln!(text, "route replace default{ways}"),
        };
        text
    }

    /// For `ip -batch` in a host of several NICs: by which table what comes from which address goes.
    pub(crate) fn rules(self, node: NodeId) -> String {
        let links = self.fabric.links_of(node);
        if self.fabric.forwards(node) || links.len() < 2 {
            return String::new();
        }
        let rule = |nic| {
            let from = host_address(self.fabric, Port { host: node.0, nic });
            format!("rule add from {from} lookup {}\n", TABLE + nic)
        };
        (0..links.len()).map(rule).collect()
    }

    /// Each host's name and address, for /etc/hosts.
    pub(crate) fn names(self) -> String {
        let line = |host| {
            let address = host_address(self.fabric, Port { host, nic: 0 });
            format!("{address} {}\n", self.fabric.node_name(NodeId(host)))
        };
        let hosts: String = (0..self.fabric.hosts()).map(line).collect();
        format!("127.0.0.1 localhost\n{hosts}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use ringway_fabric::Shape;

    use super::*;

    fn fabric(shape: &Shape) -> Fabric {
        Fabric::parse(&shape.file().unwrap()).unwrap()
    }

    #[test]
    fn leaves_have_equal_routes_over_all_spines_that_are_up() {
        let fabric = fabric(&Shape::LeafSpine {
            hosts: 4,
            leaves: 2,
            spines: 2,
            gpus: 1,
        });
        let settings = Settings::sample();
        let blueprint = Blueprint::new(&fabric, &settings).unwrap();
        let leaf = fabric.node("leaf0").unwrap();
        let routes = blueprint.routes(&Routes::new(&fabric), leaf);
        let expected = "\
route replace 10.0.0.1/32 nexthop via 10.0.0.1 dev port0 onlink
route replace 10.0.0.2/32 nexthop via 10.0.0.2 dev port1 onlink
route replace 10.0.0.3/32 nexthop via 10.255.0.3 dev port2 onlink nexthop via 10.255.0.4 dev port3 onlink
route replace 10.0.0.4/32 nexthop via 10.255.0.3 dev port2 onlink nexthop via 10.255.0.4 dev port3 onlink
";
        assert_eq!(routes, expected);
        let [spine, host] = ["spine0", "host3"].map(|n| fabric.node(n).unwrap());
        let down = [
            fabric.between(leaf, spine),
            fabric.links_of(host).iter().map(|l| l.0).collect(),
        ];
        let routes = blueprint.routes(&Routes::without(&fabric, &down.concat()), leaf);
        let expected = "\
route replace 10.0.0.3/32 nexthop via 10.255.0.4 dev port3 onlink
route replace unreachable 10.0.0.4/32
";
        assert!(routes.ends_with(expected), "{routes}");
        let routes = blueprint.routes(&Routes::new(&fabric), NodeId(0));
        assert_eq!(
            routes,
            "route replace default nexthop via 10.255.0.1 dev eth0 onlink\n"
        );
    }

    #[test]
    fn a_host_of_several_nics_sends_on_the_rail_of_the_receiver() {
        let fabric = fabric(&Shape::RailOptimised {
            hosts: 2,
            rails: 2,
            blocks: 1,
            spines: 1,
        });
        let settings = Settings::sample();
        let blueprint = Blueprint::new(&fabric, &settings).unwrap();
        assert_eq!(
            blueprint.rules(NodeId(1)),
            "rule add from 10.0.0.2 lookup 100\nrule add from 10.1.0.2 lookup 101\n"
        );
        let routes = blueprint.routes(&Routes::new(&fabric), NodeId(1));
        let expected = "\
route replace default via 10.255.0.1 dev eth0 onlink table 100
route replace 10.0.0.0/16 via 10.255.0.1 dev eth0 onlink src 10.0.0.2
route replace default via 10.255.0.2 dev eth1 onlink table 101
route replace 10.1.0.0/16 via 10.255.0.2 dev eth1 onlink src 10.1.0.2
route replace default nexthop via 10.255.0.1 dev eth0 onlink nexthop via 10.255.0.2 dev eth1 onlink
";
        assert_eq!(routes, expected);
    }

    #[test]
    fn hosts_of_a_torus_have_one_address_and_forward() {
        let fabric = fabric(&Shape::Torus {
            size: vec![2, 2],
            gpus: 1,
        });
        let settings = Settings::sample();
        let blueprint = Blueprint::new(&fabric, &settings).unwrap();
        let node = blueprint.node(NodeId(0));
        assert_eq!(node.matches("address add").count(), 1, "{node}");
        assert!(node.contains("echo 1 > ip_forward"), "{node}");
        let routes = blueprint.routes(&Routes::new(&fabric), NodeId(0));
        let across = routes.lines().find(|l| l.contains("10.0.0.4/32")).unwrap();
        assert!(
            across.contains("via 10.0.0.2") && across.contains("via 10.0.0.3"),
            "{across}"
        );
    }

    #[test]
    fn what_no_machine_can_carry_is_refused() {
        let fabric = fabric(&Shape::LeafSpine {
            hosts: 2048,
            leaves: 64,
            spines: 8,
            gpus: 1,
        });
        let error = Blueprint::new(&fabric, &Settings::sample())
            .unwrap_err()
            .to_string();
        assert!(error.contains("2120 hosts and switches"), "{error}");
        assert!(error.contains("1024 at most"), "{error}");
    }
}
