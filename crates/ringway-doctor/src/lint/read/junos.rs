//! Junos: class of service as `set` statements, in any order.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Captured, Grammar, Rule, command, nothing},
    model::{Ecn, Pfc, Port, Queue, Switch, Timers, Trust, no_map},
    notes::{Names, Notes},
    source::{At, Place},
    statement::Statement,
};
use crate::config::Target;

#[derive(Debug)]
struct Raw {
    classes: Names<Class>,
    /// Of each classifier, code points with their class.
    classifiers: Names<BTreeMap<u8, At<String>>>,
    profiles: Names<DropProfile>,
    congestion: Names<Congestion>,
    schedulers: Names<Scheduler>,
    maps: Names<Vec<(At<String>, At<String>)>>,
    interfaces: BTreeMap<String, Interface>,
    mtu: BTreeMap<String, At<u32>>,
    pause: BTreeMap<String, At<bool>>,
    partitions: BTreeMap<String, Vec<At<u32>>>,
}

#[derive(Debug, Default)]
struct Class {
    queue: Option<At<u8>>,
    lossless: Option<Place>,
    priority: Option<At<u8>>,
}

#[derive(Debug, Default)]
struct DropProfile {
    fill: Vec<At<u64>>,
    probability: Vec<At<u32>>,
}

#[derive(Debug, Default)]
struct Congestion {
    watchdog: Option<Place>,
    dscp: BTreeMap<u8, Place>,
    pcp: Option<Place>,
    /// Priorities on the wire to queues.
    output: BTreeMap<u8, At<u8>>,
}

#[derive(Debug, Default)]
struct Scheduler {
    strict: Option<At<bool>>,
    bandwidth: Option<At<u32>>,
    profile: Option<At<String>>,
    marks: Option<Place>,
}

#[derive(Debug)]
struct Interface {
    place: Place,
    congestion: Option<At<String>>,
    map: Option<At<String>>,
    classifier: Option<At<String>>,
    unit: Option<At<u32>>,
}

impl Raw {
    fn interface(&mut self, c: &Captured<'_>) -> &mut Interface {
        self.interfaces
            .entry(c.word(0).to_owned())
            .or_insert(Interface {
                place: c.place,
                congestion: None,
                map: None,
                classifier: None,
                unit: None,
            })
    }
}

/// The number of binary digits of a code point.
fn binary(c: &Captured<'_>, index: usize, digits: usize) -> Option<u8> {
    let text = c.word(index);
    (text.len() == digits)
        .then(|| u8::from_str_radix(text, 2).ok())
        .flatten()
}

