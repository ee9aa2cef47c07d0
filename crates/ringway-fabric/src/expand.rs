//! From the entries of a fabric file to nodes and links.

use std::{collections::HashSet, ops::Range};

use serde_saphyr::{Location, Spanned};

use crate::{
    error::{FabricError, Problem},
    file::{Cut, File, Hosts, Join, Links, Switches},
    model::{Fabric, Group, HostKind, Link, Local, NodeId, Role},
};

/// Nodes of a fabric, at most: beyond, memory would be used up for a slip of the pen.
const MOST_NODES: usize = 1 << 17;

/// Links of a fabric, at most.
const MOST_LINKS: usize = 1 << 22;

/// GPUs or NICs of a host, at most.
const MOST_PARTS: usize = 1024;

pub(crate) fn expand(file: File) -> Result<Fabric, FabricError> {
    let mut draft = Draft::default();
    if file.hosts.is_empty() {
        return Err(FabricError {
            line: 1,
            column: 1,
            problem: Problem::NoHosts,
        });
    }
    for entry in &file.hosts {
        let role = Role::Host(host_kind(entry)?);
        let Hosts { name, count, .. } = &entry.value;
        draft.group(name, count.as_ref(), role)?;
    }
    for entry in &file.switches {
        let Switches {
            name,
            count,
            tier,
            ports,
        } = &entry.value;
        let (tier, ports) = (*tier, *ports);
        draft.group(name, count.as_ref(), Role::Switch { tier, ports })?;
    }
    for entry in &file.links {
        draft.join(entry)?;
    }
    for entry in &file.cut {
        draft.cut(&entry.value)?;
    }
    let places = draft.places;
    let fabric = Fabric::new(file.fabric, draft.groups, draft.links);
    check_ports(&fabric, &places)?;
    Ok(fabric)
}

#[derive(Default)]
struct Draft {
    groups: Vec<Group>,
    /// Where each group is in the file.
    places: Vec<Location>,
    links: Vec<Link>,
}

/// Some members of a group.
struct Members {
    group: usize,
    nodes: Range<usize>,
    text: String,
    place: Location,
}

impl Members {
    /// The members in `parts` equal runs.
    fn runs(&self, parts: usize) -> Result<Vec<Range<usize>>, FabricError> {
        let members = self.nodes.len();
        if parts == 0 || !members.is_multiple_of(parts) {
            let group = self.text.clone();
            return Err(at(
                self.place,
                Problem::Division {
                    group,
                    members,
                    parts,
                },
            ));
        }
        let each = members / parts;
        let start = |i| self.nodes.start + i * each;
        Ok((0..parts).map(|i| start(i)..start(i + 1)).collect())
    }
}

impl Draft {
    fn group(
        &mut self,
        name: &Spanned<String>,
        count: Option<&Spanned<usize>>,
        role: Role,
    ) -> Result<(), FabricError> {
        let place = name.referenced;
        if let Some(other) = self.groups.iter().position(|g| g.name == name.value) {
            let first = self.places[other].line();
            let name = name.value.clone();
            return Err(at(place, Problem::Duplicate { name, first }));
        }
        let letters = name.value.starts_with(|c: char| c.is_ascii_alphabetic())
            && name
                .value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !letters || name.value.ends_with(|c: char| c.is_ascii_digit()) {
            let found = name.value.clone();
            return Err(at(place, Problem::Name { found }));
        }
        let start = self.groups.last().map_or(0, |g| g.nodes.end);
        let members = count.map_or(1, |c| c.value);
        if let Some(count) = count {
            number(count.referenced, "count", members, 1, MOST_NODES - start)?;
        }
        self.groups.push(Group {
            name: name.value.clone(),
            nodes: start..start + members,
            numbered: count.is_some(),
            role,
        });
        self.places.push(place);
        Ok(())
    }

