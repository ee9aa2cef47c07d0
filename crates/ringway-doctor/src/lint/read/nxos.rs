//! NX-OS of Nexus 9000: class maps, policies of three types, and where they are attached.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Captured, Grammar, Rule, code_points, command, nothing, opening},
    model::{DscpMap, Ecn, Pfc, Port, Queue, Switch, Timers, Trust, no_map},
    notes::{Names, Notes},
    source::{At, Place},
    statement::Statement,
};
use crate::config::Target;

#[derive(Debug)]
struct Raw {
    class_maps: Names<ClassMap>,
    classify: Names<Vec<Class>>,
    network: Names<Vec<NetworkClass>>,
    queuing: Names<Vec<QueueClass>>,
    system: Attached,
    interfaces: BTreeMap<String, Interface>,
    watchdog: Option<At<bool>>,
    detect: Option<At<u32>>,
    restore: Option<At<u32>>,
    /// Names of what is open: of a map or policy, of an interface.
    open: At<String>,
}

#[derive(Debug, Default)]
struct ClassMap {
    all: bool,
    dscp: Vec<At<u8>>,
    cos: Option<Place>,
}

#[derive(Debug)]
struct Class {
    map: At<String>,
    group: Option<At<u8>>,
}

#[derive(Debug)]
struct NetworkClass {
    name: At<String>,
    mtu: Option<At<u32>>,
    pause: Option<At<u8>>,
}

#[derive(Debug)]
struct QueueClass {
    name: At<String>,
    queue: Queue,
    level: Option<At<u32>>,
    weight: Option<At<u32>>,
    headroom: Vec<(&'static str, At<u32>)>,
}

#[derive(Debug, Default)]
struct Attached {
    classify: Option<At<String>>,
    network: Option<At<String>>,
    output: Option<At<String>>,
    input: Option<At<String>>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    mtu: Option<At<u32>>,
    pfc: Option<At<Pfc>>,
    watchdog: Option<At<bool>>,
    pause: Option<At<bool>>,
    attached: Attached,
}

impl Raw {
    fn interface(&mut self) -> &mut Interface {
        let At { value, place } = self.open.clone();
        self.interfaces.entry(value).or_insert(Interface {
            place,
            mtu: None,
            pfc: None,
            watchdog: None,
            pause: None,
            attached: Attached::default(),
        })
    }

    fn class(&mut self) -> Option<&mut Class> {
        self.classify.define(&self.open).last_mut()
    }

    fn network_class(&mut self) -> Option<&mut NetworkClass> {
        self.network.define(&self.open).last_mut()
    }

