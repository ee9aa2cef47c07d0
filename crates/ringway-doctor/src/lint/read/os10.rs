//! Dell SmartFabric OS10. What of this is unverified stands in `docs/lossless.md`.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Grammar, Rule, code_points, command, nothing, numbers, opening},
    model::{Ecn, Pfc, Port, Queue, Switch, Timers, Trust, no_map},
    notes::{Names, Notes},
    source::{At, Place},
    statement::Statement,
};
use crate::config::Target;

/// Of a class in a policy: its class map, and what it does.
type Classes<T> = Vec<(At<String>, T)>;

#[derive(Debug)]
struct Raw {
    /// Queues of class maps of type queuing, groups of those of type network-qos.
    queue_maps: Names<Option<At<u8>>>,
    group_maps: Names<Option<At<u8>>>,
    trusts: Names<BTreeMap<u8, At<u8>>>,
    queue_of_group: Names<BTreeMap<u8, At<u8>>>,
    wred: Names<Wred>,
    network: Names<Classes<Option<At<u8>>>>,
    queuing: Names<Classes<Shaped>>,
    trust: Option<At<String>>,
    ets: Option<Place>,
    interfaces: BTreeMap<String, Interface>,
    open: At<String>,
}

#[derive(Debug, Default)]
struct Wred {
    min: Option<At<u64>>,
    max: Option<At<u64>>,
    probability: Option<At<u32>>,
    marks: Option<At<bool>>,
}

#[derive(Debug, Default)]
struct Shaped {
    strict: Option<At<bool>>,
    bandwidth: Option<At<u32>>,
    wred: Option<At<String>>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    mtu: Option<At<u32>>,
    pfc: Option<At<bool>>,
    pause: Option<At<bool>>,
    network: Option<At<String>>,
    output: Option<At<String>>,
    queues: Option<At<String>>,
    ets: Option<Place>,
    trust: Option<At<String>>,
}

impl Raw {
    fn interface(&mut self) -> &mut Interface {
        let At { value, place } = self.open.clone();
        self.interfaces.entry(value).or_insert(Interface {
            place,
            mtu: None,
            pfc: None,
            pause: None,
            network: None,
            output: None,
            queues: None,
            ets: None,
            trust: None,
        })
    }

    fn shaped(&mut self) -> Option<&mut Shaped> {
        self.queuing
            .define(&self.open)
            .last_mut()
            .map(|(_, shaped)| shaped)
    }
}

const QUEUE_MAP: &str = "class-map type queuing";
const GROUP_MAP: &str = "class-map type network-qos";
const TRUST: &str = "trust dscp-map";
const QUEUES: &str = "qos-map traffic-class";
const WRED: &str = "wred";
const NETWORK: &str = "policy-map type network-qos";
const NETWORK_CLASS: &str = "class of policy-map type network-qos";
const QUEUING: &str = "policy-map type queuing";
const QUEUING_CLASS: &str = "class of policy-map type queuing";
const SYSTEM: &str = "system qos";
const INTERFACE: &str = "interface";

fn kilobytes(number: Option<At<u64>>) -> Option<At<u64>> {
    number.map(|number| At::new(number.value.saturating_mul(1000), number.place))
}

