//! Ways between two hosts by source port: those that are broken, and those that are not used.

use std::collections::{BTreeMap, BTreeSet};

use super::{Aspect, Fleet, Flow, Pair, Path, finding};
use crate::finding::{Finding, Severity};

pub(super) const FLOWS: Aspect = Aspect {
    id: "fleet.flows",
    sign: "source ports that get no answer while others do",
    why: "routers with several equal ways choose one by the source port: one of them is broken, and hits some queue pairs",
    source: "RFC 2992; IBTA annex A17: the source port carries the flow's entropy",
};

pub(super) const SPREAD: Aspect = Aspect {
    id: "fleet.spread",
    sign: "the routers that 16 source ports pass: they say so themselves of datagrams whose hop limit ends with them",
    why: "connections that a router puts on one of several equal ways share it, and the others idle",
    source: "RFC 2992; RFC 792 and RFC 4443: time exceeded; ip(7): IP_RECVERR",
};

/// Source ports whose ways have to be known before all of them on one way is more than chance.
const ENOUGH: usize = 8;

impl Path {
    /// How many ways its source ports take: how many routers there are at the widest place. None if no router has said so,
    /// as on a network without one.
    pub fn ways(&self) -> Option<usize> {
        let longest = self.flows.iter().map(|it| it.hops.len()).max()?;
        let widths = (0..longest).map(|hop| routers(&self.flows, hop).len());
        widths.max().filter(|width| *width > 0)
    }
}

/// The routers that are passed as the `hop`th, from 0, as far as they are known.
fn routers(flows: &[Flow], hop: usize) -> BTreeSet<&str> {
    let known = flows
        .iter()
        .filter_map(|flow| flow.hops.get(hop)?.as_deref());
    known.collect()
}

pub(super) fn judge(fleet: &Fleet) -> Vec<Finding> {
    let mut findings = silent(fleet);
    findings.extend(spread(fleet));
    findings
}

/// Source ports that get no answer.
fn silent(fleet: &Fleet) -> Vec<Finding> {
    let paths = fleet
        .pairs
        .iter()
        .flat_map(|pair| pair.paths.iter().map(move |path| (pair, path)));
    let silent = paths.filter_map(|(pair, path)| {
        if path.flows.iter().all(|it| it.answered == 0) {
            // Where others are answered, that marked ones are not is what `fleet.loss` and `fleet.mark` tell.
            return (path.there.sent == 0).then(|| dead(fleet, pair, path));
        }
        let dead: Vec<String> = path.flows.iter().filter(|it| it.answered == 0).map(|it| it.port.to_string()).collect();
        if dead.is_empty() {
            return None;
        }
        let (a, b) = (&fleet.hosts[pair.a].name, &fleet.hosts[pair.b].name);
        let text = format!("{} of {} source ports get no answer, the others do", dead.len(), path.flows.len());
        let subject = format!("{a} {} - {b} {}", path.at_a.interface, path.at_b.interface);
        let mut draft = finding(&FLOWS, Severity::Error, &subject, text)
            .saw(format!("probe {a} to {b}"), format!("source ports {}", dead.join(", ")));
        let last = last_router(&path.flows);
        if let Some(last) = last {
            draft = draft.saw("the last router that says it has seen one of them", last);
        }
        let behind = last.map_or_else(String::new, |last| format!(", first behind {last}"));
        Some(
            draft
                .act(format!(
                    "switch: see the members of bonds and the equal routes between the two for one that drops what it is given{behind}"
                ))
                .likely()
                .0,
        )
    });
    silent.collect()
}

/// The last router that flows without an answer are known to reach.
fn last_router(flows: &[Flow]) -> Option<&str> {
    let silent: Vec<Flow> = flows
        .iter()
        .filter(|it| it.answered == 0)
        .cloned()
        .collect();
    let last = silent
        .iter()
        .map(|it| it.hops.len())
        .max()?
        .checked_sub(1)?;
    let router = *routers(&silent, last).first()?;
    let known = flows.iter().flat_map(|it| &it.hops).flatten();
    known.map(String::as_str).find(|it| *it == router)
}