    fn queue_class(&mut self) -> Option<&mut QueueClass> {
        self.queuing.define(&self.open).last_mut()
    }
}

const QOS_MAP: &str = "class-map type qos";
const QOS: &str = "policy-map type qos";
const QOS_CLASS: &str = "class of policy-map type qos";
const NETWORK: &str = "policy-map type network-qos";
const NETWORK_CLASS: &str = "class of policy-map type network-qos";
const QUEUING: &str = "policy-map type queuing";
const QUEUING_CLASS: &str = "class of policy-map type queuing";
const SYSTEM: &str = "system qos";
const INTERFACE: &str = "interface";

fn on(c: &Captured<'_>, index: usize) -> At<bool> {
    c.at(c.word(index) == "on")
}

static RULES: &[Rule<Raw>] = &[
    command(
        "",
        "priority-flow-control watch-dog-interval on|off",
        |raw, c| {
            raw.watchdog = Some(on(c, 0));
        },
    ),
    command(
        "",
        "priority-flow-control watch-dog shutdown-multiplier <1-65535>",
        |raw, c| {
            raw.detect = c.number(0);
        },
    ),
    command(
        "",
        "priority-flow-control watch-dog auto-restore multiplier <0-65535>",
        |raw, c| {
            raw.restore = c.number(0);
        },
    ),
    command(
        "",
        "priority-flow-control watch-dog fixed-restore multiplier <0-65535>",
        nothing,
    ),
    opening(
        "",
        "class-map type qos [match-any|match-all] <name>",
        QOS_MAP,
        |raw, c| {
            raw.open = c.name(1);
            // Without a word all matches have to be met.
            raw.class_maps.define(&c.name(1)).all = c.word(0) != "match-any";
        },
    ),
    opening(
        "",
        "class-map type network-qos [match-any|match-all] <name>",
        "class-map type network-qos",
        nothing,
    ),
    opening(
        "",
        "class-map type queuing [match-any|match-all] <name>",
        "class-map type queuing",
        nothing,
    ),
    command(
        "class-map type network-qos|class-map type queuing",
        "match qos-group <0-7>",
        nothing,
    ),
    command(QOS_MAP, "match dscp <dscp>", |raw, c| {
        for dscp in code_points(c.word(0)).unwrap_or_default() {
            raw.class_maps.define(&raw.open).dscp.push(c.at(dscp));
        }
    }),
    command(QOS_MAP, "match cos <rest>", |raw, c| {
        raw.class_maps.define(&raw.open).cos = Some(c.place);
    }),
    command(
        QOS_MAP,
        "match access-group|precedence|protocol|packet|qos-group <rest>",
        nothing,
    ),
    opening("", "policy-map type qos <name>", QOS, |raw, c| {
        raw.open = c.name(0);
        raw.classify.define(&c.name(0));
    }),
    opening(QOS, "class [type] [qos] <name>", QOS_CLASS, |raw, c| {
        let map = c.name(0);
        if map.value != "class-default" {
            raw.class_maps.uses(&map);
        }
        let class = Class { map, group: None };
        raw.classify.define(&raw.open).push(class);
    }),
    command(QOS_CLASS, "set qos-group <0-7>", |raw, c| {
        if let Some(class) = raw.class() {
            class.group = c.number(0);
        }
    }),
    command(QOS_CLASS, "set dscp|cos|precedence <rest>", nothing),
    command(QOS_CLASS, "police <rest>", nothing),
    opening(
        "",
        "policy-map type network-qos <name>",
        NETWORK,
        |raw, c| {
            raw.open = c.name(0);
            raw.network.define(&c.name(0));
        },
    ),
    opening(
        NETWORK,
        "class type network-qos <name>",
        NETWORK_CLASS,
        |raw, c| {
            raw.network.define(&raw.open).push(NetworkClass {
                name: c.name(0),
                mtu: None,
                pause: None,
            });
        },
    ),
    command(NETWORK_CLASS, "mtu <576-9216>", |raw, c| {
        if let Some(class) = raw.network_class() {
            class.mtu = c.number(0);
        }
    }),
    command(NETWORK_CLASS, "pause pfc-cos <0-7>", |raw, c| {
        if let Some(class) = raw.network_class() {
            class.pause = c.number(0);
        }
    }),
    command(NETWORK_CLASS, "pause no-drop", nothing),
    command(NETWORK_CLASS, "set cos <0-7>", nothing),
    command(NETWORK_CLASS, "queue-limit <rest>", nothing),
    opening("", "policy-map type queuing <name>", QUEUING, |raw, c| {
        raw.open = c.name(0);
        raw.queuing.define(&c.name(0));
    }),
    opening(
        QUEUING,
        "class type queuing <name>",
        QUEUING_CLASS,
        |raw, c| {
            raw.queuing.define(&raw.open).push(QueueClass {
                name: c.name(0),
                queue: Queue::default(),
                level: None,
                weight: None,
                headroom: Vec::new(),
            });
        },
    ),
    command(QUEUING_CLASS, "priority [level] [<1-3>]", |raw, c| {
        if let Some(class) = raw.queue_class() {
            class.queue.strict = Some(c.at(true));
            class.level = c.number(0);
        }
    }),
    command(
        QUEUING_CLASS,
        "bandwidth [remaining] percent <0-100>",
        |raw, c| {
            if let Some(class) = raw.queue_class() {
                class.queue.bandwidth = c.number(0);
            }
        },
    ),
    command(
        QUEUING_CLASS,
        "random-detect minimum-threshold <0-4294967295> bytes|kbytes|mbytes|packets maximum-threshold \
         <0-4294967295> bytes|kbytes|mbytes|packets drop-probability <0-100> [weight <0-15>] [ecn|non-ecn]",
        |raw, c| {
            let (Some(min), Some(max)) = (c.bytes(0, 1), c.bytes(2, 3)) else {
                return;
            };
            if let Some(class) = raw.queue_class() {
                class.weight = c.number(5);
                class.queue.ecn = Some(Ecn {
                    min,
                    max,
                    probability: c.number(4),
                    marks: c.at(c.word(6) == "ecn"),
                });
            }
        },
    ),
    command(QUEUING_CLASS, "random-detect <rest>", nothing),
    command(
        QUEUING_CLASS,
        "pause buffer-size <0-4294967295> pause-threshold <0-4294967295> resume-threshold <0-4294967295>",
        |raw, c| {
            let fields = ["buffer-size", "pause-threshold", "resume-threshold"];
            let values = fields.iter().enumerate();
            let values: Vec<_> = values
                .filter_map(|(index, field)| Some((*field, c.number(index)?)))
                .collect();
            if let Some(class) = raw.queue_class() {
                class.headroom = values;
            }
        },
    ),
    command(
        QUEUING_CLASS,
        "queue-limit <0-4294967295> bytes|kbytes|mbytes",
        |raw, c| {
            if let Some(class) = raw.queue_class() {
                class.queue.drop = c.bytes(0, 1);
            }
        },
    ),
    command(QUEUING_CLASS, "queue-limit <rest>", nothing),
    command(QUEUING_CLASS, "shape <rest>", nothing),
    opening("", "system qos", SYSTEM, nothing),
    command(SYSTEM, "service-policy type qos input <name>", |raw, c| {
        raw.classify.uses(&c.name(0));
        raw.system.classify = Some(c.name(0));
    }),
    command(
        SYSTEM,
        "service-policy type network-qos <name>",
        |raw, c| {
            raw.network.uses(&c.name(0));
            raw.system.network = Some(c.name(0));
        },
    ),
    command(
        SYSTEM,
        "service-policy type queuing input|output <name>",
        |raw, c| {
            raw.queuing.uses(&c.name(1));
            match c.word(0) {
                "output" => raw.system.output = Some(c.name(1)),
                _ => raw.system.input = Some(c.name(1)),
            }
        },
    ),
    opening("", "interface <name>", INTERFACE, |raw, c| {
        raw.open = c.name(0);
        raw.interface();
    }),
    command(INTERFACE, "mtu <576-9216>", |raw, c| {
        raw.interface().mtu = c.number(0)
    }),
    command(
        INTERFACE,
        "priority-flow-control mode on|auto|off [send-tlv]",
        |raw, c| {
            raw.interface().pfc = Some(c.at(match c.word(0) {
                "on" => Pfc::On,
                "auto" => Pfc::Auto,
                _ => Pfc::Off,
            }));
        },
    ),
    command(
        INTERFACE,
        "priority-flow-control watch-dog-interval on|off",
        |raw, c| {
            raw.interface().watchdog = Some(on(c, 0));
        },
    ),
    command(
        INTERFACE,
        "service-policy type qos input <name> [no-stats]",
        |raw, c| {
            raw.classify.uses(&c.name(0));
            raw.interface().attached.classify = Some(c.name(0));
        },
    ),
    command(
        INTERFACE,
        "service-policy type queuing input|output <name>",
        |raw, c| {
            raw.queuing.uses(&c.name(1));
            let attached = &mut raw.interface().attached;
            match c.word(0) {
                "output" => attached.output = Some(c.name(1)),
                _ => attached.input = Some(c.name(1)),
            }
        },
    ),
    command(INTERFACE, "flowcontrol receive|send on|off", |raw, c| {
        let paused = c.word(1) == "on";
        let interface = raw.interface();
        if paused || interface.pause.is_none() {
            interface.pause = Some(c.at(paused));
        }
    }),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| {
    let territory = &[
        "priority-flow-control",
        "class-map",
        "policy-map",
        "service-policy",
        "random-detect",
        "pause",
        "congestion-control",
        "class type",
        "class c-",
        "set qos-group",
        "match dscp",
        "match cos",
        "bandwidth",
        "feature qos",
        "system qos",
        "qos",
        "dcb",
        "roce",
        "flowcontrol",
        "traffic-class",
        "ecn",
    ];
    Grammar::new(RULES, territory)
});

/// Reads a configuration.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    let mut raw = Raw {
        class_maps: Names::new("class-map type qos"),
        classify: Names::new("policy-map type qos"),
        network: Names::new("policy-map type network-qos"),
        queuing: Names::new("policy-map type queuing"),
        system: Attached::default(),
        interfaces: BTreeMap::new(),
        watchdog: None,
        detect: None,
        restore: None,
        open: At::new(String::new(), file),
    };
    GRAMMAR.read(statements, file, &mut raw, notes);
    raw.class_maps.check(&[], notes);
    raw.classify.check(&[], notes);
    raw.network
        .check(&["default-8q-nq-policy", "default-nq-policy"], notes);
    raw.queuing.check(
        &[
            "default-8q-out-policy",
            "default-out-policy",
            "default-in-policy",
        ],
        notes,
    );
    finish(&raw, file, notes)
}

