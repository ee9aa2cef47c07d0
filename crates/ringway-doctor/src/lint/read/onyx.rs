//! NVIDIA Onyx: lines that each name their interface, or its mode.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Grammar, Rule, command, nothing, opening},
    model::{DscpMap, Ecn, Pfc, Port, Queue, Switch, Timers, Trust},
    notes::Notes,
    source::{At, Place},
    statement::Statement,
};
use crate::config::Target;

#[derive(Debug)]
struct Raw {
    pfc: Option<At<bool>>,
    lossless: BTreeMap<u8, At<u8>>,
    roce: Option<Place>,
    interfaces: BTreeMap<String, Interface>,
    /// The interfaces that are open.
    open: Vec<String>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    mtu: Option<At<u32>>,
    trust: Option<At<Trust>>,
    pfc: Option<At<bool>>,
    queues: BTreeMap<u8, Queue>,
    watchdog: Option<Place>,
    pause: Option<At<bool>>,
}

impl Interface {
    const fn new(place: Place) -> Self {
        Self {
            place,
            mtu: None,
            trust: None,
            pfc: None,
            queues: BTreeMap::new(),
            watchdog: None,
            pause: None,
        }
    }
}

impl Raw {
    fn each(&mut self, mut say: impl FnMut(&mut Interface)) {
        for name in &self.open {
            if let Some(interface) = self.interfaces.get_mut(name) {
                say(interface);
            }
        }
    }
}

const INTERFACE: &str = "interface ethernet";

static RULES: &[Rule<Raw>] = &[
    command("", "roce [lossless]", |raw, c| raw.roce = Some(c.place)),
    command("", "roce semi-lossless|lossy", |raw, _| raw.roce = None),
    command("", "no roce", |raw, _| raw.roce = None),
    command("", "dcb priority-flow-control enable [force]", |raw, c| {
        raw.pfc = Some(c.at(true))
    }),
    command(
        "",
        "dcb priority-flow-control priority <0-7> enable|disable",
        |raw, c| {
            if let Some(priority) = c.number::<u8>(0) {
                match c.word(1) {
                    "enable" => raw.lossless.insert(priority.value, priority),
                    _ => raw.lossless.remove(&priority.value),
                };
            }
        },
    ),
    opening("", "interface ethernet <ports>", INTERFACE, |raw, c| {
        raw.open = ports(c.word(0));
        for name in raw.open.clone() {
            raw.interfaces
                .entry(name)
                .or_insert_with(|| Interface::new(c.place));
        }
    }),
    command(INTERFACE, "qos trust L2|L3|both|port", |raw, c| {
        raw.each(|port| {
            port.trust = Some(c.at(match c.word(0) {
                "L3" | "both" => Trust::Dscp,
                "L2" => Trust::Pcp,
                _ => Trust::Nothing,
            }));
        });
    }),
    command(INTERFACE, "qos rewrite|default <rest>", nothing),
    command(
        INTERFACE,
        "dcb priority-flow-control mode on [force]",
        |raw, c| {
            raw.each(|port| port.pfc = Some(c.at(true)));
        },
    ),
    command(
        INTERFACE,
        "traffic-class <0-7> congestion-control ecn|red|both minimum-absolute <0-4294967> maximum-absolute <0-4294967>",
        |raw, c| {
            let (Some(class), Some(min), Some(max)) =
                (c.number(0), c.number::<u64>(2), c.number::<u64>(3))
            else {
                return;
            };
            raw.each(|port| {
                port.queues.entry(class.value).or_default().ecn = Some(Ecn {
                    min: At::new(min.value.saturating_mul(1000), min.place),
                    max: At::new(max.value.saturating_mul(1000), max.place),
                    probability: None,
                    marks: c.at(c.word(1) != "red"),
                });
            });
        },
    ),
    command(
        INTERFACE,
        "traffic-class <0-7> congestion-control ecn|red|both minimum-relative <0-100> maximum-relative <0-100>",
        nothing,
    ),
    command(INTERFACE, "traffic-class <0-7> dcb ets strict", |raw, c| {
        if let Some(class) = c.number(0) {
            raw.each(|port| port.queues.entry(class.value).or_default().strict = Some(c.at(true)));
        }
    }),
    command(
        INTERFACE,
        "traffic-class <0-7> dcb ets wrr <0-100>",
        |raw, c| {
            if let Some(class) = c.number(0) {
                raw.each(|port| {
                    let queue = port.queues.entry(class.value).or_default();
                    queue.strict = Some(c.at(false));
                    queue.bandwidth = c.number(1);
                });
            }
        },
    ),
    command(INTERFACE, "pfc-wd", |raw, c| {
        raw.each(|port| port.watchdog = Some(c.place))
    }),
    command(INTERFACE, "mtu <1500-9216> [force]", |raw, c| {
        raw.each(|port| port.mtu = c.number(0))
    }),
    command(
        INTERFACE,
        "flowcontrol receive|send on|off [force]",
        |raw, c| {
            let paused = c.word(1) == "on";
            raw.each(|port| {
                if paused || port.pause.is_none() {
                    port.pause = Some(c.at(paused));
                }
            });
        },
    ),
    command(INTERFACE, "ingress-buffer|egress-buffer <rest>", nothing),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| {
    let territory = &[
        "roce",
        "dcb",
        "qos",
        "traffic-class",
        "pfc-wd",
        "flowcontrol",
        "priority-flow-control",
        "class-map",
        "policy-map",
    ];
    Grammar::new(RULES, territory)
});

