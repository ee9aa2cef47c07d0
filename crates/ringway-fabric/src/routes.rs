//! The shortest paths through a fabric, and which of the equal ones a flow takes.
//!
//! Switches forward along shortest paths and choose among equal ones by a hash of the flow (ECMP, RFC 2992): all
//! packets of a flow take one path, and flows may collide on a link while another is idle. Hosts forward only where the
//! file says so.

use std::collections::VecDeque;

use crate::model::{Fabric, Link, NodeId};

/// No path.
const FAR: u16 = u16::MAX;

/// Where a flow enters or leaves the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The host.
    pub host: usize,
    /// Which of its NICs, in the order of its links. Hosts that forward use all of them.
    pub nic: usize,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The link.
    pub link: usize,
    /// From its end `b` to its end `a`.
    pub backwards: bool,
}

impl Hop {
    fn new(fabric: &Fabric, link: usize, from: NodeId) -> Self {
        let backwards = fabric.links()[link].a != from;
        Self { link, backwards }
    }

    /// A number of the direction: 2 for each link.
    pub const fn index(self) -> usize {
        2 * self.link + self.backwards as usize
    }

    /// The direction of that number.
    pub const fn of_index(index: usize) -> Self {
        Self {
            link: index / 2,
            backwards: index % 2 == 1,
        }
    }

    /// Where it starts and ends.
    pub const fn ends(self, link: &Link) -> (NodeId, NodeId) {
        match self.backwards {
            false => (link.a, link.b),
            true => (link.b, link.a),
        }
    }

    /// `leaf0>spine1`.
    pub fn name(self, fabric: &Fabric) -> String {
        let (from, to) = self.ends(&fabric.links()[self.link]);
        format!("{}>{}", fabric.node_name(from), fabric.node_name(to))
    }
}

/// Shortest paths between all ports, for the links that are up.
#[derive(Clone, Debug)]
pub struct Routes {
    up: Vec<bool>,
    /// The number of each node among those that forward.
    number: Vec<Option<u32>>,
    forwarding: usize,
    /// The number of each forwarding node among those that have hosts (or are one).
    target: Vec<Option<u32>>,
    /// By target, then forwarding node: hops to there.
    distance: Vec<u16>,
}

impl Routes {
    /// The routes of a fabric where all links are up.
    pub fn new(fabric: &Fabric) -> Self {
        Self::without(fabric, &[])
    }

    /// The routes when the links `down` are.
    pub fn without(fabric: &Fabric, down: &[usize]) -> Self {
        let mut up = vec![true; fabric.links().len()];
        for &link in down {
            up[link] = false;
        }
        let mut number = vec![None; fabric.nodes()];
        let forwarding: Vec<NodeId> = (0..fabric.nodes())
            .map(NodeId)
            .filter(|&n| fabric.forwards(n))
            .collect();
        for (i, node) in forwarding.iter().enumerate() {
            number[node.0] = Some(i as u32);
        }
        let mut routes = Self {
            up,
            number,
            forwarding: forwarding.len(),
            target: vec![None; forwarding.len()],
            distance: Vec::new(),
        };
        let mut targets = 0;
        for (i, &node) in forwarding.iter().enumerate() {
            let ends = fabric.links_of(node).iter();
            let serves = node.0 < fabric.hosts() || ends.clone().any(|l| l.1.0 < fabric.hosts());
            if serves {
                routes.target[i] = Some(targets);
                targets += 1;
                routes.search(fabric, node);
            }
        }
        routes
    }

    /// Adds the distances of all forwarding nodes to `target`.
    fn search(&mut self, fabric: &Fabric, target: NodeId) {
        let base = self.distance.len();
        self.distance.resize(base + self.forwarding, FAR);
        let mut queue = VecDeque::from([(target, 0)]);
        while let Some((node, far)) = queue.pop_front() {
            let Some(number) = self.number[node.0] else {
                continue;
            };
            let entry = &mut self.distance[base + number as usize];
            if *entry != FAR {
                continue;
            }
            *entry = far;
            for &(link, next) in fabric.links_of(node) {
                if self.up[link] {
                    queue.push_back((next, far + 1));
                }
            }
        }
    }