static RULES: &[Rule<Raw>] = &[
    opening("", "class-map type queuing <name>", QUEUE_MAP, |raw, c| {
        raw.open = c.name(0);
        raw.queue_maps.define(&c.name(0));
    }),
    command(QUEUE_MAP, "match queue <0-7>", |raw, c| {
        *raw.queue_maps.define(&raw.open) = c.number(0)
    }),
    opening(
        "",
        "class-map type network-qos <name>",
        GROUP_MAP,
        |raw, c| {
            raw.open = c.name(0);
            raw.group_maps.define(&c.name(0));
        },
    ),
    command(GROUP_MAP, "match qos-group <0-7>", |raw, c| {
        *raw.group_maps.define(&raw.open) = c.number(0)
    }),
    opening(
        "",
        "class-map type qos|application|control-plane <rest>",
        "class-map of another type",
        nothing,
    ),
    opening("", "trust dscp-map <name>", TRUST, |raw, c| {
        raw.open = c.name(0);
        raw.trusts.define(&c.name(0));
    }),
    command(TRUST, "qos-group <0-7> dscp <dscp>", |raw, c| {
        if let Some(group) = c.number(0) {
            for dscp in code_points(c.word(1)).unwrap_or_default() {
                raw.trusts.define(&raw.open).insert(dscp, group);
            }
        }
    }),
    opening("", "trust dot1p-map <name>", "trust dot1p-map", nothing),
    command("trust dot1p-map", "qos-group <0-7> dot1p <rest>", nothing),
    opening("", "qos-map traffic-class <name>", QUEUES, |raw, c| {
        raw.open = c.name(0);
        raw.queue_of_group.define(&c.name(0));
    }),
    command(QUEUES, "queue <0-7> qos-group <list>", |raw, c| {
        if let Some(queue) = c.number(0) {
            for group in numbers(c.word(1)).unwrap_or_default() {
                raw.queue_of_group.define(&raw.open).insert(group, queue);
            }
        }
    }),
    opening("", "wred <name>", WRED, |raw, c| {
        raw.open = c.name(0);
        raw.wred.define(&c.name(0));
    }),
    command(
        WRED,
        "random-detect color green minimum-threshold <0-4294967> maximum-threshold <0-4294967> drop-probability <0-100>",
        |raw, c| {
            let wred = raw.wred.define(&raw.open);
            (wred.min, wred.max) = (kilobytes(c.number(0)), kilobytes(c.number(1)));
            wred.probability = c.number(2);
        },
    ),
    command(WRED, "random-detect color yellow|red <rest>", nothing),
    command(WRED, "random-detect ecn", |raw, c| {
        raw.wred.define(&raw.open).marks = Some(c.at(true))
    }),
    command(WRED, "random-detect weight <rest>", nothing),
    opening(
        "",
        "policy-map type network-qos <name>",
        NETWORK,
        |raw, c| {
            raw.open = c.name(0);
            raw.network.define(&c.name(0));
        },
    ),
    opening(NETWORK, "class <name>", NETWORK_CLASS, |raw, c| {
        raw.group_maps.uses(&c.name(0));
        raw.network.define(&raw.open).push((c.name(0), None));
    }),
    command(NETWORK_CLASS, "pause", nothing),
    command(NETWORK_CLASS, "pause buffer-size <rest>", nothing),
    command(NETWORK_CLASS, "queue-limit <rest>", nothing),
    command(NETWORK_CLASS, "pfc-cos <0-7>", |raw, c| {
        if let Some((_, pause)) = raw.network.define(&raw.open).last_mut() {
            *pause = c.number(0);
        }
    }),
    opening("", "policy-map type queuing <name>", QUEUING, |raw, c| {
        raw.open = c.name(0);
        raw.queuing.define(&c.name(0));
    }),
    opening(QUEUING, "class <name>", QUEUING_CLASS, |raw, c| {
        raw.queue_maps.uses(&c.name(0));
        raw.queuing
            .define(&raw.open)
            .push((c.name(0), Shaped::default()));
    }),
    command(QUEUING_CLASS, "bandwidth percent <1-100>", |raw, c| {
        if let Some(class) = raw.shaped() {
            class.bandwidth = c.number(0);
        }
    }),
    command(QUEUING_CLASS, "priority", |raw, c| {
        if let Some(class) = raw.shaped() {
            class.strict = Some(c.at(true));
        }
    }),
    command(QUEUING_CLASS, "random-detect ecn", nothing),
    command(QUEUING_CLASS, "random-detect <name>", |raw, c| {
        raw.wred.uses(&c.name(0));
        if let Some(class) = raw.shaped() {
            class.wred = Some(c.name(0));
        }
    }),
    command(QUEUING_CLASS, "queue-limit <rest>", nothing),
    command(QUEUING_CLASS, "shape <rest>", nothing),
    opening(
        "",
        "policy-map type qos|application|control-plane <rest>",
        "policy-map of another type",
        nothing,
    ),
    opening("", "system qos", SYSTEM, nothing),
    command(SYSTEM, "trust-map dscp <name>", |raw, c| {
        raw.trusts.uses(&c.name(0));
        raw.trust = Some(c.name(0));
    }),
    command(SYSTEM, "trust-map dot1p <name>", nothing),
    command(SYSTEM, "ets mode on", |raw, c| raw.ets = Some(c.place)),
    command(SYSTEM, "ets mode off", nothing),
    command(
        SYSTEM,
        "pfc-max-buffer-size|pfc-shared-buffer-size|buffer-statistics-tracking <rest>",
        nothing,
    ),
    command(SYSTEM, "buffer-statistics-tracking", nothing),
    opening("", "interface <name>", INTERFACE, |raw, c| {
        raw.open = c.name(0);
        raw.interface();
    }),
    command(INTERFACE, "mtu <1280-9216>", |raw, c| {
        raw.interface().mtu = c.number(0)
    }),
    command(
        INTERFACE,
        "flowcontrol receive|transmit on|off",
        |raw, c| {
            let paused = c.word(1) == "on";
            let interface = raw.interface();
            if paused || interface.pause.is_none() {
                interface.pause = Some(c.at(paused));
            }
        },
    ),
    command(INTERFACE, "priority-flow-control mode on|off", |raw, c| {
        raw.interface().pfc = Some(c.at(c.word(0) == "on"));
    }),
    command(
        INTERFACE,
        "service-policy input type network-qos <name>",
        |raw, c| {
            raw.network.uses(&c.name(0));
            raw.interface().network = Some(c.name(0));
        },
    ),
    command(
        INTERFACE,
        "service-policy output type queuing <name>",
        |raw, c| {
            raw.queuing.uses(&c.name(0));
            raw.interface().output = Some(c.name(0));
        },
    ),
    command(INTERFACE, "service-policy input type qos <name>", nothing),
    command(INTERFACE, "qos-map traffic-class <name>", |raw, c| {
        raw.queue_of_group.uses(&c.name(0));
        raw.interface().queues = Some(c.name(0));
    }),
    command(INTERFACE, "trust-map dscp <name>", |raw, c| {
        raw.trusts.uses(&c.name(0));
        raw.interface().trust = Some(c.name(0));
    }),
    command(INTERFACE, "trust-map dot1p <name>", nothing),
    command(INTERFACE, "ets mode on", |raw, c| {
        raw.interface().ets = Some(c.place)
    }),
    command(INTERFACE, "ets mode off", nothing),
    command("", "dcbx enable", nothing),
    command(INTERFACE, "lldp <rest>", nothing),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| {
    let territory = &[
        "class-map",
        "policy-map",
        "service-policy",
        "trust",
        "trust-map",
        "qos-map",
        "wred",
        "random-detect",
        "priority-flow-control",
        "flowcontrol",
        "ets",
        "pause",
        "pfc-cos",
        "bandwidth",
        "qos-group",
        "dcb-map",
        "dcb",
        "qos-policy-buffer",
        "match queue",
        "match qos-group",
        "priority",
    ];
    Grammar::new(RULES, territory)
});

