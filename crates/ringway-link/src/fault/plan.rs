//! What goes wrong, when: read from a line of text that fits into an environment variable.

use std::{str::FromStr, time::Duration};

use ringway_plan::Rank;

/// A list of faults. Its text form is rules separated by `;`, each `KIND=VALUE` and options after commas:
///
/// | rule | effect |
/// |---|---|
/// | `delay=2ms` | messages wait so long before they are sent, and before they are shown |
/// | `reorder=8` | of 8 events, or those of 1 ms, a random one comes first |
/// | `split=1` | a poll shows so many events at most |
/// | `cut=peer3@op5` | the connection to rank 3 is lost at operation 5 |
/// | `stall=peer1@step7` | nothing moves to or from rank 1 after 7 messages, and nobody says so |
/// | `truncate=peer2@op4.step1` | the second message to rank 2 in operation 4 is sent at half its length |
/// | `seed=7` | another course of chance |
///
/// A place is `opN` (that operation of any group, or a later one), `stepN` (after N messages with that peer), or
/// both; without one the fault is there from the beginning. Options: `p=0.1` (that share of the messages; `delay`
/// only), `peer=N` (messages with that rank only; `delay` only), `rank=N` (on rank N only, where all ranks
/// read the same text).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub(super) seed: u64,
    pub(super) rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    /// The only rank that has the fault.
    pub(super) rank: Option<Rank>,
    pub(super) fault: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Cut {
        peer: Rank,
        at: Point,
    },
    Delay {
        time: Duration,
        share: f64,
        peer: Option<Rank>,
    },
    Reorder {
        events: usize,
    },
    Split {
        events: usize,
    },
    Stall {
        peer: Rank,
        at: Point,
    },
    Truncate {
        peer: Rank,
        at: Point,
    },
}

/// When a fault begins: at an operation, after so many messages with the peer (in that operation), or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) op: Option<u32>,
    pub(super) step: u64,
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault rule '{rule}': expected {expected}, found '{found}'")]
pub struct BadFaultPlan {
    /// The rule.
    pub rule: String,
    /// What may stand there.
    pub expected: &'static str,
    /// What stands there.
    pub found: String,
}

impl FromStr for FaultPlan {
    type Err = BadFaultPlan;

    fn from_str(s: &str) -> Result<Self, BadFaultPlan> {
        let mut plan = Self::default();
        for rule in s.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let bad = |expected, found: &str| {
                let (rule, found) = (rule.to_owned(), found.to_owned());
                BadFaultPlan {
                    rule,
                    expected,
                    found,
                }
            };
            let mut parts = rule.split(',').map(str::trim);
            let first = parts.next().unwrap_or_default();
            let (kind, value) = first
                .split_once('=')
                .ok_or_else(|| bad("KIND=VALUE", first))?;
            if kind == "seed" {
                plan.seed = value.parse().map_err(|_| bad("a number", value))?;
                continue;
            }
            let count = || match value.parse() {
                Ok(0) | Err(_) => Err(bad("a number above 0", value)),
                Ok(count) => Ok(count),
            };
            let place = || {
                place(value)
                    .ok_or_else(|| bad("peerN, peerN@opN, peerN@stepN or peerN@opN.stepN", value))
            };
            let mut fault = match kind {
                "cut" => place().map(|(peer, at)| Kind::Cut { peer, at })?,
                "delay" => {
                    let time = duration(value)
                        .ok_or_else(|| bad("a time such as 200us, 2ms or 1s", value))?;
                    Kind::Delay {
                        time,
                        share: 1.0,
                        peer: None,
                    }
                }
                "reorder" => Kind::Reorder { events: count()? },
                "split" => Kind::Split { events: count()? },
                "stall" => place().map(|(peer, at)| Kind::Stall { peer, at })?,
                "truncate" => place().map(|(peer, at)| Kind::Truncate { peer, at })?,
                other => {
                    return Err(bad(
                        "cut, delay, reorder, seed, split, stall or truncate",
                        other,
                    ));
                }
            };
            let mut only = None;
            for option in parts {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                match (name, &mut fault) {
                    ("rank", _) => {
                        only = Some(value.parse().map_err(|_| bad("rank=N", option))?);
                    }
                    ("p", Kind::Delay { share, .. }) => match value.parse() {
                        Ok(p) if (0.0..=1.0).contains(&p) => *share = p,
                        _ => return Err(bad("p=SHARE from 0 to 1", option)),
                    },
                    ("peer", Kind::Delay { peer, .. }) => {
                        *peer = Some(value.parse().map_err(|_| bad("peer=N", option))?);
                    }
                    (_, Kind::Delay { .. }) => {
                        return Err(bad("p=SHARE, peer=N or rank=N", option));
                    }
                    _ => return Err(bad("rank=N", option)),
                }
            }
            plan.rules.push(Rule { rank: only, fault });
        }
        Ok(plan)
    }
}

