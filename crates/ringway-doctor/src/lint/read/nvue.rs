//! NVIDIA Cumulus Linux 5: `nv set` commands, or the YAML that `nv config show` prints, which says the same in a tree.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Captured, Grammar, Rule, code_points, command, nothing, numbers},
    model::{DscpMap, Ecn, Pfc, Port, Queue, Switch, Timers, Trust, map, no_map},
    notes::Notes,
    source::{At, Place},
    statement::Statement,
};
use crate::config::Target;

#[derive(Debug)]
struct Raw {
    /// The preset `qos roce`: where it is named, and whether it is on and lossless.
    roce: Option<Place>,
    enabled: bool,
    lossy: bool,
    trust: Option<At<Trust>>,
    /// Code points to switch priorities, and switch priorities to traffic classes.
    priorities: DscpMap,
    twice: Vec<(u8, [At<u8>; 2])>,
    classes: BTreeMap<u8, At<u8>>,
    queues: BTreeMap<u8, Marked>,
    lossless: BTreeMap<u8, Place>,
    cable: Option<At<u32>>,
    poll: Option<At<u32>>,
    robustness: Option<At<u32>>,
    ports: BTreeMap<String, Interface>,
}

#[derive(Debug, Default)]
struct Marked {
    strict: Option<At<bool>>,
    bandwidth: Option<At<u32>>,
    marks: Option<At<bool>>,
    min: Option<At<u64>>,
    max: Option<At<u64>>,
    probability: Option<At<u32>>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    mtu: Option<At<u32>>,
    watchdog: Option<At<bool>>,
    pause: Option<At<bool>>,
}

impl Raw {
    /// The interfaces that a word such as `swp1-4,swp9` names.
    fn each(&mut self, c: &Captured<'_>, mut say: impl FnMut(&mut Interface)) {
        for name in interfaces(c.word(0)) {
            say(self.ports.entry(name).or_insert(Interface {
                place: c.place,
                mtu: None,
                watchdog: None,
                pause: None,
            }));
        }
    }

    fn each_class(&mut self, c: &Captured<'_>, mut say: impl FnMut(&mut Marked)) {
        for class in numbers(c.word(0)).unwrap_or_default() {
            say(self.queues.entry(class).or_default());
        }
    }
}