/// Reads a configuration.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    let mut raw = Raw {
        queue_maps: Names::new("class-map type queuing"),
        group_maps: Names::new("class-map type network-qos"),
        trusts: Names::new("trust dscp-map"),
        queue_of_group: Names::new("qos-map traffic-class"),
        wred: Names::new("wred"),
        network: Names::new("policy-map type network-qos"),
        queuing: Names::new("policy-map type queuing"),
        trust: None,
        ets: None,
        interfaces: BTreeMap::new(),
        open: At::new(String::new(), file),
    };
    GRAMMAR.read(statements, file, &mut raw, notes);
    raw.queue_maps.check(&[], notes);
    raw.group_maps.check(&[], notes);
    raw.trusts.check(&["default"], notes);
    raw.queue_of_group.check(&["default"], notes);
    raw.wred.check(&[], notes);
    raw.network.check(&["default"], notes);
    raw.queuing.check(&["default"], notes);
    let ports = raw
        .interfaces
        .iter()
        .filter(|(_, interface)| {
            interface.pfc.is_some() || interface.network.is_some() || interface.output.is_some()
        })
        .map(|(name, interface)| port(name, interface, &raw, notes))
        .collect();
    Switch {
        system: Target::Os10,
        place: file,
        ports,
        watchdog: Timers::default(),
    }
}

