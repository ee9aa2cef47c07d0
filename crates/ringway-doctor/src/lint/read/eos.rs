//! Arista EOS: the code point map, QoS profiles, and interfaces that have a profile or settings of their own.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Captured, Grammar, Rule, code_points, command, nothing, opening},
    model::{DscpMap, Ecn, Pfc, Port, Queue, Switch, Timers, Trust, map, no_map},
    notes::{Names, Notes},
    source::{At, Place},
    statement::Statement,
};
use crate::{config::Target, intent::Action};

#[derive(Debug)]
struct Raw {
    map: DscpMap,
    twice: Vec<(u8, [At<u8>; 2])>,
    profiles: Names<Settings>,
    interfaces: BTreeMap<String, Interface>,
    timers: Timers,
    all_off: Option<Place>,
    open: Open,
    queue: u8,
}

#[derive(Clone, Debug)]
enum Open {
    Interface(At<String>),
    Profile(At<String>),
}

/// What both a profile and an interface may say.
#[derive(Clone, Debug, Default)]
struct Settings {
    trust: Option<At<Trust>>,
    pfc: Option<At<bool>>,
    lossless: BTreeMap<u8, At<u8>>,
    watchdog: Option<Place>,
    queues: BTreeMap<u8, Queue>,
    /// Further numbers, by what they are.
    others: BTreeMap<String, At<u32>>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    mtu: Option<At<u32>>,
    routed: bool,
    profile: Option<At<String>>,
    pause: Option<At<bool>>,
    own: Settings,
}

impl Raw {
    fn settings(&mut self) -> &mut Settings {
        match self.open.clone() {
            Open::Profile(name) => self.profiles.define(&name),
            Open::Interface(_) => &mut self.interface().own,
        }
    }

    fn interface(&mut self) -> &mut Interface {
        let (Open::Interface(At { value, place }) | Open::Profile(At { value, place })) =
            self.open.clone();
        self.interfaces.entry(value).or_insert_with(|| Interface {
            place,
            mtu: None,
            routed: false,
            profile: None,
            pause: None,
            own: Settings::default(),
        })
    }

    fn queue(&mut self) -> &mut Queue {
        let queue = self.queue;
        self.settings().queues.entry(queue).or_default()
    }
}

const INTERFACE: &str = "interface";
const BOTH: &str = "qos profile|interface";
const QUEUE: &str = "tx-queue";

/// Milliseconds of seconds with decimals.
fn milliseconds(c: &Captured<'_>, index: usize) -> Option<At<u32>> {
    let seconds: f64 = c.word(index).parse().ok()?;
    // A number that is out of all bounds becomes the bound, and is then out of range.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates"
    )]
    let value = (seconds * 1000.0).round() as u32;
    Some(c.at(value))
}

