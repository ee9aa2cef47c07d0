//! Where a fault lies, by which of the ways between hosts have it.
//!
//! A port whose ways to all others are bad is bad itself, or its cable, or the switch's port. A way that is bad between two
//! ports that are well with others is bad in between. One pair alone does not tell.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fleet, Path, Port, Way};

/// A direction of a path, with its ends.
pub(super) struct Directed<'a> {
    pub(super) from: End<'a>,
    pub(super) to: End<'a>,
    pub(super) way: &'a Way,
    /// Whether it is [`Path::there`].
    pub(super) there: bool,
    pub(super) path: &'a Path,
}

impl<'a> Directed<'a> {
    /// The port that sends, or the one that receives.
    fn end(&self, sends: bool) -> (usize, &'a str) {
        if sends {
            self.from.key()
        } else {
            self.to.key()
        }
    }
}

/// A network interface of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    /// The host's place in the fleet.
    pub(super) host: usize,
    pub(super) port: &'a Port,
}

impl<'a> End<'a> {
    /// What tells it from others.
    pub(super) fn key(&self) -> (usize, &'a str) {
        (self.host, &self.port.interface)
    }
}

/// Who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    /// A port: all it sends, or all it receives, or both.
    Port { sends: bool, receives: bool },
    /// What is between two ports that are well with others.
    Between,
    /// One of two ports, or what is between: they have no others to compare with.
    Either,
    /// All ways of the fleet are alike.
    All,
}

/// A culprit and the bad ways that it explains, by their places.
pub(super) struct Blame {
    pub(super) culprit: Culprit,
    pub(super) ways: Vec<usize>,
}

/// All directions of all paths.
pub(super) fn directions(fleet: &Fleet) -> Vec<Directed<'_>> {
    let paths = fleet
        .pairs
        .iter()
        .flat_map(|pair| pair.paths.iter().map(move |path| (pair, path)));
    paths
        .flat_map(|(pair, path)| {
            let a = End {
                host: pair.a,
                port: &path.at_a,
            };
            let b = End {
                host: pair.b,
                port: &path.at_b,
            };
            [
                Directed {
                    from: a,
                    to: b,
                    way: &path.there,
                    there: true,
                    path,
                },
                Directed {
                    from: b,
                    to: a,
                    way: &path.back,
                    there: false,
                    path,
                },
            ]
        })
        .collect()
}

/// Who explains the bad ways. `bad` says how bad a way is, 0 being well; none if it was not measured.
///
/// What explains most goes first, and what it explains counts against nobody else.
pub(super) fn blame(
    ways: &[Directed<'_>],
    bad: &dyn Fn(&Directed<'_>) -> Option<f64>,
) -> Vec<Blame> {
    let measured = ways.iter().enumerate();
    let mut open: BTreeMap<usize, f64> = measured
        .filter_map(|(i, way)| Some((i, bad(way)?)))
        .collect();
    let well: Vec<usize> = open
        .iter()
        .filter(|(_, bad)| **bad == 0.0)
        .map(|(i, _)| *i)
        .collect();
    let hosts: BTreeSet<usize> = ways
        .iter()
        .flat_map(|way| [way.from.host, way.to.host])
        .collect();
    if well.is_empty() && !open.is_empty() && hosts.len() > 2 {
        return vec![Blame {
            culprit: Culprit::All,
            ways: open.into_keys().collect(),
        }];
    }
    let mut blames: Vec<Blame> = Vec::new();
    while let Some((sends, own)) = worst_port(ways, &open) {
        open.retain(|i, _| !own.contains(i));
        let port = ways[own[0]].end(sends);
        let known = blames
            .iter_mut()
            .find(|it| it.port(ways).is_some_and(|end| end.key() == port));
        match known {
            Some(known) => {
                known.culprit = Culprit::Port {
                    sends: true,
                    receives: true,
                };
                // What it sends comes first: by that it is found.
                let at = if sends { 0 } else { known.ways.len() };
                known.ways.splice(at..at, own);
            }
            None => blames.push(Blame {
                culprit: Culprit::Port {
                    sends,
                    receives: !sends,
                },
                ways: own,
            }),
        }
    }
    let mut rest: Vec<usize> = open
        .iter()
        .filter(|(_, bad)| **bad > 0.0)
        .map(|(i, _)| *i)
        .collect();
    while let Some(&first) = rest.first() {
        // Both directions of a path are one matter.
        let same = |i: &usize| std::ptr::eq(ways[*i].path, ways[first].path);
        let (own, others): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(same);
        rest = others;
        let ends_well = |i: usize| {
            let end_well = |sends| {
                well.iter()
                    .any(|&j| ways[j].end(sends) == ways[i].end(sends))
            };
            end_well(true) && end_well(false)
        };
        let culprit = match own.iter().all(|&i| ends_well(i)) {
            true => Culprit::Between,
            false => Culprit::Either,
        };
        blames.push(Blame { culprit, ways: own });
    }
    blames
}

/// The port and direction whose ways to several hosts are all bad, and in sum the worst: whether it sends, and the ways.
fn worst_port(ways: &[Directed<'_>], open: &BTreeMap<usize, f64>) -> Option<(bool, Vec<usize>)> {
    let ports: BTreeSet<_> = ways
        .iter()
        .flat_map(|way| [way.from.key(), way.to.key()])
        .collect();
    let directions = ports
        .iter()
        .flat_map(|port| [true, false].map(|sends| (port, sends)));
    let guilty = directions.filter_map(|(port, sends)| {
        let own: Vec<usize> = open
            .keys()
            .copied()
            .filter(|i| ways[*i].end(sends) == *port)
            .collect();
        let partners: BTreeSet<usize> = own.iter().map(|i| ways[*i].end(!sends).0).collect();
        let all = own.iter().all(|i| open[i] > 0.0);
        (all && partners.len() > 1).then(|| (own.iter().map(|i| open[i]).sum::<f64>(), sends, own))
    });
    let worst = guilty.max_by(|(a, ..), (b, ..)| a.total_cmp(b));
    worst.map(|(_, sends, own)| (sends, own))
}

impl Blame {
    /// The port that is to blame, if it is one.
    pub(super) fn port<'a>(&self, ways: &[Directed<'a>]) -> Option<End<'a>> {
        let first = &ways[*self.ways.first()?];
        match self.culprit {
            Culprit::Port { sends: true, .. } => Some(first.from),
            Culprit::Port { .. } => Some(first.to),
            _ => None,
        }
    }
}