/// `1/1-1/4` are four.
fn ports(text: &str) -> Vec<String> {
    const MOST: u32 = 1024;
    let bounds = text.split_once('-').and_then(|(first, last)| {
        let (module, first) = first.rsplit_once('/')?;
        let last = last.strip_prefix(module)?.strip_prefix('/')?;
        Some((
            module,
            first.parse::<u32>().ok()?,
            last.parse::<u32>().ok()?,
        ))
    });
    match bounds {
        Some((module, first, last)) if last < MOST => (first..=last)
            .map(|port| format!("{module}/{port}"))
            .collect(),
        _ => vec![text.to_owned()],
    }
}

/// Reads a configuration.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    // What follows the interface on its line is a command of its mode.
    let mut split = Vec::with_capacity(statements.len());
    for statement in statements {
        match statement.words.as_slice() {
            [interface, ethernet, _, rest @ ..]
                if interface == "interface" && ethernet == "ethernet" && !rest.is_empty() =>
            {
                split.push(Statement {
                    words: statement.words[..3].to_vec(),
                    ..statement.clone()
                });
                split.push(Statement {
                    words: rest.to_vec(),
                    line: statement.line,
                    indent: statement.indent + 1,
                });
            }
            _ => split.push(statement.clone()),
        }
    }
    let mut raw = Raw {
        pfc: None,
        lossless: BTreeMap::new(),
        roce: None,
        interfaces: BTreeMap::new(),
        open: Vec::new(),
    };
    GRAMMAR.read(&split, file, &mut raw, notes);
    if let Some(place) = raw.roce {
        by_roce(&mut raw, place);
    }
    finish(&raw, file)
}

/// What `roce lossless` sets, where nothing else is said.
fn by_roce(raw: &mut Raw, place: Place) {
    // It holds for all ports; where none is named, for those that the switch has.
    if raw.interfaces.is_empty() {
        raw.interfaces
            .insert("1/*".to_owned(), Interface::new(place));
    }
    raw.pfc.get_or_insert(At::new(true, place));
    raw.lossless.entry(3).or_insert(At::new(3, place));
    for port in raw.interfaces.values_mut() {
        port.trust.get_or_insert(At::new(Trust::Dscp, place));
        port.pfc.get_or_insert(At::new(true, place));
        let data = port.queues.entry(3).or_default();
        data.strict.get_or_insert(At::new(false, place));
        data.bandwidth.get_or_insert(At::new(50, place));
        data.ecn.get_or_insert(Ecn {
            min: At::new(150_000, place),
            max: At::new(1_500_000, place),
            probability: None,
            marks: At::new(true, place),
        });
        port.queues
            .entry(6)
            .or_default()
            .strict
            .get_or_insert(At::new(true, place));
    }
}

fn finish(raw: &Raw, file: Place) -> Switch {
    let lossless = Rc::new(raw.lossless.clone());
    let ports = raw
        .interfaces
        .iter()
        .filter(|(_, it)| it.trust.is_some() || it.pfc.is_some() || !it.queues.is_empty())
        .map(|(name, interface)| {
            let mut port = Port::new(name, interface.place);
            port.mtu = interface.mtu;
            let trust = interface
                .trust
                .unwrap_or(At::new(Trust::Pcp, interface.place));
            port.trust = Some(trust);
            let map: DscpMap = (0..64u8)
                .map(|dscp| Some(At::new(dscp / 8, trust.place)))
                .collect();
            port.dscp = Rc::new(map);
            port.pfc = Some(match (raw.pfc, interface.pfc) {
                (Some(_), Some(on)) => At::new(Pfc::On, on.place),
                (None, Some(on)) => At::new(Pfc::Off, on.place),
                _ => At::new(Pfc::Off, interface.place),
            });
            port.lossless = Rc::clone(&lossless);
            port.queues = Rc::new(interface.queues.clone());
            port.watched = interface.watchdog.map(|place| At::new(None, place));
            port.pause = interface.pause;
            port
        })
        .collect();
    Switch {
        system: Target::Onyx,
        place: file,
        ports,
        watchdog: Timers::default(),
    }
}