static RULES: &[Rule<Raw>] = &[
    command(
        "",
        "qos map dscp <dscp> to traffic-class <0-7>",
        |raw, c| {
            if let Some(group) = c.number(1) {
                for dscp in code_points(c.word(0)).unwrap_or_default() {
                    map(&mut raw.map, dscp, group, &mut raw.twice);
                }
            }
        },
    ),
    command("", "qos map dscp <rest>", |raw, c| {
        // Several code points, with spaces between.
        if let [dscp @ .., to, kind, group] = c.rest()
            && (to.as_str(), kind.as_str()) == ("to", "traffic-class")
            && let Ok(group) = group.parse()
        {
            for dscp in dscp.iter().filter_map(|word| code_points(word)).flatten() {
                map(&mut raw.map, dscp, c.at(group), &mut raw.twice);
            }
        }
    }),
    command("", "qos map cos|exp|traffic-class <rest>", nothing),
    command("", "qos rewrite dscp|cos", nothing),
    command("", "qos random-detect ecn <rest>", nothing),
    command("", "priority-flow-control all off", |raw, c| {
        raw.all_off = Some(c.place)
    }),
    command(
        "",
        "priority-flow-control pause watchdog default timeout <seconds>",
        |raw, c| {
            raw.timers.detect = milliseconds(c, 0);
        },
    ),
    command(
        "",
        "priority-flow-control pause watchdog default recovery-time <seconds>",
        |raw, c| {
            raw.timers.restore = milliseconds(c, 0);
        },
    ),
    command(
        "",
        "priority-flow-control pause watchdog default polling-interval <seconds>",
        |raw, c| {
            raw.timers.poll = milliseconds(c, 0);
        },
    ),
    command(
        "",
        "priority-flow-control pause watchdog action drop|no-drop|notify-only",
        |raw, c| {
            raw.timers.action = Some(c.at(match c.word(0) {
                "drop" => Action::Drop,
                _ => Action::Forward,
            }));
        },
    ),
    command(
        "",
        "priority-flow-control pause watchdog override <rest>",
        nothing,
    ),
    opening("", "qos profile <name>", "qos profile", |raw, c| {
        raw.open = Open::Profile(c.name(0));
        raw.settings();
    }),
    opening("", "interface <name>", INTERFACE, |raw, c| {
        raw.open = Open::Interface(c.name(0));
        raw.interface();
    }),
    command(INTERFACE, "mtu <68-10178>", |raw, c| {
        raw.interface().mtu = c.number(0)
    }),
    command(INTERFACE, "no switchport", |raw, _| {
        raw.interface().routed = true
    }),
    command(INTERFACE, "service-profile <name>", |raw, c| {
        raw.profiles.uses(&c.name(0));
        raw.interface().profile = Some(c.name(0));
    }),
    command(
        INTERFACE,
        "flowcontrol send|receive on|off|desired",
        |raw, c| {
            let paused = c.word(1) != "off";
            let interface = raw.interface();
            if paused || interface.pause.is_none() {
                interface.pause = Some(c.at(paused));
            }
        },
    ),
    command(BOTH, "qos trust dscp|cos", |raw, c| {
        raw.settings().trust = Some(c.at(match c.word(0) {
            "dscp" => Trust::Dscp,
            _ => Trust::Pcp,
        }));
    }),
    command(BOTH, "no qos trust", |raw, c| {
        raw.settings().trust = Some(c.at(Trust::Nothing))
    }),
    command(BOTH, "qos dscp|cos <rest>", nothing),
    command(BOTH, "qos random-detect ecn <rest>", nothing),
    command(BOTH, "priority-flow-control [mode] on|off", |raw, c| {
        raw.settings().pfc = Some(c.at(c.word(0) == "on"));
    }),
    command(
        BOTH,
        "priority-flow-control priority <0-7> no-drop|drop",
        |raw, c| {
            let Some(priority) = c.number::<u8>(0) else {
                return;
            };
            match c.word(1) {
                "no-drop" => raw.settings().lossless.insert(priority.value, priority),
                _ => raw.settings().lossless.remove(&priority.value),
            };
        },
    ),
    command(BOTH, "priority-flow-control pause watchdog", |raw, c| {
        raw.settings().watchdog = Some(c.place);
    }),
    command(
        BOTH,
        "priority-flow-control pause watchdog <rest>",
        |raw, c| {
            raw.settings().watchdog = Some(c.place);
        },
    ),
    command(BOTH, "shape rate <rest>", nothing),
    opening(
        BOTH,
        "uc-tx-queue|tx-queue|mc-tx-queue <0-7>",
        QUEUE,
        |raw, c| {
            raw.queue = c.number(1).map_or(0, |queue| queue.value);
            raw.queue();
        },
    ),
    command(QUEUE, "no priority", |raw, c| {
        raw.queue().strict = Some(c.at(false))
    }),
    command(QUEUE, "priority strict", |raw, c| {
        raw.queue().strict = Some(c.at(true))
    }),
    command(QUEUE, "bandwidth percent <1-100>", |raw, c| {
        raw.queue().bandwidth = c.number(0)
    }),
    command(QUEUE, "bandwidth guaranteed <0-4294967295>", |raw, c| {
        let name = format!("guaranteed bandwidth of queue {}", raw.queue);
        if let Some(bandwidth) = c.number(0) {
            raw.settings().others.insert(name, bandwidth);
        }
    }),
    command(QUEUE, "bandwidth guaranteed <rest>", nothing),
    command(QUEUE, "shape rate <rest>", nothing),
    command(
        QUEUE,
        "random-detect ecn minimum-threshold <0-4294967295> bytes|kbytes|mbytes|segments|milliseconds|microseconds \
         maximum-threshold <0-4294967295> bytes|kbytes|mbytes|segments|milliseconds|microseconds \
         [max-mark-probability <1-100>] [weight <0-15>]",
        |raw, c| {
            if let (Some(min), Some(max)) = (c.bytes(0, 1), c.bytes(2, 3)) {
                raw.queue().ecn = Some(Ecn {
                    min,
                    max,
                    probability: c.number(4),
                    marks: c.at(true),
                });
            }
        },
    ),
    command(QUEUE, "random-detect ecn count", |raw, c| {
        let name = format!("marks of queue {} counted", raw.queue);
        raw.settings().others.insert(name, c.at(1));
    }),
    command(
        QUEUE,
        "random-detect drop minimum-threshold <0-4294967295> bytes|kbytes|mbytes|segments|milliseconds|microseconds \
         maximum-threshold <rest>",
        |raw, c| raw.queue().drop = c.bytes(0, 1),
    ),
    command(QUEUE, "random-detect drop <rest>", nothing),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| {
    let territory = &[
        "priority-flow-control",
        "qos",
        "service-profile",
        "random-detect",
        "tx-queue",
        "uc-tx-queue",
        "mc-tx-queue",
        "bandwidth",
        "priority strict",
        "class-map type qos",
        "class-map type network-qos",
        "policy-map type queuing",
        "policy-map type network-qos",
        "service-policy type queuing",
        "flowcontrol",
        "traffic-class",
        "roce",
        "dcb",
    ];
    Grammar::new(RULES, territory)
});