static RULES: &[Rule<Raw>] = &[
    command(
        "",
        "class-of-service forwarding-classes class <name> queue-num <0-11>",
        |raw, c| {
            raw.classes.define(&c.name(0)).queue = c.number(1);
        },
    ),
    command(
        "",
        "class-of-service forwarding-classes class <name> no-loss",
        |raw, c| {
            raw.classes.define(&c.name(0)).lossless = Some(c.place);
        },
    ),
    command(
        "",
        "class-of-service forwarding-classes class <name> pfc-priority <0-7>",
        |raw, c| {
            raw.classes.define(&c.name(0)).priority = c.number(1);
        },
    ),
    // Braces have all of a class in one statement.
    command(
        "",
        "class-of-service forwarding-classes class <name> queue-num <0-11> no-loss [pfc-priority <0-7>]",
        |raw, c| {
            let class = raw.classes.define(&c.name(0));
            class.queue = c.number(1);
            class.lossless = Some(c.place);
            class.priority = c.number(2);
        },
    ),
    command(
        "",
        "class-of-service classifiers dscp <name> forwarding-class <class> loss-priority low|medium-low|medium-high|high \
         code-points <bits>",
        |raw, c| {
            raw.classes.uses(&c.name(1));
            if let Some(dscp) = binary(c, 3, 6) {
                raw.classifiers.define(&c.name(0)).insert(dscp, c.name(1));
            }
        },
    ),
    command(
        "",
        "class-of-service classifiers dscp <name> import <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service classifiers ieee-802.1|inet-precedence|exp|dscp-ipv6 <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service drop-profiles <name> interpolate fill-level <0-100>",
        |raw, c| {
            raw.profiles.define(&c.name(0)).fill.extend(c.number(1));
        },
    ),
    command(
        "",
        "class-of-service drop-profiles <name> interpolate drop-probability <0-100>",
        |raw, c| {
            raw.profiles
                .define(&c.name(0))
                .probability
                .extend(c.number(1));
        },
    ),
    command(
        "",
        "class-of-service drop-profiles <name> fill-level <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service shared-buffer ingress|egress percent <0-100>",
        nothing,
    ),
    command(
        "",
        "class-of-service shared-buffer ingress|egress buffer-partition <name> percent <0-100>",
        |raw, c| {
            let partitions = raw.partitions.entry(c.word(0).to_owned()).or_default();
            partitions.extend(c.number(2));
        },
    ),
    command(
        "",
        "class-of-service shared-buffer ingress|egress buffer-partition <name> dynamic-threshold <0-10>",
        nothing,
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> pfc-watchdog",
        |raw, c| {
            raw.congestion.define(&c.name(0)).watchdog = Some(c.place);
        },
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> pfc-watchdog <rest>",
        |raw, c| {
            raw.congestion.define(&c.name(0)).watchdog = Some(c.place);
        },
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> input dscp code-point <bits> pfc",
        |raw, c| {
            if let Some(dscp) = binary(c, 1, 6) {
                raw.congestion.define(&c.name(0)).dscp.insert(dscp, c.place);
            }
        },
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> input ieee-802.1 code-point <bits> pfc",
        |raw, c| raw.congestion.define(&c.name(0)).pcp = Some(c.place),
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> input cable-length <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> input ieee-802.1|dscp code-point <bits> xon|mru <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service congestion-notification-profile <name> output ieee-802.1 code-point <bits> \
         flow-control-queue <0-11>",
        |raw, c| {
            if let (Some(priority), Some(queue)) = (binary(c, 1, 3), c.number(2)) {
                raw.congestion
                    .define(&c.name(0))
                    .output
                    .insert(priority, queue);
            }
        },
    ),
    command(
        "",
        "class-of-service schedulers <name> priority strict-high|low|high|medium-low|medium-high",
        |raw, c| {
            raw.schedulers.define(&c.name(0)).strict = Some(c.at(c.word(1) == "strict-high"));
        },
    ),
    command(
        "",
        "class-of-service schedulers <name> transmit-rate percent <0-100>",
        |raw, c| {
            raw.schedulers.define(&c.name(0)).bandwidth = c.number(1);
        },
    ),
    command(
        "",
        "class-of-service schedulers <name> transmit-rate|shaping-rate|buffer-size <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service schedulers <name> drop-profile-map loss-priority any|low|medium-low|medium-high|high protocol any \
         drop-profile <profile>",
        |raw, c| {
            raw.profiles.uses(&c.name(2));
            raw.schedulers.define(&c.name(0)).profile = Some(c.name(2));
        },
    ),
    command(
        "",
        "class-of-service schedulers <name> explicit-congestion-notification",
        |raw, c| {
            raw.schedulers.define(&c.name(0)).marks = Some(c.place);
        },
    ),
    command(
        "",
        "class-of-service scheduler-maps <name> forwarding-class <class> scheduler <scheduler>",
        |raw, c| {
            raw.classes.uses(&c.name(1));
            raw.schedulers.uses(&c.name(2));
            raw.maps.define(&c.name(0)).push((c.name(1), c.name(2)));
        },
    ),
    command(
        "",
        "class-of-service interfaces <name> congestion-notification-profile <profile>",
        |raw, c| {
            raw.congestion.uses(&c.name(1));
            raw.interface(c).congestion = Some(c.name(1));
        },
    ),
    command(
        "",
        "class-of-service interfaces <name> scheduler-map <map>",
        |raw, c| {
            raw.maps.uses(&c.name(1));
            raw.interface(c).map = Some(c.name(1));
        },
    ),
    command(
        "",
        "class-of-service interfaces <name> unit <unit> classifiers dscp <classifier>",
        |raw, c| {
            raw.classifiers.uses(&c.name(2));
            let interface = raw.interface(c);
            interface.classifier = Some(c.name(2));
            interface.unit = c.number(1);
        },
    ),
    command(
        "",
        "class-of-service interfaces <name> unit <unit> <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service interfaces <name> shaping-rate <rest>",
        nothing,
    ),
    command(
        "",
        "class-of-service rewrite-rules|code-point-aliases|forwarding-policy|host-outbound-traffic|\
         multi-destination|forwarding-class-sets|traffic-control-profiles|monitoring-profile <rest>",
        nothing,
    ),
    command("", "interfaces <name> mtu <256-9500>", |raw, c| {
        raw.mtu
            .extend(c.number(1).map(|mtu| (c.word(0).to_owned(), mtu)));
    }),
    command(
        "",
        "interfaces <name> ether-options flow-control",
        |raw, c| {
            raw.pause.insert(c.word(0).to_owned(), c.at(true));
        },
    ),
    command(
        "",
        "interfaces <name> ether-options no-flow-control",
        |raw, c| {
            raw.pause.insert(c.word(0).to_owned(), c.at(false));
        },
    ),
];