/// `swp1-4` are four. What is no such list is one interface of that name.
fn interfaces(text: &str) -> Vec<String> {
    const MOST: u32 = 1024;
    let mut names = Vec::new();
    for part in text.split(',').take(MOST as usize) {
        let bounds = part.split_once('-').and_then(|(first, last)| {
            let digits = first.trim_start_matches(|c: char| !c.is_ascii_digit());
            let (first_number, last) = (digits.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            let base = first.strip_suffix(digits)?;
            (last < MOST && first_number <= last).then_some((base, first_number, last))
        });
        match bounds {
            Some(_) if names.len() > MOST as usize => {}
            Some((base, first, last)) => names.extend((first..=last).map(|n| format!("{base}{n}"))),
            None => names.push(part.to_owned()),
        }
    }
    names
}

fn on(c: &Captured<'_>, index: usize) -> At<bool> {
    c.at(matches!(
        c.word(index),
        "enable" | "enabled" | "on" | "true"
    ))
}

static RULES: &[Rule<Raw>] = &[
    command("", "qos roce", |raw, c| raw.roce = Some(c.place)),
    // In YAML `on` and `off` are booleans.
    command("", "qos roce enable|state on|enabled|true", |raw, c| {
        raw.roce = Some(c.place);
        raw.enabled = true;
    }),
    command("", "qos roce enable|state off|disabled|false", |raw, _| {
        raw.enabled = false;
    }),
    command(
        "",
        "qos roce mode lossless|lossless-single-ipool",
        |raw, c| {
            raw.roce = Some(c.place);
            raw.lossy = false;
        },
    ),
    command(
        "",
        "qos roce mode lossy|lossy-multi-tc|dci-1|dci-custom",
        |raw, _| raw.lossy = true,
    ),
    command("", "qos roce cable-length <0-100000>", nothing),
    command(
        "",
        "qos mapping default-global trust l2|l3|both|port",
        |raw, c| {
            raw.trust = Some(c.at(match c.word(0) {
                "l3" | "both" => Trust::Dscp,
                "l2" => Trust::Pcp,
                _ => Trust::Nothing,
            }));
        },
    ),
    command(
        "",
        "qos mapping default-global dscp <dscp> switch-priority <0-7>",
        |raw, c| {
            if let Some(priority) = c.number(1) {
                for dscp in code_points(c.word(0)).unwrap_or_default() {
                    map(&mut raw.priorities, dscp, priority, &mut raw.twice);
                }
            }
        },
    ),
    command("", "qos mapping <name> <rest>", nothing),
    command("", "qos remark <rest>", nothing),
    command(
        "",
        "qos egress-queue-mapping default-global switch-priority <list> traffic-class <0-7>",
        |raw, c| {
            if let Some(class) = c.number(1) {
                for priority in numbers(c.word(0)).unwrap_or_default() {
                    raw.classes.insert(priority, class);
                }
            }
        },
    ),
    command(
        "",
        "qos egress-scheduler default-global traffic-class <list> mode strict|dwrr",
        |raw, c| {
            raw.each_class(c, |queue| queue.strict = Some(c.at(c.word(1) == "strict")));
        },
    ),
    command(
        "",
        "qos egress-scheduler default-global traffic-class <list> bw-percent <0-100>",
        |raw, c| {
            raw.each_class(c, |queue| queue.bandwidth = c.number(1));
        },
    ),
    command(
        "",
        "qos congestion-control default-global traffic-class <list> ecn enable|disable",
        |raw, c| {
            raw.each_class(c, |queue| queue.marks = Some(on(c, 1)));
        },
    ),
    command(
        "",
        "qos congestion-control default-global traffic-class <list> red enable|disable",
        nothing,
    ),
    command(
        "",
        "qos congestion-control default-global traffic-class <list> min-threshold <0-4294967295>",
        |raw, c| raw.each_class(c, |queue| queue.min = c.number(1)),
    ),
    command(
        "",
        "qos congestion-control default-global traffic-class <list> max-threshold <0-4294967295>",
        |raw, c| raw.each_class(c, |queue| queue.max = c.number(1)),
    ),
    command(
        "",
        "qos congestion-control default-global traffic-class <list> probability <1-100>",
        |raw, c| {
            raw.each_class(c, |queue| queue.probability = c.number(1));
        },
    ),
    command(
        "",
        "qos pfc default-global switch-priority <list>",
        |raw, c| {
            for priority in numbers(c.word(0)).unwrap_or_default() {
                raw.lossless.insert(priority, c.place);
            }
        },
    ),
    command(
        "",
        "qos pfc default-global cable-length <0-100000>",
        |raw, c| raw.cable = c.number(0),
    ),
    command("", "qos pfc default-global rx|tx enable|disable", nothing),
    command(
        "",
        "qos pfc default-global port-buffer|xoff-threshold|xon-threshold <0-4294967295>",
        nothing,
    ),
    command(
        "",
        "qos pfc-watchdog polling-interval <100-5000>",
        |raw, c| raw.poll = c.number(0),
    ),
    command("", "qos pfc-watchdog robustness <1-1000>", |raw, c| {
        raw.robustness = c.number(0)
    }),
    command(
        "",
        "qos traffic-pool|advance-buffer-config|buffer-monitoring|link-pause <rest>",
        nothing,
    ),
    command("", "interface <name> link mtu <552-9216>", |raw, c| {
        raw.each(c, |port| port.mtu = c.number(1));
    }),
    command(
        "",
        "interface <name> qos pfc-watchdog state enable|disable",
        |raw, c| {
            raw.each(c, |port| port.watchdog = Some(on(c, 1)));
        },
    ),
    command("", "interface <name> qos link-pause <rest>", |raw, c| {
        raw.each(c, |port| port.pause = Some(c.at(true)));
    }),
    command("", "interface <name> <rest>", nothing),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| Grammar::new(RULES, &["qos"]));

/// Reads a configuration; `nv set` is left out of its statements.
pub(in super::super) fn read(
    mut statements: Vec<Statement>,
    file: Place,
    notes: &mut Notes,
) -> Switch {
    statements.retain(|statement| {
        // A profile of the user's own, bound to ports one by one.
        let own = match statement.words.as_slice() {
            [qos, table, profile, _, ..]
                if qos == "qos" && table != "roce" && table != "pfc-watchdog" =>
            {
                profile != "default-global"
                    && !table.ends_with("pool")
                    && !table.starts_with("advance")
            }
            _ => false,
        };
        if own {
            let reason = "profiles other than default-global are not looked into";
            notes.cannot(
                "nvue.profile",
                statement.words.get(2).map_or("", String::as_str),
                reason,
            );
        }
        !own
    });
    let mut raw = Raw {
        roce: None,
        enabled: true,
        lossy: false,
        trust: None,
        priorities: no_map(),
        twice: Vec::new(),
        classes: BTreeMap::new(),
        queues: BTreeMap::new(),
        lossless: BTreeMap::new(),
        cable: None,
        poll: None,
        robustness: None,
        ports: BTreeMap::new(),
    };
    GRAMMAR.read(&statements, file, &mut raw, notes);
    notes.twice(&raw.twice);
    if let (Some(place), true, false) = (raw.roce, raw.enabled, raw.lossy) {
        by_roce(&mut raw, place);
    }
    finish(raw, file)
}

/// What `qos roce mode lossless` sets, where nothing else is said.
fn by_roce(raw: &mut Raw, place: Place) {
    // It holds for all ports; where none is named, for those that the switch has.
    if !raw.ports.keys().any(|name| name.starts_with("swp")) {
        let all = Interface {
            place,
            mtu: None,
            watchdog: None,
            pause: None,
        };
        raw.ports.insert("swp*".to_owned(), all);
    }
    raw.trust.get_or_insert(At::new(Trust::Dscp, place));
    raw.lossless.entry(3).or_insert(place);
    for priority in 0..8 {
        let class = if [3, 6].contains(&priority) {
            priority
        } else {
            0
        };
        raw.classes.entry(priority).or_insert(At::new(class, place));
    }
    for class in [0, 3] {
        let queue = raw.queues.entry(class).or_default();
        queue.strict.get_or_insert(At::new(false, place));
        queue.bandwidth.get_or_insert(At::new(50, place));
        queue.marks.get_or_insert(At::new(true, place));
        queue.min.get_or_insert(At::new(150_000, place));
        queue.max.get_or_insert(At::new(1_500_000, place));
        queue.probability.get_or_insert(At::new(100, place));
    }
    raw.queues
        .entry(6)
        .or_default()
        .strict
        .get_or_insert(At::new(true, place));
}

fn finish(raw: Raw, file: Place) -> Switch {
    // Without a mapping a switch priority is its traffic class, and a code point divided by eight its priority.
    let class = |priority: At<u8>| match raw.classes.get(&priority.value) {
        Some(class) if class.value != priority.value => *class,
        _ => priority,
    };
    let default = raw.trust.map_or(file, |trust| trust.place);
    let map: DscpMap = (0..64u8)
        .zip(&raw.priorities)
        .map(|(dscp, said)| Some(class(said.unwrap_or(At::new(dscp / 8, default)))))
        .collect();
    let map = Rc::new(map);
    let lossless: BTreeMap<u8, At<u8>> = raw
        .lossless
        .iter()
        .map(|(priority, place)| {
            let at = At::new(*priority, *place);
            (class(at).value, at)
        })
        .collect();
    let lossless = Rc::new(lossless);
    let queues: BTreeMap<u8, Queue> = raw
        .queues
        .iter()
        .map(|(class, queue)| (*class, queue.finish()))
        .collect();
    let queues = Rc::new(queues);
    let mut others = BTreeMap::new();
    for (priority, class) in &raw.classes {
        let value = At::new(u32::from(class.value), class.place);
        others.insert(
            format!("traffic class of switch priority {priority}"),
            value,
        );
    }
    let ports = raw
        .ports
        .into_iter()
        .filter(|(name, _)| name.starts_with("swp"))
        .map(|(name, interface)| {
            let mut port = Port::new(&name, interface.place);
            port.mtu = interface.mtu;
            port.trust = Some(raw.trust.unwrap_or(At::new(Trust::Pcp, file)));
            port.dscp = Rc::clone(&map);
            let on = lossless
                .values()
                .next()
                .map(|priority| At::new(Pfc::On, priority.place));
            port.pfc = Some(on.unwrap_or(At::new(Pfc::Off, interface.place)));
            port.lossless = Rc::clone(&lossless);
            port.queues = Rc::clone(&queues);
            port.cable = raw.cable;
            port.pause = interface.pause;
            port.watched = interface
                .watchdog
                .filter(|watchdog| watchdog.value)
                .map(|watchdog| At::new(None, watchdog.place));
            port.others = others.clone();
            port
        })
        .collect();
    // Detection takes as many polls as the robustness says; what is not set is 100 ms and 3.
    let detect = raw.robustness.or(raw.poll).map(|said| {
        let polls = raw.robustness.map_or(3, |polls| polls.value);
        At::new(
            raw.poll
                .map_or(100, |poll| poll.value)
                .saturating_mul(polls),
            said.place,
        )
    });
    Switch {
        system: Target::Nvue,
        place: file,
        ports,
        watchdog: Timers {
            poll: raw.poll,
            detect,
            ..Timers::default()
        },
    }
}

impl Marked {
    fn finish(&self) -> Queue {
        let ecn = match (self.min, self.max) {
            (Some(min), Some(max)) => Some(Ecn {
                min,
                max,
                probability: self.probability,
                marks: self.marks.unwrap_or(At::new(false, min.place)),
            }),
            _ => None,
        };
        Queue {
            strict: self.strict,
            bandwidth: self.bandwidth,
            ecn,
            drop: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_interfaces() {
        assert_eq!(interfaces("swp1-3,swp9"), ["swp1", "swp2", "swp3", "swp9"]);
        assert_eq!(interfaces("swp1s0-1"), ["swp1s0-1"]);
        assert_eq!(interfaces("bond-a"), ["bond-a"]);
    }
}
