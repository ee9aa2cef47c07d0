//! Tier by tier: every leaf to every spine, no more below than above, and one speed.

use std::collections::{BTreeMap, HashMap};

use petgraph::unionfind::UnionFind;

use super::{Finding, Severity, listed};
use crate::{
    model::{Fabric, NodeId, Role, Tier},
    units::show_rate,
};

/// What a tier may have to carry upwards, and what it can.
#[derive(Clone, Debug, PartialEq)]
pub struct TierLoad {
    /// The tier.
    pub tier: Tier,
    /// How many switches.
    pub switches: usize,
    /// Bytes per second from below, of all its switches.
    pub down: f64,
    /// Bytes per second upwards, of all its switches.
    pub up: f64,
    /// The worst switch's rate from below by its rate upwards: 1 or less does not block.
    pub oversubscription: f64,
}

pub(super) fn check(fabric: &Fabric) -> (Vec<TierLoad>, Vec<Finding>) {
    let mut findings = crossing(fabric);
    let tiers = blocking(fabric, &mut findings);
    findings.extend(speeds(fabric));
    findings.extend(nics(fabric));
    (tiers, findings)
}

/// Hosts count as below every tier.
fn height(fabric: &Fabric, node: NodeId) -> usize {
    fabric.tier_of(node).map_or(0, |tier| 1 + tier as usize)
}

/// In each pod, every leaf has a link to every spine.
fn crossing(fabric: &Fabric) -> Vec<Finding> {
    let mut pods = UnionFind::new(fabric.nodes());
    for link in fabric.links() {
        let tiers = (fabric.tier_of(link.a), fabric.tier_of(link.b));
        if matches!(
            tiers,
            (Some(Tier::Leaf), Some(Tier::Spine)) | (Some(Tier::Spine), Some(Tier::Leaf))
        ) {
            pods.union(link.a.0, link.b.0);
        }
    }
    let mut spines: HashMap<usize, Vec<NodeId>> = HashMap::new();
    for spine in fabric.tier(Tier::Spine) {
        spines.entry(pods.find(spine.0)).or_default().push(spine);
    }
    let missing = fabric.tier(Tier::Leaf).filter_map(|leaf| {
        let linked: Vec<NodeId> = fabric.links_of(leaf).iter().map(|l| l.1).collect();
        let absent: Vec<String> = spines
            .get(&pods.find(leaf.0))?
            .iter()
            .filter(|s| !linked.contains(s))
            .map(|&s| fabric.node_name(s))
            .collect();
        if absent.is_empty() {
            return None;
        }
        let place = fabric.node_name(leaf);
        Some(Finding {
            severity: Severity::Warning,
            check: "crossing",
            what: format!(
                "no link to {}; expected one to every spine of its pod",
                listed(&absent)
            ),
            remedy: format!("link {place} to {}", listed(&absent)),
            place,
        })
    });
    missing.collect()
}

/// No switch has more from below than it has upwards.
fn blocking(fabric: &Fabric, findings: &mut Vec<Finding>) -> Vec<TierLoad> {
    let mut loads = Vec::new();
    for tier in Tier::ALL {
        let mut load = TierLoad {
            tier,
            switches: 0,
            down: 0.0,
            up: 0.0,
            oversubscription: 0.0,
        };
        // Switches that block, by their ratio in hundredths.
        let mut blocked: BTreeMap<u64, Vec<NodeId>> = BTreeMap::new();
        for switch in fabric.tier(tier) {
            let (down, up) = rates(fabric, switch);
            load.switches += 1;
            load.down += down;
            load.up += up;
            if up > 0.0 {
                load.oversubscription = load.oversubscription.max(down / up);
                if down > up * 1.0001 {
                    let ratio = (down / up * 100.0).round() as u64;
                    blocked.entry(ratio).or_default().push(switch);
                }
            }
        }
        for (ratio, switches) in blocked.into_iter().rev() {
            let (down, up) = rates(fabric, switches[0]);
            let names: Vec<String> = switches.iter().map(|&s| fabric.node_name(s)).collect();
            findings.push(Finding {
                severity: Severity::Warning,
                check: "blocking",
                place: listed(&names),
                what: format!(
                    "{} from below and {} upwards is {}:1; expected 1:1",
                    show_rate(down),
                    show_rate(up),
                    ratio as f64 / 100.0
                ),
                remedy: format!(
                    "add uplinks of {} to each, or place jobs so that their ring stays below",
                    show_rate(down - up)
                ),
            });
        }
        if load.up > 0.0 {
            loads.push(load);
        }
    }
    loads
}

/// Bytes per second from below and upwards.
fn rates(fabric: &Fabric, switch: NodeId) -> (f64, f64) {
    let own = height(fabric, switch);
    let mut sums = (0.0, 0.0);
    for &(link, other) in fabric.links_of(switch) {
        let rate = fabric.links()[link].rate;
        match height(fabric, other) {
            other if other < own => sums.0 += rate,
            other if other > own => sums.1 += rate,
            _ => {}
        }
    }
    sums
}

/// Links between the same two groups have one speed.
fn speeds(fabric: &Fabric) -> Vec<Finding> {
    let mut by_groups: BTreeMap<[&str; 2], BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
    for (i, link) in fabric.links().iter().enumerate() {
        let mut groups = [link.a, link.b].map(|n| fabric.group(n).name.as_str());
        groups.sort_unstable();
        let rates = by_groups.entry(groups).or_default();
        rates.entry(link.rate as u64).or_default().push(i);
    }
    let mut findings = Vec::new();
    for ([one, other], rates) in by_groups {
        let usual = rates
            .iter()
            .max_by_key(|(rate, links)| (links.len(), **rate));
        let Some((&usual, _)) = usual else { continue };
        for (&rate, links) in rates.iter().filter(|(rate, _)| **rate != usual) {
            let names: Vec<String> = links.iter().map(|&l| fabric.link_name(l)).collect();
            findings.push(Finding {
                severity: Severity::Warning,
                check: "speed",
                place: listed(&names),
                what: format!(
                    "{}, where most links between {one} and {other} have {}; the slowest sets a collective's pace",
                    show_rate(rate as f64),
                    show_rate(usual as f64)
                ),
                remedy: format!(
                    "check cable, transceiver and port speed, or replace by {}",
                    show_rate(usual as f64)
                ),
            });
        }
    }
    findings
}

/// Every NIC has its link.
fn nics(fabric: &Fabric) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in fabric.groups() {
        let Role::Host(kind) = &group.role else {
            continue;
        };
        let idle = group.nodes.clone().map(NodeId);
        let idle: Vec<String> = idle
            .filter(|&h| !kind.forwards && fabric.links_of(h).len() < kind.nics)
            .map(|h| fabric.node_name(h))
            .collect();
        if !idle.is_empty() {
            findings.push(Finding {
                severity: Severity::Warning,
                check: "nics",
                place: listed(&idle),
                what: format!(
                    "fewer links than the {} NICs; expected one for each",
                    kind.nics
                ),
                remedy: "link the other NICs, or correct `nics`".to_owned(),
            });
        }
    }
    findings
}