    /// The members that `leaf`, `leaf3` or `leaf0-7` names.
    fn members(&self, text: &Spanned<String>) -> Result<Members, FabricError> {
        let bad = |hint: String| {
            let found = text.value.clone();
            at(text.referenced, Problem::Members { found, hint })
        };
        let named = |g: &Group| match text.value.strip_prefix(g.name.as_str()) {
            Some("") => true,
            Some(rest) => g.numbered && rest.starts_with(|c: char| c.is_ascii_digit()),
            None => false,
        };
        let group = self.groups.iter().position(named).ok_or_else(|| {
            let names: Vec<_> = self.groups.iter().map(|g| g.name.as_str()).collect();
            bad(format!("the groups are {}", names.join(", ")))
        })?;
        let Group { name, nodes, .. } = &self.groups[group];
        let range = &text.value[name.len()..];
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let nodes = match (first.parse::<usize>(), last.parse::<usize>()) {
            _ if range.is_empty() => nodes.clone(),
            (Ok(first), Ok(last)) if first <= last && last < nodes.len() => {
                nodes.start + first..nodes.start + last + 1
            }
            _ => {
                let last = nodes.len() - 1;
                return Err(bad(format!(
                    "members of {name} are {name}0 to {name}{last}"
                )));
            }
        };
        Ok(Members {
            group,
            nodes,
            text: text.value.clone(),
            place: text.referenced,
        })
    }

    fn join(&mut self, entry: &Spanned<Links>) -> Result<(), FabricError> {
        let links = &entry.value;
        let (from, to) = (self.members(&links.from)?, self.members(&links.to)?);
        number(entry.referenced, "parallel", links.parallel, 1, MOST_PARTS)?;
        let pairs = match &links.join {
            Join::Full => crossed(&from.runs(1)?, &to.runs(1)?),
            Join::Blocks(parts) => crossed(&from.runs(*parts)?, &to.runs(*parts)?),
            Join::Stripes(parts) => {
                let (runs, members) = (to.runs(*parts)?, from.nodes.clone());
                from.runs(from.nodes.len() / (*parts).max(1))?;
                let run = |node: usize| runs[(node - members.start) % parts].clone();
                let pairs = from.nodes.clone().map(|a| run(a).map(move |b| (a, b)));
                pairs.flatten().collect()
            }
            Join::Rails(parts) => self.rails(&from, &to, *parts)?,
            Join::Torus(size) => {
                let (group, members) = (from.text.clone(), from.nodes.len());
                let expected = size.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
                if from.nodes != to.nodes || expected != Some(members) || size.contains(&0) {
                    return Err(at(
                        entry.referenced,
                        Problem::Grid {
                            size: size.clone(),
                            expected: expected.unwrap_or(usize::MAX),
                            group,
                            members,
                        },
                    ));
                }
                torus(from.nodes.start, size)
            }
        };
        let all = (pairs.len() + self.links.len()).saturating_mul(links.parallel);
        number(entry.referenced, "the number of links", all, 0, MOST_LINKS)?;
        for (a, b) in pairs {
            if a == b {
                let name = from.text;
                return Err(at(entry.referenced, Problem::ToItself { name }));
            }
            let link = Link {
                a: NodeId(a),
                b: NodeId(b),
                rate: links.rate.0,
                latency: links.latency.0,
            };
            self.links.extend(std::iter::repeat_n(link, links.parallel));
        }
        Ok(())
    }

    /// NIC k of each host of a run to switch k of the run.
    fn rails(
        &self,
        from: &Members,
        to: &Members,
        blocks: usize,
    ) -> Result<Vec<(usize, usize)>, FabricError> {
        let Role::Host(kind) = &self.groups[from.group].role else {
            let (from, to) = (from.text.clone(), to.text.clone());
            let place = self.places[0];
            return Err(at(place, Problem::WrongSides { from, to }));
        };
        let (hosts, switches) = (from.runs(blocks)?, to.runs(blocks)?);
        if to.nodes.len() != kind.nics * blocks {
            let problem = Problem::Rails {
                hosts: from.nodes.len(),
                nics: kind.nics,
                switches: to.nodes.len(),
                blocks,
                expected: kind.nics * blocks,
            };
            return Err(at(to.place, problem));
        }
        Ok(crossed(&hosts, &switches))
    }