fn place(text: &str) -> Option<(Rank, Point)> {
    let (peer, at) = match text.split_once('@') {
        Some((peer, at)) => (peer, Some(at)),
        None => (text, None),
    };
    let peer = peer.strip_prefix("peer")?.parse().ok()?;
    let Some(at) = at else {
        return Some((peer, Point::default()));
    };
    let (op, step) = match at.split_once('.') {
        Some((op, step)) => (Some(op), Some(step)),
        None if at.starts_with("op") => (Some(at), None),
        None => (None, Some(at)),
    };
    let op = op.map(|op| op.strip_prefix("op")?.parse().ok());
    let step = step.map(|step| step.strip_prefix("step")?.parse().ok());
    // Inside is `None` what could not be read.
    match (op, step) {
        (Some(None), _) | (_, Some(None)) => None,
        (op, step) => Some((
            peer,
            Point {
                op: op.flatten(),
                step: step.flatten().unwrap_or(0),
            },
        )),
    }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let plan: FaultPlan =
            "delay=2ms,p=0.1;cut=peer3@op5; stall=peer1@step7,rank=0;truncate=peer2@op4.step1;seed=9"
                .parse()
                .unwrap();
        assert_eq!(plan.seed, 9);
        let kinds: Vec<&Kind> = plan.rules.iter().map(|r| &r.fault).collect();
        let op = |op, step| Point { op, step };
        assert_eq!(
            kinds,
            [
                &Kind::Delay {
                    time: Duration::from_millis(2),
                    share: 0.1,
                    peer: None
                },
                &Kind::Cut {
                    peer: 3,
                    at: op(Some(5), 0)
                },
                &Kind::Stall {
                    peer: 1,
                    at: op(None, 7)
                },
                &Kind::Truncate {
                    peer: 2,
                    at: op(Some(4), 1)
                },
            ]
        );
        assert_eq!(plan.rules[2].rank, Some(0));
        assert_eq!("".parse(), Ok(FaultPlan::default()));
    }

    #[test]
    fn bad_rules_are_named() {
        for (text, says) in [
            (
                "slow=2ms",
                "'slow=2ms': expected cut, delay, reorder, seed, split, stall or truncate, found 'slow'",
            ),
            ("delay", "expected KIND=VALUE, found 'delay'"),
            (
                "delay=2",
                "expected a time such as 200us, 2ms or 1s, found '2'",
            ),
            ("delay=1e999s", "expected a time"),
            (
                "delay=2ms,p=1.5",
                "expected p=SHARE from 0 to 1, found 'p=1.5'",
            ),
            (
                "delay=2ms,q=1",
                "expected p=SHARE, peer=N or rank=N, found 'q=1'",
            ),
            (
                "cut=3@op5",
                "expected peerN, peerN@opN, peerN@stepN or peerN@opN.stepN, found '3@op5'",
            ),
            ("cut=peer3@op5.7", "found 'peer3@op5.7'"),
            ("cut=peer3@opx", "found 'peer3@opx'"),
            ("cut=peer3,p=0.5", "expected rank=N, found 'p=0.5'"),
            ("split=0", "expected a number above 0, found '0'"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
