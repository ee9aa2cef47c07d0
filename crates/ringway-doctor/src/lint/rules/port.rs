//! What has to hold at each port of a switch.

use std::collections::BTreeSet;

use super::super::{
    model::{Ecn, Pfc, Port, Switch, Timers, Trust},
    notes::Notes,
    source::{At, Place},
};
use crate::config::Target;

/// Judges the ports of a switch; `alone` says that no intent tells what is wanted.
pub(super) fn switch(switch: &Switch, name: &str, alone: bool, notes: &mut Notes) {
    timers(switch, name, notes);
    for port in &switch.ports {
        let subject = format!("{name} {}", port.name);
        pfc(switch.system, port, &subject, notes);
        watchdog(switch.system, port, &subject, alone, notes);
        classification(port, &subject, notes);
        queues(switch.system, port, &subject, alone, notes);
    }
    roles(switch, name, notes);
}

fn pfc(system: Target, port: &Port, subject: &str, notes: &mut Notes) {
    let Some(mode) = port.pfc else { return };
    notes.judged("pfc.mode");
    let lossless = port.lossless.values().next();
    match (mode.value, lossless) {
        (Pfc::Auto, _) => notes.warning(
            "pfc.mode",
            subject,
            "PFC is auto: it is on only if the neighbour agrees by DCBX",
            "a neighbour that speaks another dialect, or two agents on a host, turn it off without a word",
            [mode.place],
            "force it: priority-flow-control mode on",
        ),
        (Pfc::Off, Some(priority)) => notes.error(
            "pfc.off",
            subject,
            format!("priority {} is lossless, and PFC is off at the port", priority.value),
            "the port drops what the rest of the network takes for lossless",
            [priority.place, mode.place],
            "turn PFC on at the port",
        ),
        (Pfc::On, None) => notes.error(
            "pfc.nothing",
            subject,
            "PFC is on, and no class is lossless",
            "the port shows On and pauses nothing (`On (0)` on NX-OS)",
            [mode.place],
            "make RoCE's class lossless",
        ),
        _ => {}
    }
    if let (Some(pause), Pfc::On | Pfc::Auto) = (port.pause, mode.value)
        && pause.value
    {
        notes.error(
            "pfc.pause",
            subject,
            "pauses of the whole link are on beside PFC",
            "a pause of the whole link stops the notifications that would end the congestion; most systems run one of \
             the two",
            [pause.place, mode.place],
            format!("turn flow control of the link off, receive and send, on {system}"),
        );
    }
    if port.lossless.len() == 8 {
        let places: Vec<Place> = port
            .lossless
            .values()
            .map(|priority| priority.place)
            .collect();
        notes.error(
            "pfc.all",
            subject,
            "all eight priorities are lossless",
            "headroom is for one or two; notifications would be paused with the data",
            places,
            "make RoCE's priority alone lossless",
        );
    }
}

/// The watchdog looks at every queue that may be paused. Where systems cannot, or an intent wants none, nothing is said.
fn watchdog(system: Target, port: &Port, subject: &str, alone: bool, notes: &mut Notes) {
    let Some(first) = port.lossless.values().next() else {
        return;
    };
    if system == Target::Os10 {
        return;
    }
    notes.judged("watchdog.set");
    match &port.watched {
        None if alone => notes.warning(
            "watchdog.off",
            subject,
            format!(
                "priority {} is lossless, and no watchdog looks at it",
                first.value
            ),
            "a NIC that pauses without end stops the whole network behind it",
            [first.place],
            "turn the PFC watchdog on, for the switch and for the port",
        ),
        Some(At {
            value: Some(watched),
            place,
        }) => {
            let lossless: BTreeSet<u8> = port
                .lossless
                .values()
                .map(|priority| priority.value)
                .collect();
            let watched: BTreeSet<u8> = watched.iter().copied().collect();
            if watched != lossless {
                let show = |set: &BTreeSet<u8>| {
                    let set: Vec<String> = set.iter().map(u8::to_string).collect();
                    set.join(",")
                };
                notes.error(
                    "watchdog.set",
                    subject,
                    format!(
                        "the watchdog looks at priorities {}, and {} are lossless",
                        show(&watched),
                        show(&lossless)
                    ),
                    "a queue that is paused and not watched can stay stuck for ever",
                    [*place, first.place],
                    format!("watch {}", show(&lossless)),
                );
            }
        }
        _ => {}
    }
}