/// Reads a configuration.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    let mut raw = Raw {
        map: no_map(),
        twice: Vec::new(),
        profiles: Names::new("qos profile"),
        interfaces: BTreeMap::new(),
        timers: Timers::default(),
        all_off: None,
        open: Open::Profile(At::new(String::new(), file)),
        queue: 0,
    };
    GRAMMAR.read(statements, file, &mut raw, notes);
    raw.profiles.check(&[], notes);
    notes.twice(&raw.twice);
    // What no line says: the low two classes are turned round.
    let default = |dscp: u8| match dscp {
        0..8 => 1,
        8..16 => 0,
        _ => dscp / 8,
    };
    let said = raw.map.iter().zip(0..);
    let map = said.map(|(said, dscp)| Some(said.unwrap_or(At::new(default(dscp), file))));
    let map = Rc::new(map.collect());
    let ports = raw
        .interfaces
        .iter()
        .filter_map(|(name, interface)| port(name, interface, &raw, &map))
        .collect();
    Switch {
        system: Target::Eos,
        place: file,
        ports,
        watchdog: raw.timers,
    }
}

/// A port, if it has anything to do with quality of service.
fn port(name: &str, interface: &Interface, raw: &Raw, map: &Rc<DscpMap>) -> Option<Port> {
    let own = &interface.own;
    let profile = interface
        .profile
        .as_ref()
        .and_then(|name| raw.profiles.get(&name.value));
    let nothing = Settings::default();
    let base = profile.unwrap_or(&nothing);
    let touched = own.trust.is_some()
        || own.pfc.is_some()
        || !own.lossless.is_empty()
        || !own.queues.is_empty();
    if interface.profile.is_none() && !touched {
        return None;
    }
    let mut port = Port::new(name, interface.place);
    port.mtu = interface.mtu;
    port.pause = interface.pause;
    let default = match interface.routed {
        true => Trust::Dscp,
        false => Trust::Pcp,
    };
    let trust = own.trust.or(base.trust);
    port.trust = Some(trust.unwrap_or(At::new(default, interface.place)));
    port.dscp = Rc::clone(map);
    let mut lossless = base.lossless.clone();
    lossless.extend(&own.lossless);
    let on = own.pfc.or(base.pfc);
    port.pfc = match (raw.all_off, on) {
        (Some(place), _) => Some(At::new(Pfc::Off, place)),
        (None, Some(on)) => Some(At::new(if on.value { Pfc::On } else { Pfc::Off }, on.place)),
        (None, None) => Some(At::new(Pfc::Off, interface.place)),
    };
    port.lossless = Rc::new(lossless);
    let mut queues = base.queues.clone();
    for (group, mine) in &own.queues {
        let queue = queues.entry(*group).or_default();
        queue.strict = mine.strict.or(queue.strict);
        queue.bandwidth = mine.bandwidth.or(queue.bandwidth);
        queue.ecn = mine.ecn.or(queue.ecn);
        queue.drop = mine.drop.or(queue.drop);
    }
    port.queues = Rc::new(queues);
    port.watched = own
        .watchdog
        .or(base.watchdog)
        .map(|place| At::new(None, place));
    port.others = base.others.clone();
    port.others.extend(own.others.clone());
    Some(port)
}
