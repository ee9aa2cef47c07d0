//! Which way flows took, asked of the kernels that routed them.

use std::{collections::BTreeMap, fmt::Write as _, net::Ipv4Addr};

use ringway_fabric::{Hop, NodeId};

use crate::{address::interface, error::LabError, lab::Lab};

/// Links that a way can have, at most: what is longer goes in circles.
const LONGEST: usize = 64;

/// What switches hash of a TCP connection, in the direction of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The sender.
    pub from: (Ipv4Addr, u16),
    /// The receiver.
    pub to: (Ipv4Addr, u16),
}

/// A TCP connection, seen by one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Of what this end sends.
    pub tuple: Tuple,
    /// Bytes of data that the other end has acknowledged.
    pub sent: u64,
}

impl Connection {
    /// From a line of `ss -tinHO state established`.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(2);
        let end = |word: &str| {
            let (address, port) = word.rsplit_once(':')?;
            // Sockets of both families have IPv4 addresses in IPv6.
            let mapped = address
                .strip_prefix("[::ffff:")
                .and_then(|a| a.strip_suffix(']'));
            Some((mapped.unwrap_or(address).parse().ok()?, port.parse().ok()?))
        };
        let (from, to) = (end(words.next()?)?, end(words.next()?)?);
        // Until something is, `ss` says nothing of it.
        let sent = words.find_map(|word| word.strip_prefix("bytes_acked:")?.parse().ok());
        Some(Self {
            tuple: Tuple { from, to },
            sent: sent.unwrap_or(0),
        })
    }
}

/// Where a flow is on its way.
struct Walk {
    node: NodeId,
    /// By which link it came.
    link: Option<usize>,
    hops: Vec<Hop>,
}

impl Lab {
    /// The TCP connections that a host has now.
    pub fn connections(&self, host: usize) -> Result<Vec<Connection>, LabError> {
        let text = self.script(NodeId(host), "ss -tinHO state established")?;
        Ok(text.lines().filter_map(Connection::read).collect())
    }

    /// The links that each TCP flow takes from its host on, as the kernels of all nodes route it now. A flow that does not
    /// get to its end has those that it gets over.
    pub fn trace(&self, flows: &[(usize, Tuple)]) -> Result<Vec<Vec<Hop>>, LabError> {
        let walk = |&(host, _): &(usize, Tuple)| Walk {
            node: NodeId(host),
            link: None,
            hops: Vec::new(),
        };
        let mut walks: Vec<Walk> = flows.iter().map(walk).collect();
        let mut under_way: Vec<usize> = (0..flows.len()).collect();
        for _ in 0..LONGEST {
            let mut at: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
            for flow in std::mem::take(&mut under_way) {
                at.entry(walks[flow].node).or_default().push(flow);
            }
            for (node, there) in at {
                let ways = self.ways(node, &there, flows, &walks)?;
                for (flow, way) in there.into_iter().zip(ways) {
                    let Some((hop, next)) = way else {
                        continue;
                    };
                    let walk = &mut walks[flow];
                    walk.hops.push(hop);
                    (walk.node, walk.link) = (next, Some(hop.link));
                    under_way.push(flow);
                }
            }
        }
        Ok(walks.into_iter().map(|w| w.hops).collect())
    }

    /// By which link a node sends each of some flows on; `None` where they end there, or are dropped.
    fn ways(
        &self,
        node: NodeId,
        there: &[usize],
        flows: &[(usize, Tuple)],
        walks: &[Walk],
    ) -> Result<Vec<Option<(Hop, NodeId)>>, LabError> {
        let fabric = self.fabric();
        let mut script = String::from("ip -o -force -batch - << 'END' 2> /dev/null || true\n");
        for &flow in there {
            let Tuple { from, to } = flows[flow].1;
            let came = walks[flow].link;
            let came = came.and_then(|link| interface(fabric, node, link));
            let came = came.map_or_else(String::new, |name| format!(" iif {name}"));
            let _ = writeln!(
                script,
                "route get {} from {}{came} ipproto tcp sport {} dport {}",
                to.0, from.0, from.1, to.1
            );
        }
        script += "END\n";
        let text = self.script(node, &script)?;
        let way = |line: &str| {
            let name = line.split_once(" dev ")?.1.split_whitespace().next()?;
            let mut links = fabric.links_of(node).iter();
            let named = |link| interface(fabric, node, link).as_deref() == Some(name);
            let &(link, next) = links.find(|l| named(l.0))?;
            let backwards = fabric.links()[link].a != node;
            Some((Hop { link, backwards }, next))
        };
        // What is unreachable has an error in place of a line, so lines are found by their beginning.
        let lines: Vec<&str> = text.lines().collect();
        let mut next = 0;
        Ok(there
            .iter()
            .map(|&flow| {
                let line = lines.get(next)?;
                let to = flows[flow].1.to.0.to_string();
                let words: Vec<&str> = line.split_whitespace().take(2).collect();
                words.contains(&to.as_str()).then(|| {
                    next += 1;
                    way(line)
                })?
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn connections_are_read_as_ss_prints_them() {
        let line = "0      0      10.0.0.1:44630 10.0.0.2:29500 cubic wscale:7,7 rto:201 bytes_sent:40 bytes_acked:41 segs_out:3";
        let read = Connection::read(line).unwrap();
        assert_eq!(read.tuple.from, (Ipv4Addr::new(10, 0, 0, 1), 44630));
        assert_eq!((read.tuple.to.1, read.sent), (29500, 41));
        let mapped = "0 0 [::ffff:10.0.0.1]:44630 [::ffff:10.0.0.2]:29500 cubic bytes_acked:41";
        assert_eq!(Connection::read(mapped).unwrap(), read);
        assert_eq!(Connection::read("0 0 [::1]:80 [::1]:90"), None);
        assert_eq!(Connection::read(""), None);
    }
}
