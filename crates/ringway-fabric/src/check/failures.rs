//! What takes hosts off the network when it fails alone.

use std::collections::HashMap;

use petgraph::{
    algo::{articulation_points::articulation_points, bridges},
    graph::{NodeIndex, UnGraph},
};

use super::{Finding, Severity, listed};
use crate::model::{Fabric, NodeId};

pub(super) fn check(fabric: &Fabric) -> Vec<Finding> {
    let mut findings: Vec<Finding> = leaves(fabric).into_iter().collect();
    let graph = forwarding(fabric);
    let mut points: Vec<NodeId> = articulation_points(&graph)
        .into_iter()
        .map(|i| graph[i])
        .collect();
    points.sort_unstable();
    for node in points {
        let name = fabric.node_name(node);
        findings.push(Finding {
            severity: Severity::Warning,
            check: "failure",
            what: "a single point of failure: without it the fabric falls apart".to_owned(),
            remedy: format!("give what is linked by {name} a second way, past it"),
            place: name,
        });
    }
    let mut cables: Vec<usize> = bridges(&graph).map(|e| *e.weight()).collect();
    cables.sort_unstable();
    for link in cables {
        let name = fabric.link_name(link);
        findings.push(Finding {
            severity: Severity::Warning,
            check: "failure",
            what: "a single point of failure: without this link the fabric falls apart".to_owned(),
            remedy: "lay a second link, or a second way".to_owned(),
            place: name,
        });
    }
    findings
}

/// Nodes that forward, and the links between them. Parallel links stay apart, so that none of them is a bridge.
fn forwarding(fabric: &Fabric) -> UnGraph<NodeId, usize> {
    let mut graph = UnGraph::new_undirected();
    let mut index: HashMap<NodeId, NodeIndex> = HashMap::new();
    for node in (0..fabric.nodes()).map(NodeId) {
        // A switch without hosts and with one link only parts nobody.
        if fabric.forwards(node) {
            index.insert(node, graph.add_node(node));
        }
    }
    for (i, link) in fabric.links().iter().enumerate() {
        if let (Some(&a), Some(&b)) = (index.get(&link.a), index.get(&link.b)) {
            graph.add_edge(a, b, i);
        }
    }
    graph
}

/// Leaves that are the only one of some hosts: usual, and to be known.
fn leaves(fabric: &Fabric) -> Option<Finding> {
    let mut only: HashMap<NodeId, usize> = HashMap::new();
    for host in (0..fabric.hosts())
        .map(NodeId)
        .filter(|&h| !fabric.forwards(h))
    {
        let mut switches = fabric.links_of(host).iter().map(|l| l.1);
        if let Some(first) = switches.next()
            && switches.all(|s| s == first)
        {
            *only.entry(first).or_default() += 1;
        }
    }
    let most = only.values().max()?;
    let mut switches: Vec<NodeId> = only.keys().copied().collect();
    switches.sort_unstable();
    let names: Vec<String> = switches.into_iter().map(|s| fabric.node_name(s)).collect();
    Some(Finding {
        severity: Severity::Note,
        check: "failure",
        place: listed(&names),
        what: format!("each takes its hosts off the network when it fails, {most} at most"),
        remedy: "link hosts to two leaves, or let jobs checkpoint against that".to_owned(),
    })
}
