//! The bandwidth between two halves of the hosts.

use std::collections::BTreeMap;

use petgraph::{algo::dinics, graph::DiGraph, graph::NodeIndex};

use crate::model::{Fabric, NodeId};

/// How much the first half of the hosts can send to the second at once, in the order of the file. The least over all ways to
/// halve the hosts is NP-hard to find; hosts of a leaf, a pod and a plane of a torus follow each other in a file, so this
/// is it for the shapes of [`Shape`](crate::Shape), of a torus if its longest dimension is the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Bisection {
    /// Bytes per second, one way: the maximum flow.
    pub rate: f64,
    /// Bytes per second that the hosts' own links would allow.
    pub full: f64,
}

pub(super) fn measure(fabric: &Fabric) -> Bisection {
    let half = fabric.hosts() / 2;
    let mut graph: DiGraph<(), u64> = DiGraph::new();
    let (source, sink) = (graph.add_node(()), graph.add_node(()));
    // Hosts that do not forward are their links: one edge for all those of a half at a switch.
    let mut index: Vec<Option<NodeIndex>> = vec![None; fabric.nodes()];
    for node in (0..fabric.nodes()).map(NodeId) {
        if fabric.forwards(node) {
            index[node.0] = Some(graph.add_node(()));
        }
    }
    let mut own = [0, 0];
    let mut capacities: BTreeMap<(NodeIndex, NodeIndex), u64> = BTreeMap::new();
    // Whole bytes per second: a maximum flow of fractions may take for ever to round.
    for link in fabric.links() {
        let rate = link.rate as u64;
        match (index[link.a.0], index[link.b.0]) {
            (Some(a), Some(b)) => {
                *capacities.entry((a, b)).or_default() += rate;
                *capacities.entry((b, a)).or_default() += rate;
            }
            (None, None) => {}
            (a, b) => {
                let host = if a.is_none() { link.a } else { link.b };
                let Some(switch) = a.or(b) else { continue };
                let ends = match host.0 < half {
                    true => (source, switch),
                    false => (switch, sink),
                };
                own[usize::from(host.0 >= half)] += rate;
                *capacities.entry(ends).or_default() += rate;
            }
        }
    }
    for host in (0..fabric.hosts()).map(NodeId) {
        let Some(at) = index[host.0] else { continue };
        let links = fabric.links_of(host).iter();
        let rate = links.map(|l| fabric.links()[l.0].rate as u64).sum();
        own[usize::from(host.0 >= half)] += rate;
        let ends = match host.0 < half {
            true => (source, at),
            false => (at, sink),
        };
        capacities.insert(ends, rate);
    }
    for ((from, to), rate) in capacities {
        graph.add_edge(from, to, rate);
    }
    let (rate, _) = dinics(&graph, source, sink);
    Bisection {
        rate: rate as f64,
        full: own[0].min(own[1]) as f64,
    }
}