    fn distance(&self, from: NodeId, target: NodeId) -> Option<u16> {
        let number = |n: NodeId| self.number[n.0].map(|i| i as usize);
        let row = self.target[number(target)?]? as usize;
        let distance = self.distance[row * self.forwarding + number(from)?];
        (distance != FAR).then_some(distance)
    }

    /// The node where a port's packets are first looked at, and the hop to there, if it is not the host itself.
    fn entry(&self, fabric: &Fabric, port: Port) -> Option<(NodeId, Option<Hop>)> {
        let host = NodeId(port.host);
        if fabric.forwards(host) {
            return Some((host, None));
        }
        let &(link, switch) = fabric.links_of(host).get(port.nic)?;
        self.up[link].then(|| (switch, Some(Hop::new(fabric, link, host))))
    }

    /// The hops by which a node forwards towards a target that is so far away, in the order of its links.
    fn next<'a>(
        &'a self,
        fabric: &'a Fabric,
        node: NodeId,
        target: NodeId,
        distance: u16,
    ) -> impl Iterator<Item = (Hop, NodeId)> + Clone + 'a {
        let ends = fabric.links_of(node).iter();
        ends.filter(move |&&(link, next)| {
            self.up[link] && self.distance(next, target) == Some(distance - 1)
        })
        .map(move |&(link, next)| (Hop::new(fabric, link, node), next))
    }

    /// The equal hops by which a node that forwards sends on what is for the port `to`, in the order of its links. Empty if
    /// there is no way, or if `node` is where it ends.
    pub fn next_hops(&self, fabric: &Fabric, node: NodeId, to: Port) -> Vec<(Hop, NodeId)> {
        let Some((target, down)) = self.entry(fabric, to) else {
            return Vec::new();
        };
        if node == target {
            let last = down.map(|hop| Hop {
                backwards: !hop.backwards,
                ..hop
            });
            return last.map(|hop| (hop, NodeId(to.host))).into_iter().collect();
        }
        match self.distance(node, target) {
            Some(distance) => self.next(fabric, node, target, distance).collect(),
            None => Vec::new(),
        }
    }

    /// How many links lie between two ports, on a shortest path; `None` if there is none. Within a host, 0.
    pub fn hops(&self, fabric: &Fabric, from: Port, to: Port) -> Option<usize> {
        if from.host == to.host {
            return Some(0);
        }
        let (first, up) = self.entry(fabric, from)?;
        let (last, down) = self.entry(fabric, to)?;
        let ends = usize::from(up.is_some()) + usize::from(down.is_some());
        Some(usize::from(self.distance(first, last)?) + ends)
    }

    /// The path that a flow takes; `flow` stands for what switches hash (addresses and UDP source port). `None` if there
    /// is none.
    pub fn path(&self, fabric: &Fabric, from: Port, to: Port, flow: u64) -> Option<Vec<Hop>> {
        if from.host == to.host {
            return Some(Vec::new());
        }
        let (mut node, up) = self.entry(fabric, from)?;
        let (target, down) = self.entry(fabric, to)?;
        let mut distance = self.distance(node, target)?;
        let mut path: Vec<Hop> = up.into_iter().collect();
        while distance > 0 {
            let equal = self.next(fabric, node, target, distance);
            let count = equal.clone().count() as u64;
            // Each switch has a hash of its own, else all would choose alike (polarisation).
            let (hop, next) = { equal }.nth((mix(flow ^ mix(node.0 as u64)) % count) as usize)?;
            path.push(hop);
            (node, distance) = (next, distance - 1);
        }
        path.extend(down.map(|hop| Hop {
            backwards: !hop.backwards,
            ..hop
        }));
        Some(path)
    }

    /// All equal paths as one: each hop with the part of the flows that it carries if switches spread them evenly.
    /// Empty if there is no path, or within a host.
    pub fn spread(&self, fabric: &Fabric, from: Port, to: Port) -> Vec<(Hop, f64)> {
        let mut hops = Vec::new();
        if from.host == to.host {
            return hops;
        }
        let (Some((first, up)), Some((target, down))) =
            (self.entry(fabric, from), self.entry(fabric, to))
        else {
            return hops;
        };
        let Some(distance) = self.distance(first, target) else {
            return hops;
        };
        hops.extend(up.map(|hop| (hop, 1.0)));
        let mut front = vec![(first, 1.0)];
        for distance in (1..=distance).rev() {
            let mut reached: Vec<(NodeId, f64)> = Vec::new();
            for (node, share) in front {
                let equal = self.next(fabric, node, target, distance);
                let each = share / equal.clone().count() as f64;
                for (hop, next) in equal {
                    hops.push((hop, each));
                    reached.push((next, each));
                }
            }
            reached.sort_by_key(|r| r.0);
            reached.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 += next.1;
                }
                same
            });
            front = reached;
        }
        hops.extend(down.map(|hop| {
            let backwards = !hop.backwards;
            (Hop { backwards, ..hop }, 1.0)
        }));
        hops
    }

    /// How many equal paths there are between two ports.
    pub fn paths(&self, fabric: &Fabric, from: Port, to: Port) -> u64 {
        let (Some((first, _)), Some((target, _))) =
            (self.entry(fabric, from), self.entry(fabric, to))
        else {
            return 0;
        };
        let Some(distance) = self.distance(first, target) else {
            return 0;
        };
        let mut front = vec![(first, 1_u64)];
        for distance in (1..=distance).rev() {
            let mut reached: Vec<(NodeId, u64)> = Vec::new();
            for (node, ways) in front {
                let next = self.next(fabric, node, target, distance);
                reached.extend(next.map(|(_, next)| (next, ways)));
            }
            reached.sort_by_key(|r| r.0);
            reached.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 = kept.1.saturating_add(next.1);
                }
                same
            });
            front = reached;
        }
        front.iter().map(|f| f.1).sum()
    }
}