/// A way on which nothing is answered, while others between the two hosts work.
fn dead(fleet: &Fleet, pair: &Pair, path: &Path) -> Finding {
    let (a, b) = (&fleet.hosts[pair.a].name, &fleet.hosts[pair.b].name);
    let (at_a, at_b) = (&path.at_a, &path.at_b);
    let subject = format!("{a} {} - {b} {}", at_a.interface, at_b.interface);
    let text =
        "nothing is answered, though other interfaces of the two hosts reach each other".to_owned();
    let asked: u64 = path.flows.iter().map(|it| it.sent).sum();
    finding(&FLOWS, Severity::Error, &subject, text)
        .saw(
            format!("probe {} to {}", at_a.address, at_b.address),
            format!("none of {asked} datagrams answered"),
        )
        .act("see the cables, the switches' ports and VLANs of both interfaces, and what may keep UDP from one of them: a firewall")
        .0
}

/// A router, the next but one, and the ways between them.
#[derive(Default)]
struct Stretch<'a> {
    between: BTreeSet<&'a str>,
    /// Paths that pass both, each by its hosts' names and how many of its source ports are known to pass what.
    paths: Vec<(String, usize, BTreeSet<&'a str>)>,
}

/// Equal ways of which each pair of hosts takes only one, whatever the source port.
fn spread(fleet: &Fleet) -> Vec<Finding> {
    let mut stretches: BTreeMap<(&str, &str), Stretch<'_>> = BTreeMap::new();
    for pair in &fleet.pairs {
        for path in &pair.paths {
            let longest = path.flows.iter().map(|it| it.hops.len()).max().unwrap_or(0);
            for hop in 1..longest.saturating_sub(1) {
                // Where ways part and meet again; in larger fabrics they part more than once.
                let only = |hop: usize| {
                    let all = routers(&path.flows, hop);
                    all.first().copied().filter(|_| all.len() == 1)
                };
                let (Some(from), Some(to)) = (only(hop - 1), only(hop + 1)) else {
                    continue;
                };
                let ways = routers(&path.flows, hop);
                let known = path
                    .flows
                    .iter()
                    .filter(|it| it.hops.get(hop).is_some_and(Option::is_some));
                let known = known.count();
                if known < 2 {
                    continue;
                }
                let name = |host: usize| &fleet.hosts[host].name;
                let stretch = stretches.entry((from, to)).or_default();
                stretch.between.extend(&ways);
                let words = format!("{} to {}", name(pair.a), name(pair.b));
                stretch.paths.push((words, known, ways));
            }
        }
    }
    stretches.into_iter().filter_map(unused).collect()
}

fn unused(((from, to), stretch): ((&str, &str), Stretch<'_>)) -> Option<Finding> {
    let known: usize = stretch.paths.iter().map(|(_, known, _)| known - 1).sum();
    let single = stretch.paths.iter().all(|(_, _, ways)| ways.len() == 1);
    if !single || stretch.between.len() < 2 || known < ENOUGH {
        return None;
    }
    let text = format!(
        "there are {} ways to {to}, and each pair of hosts takes one, whatever the source port",
        stretch.between.len()
    );
    let mut draft = finding(&SPREAD, Severity::Warning, &format!("router {from}"), text);
    for (hosts, known, ways) in stretch.paths.iter().take(6) {
        let ways: Vec<&str> = ways.iter().copied().collect();
        draft = draft.saw(
            format!("probe {hosts}"),
            format!("{known} source ports known, all by {}", ways.join(", ")),
        );
    }
    Some(
        draft
            .act("switch: have it hash UDP source ports for its equal ways (layer 3 and 4), and give each connection several queue pairs")
            .likely()
            .0,
    )
}