fn classification(port: &Port, subject: &str, notes: &mut Notes) {
    let Some(lossless) = port.lossless.values().next() else {
        return;
    };
    notes.judged("classify.trust");
    if let Some(trust) = port.trust
        && trust.value != Trust::Dscp
    {
        notes.error(
            "classify.trust",
            subject,
            format!("the port trusts {}, not the DSCP", trust.value.name()),
            "hosts of routed networks send no VLAN tag: all of RoCE is in the default class, and PFC never fires",
            [trust.place, lossless.place],
            "trust the DSCP",
        );
    }
    if let Some(group) = port.group(0)
        && let Some(priority) = port.lossless.get(&group.value)
    {
        notes.error(
            "classify.unmarked",
            subject,
            "DSCP 0 is in a lossless class",
            "everything that nobody marked pauses RoCE: SSH, storage and monitoring as well",
            [group.place, priority.place],
            "map DSCP 0 to the default class",
        );
    }
    let said = port.dscp.iter().flatten().count();
    for (group, priority) in port.lossless.iter() {
        if said > 0 && !port.dscp.iter().flatten().any(|at| at.value == *group) {
            notes.warning(
                "classify.nobody",
                subject,
                format!(
                    "no DSCP leads to the lossless class of priority {}",
                    priority.value
                ),
                "its headroom is taken from the buffer, and nothing uses it",
                [priority.place],
                "map RoCE's DSCP to it, or make it lossy",
            );
        }
    }
}

/// Marking that comes after dropping.
fn beyond(subject: &str, group: u8, ecn: &Ecn, drop: At<u64>, notes: &mut Notes) {
    let problem = format!(
        "queue {group}: marking begins at {} and is complete at {}, and packets are dropped from {} on",
        ecn.min.value, ecn.max.value, drop.value
    );
    let why = "senders hear of congestion by loss before they hear of it by marks: throughput goes up and down like a saw";
    let places = [ecn.max.place, drop.place];
    let remedy = "mark well below what drops: lower the marking, or allow the queue more";
    if drop.value <= ecn.min.value {
        notes.error("ecn.beyond", subject, problem, why, places, remedy);
    } else {
        notes.warning("ecn.beyond", subject, problem, why, places, remedy);
    }
}

fn queues(system: Target, port: &Port, subject: &str, alone: bool, notes: &mut Notes) {
    for (group, queue) in port.queues.iter() {
        notes.judged("ecn.order");
        let lossless = port.lossless.get(group);
        if let Some(ecn) = &queue.ecn {
            if ecn.min.value > ecn.max.value {
                notes.error(
                    "ecn.order",
                    subject,
                    format!(
                        "queue {group}: marking begins at {} and is complete at {}",
                        ecn.min.value, ecn.max.value
                    ),
                    "the system refuses it, or marks all at once",
                    [ecn.min.place, ecn.max.place],
                    "make the maximum the greater",
                );
            }
            if let (true, Some(drop)) = (ecn.marks.value, queue.drop)
                && drop.value < ecn.max.value
            {
                beyond(subject, *group, ecn, drop, notes);
            }
            if let (false, Some(priority)) = (ecn.marks.value, lossless) {
                notes.error(
                    "ecn.drops",
                    subject,
                    format!("queue {group} is lossless, and its thresholds drop packets in place of marking them"),
                    "packets of a lossless class are lost before PFC pauses, and no sender is told to slow down",
                    [ecn.marks.place, priority.place],
                    "turn marking (ECN) on beside the thresholds",
                );
            }
        }
        if let (Some(strict), Some(priority)) = (queue.strict, lossless)
            && strict.value
        {
            notes.error(
                "queue.strict",
                subject,
                format!("queue {group} is lossless and strict"),
                "bulk data goes before the notifications that would slow it down, and starves all else",
                [strict.place, priority.place],
                "give it a share of the bandwidth",
            );
        }
        if let (Some(strict), Some(bandwidth)) = (queue.strict, queue.bandwidth)
            && strict.value
            && bandwidth.value > 0
        {
            notes.warning(
                "queue.both",
                subject,
                format!(
                    "queue {group} is strict and has a share of {}",
                    bandwidth.value
                ),
                "one of the two has no effect",
                [strict.place, bandwidth.place],
                "take one away",
            );
        }
    }
    shares(system, port, subject, notes);
    elsewhere(port, subject, alone, notes);
}