    fn cut(&mut self, cut: &Cut) -> Result<(), FabricError> {
        let (from, to) = (self.members(&cut.from)?, self.members(&cut.to)?);
        let before = self.links.len();
        let hit = |a: NodeId, b: NodeId| from.nodes.contains(&a.0) && to.nodes.contains(&b.0);
        self.links.retain(|l| !hit(l.a, l.b) && !hit(l.b, l.a));
        if self.links.len() == before {
            let (from, to) = (from.text, to.text);
            return Err(at(cut.from.referenced, Problem::Uncut { from, to }));
        }
        Ok(())
    }
}

/// Each of a run to each of the run beside it.
fn crossed(from: &[Range<usize>], to: &[Range<usize>]) -> Vec<(usize, usize)> {
    let runs = from.iter().zip(to);
    runs.flat_map(|(from, to)| {
        let to = to.clone();
        from.clone()
            .flat_map(move |a| to.clone().map(move |b| (a, b)))
    })
    .collect()
}

/// Every node to the next one in each dimension; in a dimension of two, that is one link.
fn torus(start: usize, size: &[usize]) -> Vec<(usize, usize)> {
    let nodes: usize = size.iter().product();
    let mut pairs = Vec::new();
    let mut seen = HashSet::new();
    for node in 0..nodes {
        let mut stride = nodes;
        for &length in size {
            stride /= length;
            let place = node / stride % length;
            let next = node - place * stride + (place + 1) % length * stride;
            if next != node && seen.insert((node.min(next), node.max(next))) {
                pairs.push((start + node, start + next));
            }
        }
    }
    pairs
}

fn host_kind(entry: &Spanned<Hosts>) -> Result<HostKind, FabricError> {
    let hosts = &entry.value;
    let place = entry.referenced;
    for (what, value) in [
        ("gpus", hosts.gpus),
        ("nics", hosts.nics),
        ("numa", hosts.numa),
    ] {
        number(place, what, value, 1, MOST_PARTS)?;
    }
    let spread = |list: &'static str, given: Option<&Spanned<Vec<usize>>>, count: usize| {
        let Some(given) = given else {
            return Ok((0..count).map(|i| i * hosts.numa / count).collect());
        };
        if given.value.len() != count || given.value.iter().any(|&n| n >= hosts.numa) {
            let problem = Problem::Numa {
                list,
                found: given.value.len(),
                expected: count,
                numa: hosts.numa,
            };
            return Err(at(given.referenced, problem));
        }
        Ok(given.value.clone())
    };
    Ok(HostKind {
        gpus: hosts.gpus,
        nics: hosts.nics,
        numa: hosts.numa,
        gpu_numa: spread("gpu_numa", hosts.gpu_numa.as_ref(), hosts.gpus)?,
        nic_numa: spread("nic_numa", hosts.nic_numa.as_ref(), hosts.nics)?,
        forwards: hosts.forwards,
        overhead: hosts.overhead.0,
        reduce: hosts.reduce.0,
        local: Local {
            rate: hosts.local.rate.0,
            latency: hosts.local.latency.0,
        },
    })
}

/// Links that end nowhere they could be plugged in. Hosts may have fewer than their NICs, after a cut.
fn check_ports(fabric: &Fabric, places: &[Location]) -> Result<(), FabricError> {
    for (group, place) in fabric.groups().iter().zip(places) {
        for node in group.nodes.clone().map(NodeId) {
            let (name, links) = (fabric.node_name(node), fabric.links_of(node).len());
            let problem = match &group.role {
                Role::Host(kind) if !kind.forwards && links > kind.nics => Problem::Nics {
                    host: name,
                    nics: kind.nics,
                    links,
                },
                Role::Switch {
                    ports: Some(ports), ..
                } if links > *ports => Problem::Ports {
                    switch: name,
                    ports: *ports,
                    links,
                },
                _ => continue,
            };
            return Err(at(*place, problem));
        }
    }
    Ok(())
}

fn number(
    place: Location,
    what: &str,
    found: usize,
    least: usize,
    most: usize,
) -> Result<(), FabricError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let what = what.to_owned();
    let problem = Problem::Number {
        what,
        found,
        least,
        most,
    };
    Err(at(place, problem))
}

fn at(place: Location, problem: Problem) -> FabricError {
    FabricError {
        line: place.line(),
        column: place.column(),
        problem,
    }
}