fn port(name: &str, interface: &Interface, raw: &Raw, notes: &mut Notes) -> Port {
    let mut port = Port::new(name, interface.place);
    port.mtu = interface.mtu;
    port.pause = interface.pause;
    let trust = interface.trust.as_ref().or(raw.trust.as_ref());
    port.trust = Some(match trust {
        Some(name) => At::new(Trust::Dscp, name.place),
        None => At::new(Trust::Nothing, interface.place),
    });
    let queues = interface
        .queues
        .as_ref()
        .and_then(|name| raw.queue_of_group.get(&name.value));
    let queue = |group: At<u8>| match queues.and_then(|map| map.get(&group.value)) {
        Some(queue) if queue.value != group.value => *queue,
        _ => group,
    };
    let mut map = no_map();
    let trusted = trust.and_then(|name| raw.trusts.get(&name.value));
    let rest = trust.map_or(interface.place, |name| name.place);
    for (dscp, entry) in (0..).zip(&mut map) {
        let group = trusted.and_then(|map| map.get(&dscp)).copied();
        *entry = Some(queue(group.unwrap_or(At::new(0, rest))));
    }
    port.dscp = Rc::new(map);
    let off = At::new(Pfc::Off, interface.place);
    port.pfc = Some(interface.pfc.map_or(off, |on| {
        At::new(if on.value { Pfc::On } else { Pfc::Off }, on.place)
    }));
    let network = interface
        .network
        .as_ref()
        .and_then(|name| raw.network.get(&name.value));
    let lossless = network.into_iter().flatten().filter_map(|(class, pause)| {
        let group = (*raw.group_maps.get(&class.value)?)?;
        Some((queue(group).value, (*pause)?))
    });
    port.lossless = Rc::new(lossless.collect());
    let output = interface
        .output
        .as_ref()
        .and_then(|name| raw.queuing.get(&name.value));
    let mut shaped = BTreeMap::new();
    for (class, what) in output.into_iter().flatten() {
        let Some(Some(queue)) = raw.queue_maps.get(&class.value) else {
            continue;
        };
        let wred = what
            .wred
            .as_ref()
            .and_then(|name| raw.wred.get(&name.value));
        let ecn = wred.and_then(|wred| {
            Some(Ecn {
                min: wred.min?,
                max: wred.max?,
                probability: wred.probability,
                marks: wred.marks.unwrap_or(At::new(false, wred.min?.place)),
            })
        });
        let queue_settings = Queue {
            strict: what.strict,
            bandwidth: what.bandwidth,
            ecn,
            drop: None,
        };
        shaped.insert(queue.value, queue_settings);
    }
    port.queues = Rc::new(shaped);
    for (group, queue) in queues.into_iter().flatten() {
        let value = At::new(u32::from(queue.value), queue.place);
        port.others
            .insert(format!("queue of qos-group {group}"), value);
    }
    match (raw.ets, interface.ets) {
        (Some(place), None) => notes.warning(
            "ets.half",
            name,
            "ETS is on for the system and not for the port",
            "shares have no effect unless both say so",
            [place, interface.place],
            "write ets mode on at the port",
        ),
        (None, Some(place)) => notes.warning(
            "ets.half",
            name,
            "ETS is on for the port and not for the system",
            "shares have no effect unless both say so",
            [place],
            "write ets mode on under system qos",
        ),
        _ => {}
    }
    port
}