/// The group of a class that the system has: `c-8q-nq3`, `c-out-8q-q-default`.
fn group(name: &At<String>, kinds: &[&str], notes: &mut Notes) -> Option<u8> {
    let numbered = kinds.iter().find_map(|kind| name.value.strip_prefix(kind));
    match numbered {
        Some("-default") => Some(0),
        Some(number) if matches!(number.parse(), Ok(1u8..=7)) => number.parse().ok(),
        _ if !name.value.starts_with("c-") => {
            let text = format!(
                "class `{}` of four-queue systems is not looked into",
                name.value
            );
            notes.cannot("class.kind", name.value.clone(), text);
            None
        }
        _ => {
            notes.error(
                "class.kind",
                name.value.clone(),
                format!("class `{}` is of another type than its policy", name.value),
                "the system refuses it, and the class goes without what stands below",
                [name.place],
                format!(
                    "classes here are called {}1 to 7 and {}-default",
                    kinds[0], kinds[0]
                ),
            );
            None
        }
    }
}

fn finish(raw: &Raw, file: Place, notes: &mut Notes) -> Switch {
    let maps: BTreeMap<&String, Rc<DscpMap>> = raw
        .classify
        .iter()
        .map(|(name, place, classes)| (name, Rc::new(classification(raw, place, classes, notes))))
        .collect();
    let mut others = BTreeMap::new();
    let mut lossless = BTreeMap::new();
    let attached = raw.system.network.as_ref().map(|name| name.value.as_str());
    for class in attached
        .and_then(|name| raw.network.get(name))
        .into_iter()
        .flatten()
    {
        let Some(group) = group(&class.name, &["c-8q-nq"], notes) else {
            continue;
        };
        if let Some(mtu) = class.mtu {
            others.insert(format!("mtu of network-qos class {group}"), mtu);
        }
        let Some(pause) = class.pause else { continue };
        lossless.insert(group, pause);
        if pause.value != group {
            notes.error(
                "class.priority",
                class.name.value.clone(),
                format!("class {} pauses priority {}", class.name.value, pause.value),
                "pauses would stop another class than the one that fills the queue",
                [class.name.place, pause.place],
                format!(
                    "write pause pfc-cos {group}, and map the code points to qos-group {group}"
                ),
            );
        }
    }
    let queuing: BTreeMap<&String, _> = raw
        .queuing
        .iter()
        .map(|(name, _, classes)| (name, queues(classes, notes)))
        .collect();
    let lossless = Rc::new(lossless);
    let everything_default = |place| Rc::new(vec![Some(At::new(0, place)); 64]);
    let mut ports = Vec::new();
    for (name, interface) in &raw.interfaces {
        let touched = interface.pfc.is_some() || interface.watchdog.is_some();
        if !touched && interface.attached.classify.is_none() {
            continue;
        }
        let mut port = Port::new(name, interface.place);
        port.mtu = interface.mtu;
        port.pause = interface.pause;
        let classify = interface
            .attached
            .classify
            .as_ref()
            .or(raw.system.classify.as_ref());
        port.trust = classify.map(|name| At::new(Trust::Dscp, name.place));
        port.dscp = classify
            .and_then(|name| maps.get(&name.value).cloned())
            .unwrap_or_else(|| everything_default(interface.place));
        port.pfc = Some(interface.pfc.unwrap_or(At::new(Pfc::Auto, interface.place)));
        port.lossless = Rc::clone(&lossless);
        let output = interface
            .attached
            .output
            .as_ref()
            .or(raw.system.output.as_ref());
        if let Some((queues, more)) = output.and_then(|name| queuing.get(&name.value)) {
            port.queues = Rc::clone(queues);
            port.others.extend(more.clone());
        }
        let input = interface
            .attached
            .input
            .as_ref()
            .or(raw.system.input.as_ref());
        if let Some((_, more)) = input.and_then(|name| queuing.get(&name.value)) {
            port.others.extend(more.clone());
        }
        port.others.extend(others.clone());
        // On for the system and for the port.
        port.watched = match (raw.watchdog, interface.watchdog) {
            (Some(all), Some(one)) if all.value && one.value => Some(At::new(None, one.place)),
            _ => None,
        };
        ports.push(port);
    }
    let polls = |polls: Option<At<u32>>| {
        polls.map(|polls| At::new(polls.value.saturating_mul(100), polls.place))
    };
    Switch {
        system: Target::Nxos,
        place: file,
        ports,
        watchdog: Timers {
            detect: polls(raw.detect),
            restore: polls(raw.restore),
            ..Timers::default()
        },
    }
}