static GRAMMAR: LazyLock<Grammar<Raw>> =
    LazyLock::new(|| Grammar::new(RULES, &["class-of-service"]));

/// Classes, classifiers and schedulers that the system has from the start.
const CLASSES: &[&str] = &["best-effort", "fcoe", "no-loss", "network-control", "mcast"];

/// Reads a configuration; `set` is left out of its statements.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    let mut raw = Raw {
        classes: Names::new("forwarding-class"),
        classifiers: Names::new("classifier dscp"),
        profiles: Names::new("drop-profile"),
        congestion: Names::new("congestion-notification-profile"),
        schedulers: Names::new("scheduler"),
        maps: Names::new("scheduler-map"),
        interfaces: BTreeMap::new(),
        mtu: BTreeMap::new(),
        pause: BTreeMap::new(),
        partitions: BTreeMap::new(),
    };
    GRAMMAR.read(statements, file, &mut raw, notes);
    raw.classes.check(CLASSES, notes);
    raw.classifiers.check(&["default"], notes);
    raw.profiles.check(&[], notes);
    raw.congestion.check(&[], notes);
    raw.schedulers.check(&[], notes);
    raw.maps.check(&[], notes);
    inside(&raw, notes);
    let ports = raw
        .interfaces
        .iter()
        .map(|(name, interface)| port(name, interface, &raw))
        .collect();
    Switch {
        system: Target::Junos,
        place: file,
        ports,
        watchdog: Timers::default(),
    }
}

/// What has to agree between the objects of one switch.
fn inside(raw: &Raw, notes: &mut Notes) {
    for (name, place, profile) in raw.congestion.iter() {
        if let (Some(dscp), Some(pcp)) = (profile.dscp.values().next(), profile.pcp) {
            notes.error(
                "pfc.mixed",
                name,
                "the profile has both dscp and ieee-802.1 as its input",
                "Junos refuses a profile with both",
                [*dscp, pcp],
                "keep dscp: hosts of routed networks send no tag",
            );
        }
        if !profile.dscp.is_empty() && profile.output.is_empty() {
            notes.error(
                "pfc.deaf",
                name,
                "the profile has no output: flow-control-queue",
                "the switch pauses its neighbours and heeds no pause itself, and so drops at the next hop",
                [place],
                "add output ieee-802.1 code-point ... flow-control-queue ...",
            );
        }
    }
    for (name, place, class) in raw.classes.iter() {
        match (class.lossless, class.priority) {
            (Some(_), None) => notes.cannot(
                "pfc.priority",
                name.clone(),
                "the class is no-loss without pfc-priority: which priority it pauses is not said",
            ),
            (None, Some(priority)) => notes.error(
                "pfc.lossy",
                name,
                "the class has a pfc-priority and is not no-loss",
                "pauses are sent for a class that has no headroom",
                [priority.place, place],
                "add no-loss, or take pfc-priority away",
            ),
            _ => {}
        }
    }
    for (direction, partitions) in &raw.partitions {
        let sum: u32 = partitions.iter().map(|percent| percent.value).sum();
        if sum > 100 {
            let places: Vec<Place> = partitions.iter().map(|percent| percent.place).collect();
            notes.error(
                "buffer.sum",
                direction,
                format!("the partitions of {direction} are {sum} percent together"),
                "Junos refuses more than the buffer has",
                places,
                "make them 100 or less",
            );
        }
    }
}

