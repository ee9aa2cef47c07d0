//! SONiC's `config_db.json`: tables of maps, schedulers and profiles, bound to ports and queues. Ranges are those of
//! SONiC's YANG models.

use std::{collections::BTreeMap, rc::Rc, sync::LazyLock};

use super::super::{
    grammar::{Captured, Grammar, Rule, command, nothing, numbers},
    model::{DscpMap, Ecn, Pfc, Port, Queue, Switch, Timers, Trust, no_map},
    notes::{Names, Notes},
    source::{At, Place},
    statement::Statement,
};
use crate::{config::Target, intent::Action};

/// What a profile does to packets, and further numbers of it by what they are.
type Marking = (Option<Ecn>, BTreeMap<String, At<u32>>);

/// A map from numbers to numbers.
type Map = BTreeMap<u8, At<u8>>;

#[derive(Debug)]
struct Raw {
    dscp_to_tc: Names<Map>,
    tc_to_queue: Names<Map>,
    tc_to_pg: Names<Map>,
    pfc_to_queue: Names<Map>,
    pfc_to_pg: Names<Map>,
    schedulers: Names<Scheduler>,
    wred: Names<Wred>,
    global: Option<At<String>>,
    ports: BTreeMap<String, Bound>,
    queues: BTreeMap<(String, u8), QueueBound>,
    /// Bytes that a buffer profile allows a queue, by the profile's name.
    limits: BTreeMap<String, At<u64>>,
    watchdog: BTreeMap<String, Watch>,
    poll: Option<At<u32>>,
}

#[derive(Debug, Default)]
struct Scheduler {
    kind: Option<At<String>>,
    weight: Option<At<u32>>,
}

#[derive(Debug, Default)]
struct Wred {
    ecn: Option<At<String>>,
    enabled: BTreeMap<String, At<bool>>,
    min: BTreeMap<String, At<u64>>,
    max: BTreeMap<String, At<u64>>,
    probability: BTreeMap<String, At<u32>>,
}

#[derive(Debug, Default)]
struct Bound {
    place: Option<Place>,
    maps: BTreeMap<String, At<String>>,
    pfc: Option<At<Vec<u8>>>,
    watched: Option<At<Vec<u8>>>,
    mtu: Option<At<u32>>,
    cable: Option<At<u32>>,
}

#[derive(Debug, Default)]
struct QueueBound {
    scheduler: Option<At<String>>,
    wred: Option<At<String>>,
    buffer: Option<At<String>>,
}

#[derive(Debug, Default)]
struct Watch {
    detect: Option<At<u32>>,
    restore: Option<At<u32>>,
    action: Option<At<Action>>,
}

impl Raw {
    fn port(&mut self, c: &Captured<'_>) -> &mut Bound {
        let port = self.ports.entry(c.word(0).to_owned()).or_default();
        port.place.get_or_insert(c.place);
        port
    }

    /// The queues that a key such as `Ethernet0|3-4` names.
    fn each_queue(&mut self, c: &Captured<'_>, mut say: impl FnMut(&mut QueueBound)) {
        let Some((port, queues)) = c.word(0).rsplit_once('|') else {
            return;
        };
        for port in port.split(',') {
            for queue in numbers(queues)
                .unwrap_or_default()
                .into_iter()
                .filter(|queue| *queue < 64)
            {
                say(self.queues.entry((port.to_owned(), queue)).or_default());
            }
        }
    }
}

fn entry(names: &mut Names<Map>, c: &Captured<'_>) {
    if let (Some(from), Some(to)) = (c.number::<u8>(1), c.number(2)) {
        names.define(&c.name(0)).insert(from.value, to);
    }
}

fn list(c: &Captured<'_>, index: usize) -> Option<At<Vec<u8>>> {
    numbers(c.word(index)).map(|list| c.at(list))
}

