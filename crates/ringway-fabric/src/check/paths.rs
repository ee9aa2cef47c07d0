//! How far hosts are apart, and by how many ways.

use std::collections::HashMap;

use super::{Finding, Severity};
use crate::{
    model::{Fabric, NodeId},
    routes::{Port, Routes},
};

/// Links between pairs of hosts, by their NICs of the same number; both directions of a pair are one.
#[derive(Clone, Debug, PartialEq)]
pub struct PathLengths {
    /// Of the nearest pair.
    pub least: usize,
    /// Of the average pair.
    pub mean: f64,
    /// Of the farthest pair.
    pub most: usize,
    /// How many pairs of hosts there are.
    pub pairs: u64,
    /// How many of them have no path.
    pub unreachable: u64,
    /// Two hosts without a path, if there are any.
    pub parted: Option<(usize, usize)>,
}

/// Equal shortest paths between pairs of hosts that are not neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diversity {
    /// Of the pair that has the fewest.
    pub least: u64,
    /// Of the pair that has the most.
    pub most: u64,
}

/// Hosts that hang at the same switches are alike: pairs of such sets are looked at once.
pub(super) fn measure(fabric: &Fabric, routes: &Routes) -> (PathLengths, Diversity) {
    let mut alike: HashMap<Vec<NodeId>, usize> = HashMap::new();
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for host in 0..fabric.hosts() {
        let node = NodeId(host);
        let ends: Vec<NodeId> = match fabric.forwards(node) {
            true => vec![node],
            false => fabric.links_of(node).iter().map(|l| l.1).collect(),
        };
        let set = *alike.entry(ends).or_insert(sets.len());
        match sets.get_mut(set) {
            Some(members) => members.push(host),
            None => sets.push(vec![host]),
        }
    }
    let mut lengths = PathLengths {
        least: usize::MAX,
        mean: 0.0,
        most: 0,
        pairs: 0,
        unreachable: 0,
        parted: None,
    };
    let mut diversity = Diversity {
        least: u64::MAX,
        most: 0,
    };
    let mut sum = 0;
    for (i, one) in sets.iter().enumerate() {
        for other in &sets[i..] {
            let n = one.len() as u64;
            let (count, second) = match one[0] == other[0] {
                true => (n * (n - 1) / 2, one.get(1)),
                false => (n * other.len() as u64, other.first()),
            };
            let Some(&second) = second else { continue };
            lengths.pairs += count;
            match nearest(fabric, routes, one[0], second) {
                None => {
                    lengths.unreachable += count;
                    lengths.parted = lengths.parted.or(Some((one[0], second)));
                }
                Some((hops, paths)) => {
                    lengths.least = lengths.least.min(hops);
                    lengths.most = lengths.most.max(hops);
                    sum += hops as u64 * count;
                    // Between hosts at one switch, or side by side, there is one way, and nothing to choose.
                    if hops > 2 {
                        diversity.least = diversity.least.min(paths);
                        diversity.most = diversity.most.max(paths);
                    }
                }
            }
        }
    }
    let reached = lengths.pairs - lengths.unreachable;
    lengths.mean = sum as f64 / (reached as f64).max(1.0);
    if reached == 0 {
        lengths.least = 0;
    }
    if diversity.most == 0 {
        diversity = Diversity { least: 1, most: 1 };
    }
    (lengths, diversity)
}

/// Hops and equal paths by the NICs of equal number that are nearest.
fn nearest(fabric: &Fabric, routes: &Routes, from: usize, to: usize) -> Option<(usize, u64)> {
    let nics = |host: usize| match fabric.forwards(NodeId(host)) {
        true => 1,
        false => fabric.links_of(NodeId(host)).len(),
    };
    let both = (0..nics(from).min(nics(to))).filter_map(|nic| {
        let (from, to) = (Port { host: from, nic }, Port { host: to, nic });
        let hops = routes.hops(fabric, from, to)?;
        Some((hops, routes.paths(fabric, from, to)))
    });
    both.min_by_key(|&(hops, paths)| (hops, std::cmp::Reverse(paths)))
}

/// Every host reaches every other.
pub(super) fn reachable(fabric: &Fabric, lengths: &PathLengths) -> Option<Finding> {
    let (one, other) = lengths.parted?;
    let [one, other] = [one, other].map(|h| fabric.node_name(NodeId(h)));
    Some(Finding {
        severity: Severity::Error,
        check: "reachable",
        what: format!(
            "{} of {} pairs of hosts have no path",
            lengths.unreachable, lengths.pairs
        ),
        remedy: format!("link the switches of {one} to those of {other}"),
        place: format!("{one} and {other}"),
    })
}