/// Shares are percent, except for SONiC's weights.
fn shares(system: Target, port: &Port, subject: &str, notes: &mut Notes) {
    let shares = port
        .queues
        .values()
        .filter(|queue| queue.strict.is_none_or(|strict| !strict.value));
    let shares: Vec<At<u32>> = shares.filter_map(|queue| queue.bandwidth).collect();
    let sum: u32 = shares
        .iter()
        .fold(0, |sum, share| sum.saturating_add(share.value));
    if !matches!(system, Target::Sonic | Target::Onyx) && sum > 100 {
        let places: Vec<Place> = shares.iter().map(|share| share.place).collect();
        notes.error(
            "queue.shares",
            subject,
            format!("the shares of all queues are {sum} percent together"),
            "the system refuses them, or scales them in a way of its own",
            places,
            "make them 100 together",
        );
    }
}

/// Marking has to be where the lossless data is.
fn elsewhere(port: &Port, subject: &str, alone: bool, notes: &mut Notes) {
    let Some((group, priority)) = port.lossless.iter().next() else {
        return;
    };
    let marked = |group: &u8| port.queues.get(group).and_then(|queue| queue.ecn);
    if port.lossless.keys().any(|group| marked(group).is_some()) {
        return;
    }
    let other = port
        .queues
        .iter()
        .find_map(|(group, queue)| Some((group, queue.ecn?)));
    match other {
        Some((other, ecn)) => notes.error(
            "ecn.elsewhere",
            subject,
            format!("queue {group} is lossless and queue {other} is marked"),
            "RoCE is never told to slow down: PFC alone holds it, and spreads the congestion",
            [priority.place, ecn.min.place],
            format!("move the thresholds to queue {group}"),
        ),
        None if alone && !port.queues.is_empty() => notes.warning(
            "ecn.none",
            subject,
            format!("queue {group} is lossless, and nothing is marked"),
            "RoCE is never told to slow down: PFC alone holds it, and spreads the congestion",
            [priority.place],
            "set thresholds for marking in that queue",
        ),
        None => {}
    }
}

/// What the watchdog's times have to be to each other.
fn timers(switch: &Switch, name: &str, notes: &mut Notes) {
    let Timers {
        poll,
        detect,
        restore,
        ..
    } = &switch.watchdog;
    let Some(poll) = poll else { return };
    notes.judged("watchdog.times");
    for (what, longer) in [("detection", detect), ("restoration", restore)] {
        let Some(longer) = longer else { continue };
        let (fits, why) = match switch.system {
            Target::Eos => (
                poll.value.saturating_mul(2) <= longer.value,
                "EOS replaces the polling interval by one of its own",
            ),
            _ => (
                poll.value <= longer.value,
                "queues are looked at only once a poll: the time is not kept",
            ),
        };
        if !fits {
            notes.error(
                "watchdog.times",
                name,
                format!(
                    "the watchdog polls every {} ms, and {what} takes {} ms",
                    poll.value, longer.value
                ),
                why,
                [poll.place, longer.place],
                "poll at least twice as often",
            );
        }
    }
}

/// Ports of a switch that are lossless mark alike.
fn roles(switch: &Switch, name: &str, notes: &mut Notes) {
    let marks = |port: &Port| {
        let queue = port
            .lossless
            .keys()
            .find_map(|group| port.queues.get(group)?.ecn);
        queue.map(|ecn| (port.name.clone(), ecn))
    };
    let mut all = switch.ports.iter().filter_map(marks);
    let Some((first_name, first)) = all.next() else {
        return;
    };
    notes.judged("ecn.differs");
    for (port, ecn) in all {
        if (ecn.min.value, ecn.max.value) != (first.min.value, first.max.value) {
            notes.warning(
                "ecn.differs",
                format!("{name} {port}"),
                format!(
                    "marks from {} to {}, and {first_name} from {} to {}",
                    ecn.min.value, ecn.max.value, first.min.value, first.max.value
                ),
                "flows that share a bottleneck get unequal parts of it",
                [ecn.min.place, first.min.place],
                "make the thresholds of ports of one role the same",
            );
        }
    }
}