/// Mixes the bits of a number (the finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn port(host: usize) -> Port {
        Port { host, nic: 0 }
    }

    fn fabric(shape: &Shape) -> Fabric {
        Fabric::parse(&shape.file().unwrap()).unwrap()
    }

    fn leaf_spine() -> Fabric {
        fabric(&Shape::LeafSpine {
            hosts: 32,
            leaves: 4,
            spines: 4,
            gpus: 1,
        })
    }

    #[test]
    fn paths_are_those_of_the_textbook() {
        let fabric = leaf_spine();
        let routes = Routes::new(&fabric);
        assert_eq!(routes.hops(&fabric, port(0), port(0)), Some(0));
        assert_eq!(routes.hops(&fabric, port(0), port(7)), Some(2));
        assert_eq!(routes.hops(&fabric, port(0), port(8)), Some(4));
        assert_eq!(routes.paths(&fabric, port(0), port(7)), 1);
        assert_eq!(routes.paths(&fabric, port(0), port(8)), 4);
        let path = routes.path(&fabric, port(0), port(31), 5).unwrap();
        let names: Vec<_> = path.iter().map(|h| h.name(&fabric)).collect();
        assert_eq!(names[0], "host0>leaf0");
        assert!(names[1].starts_with("leaf0>spine"), "{names:?}");
        assert_eq!(names[3], "leaf3>host31");
        for hop in &path {
            assert_eq!(Hop::of_index(hop.index()), *hop);
        }
    }

    #[test]
    fn flows_spread_evenly_and_stay_on_their_path() {
        let fabric = leaf_spine();
        let routes = Routes::new(&fabric);
        let mut counts = std::collections::BTreeMap::new();
        let flows = 4000;
        for flow in 0..flows {
            let path = routes.path(&fabric, port(0), port(8), flow).unwrap();
            assert_eq!(
                routes.path(&fabric, port(0), port(8), flow),
                Some(path.clone())
            );
            *counts.entry(path[1]).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 4);
        // Chi squared with three degrees of freedom: 16.3 is exceeded by chance once in a thousand.
        let expected = f64::from(flows as u32) / 4.0;
        let chi: f64 = counts
            .values()
            .map(|&c| (f64::from(c) - expected).powi(2) / expected)
            .sum();
        assert!(chi < 16.3, "{counts:?}");
    }

    #[test]
    fn what_is_down_is_avoided() {
        let fabric = leaf_spine();
        let [leaf, spine] = ["leaf0", "spine1"].map(|n| fabric.node(n).unwrap());
        let down = fabric.between(leaf, spine);
        let routes = Routes::without(&fabric, &down);
        assert_eq!(routes.paths(&fabric, port(0), port(8)), 3);
        for flow in 0..100 {
            let path = routes.path(&fabric, port(0), port(8), flow).unwrap();
            assert!(path.iter().all(|h| h.link != down[0]));
        }
        let uplink = fabric.links_of(NodeId(3))[0].0;
        let routes = Routes::without(&fabric, &[uplink]);
        assert_eq!(routes.path(&fabric, port(3), port(8), 0), None);
        assert_eq!(routes.hops(&fabric, port(8), port(3)), None);
        assert!(routes.spread(&fabric, port(8), port(3)).is_empty());
    }

    #[test]
    fn next_hops_are_those_of_the_paths() {
        let fabric = leaf_spine();
        let [leaf0, leaf1, spine] = ["leaf0", "leaf1", "spine1"].map(|n| fabric.node(n).unwrap());
        let routes = Routes::without(&fabric, &fabric.between(leaf1, spine));
        let names = |node, host| -> Vec<String> {
            let hops = routes.next_hops(&fabric, node, port(host)).into_iter();
            hops.map(|(hop, next)| {
                assert_eq!(hop.ends(&fabric.links()[hop.link]), (node, next));
                hop.name(&fabric)
            })
            .collect()
        };
        assert_eq!(names(leaf0, 7), ["leaf0>host7"]);
        let up = ["leaf0>spine0", "leaf0>spine2", "leaf0>spine3"];
        assert_eq!(names(leaf0, 8), up);
        assert_eq!(names(leaf0, 16).len(), 4);
        assert_eq!(names(spine, 0), ["spine1>leaf0"]);
        // Hosts do not forward.
        assert!(names(NodeId(0), 8).is_empty());
    }

    #[test]
    fn spread_carries_all_of_it_over_each_cut() {
        let fabric = fabric(&Shape::FatTree { k: 4, gpus: 1 });
        let routes = Routes::new(&fabric);
        assert_eq!(routes.hops(&fabric, port(0), port(15)), Some(6));
        assert_eq!(routes.paths(&fabric, port(0), port(15)), 4);
        let hops = routes.spread(&fabric, port(0), port(15));
        let total: f64 = hops.iter().map(|h| h.1).sum();
        assert!((total - 6.0).abs() < 1e-12, "{hops:?}");
    }

    #[test]
    fn hosts_of_a_torus_forward() {
        let fabric = fabric(&Shape::Torus {
            size: vec![4, 4],
            gpus: 1,
        });
        let routes = Routes::new(&fabric);
        assert_eq!(routes.hops(&fabric, port(0), port(3)), Some(1));
        assert_eq!(routes.hops(&fabric, port(0), port(10)), Some(4));
        assert_eq!(routes.paths(&fabric, port(0), port(5)), 2);
    }
}