static RULES: &[Rule<Raw>] = &[
    command("", "DSCP_TO_TC_MAP <name> <0-63> <0-15>", |raw, c| {
        entry(&mut raw.dscp_to_tc, c)
    }),
    command("", "TC_TO_QUEUE_MAP <name> <0-15> <0-15>", |raw, c| {
        entry(&mut raw.tc_to_queue, c)
    }),
    command(
        "",
        "TC_TO_PRIORITY_GROUP_MAP <name> <0-15> <0-7>",
        |raw, c| entry(&mut raw.tc_to_pg, c),
    ),
    command(
        "",
        "MAP_PFC_PRIORITY_TO_QUEUE <name> <0-7> <0-7>",
        |raw, c| entry(&mut raw.pfc_to_queue, c),
    ),
    command(
        "",
        "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP <name> <0-7> <0-7>",
        |raw, c| {
            entry(&mut raw.pfc_to_pg, c);
        },
    ),
    command("", "SCHEDULER <name> type DWRR|WRR|STRICT", |raw, c| {
        raw.schedulers.define(&c.name(0)).kind = Some(c.name(1));
    }),
    command("", "SCHEDULER <name> weight <1-100>", |raw, c| {
        raw.schedulers.define(&c.name(0)).weight = c.number(1);
    }),
    command(
        "",
        "SCHEDULER <name> meter_type|cir|cbs|pir|pbs|priority <value>",
        nothing,
    ),
    command(
        "",
        "WRED_PROFILE <name> ecn \
         ecn_none|ecn_green|ecn_yellow|ecn_red|ecn_green_yellow|ecn_green_red|ecn_yellow_red|ecn_all",
        |raw, c| raw.wred.define(&c.name(0)).ecn = Some(c.name(1)),
    ),
    command(
        "",
        "WRED_PROFILE <name> wred_green_enable|wred_yellow_enable|wred_red_enable true|false",
        |raw, c| {
            let colour = c
                .word(1)
                .trim_start_matches("wred_")
                .trim_end_matches("_enable");
            let wred = raw.wred.define(&c.name(0));
            wred.enabled
                .insert(colour.to_owned(), c.at(c.word(2) == "true"));
        },
    ),
    command(
        "",
        "WRED_PROFILE <name> green_min_threshold|yellow_min_threshold|red_min_threshold <0-4294967295>",
        |raw, c| {
            let colour = c.word(1).trim_end_matches("_min_threshold").to_owned();
            if let Some(bytes) = c.number(2) {
                raw.wred.define(&c.name(0)).min.insert(colour, bytes);
            }
        },
    ),
    command(
        "",
        "WRED_PROFILE <name> green_max_threshold|yellow_max_threshold|red_max_threshold <0-4294967295>",
        |raw, c| {
            let colour = c.word(1).trim_end_matches("_max_threshold").to_owned();
            if let Some(bytes) = c.number(2) {
                raw.wred.define(&c.name(0)).max.insert(colour, bytes);
            }
        },
    ),
    command(
        "",
        "WRED_PROFILE <name> green_drop_probability|yellow_drop_probability|red_drop_probability <0-100>",
        |raw, c| {
            let colour = c.word(1).trim_end_matches("_drop_probability").to_owned();
            if let Some(percent) = c.number(2) {
                raw.wred
                    .define(&c.name(0))
                    .probability
                    .insert(colour, percent);
            }
        },
    ),
    command("", "PORT_QOS_MAP global dscp_to_tc_map <name>", |raw, c| {
        raw.global = Some(c.name(0))
    }),
    command("", "PORT_QOS_MAP global <rest>", nothing),
    command(
        "",
        "PORT_QOS_MAP <port> dscp_to_tc_map|tc_to_queue_map|tc_to_pg_map|pfc_to_queue_map|pfc_to_pg_map <name>",
        |raw, c| {
            let (map, name) = (c.word(1).to_owned(), c.name(2));
            raw.port(c).maps.insert(map, name);
        },
    ),
    command("", "PORT_QOS_MAP <port> pfc_enable [<list>]", |raw, c| {
        raw.port(c).pfc = list(c, 1)
    }),
    command(
        "",
        "PORT_QOS_MAP <port> pfcwd_sw_enable [<list>]",
        |raw, c| {
            raw.port(c).watched = list(c, 1);
        },
    ),
    command(
        "",
        "PORT_QOS_MAP <port> dot1p_to_tc_map|tc_to_dscp_map|tc_to_dot1p_map|scheduler|dscp_to_fc_map|exp_to_fc_map|\
         pfc_asym <value>",
        nothing,
    ),
    command("", "QUEUE <key> scheduler <name>", |raw, c| {
        raw.schedulers.uses(&c.name(1));
        raw.each_queue(c, |queue| queue.scheduler = Some(c.name(1)));
    }),
    command("", "QUEUE <key> wred_profile <name>", |raw, c| {
        raw.wred.uses(&c.name(1));
        raw.each_queue(c, |queue| queue.wred = Some(c.name(1)));
    }),
    command("", "BUFFER_QUEUE <key> profile <name>", |raw, c| {
        raw.each_queue(c, |queue| queue.buffer = Some(c.name(1)));
    }),
    command(
        "",
        "BUFFER_PROFILE <name> static_th <0-4294967295>",
        |raw, c| {
            if let Some(limit) = c.number(1) {
                raw.limits.insert(c.word(0).to_owned(), limit);
            }
        },
    ),
    command("", "BUFFER_PROFILE <rest>", nothing),
    command("", "BUFFER_PG <key> profile <name>", nothing),
    command("", "CABLE_LENGTH <name> <port> <length>", |raw, c| {
        let metres = c.word(2).trim_end_matches('m').parse().ok();
        let port = raw.ports.entry(c.word(1).to_owned()).or_default();
        port.cable = metres.map(|metres| c.at(metres));
    }),
    command("", "PFC_WD GLOBAL POLL_INTERVAL <100-1000>", |raw, c| {
        raw.poll = c.number(0)
    }),
    command("", "PFC_WD GLOBAL <rest>", nothing),
    command("", "PFC_WD <port> detection_time <100-5000>", |raw, c| {
        raw.watchdog.entry(c.word(0).to_owned()).or_default().detect = c.number(1);
    }),
    command(
        "",
        "PFC_WD <port> restoration_time <100-60000>",
        |raw, c| {
            raw.watchdog
                .entry(c.word(0).to_owned())
                .or_default()
                .restore = c.number(1);
        },
    ),
    command("", "PFC_WD <port> action drop|forward|alert", |raw, c| {
        let action = match c.word(1) {
            "drop" => Action::Drop,
            _ => Action::Forward,
        };
        raw.watchdog.entry(c.word(0).to_owned()).or_default().action = Some(c.at(action));
    }),
    command("", "PFC_WD <port> pfc_stat_history enable|disable", nothing),
    command("", "PORT <port> mtu <68-9216>", |raw, c| {
        raw.ports.entry(c.word(0).to_owned()).or_default().mtu = c.number(1);
    }),
];