/// A value of the map for that interface: by its name, or by a pattern such as `et-*`.
fn of<'a, T>(map: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    map.get(name).or_else(|| {
        let fits = |pattern: &str| {
            pattern
                .strip_suffix('*')
                .is_some_and(|prefix| name.starts_with(prefix))
        };
        map.iter()
            .find(|(pattern, _)| fits(pattern))
            .map(|(_, value)| value)
    })
}

fn port(name: &str, interface: &Interface, raw: &Raw) -> Port {
    let mut port = Port::new(name, interface.place);
    // What is bound to a pattern holds for all ports; their MTU is checked where one is named.
    port.mtu = of(&raw.mtu, name).copied().or_else(|| {
        let prefix = name.strip_suffix('*')?;
        raw.mtu
            .iter()
            .find(|(port, _)| port.starts_with(prefix))
            .map(|(_, mtu)| *mtu)
    });
    port.pause = of(&raw.pause, name).copied();
    port.trust = Some(match &interface.classifier {
        Some(name) => At::new(Trust::Dscp, name.place),
        None => At::new(Trust::Nothing, interface.place),
    });
    let queue = |class: &str| raw.classes.get(class).and_then(|class| class.queue);
    let classifier = interface
        .classifier
        .as_ref()
        .and_then(|name| raw.classifiers.get(&name.value));
    let mut map = no_map();
    for (dscp, class) in classifier.into_iter().flatten() {
        if let (Some(entry), Some(queue)) = (map.get_mut(usize::from(*dscp)), queue(&class.value)) {
            *entry = Some(At::new(queue.value, class.place));
        }
    }
    port.dscp = Rc::new(map);
    let congestion = interface
        .congestion
        .as_ref()
        .and_then(|name| raw.congestion.get(&name.value));
    port.pfc = Some(match &interface.congestion {
        Some(name) => At::new(Pfc::On, name.place),
        None => At::new(Pfc::Off, interface.place),
    });
    let classes = raw.classes.iter().filter_map(|(_, place, class)| {
        class.lossless?;
        let priority = class.priority.or_else(|| {
            let queue = class.queue?;
            let output = &congestion?.output;
            let (priority, _) = output.iter().find(|(_, its)| its.value == queue.value)?;
            Some(At::new(*priority, place))
        })?;
        Some((class.queue?.value, priority))
    });
    port.lossless = Rc::new(classes.collect());
    port.watched = congestion
        .and_then(|profile| profile.watchdog)
        .map(|place| At::new(None, place));
    if let Some(profile) = congestion {
        for (priority, queue) in &profile.output {
            let value = At::new(u32::from(queue.value), queue.place);
            port.others
                .insert(format!("flow-control-queue of priority {priority}"), value);
        }
        for (dscp, place) in &profile.dscp {
            port.others
                .insert(format!("PFC for code point {dscp}"), At::new(1, *place));
        }
    }
    let scheduled = interface
        .map
        .as_ref()
        .and_then(|name| raw.maps.get(&name.value));
    let mut queues = BTreeMap::new();
    for (class, scheduler) in scheduled.into_iter().flatten() {
        let (Some(number), Some(scheduler)) =
            (queue(&class.value), raw.schedulers.get(&scheduler.value))
        else {
            continue;
        };
        let profile = scheduler
            .profile
            .as_ref()
            .and_then(|name| raw.profiles.get(&name.value));
        let ecn = profile.and_then(|profile| {
            let min = *profile.fill.first()?;
            Some(Ecn {
                min,
                max: *profile.fill.last()?,
                probability: profile.probability.last().copied(),
                marks: scheduler
                    .marks
                    .map_or(At::new(false, min.place), |place| At::new(true, place)),
            })
        });
        if let Some([first, .., _]) = profile.map(|profile| profile.probability.as_slice()) {
            port.others.insert(
                format!(
                    "drop-probability of queue {} at its least fill",
                    number.value
                ),
                *first,
            );
        }
        let settings = Queue {
            strict: scheduler.strict,
            bandwidth: scheduler.bandwidth,
            ecn,
            drop: None,
        };
        queues.insert(number.value, settings);
    }
    port.queues = Rc::new(queues);
    if let Some(unit) = interface.unit {
        port.others
            .insert("unit of the classifier".to_owned(), unit);
    }
    port
}