/// Code points to groups by the first class that matches; those that none matches are in the default class.
fn classification(raw: &Raw, place: Place, classes: &[Class], notes: &mut Notes) -> DscpMap {
    let mut map = no_map();
    let mut rest = At::new(0, place);
    for class in classes {
        if class.map.value == "class-default" {
            rest = class.group.unwrap_or(At::new(0, class.map.place));
            continue;
        }
        let Some(matched) = raw.class_maps.get(&class.map.value) else {
            continue;
        };
        if let (true, Some(cos), Some(first)) = (matched.all, matched.cos, matched.dscp.first()) {
            notes.error(
                "classify.untagged",
                class.map.value.clone(),
                "the class wants a DSCP and a priority of the VLAN tag at once",
                "hosts of routed networks send no tag, so nothing ever matches",
                [cos, first.place],
                "match the DSCP alone, or match-any",
            );
            continue;
        }
        for dscp in &matched.dscp {
            let group = class.group.unwrap_or(At::new(0, class.map.place));
            if let Some(entry) = map.get_mut(usize::from(dscp.value)) {
                entry.get_or_insert(group);
            }
        }
    }
    for entry in &mut map {
        entry.get_or_insert(rest);
    }
    map
}

type Queues = (Rc<BTreeMap<u8, Queue>>, BTreeMap<String, At<u32>>);

fn queues(classes: &[QueueClass], notes: &mut Notes) -> Queues {
    let (mut queues, mut others) = (BTreeMap::new(), BTreeMap::new());
    for class in classes {
        let input = class.name.value.starts_with("c-in-q");
        let kinds: &[&str] = if input {
            &["c-in-q"]
        } else {
            &["c-out-8q-q", "c-out-q"]
        };
        let Some(group) = group(&class.name, kinds, notes) else {
            continue;
        };
        for (field, value) in &class.headroom {
            others.insert(format!("{field} of queue {group}"), *value);
        }
        if input {
            continue;
        }
        if let Some(level) = class.level {
            others.insert(format!("priority level of queue {group}"), level);
        }
        if let Some(weight) = class.weight {
            others.insert(format!("weight of marking in queue {group}"), weight);
        }
        queues.insert(group, class.queue.clone());
    }
    (Rc::new(queues), others)
}