static GRAMMAR: LazyLock<Grammar<Raw>> = LazyLock::new(|| {
    let territory = &[
        "DSCP_TO_TC_MAP",
        "TC_TO_QUEUE_MAP",
        "TC_TO_PRIORITY_GROUP_MAP",
        "MAP_PFC_PRIORITY_TO_QUEUE",
        "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
        "PFC_PRIORITY_TO_QUEUE_MAP",
        "SCHEDULER",
        "WRED_PROFILE",
        "PORT_QOS_MAP",
        "QUEUE",
        "BUFFER_QUEUE",
        "CABLE_LENGTH",
        "PFC_WD",
    ];
    Grammar::new(RULES, territory)
});

/// Reads a configuration.
pub(in super::super) fn read(statements: &[Statement], file: Place, notes: &mut Notes) -> Switch {
    let mut raw = Raw {
        dscp_to_tc: Names::new("DSCP_TO_TC_MAP"),
        tc_to_queue: Names::new("TC_TO_QUEUE_MAP"),
        tc_to_pg: Names::new("TC_TO_PRIORITY_GROUP_MAP"),
        pfc_to_queue: Names::new("MAP_PFC_PRIORITY_TO_QUEUE"),
        pfc_to_pg: Names::new("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
        schedulers: Names::new("SCHEDULER"),
        wred: Names::new("WRED_PROFILE"),
        global: None,
        ports: BTreeMap::new(),
        queues: BTreeMap::new(),
        limits: BTreeMap::new(),
        watchdog: BTreeMap::new(),
        poll: None,
    };
    GRAMMAR.read(statements, file, &mut raw, notes);
    references(&mut raw, notes);
    let profiles: BTreeMap<&String, Marking> = raw
        .wred
        .iter()
        .map(|(name, _, wred)| (name, marking(name, wred, notes)))
        .collect();
    let mut timers = Timers {
        poll: raw.poll,
        ..Timers::default()
    };
    let mut ports = Vec::new();
    for (name, bound) in &raw.ports {
        // A port of PORT or CABLE_LENGTH alone has nothing to do with quality of service.
        let Some(place) = bound.place else { continue };
        let mut port = port(name, bound, place, &raw);
        queues(name, &raw, &profiles, &mut port);
        if let Some(watch) = raw.watchdog.get(name) {
            watched(name, watch, bound, &mut port, &mut timers, notes);
        } else {
            port.watched = None;
        }
        ports.push(port);
    }
    for name in raw.watchdog.keys() {
        if !ports.iter().any(|port| port.name == *name) {
            notes.cannot(
                "watchdog.port",
                name.clone(),
                "PFC_WD names a port that PORT_QOS_MAP does not",
            );
        }
    }
    Switch {
        system: Target::Sonic,
        place: file,
        ports,
        watchdog: timers,
    }
}

fn references(raw: &mut Raw, notes: &mut Notes) {
    if let Some(name) = &raw.global {
        raw.dscp_to_tc.uses(name);
    }
    for port in raw.ports.values() {
        for (map, name) in &port.maps {
            match map.as_str() {
                "dscp_to_tc_map" => raw.dscp_to_tc.uses(name),
                "tc_to_queue_map" => raw.tc_to_queue.uses(name),
                "tc_to_pg_map" => raw.tc_to_pg.uses(name),
                "pfc_to_queue_map" => raw.pfc_to_queue.uses(name),
                _ => raw.pfc_to_pg.uses(name),
            }
        }
    }
    let maps = [
        &raw.dscp_to_tc,
        &raw.tc_to_queue,
        &raw.tc_to_pg,
        &raw.pfc_to_queue,
        &raw.pfc_to_pg,
    ];
    for map in maps {
        map.check(&[], notes);
    }
    raw.schedulers.check(&[], notes);
    raw.wred.check(&[], notes);
}

/// What a profile does to green packets, which is what all are that no policer has coloured; and what differs for the
/// others.
fn marking(name: &str, wred: &Wred, notes: &mut Notes) -> Marking {
    let mut others = BTreeMap::new();
    for colour in ["yellow", "red"] {
        let narrow =
            |bytes: &At<u64>| At::new(u32::try_from(bytes.value).unwrap_or(u32::MAX), bytes.place);
        let mut add = |what: &str, value: Option<At<u32>>| {
            if let Some(value) = value {
                others.insert(format!("{colour} {what}"), value);
            }
        };
        add("min_threshold", wred.min.get(colour).map(narrow));
        add("max_threshold", wred.max.get(colour).map(narrow));
        add("drop_probability", wred.probability.get(colour).copied());
        if let (Some(min), Some(max)) = (wred.min.get(colour), wred.max.get(colour))
            && min.value > max.value
        {
            notes.error(
                "ecn.order",
                name,
                format!(
                    "{colour}: marking begins at {} bytes, and is complete at {}",
                    min.value, max.value
                ),
                "SONiC's YANG model refuses the profile",
                [min.place, max.place],
                "make the maximum the greater",
            );
        }
    }
    let (Some(min), Some(max)) = (wred.min.get("green"), wred.max.get("green")) else {
        return (None, others);
    };
    let green = wred.enabled.get("green");
    let kind = wred.ecn.as_ref();
    let marks = kind.is_some_and(|ecn| ecn.value.contains("green") || ecn.value == "ecn_all");
    let ecn = Ecn {
        min: *min,
        max: *max,
        probability: wred.probability.get("green").copied(),
        marks: At::new(
            marks && green.is_some_and(|green| green.value),
            green
                .filter(|green| !green.value)
                .map(|green| green.place)
                .or(kind.map(|ecn| ecn.place))
                .unwrap_or(min.place),
        ),
    };
    (Some(ecn), others)
}

fn port(name: &str, bound: &Bound, place: Place, raw: &Raw) -> Port {
    let mut port = Port::new(name, place);
    port.mtu = bound.mtu;
    port.cable = bound.cable;
    let map = |map: &str| bound.maps.get(map);
    let named = map("dscp_to_tc_map").or(raw.global.as_ref());
    port.trust = named.map(|name| At::new(Trust::Dscp, name.place));
    // A group is a queue: what TC_TO_QUEUE_MAP makes of the traffic class.
    let queues = map("tc_to_queue_map").and_then(|name| raw.tc_to_queue.get(&name.value));
    let queue = |tc: At<u8>| match queues.and_then(|map| map.get(&tc.value)) {
        Some(queue) if queue.value != tc.value => *queue,
        _ => tc,
    };
    let classes = named.and_then(|name| raw.dscp_to_tc.get(&name.value));
    let mut dscp: DscpMap = no_map();
    for (code_point, tc) in classes.into_iter().flatten() {
        if let Some(entry) = dscp.get_mut(usize::from(*code_point)) {
            *entry = Some(queue(*tc));
        }
    }
    port.dscp = Rc::new(dscp);
    let lossless = bound.pfc.as_ref();
    port.pfc = Some(match lossless {
        Some(list) if !list.value.is_empty() => At::new(Pfc::On, list.place),
        Some(list) => At::new(Pfc::Off, list.place),
        None => At::new(Pfc::Off, place),
    });
    let pauses = map("pfc_to_queue_map").and_then(|name| raw.pfc_to_queue.get(&name.value));
    port.lossless = Rc::new(
        lossless
            .iter()
            .flat_map(|list| list.value.iter().map(|priority| (*priority, list.place)))
            .map(|(priority, place)| {
                let queue = pauses.and_then(|map| map.get(&priority));
                (
                    queue.map_or(priority, |queue| queue.value),
                    At::new(priority, place),
                )
            })
            .collect(),
    );
    port.watched = bound
        .watched
        .as_ref()
        .map(|list| At::new(Some(list.value.clone()), list.place));
    for (what, map_name, maps) in [
        (
            "priority group of traffic class",
            "tc_to_pg_map",
            &raw.tc_to_pg,
        ),
        (
            "priority group of priority",
            "pfc_to_pg_map",
            &raw.pfc_to_pg,
        ),
        ("queue of priority", "pfc_to_queue_map", &raw.pfc_to_queue),
        (
            "queue of traffic class",
            "tc_to_queue_map",
            &raw.tc_to_queue,
        ),
    ] {
        let entries = map(map_name).and_then(|name| maps.get(&name.value));
        for (from, to) in entries.into_iter().flatten() {
            let value = At::new(u32::from(to.value), to.place);
            port.others.insert(format!("{what} {from}"), value);
        }
    }
    port
}

fn queues(name: &str, raw: &Raw, profiles: &BTreeMap<&String, Marking>, port: &mut Port) {
    let mut queues = BTreeMap::new();
    let from = (name.to_owned(), 0);
    for ((_, number), bound) in raw
        .queues
        .range(from..)
        .take_while(|((port, _), _)| port == name)
    {
        let mut queue = Queue::default();
        let scheduler = bound.scheduler.as_ref();
        if let Some(scheduler) = scheduler.and_then(|name| raw.schedulers.get(&name.value)) {
            queue.strict = scheduler
                .kind
                .as_ref()
                .map(|kind| At::new(kind.value == "STRICT", kind.place));
            queue.bandwidth = scheduler.weight;
        }
        let wred = bound
            .wred
            .as_ref()
            .and_then(|name| profiles.get(&name.value));
        if let Some((ecn, more)) = wred {
            queue.ecn = *ecn;
            for (what, value) in more {
                port.others
                    .insert(format!("{what} of queue {number}"), *value);
            }
        }
        if let Some(buffer) = &bound.buffer {
            queue.drop = raw.limits.get(&buffer.value).copied();
            let lossless = u32::from(buffer.value.contains("lossless"));
            let name = format!("lossless egress buffer of queue {number}");
            port.others.insert(name, At::new(lossless, buffer.place));
        }
        queues.insert(*number, queue);
    }
    port.queues = Rc::new(queues);
}

/// Times are each port's own; the model has those of the first, and ports that differ are noted.
fn watched(
    name: &str,
    watch: &Watch,
    bound: &Bound,
    port: &mut Port,
    timers: &mut Timers,
    notes: &mut Notes,
) {
    if bound.watched.is_none() {
        port.watched = None;
    }
    for (what, mine, first) in [
        ("detection_time", watch.detect, &mut timers.detect),
        ("restoration_time", watch.restore, &mut timers.restore),
    ] {
        match (mine, &first) {
            (Some(mine), Some(first)) if mine.value != first.value => notes.warning(
                "watchdog.differs",
                name,
                format!(
                    "{what} is {} here, and {} at another port",
                    mine.value, first.value
                ),
                "ports of one role should give up on a stuck queue after the same time",
                [mine.place, first.place],
                "make them the same",
            ),
            (Some(_), None) => *first = mine,
            _ => {}
        }
    }
    if timers.action.is_none() {
        timers.action = watch.action;
    }
}
