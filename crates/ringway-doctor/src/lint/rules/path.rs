//! The way of a packet: application, host, each switch, and back. Data and its acknowledgements have one DSCP, as the
//! queue pair's traffic class is used in both directions; notifications have one of their own.

use std::collections::BTreeMap;

use super::super::{
    model::{Fabric, Marking, Nic, Pfc, Port, Switch},
    notes::Notes,
    source::{At, Place, Sources},
};
use crate::intent::{CNP, DATA};

/// A DSCP that somebody sends.
struct Sent {
    dscp: At<u8>,
    who: String,
    /// Whether it may be a code point that was written where a ToS byte belongs.
    raw: Option<u32>,
}

pub(super) fn judge(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    let data = data(fabric);
    let notifications = notifications(fabric);
    for switch in &fabric.switches {
        let name = sources.name(switch.place);
        for port in switch.ports.iter().filter(|port| port.takes_part()) {
            let subject = format!("{name} {}", port.name);
            for sent in &data {
                data_at_port(sent, port, &subject, notes);
            }
            for sent in &notifications {
                notification_at_port(sent, port, &subject, notes);
            }
        }
    }
    for host in &fabric.hosts {
        let name = sources.name(host.place);
        for (interface, nic) in &host.nics {
            let subject = format!("{name} {interface}");
            for sent in &data {
                data_at_host(sent, nic, &subject, notes);
            }
            for sent in &notifications {
                notification_at_host(sent, nic, &subject, notes);
            }
            if let Some(dscp) = nic.cnp_dscp.filter(|dscp| dscp.value > 63) {
                notes.error(
                    "path.cnp",
                    &subject,
                    format!("notifications have DSCP {}: a DSCP is 63 at most", dscp.value),
                    "the driver refuses it, or takes six of its bits: a type of service is four times the DSCP",
                    [dscp.place],
                    "write the DSCP of class cnp: 48 by default",
                );
            }
            alone(nic, &subject, notes);
            for switch in &fabric.switches {
                between(
                    nic,
                    switch,
                    sources.name(switch.place),
                    &data,
                    &subject,
                    notes,
                );
            }
        }
    }
    if data.is_empty() && !fabric.switches.is_empty() {
        notes.cannot(
            "path.data",
            "all switches",
            "no host, application or intent says with which DSCP RoCE is sent: only the switches were compared with \
             themselves",
        );
    }
    for switch in &fabric.switches {
        without(fabric, switch, sources.name(switch.place), notes);
    }
    hosts(fabric, sources, notes);
    switches(fabric, sources, notes);
}

/// A switch of which no port is lossless, while hosts pause: it counts their pauses as those of a lossy queue.
fn without(fabric: &Fabric, switch: &Switch, name: &str, notes: &mut Notes) {
    if switch.ports.is_empty() || switch.ports.iter().any(Port::takes_part) {
        return;
    }
    let nics = fabric.hosts.iter().flat_map(|host| host.nics.values());
    let mut paused = nics.filter_map(|nic| nic.pfc.filter(|pfc| pfc.value.contains(&true)));
    let Some(pfc) = paused.next() else { return };
    let priorities = (0..8).filter(|&it| pfc.value[it]).map(|it| it.to_string());
    let priorities = priorities.collect::<Vec<_>>().join(",");
    match switch.ports.iter().find_map(|port| port.pfc) {
        Some(off) => notes.error(
            "path.pfc",
            name,
            format!("no port is lossless, and hosts pause priority {priorities}"),
            "what the hosts ask to hold back is dropped: pauses that one side sends are not heeded by the other",
            [pfc.place, off.place],
            "make the same priorities lossless at both ends; or leave out a switch that RoCE does not pass",
        ),
        None => notes.cannot(
            "path.pfc",
            name,
            format!("it says nothing of PFC, and hosts pause priority {priorities}: show all of its configuration"),
        ),
    }
}

/// The DSCPs of RoCE's data.
fn data(fabric: &Fabric) -> Vec<Sent> {
    let tos = |tos: At<u32>, who: String| Sent {
        dscp: At::new(u8::try_from(tos.value >> 2).unwrap_or(63), tos.place),
        who,
        raw: Some(tos.value),
    };
    let mut all = Vec::new();
    let mut overrides = false;
    for nic in fabric.hosts.iter().flat_map(|host| host.nics.values()) {
        all.extend(
            nic.tos
                .map(|value| tos(value, "the connection manager".to_owned())),
        );
        all.extend(
            nic.traffic_class
                .map(|value| tos(value, "every queue pair of the kernel's path".to_owned())),
        );
        overrides |= nic.traffic_class.is_some();
    }
    for Marking {
        name,
        tos: value,
        set,
    } in &fabric.markings
    {
        // What is not set follows the host's setting for all queue pairs, except for those that the GPU drives.
        if *set || !overrides || name.contains("GIN") {
            let how = if *set { "" } else { ", which is not set," };
            all.push(tos(*value, format!("{name}{how}")));
        }
    }
    for (_, intent) in &fabric.intents {
        let Some(dscp) = intent.class(DATA).and_then(|class| class.dscp.as_ref()) else {
            continue;
        };
        let Some((place, _)) = fabric.intents.first() else {
            continue;
        };
        all.extend(dscp.value.0.iter().map(|value| Sent {
            dscp: At::new(value.0, place.line(dscp.line)),
            who: "class data of the intent".to_owned(),
            raw: None,
        }));
    }
    dedup(all)
}

/// The DSCPs of notifications.
fn notifications(fabric: &Fabric) -> Vec<Sent> {
    let mut all = Vec::new();
    for nic in fabric.hosts.iter().flat_map(|host| host.nics.values()) {
        let Some(dscp) = nic.cnp_dscp else { continue };
        let Ok(value @ 0..64) = u8::try_from(dscp.value) else {
            continue;
        };
        all.push(Sent {
            dscp: At::new(value, dscp.place),
            who: "the NIC".to_owned(),
            raw: None,
        });
    }
    for (place, intent) in &fabric.intents {
        let dscp = intent.class(CNP).and_then(|class| class.dscp.as_ref());
        all.extend(dscp.into_iter().flat_map(|dscp| {
            dscp.value.0.iter().map(|value| Sent {
                dscp: At::new(value.0, place.line(dscp.line)),
                who: "class cnp of the intent".to_owned(),
                raw: None,
            })
        }));
    }
    dedup(all)
}

/// Each DSCP once for each way in which it is sent.
fn dedup(all: Vec<Sent>) -> Vec<Sent> {
    let mut seen = std::collections::BTreeSet::new();
    all.into_iter()
        .filter(|sent| seen.insert((sent.dscp.value, sent.who.clone())))
        .collect()
}

fn data_at_port(sent: &Sent, port: &Port, subject: &str, notes: &mut Notes) {
    notes.judged("path.data");
    let dscp = sent.dscp.value;
    let Some(group) = port.group(dscp) else {
        notes.cannot(
            "path.data",
            subject,
            format!("the configuration does not say to which class DSCP {dscp} belongs"),
        );
        return;
    };
    if port.lossless.contains_key(&group.value) || port.lossless.is_empty() {
        return;
    }
    let wanted = port.lossless.values().next();
    let mut places = vec![sent.dscp.place, group.place];
    places.extend(wanted.map(|priority| priority.place));
    notes.error(
        "path.data",
        subject,
        format!(
            "{} sends DSCP {dscp}, which has the lossy class {} here{}",
            sent.who,
            group.value,
            slip(sent, port)
        ),
        "packets of RoCE are dropped under load: one loss costs a timeout, as the NIC goes back and sends all again",
        places,
        format!("map DSCP {dscp} to the lossless class, or send a DSCP that is in it"),
    );
}

/// Whether the byte would be right as a code point.
fn slip(sent: &Sent, port: &Port) -> String {
    let Some(dscp) = sent
        .raw
        .and_then(|raw| u8::try_from(raw).ok())
        .filter(|raw| *raw < 64)
    else {
        return String::new();
    };
    let lossless = port
        .group(dscp)
        .is_some_and(|group| port.lossless.contains_key(&group.value));
    match lossless {
        true => format!(
            "; {dscp} looks like a DSCP: the ToS byte is {}",
            u32::from(dscp) * 4 + 2
        ),
        false => String::new(),
    }
}

fn notification_at_port(sent: &Sent, port: &Port, subject: &str, notes: &mut Notes) {
    notes.judged("path.cnp");
    let dscp = sent.dscp.value;
    let Some(group) = port.group(dscp) else {
        notes.cannot(
            "path.cnp",
            subject,
            format!("the configuration does not say to which class DSCP {dscp} belongs"),
        );
        return;
    };
    if let Some(priority) = port.lossless.get(&group.value) {
        notes.error(
            "path.cnp",
            subject,
            format!(
                "{} sends notifications with DSCP {dscp}, which is lossless here",
                sent.who
            ),
            "notifications wait behind the data that they should slow down",
            [sent.dscp.place, group.place, priority.place],
            "give them a class of their own that is not lossless",
        );
        return;
    }
    let Some(queue) = port.queues.get(&group.value) else {
        if port.queues.is_empty() {
            notes.cannot(
                "path.cnp",
                subject,
                "the configuration says nothing of queues",
            );
        } else {
            notes.error(
                "path.cnp",
                subject,
                format!("{} sends notifications with DSCP {dscp}, whose queue {} has no place in the schedule", sent.who, group.value),
                "notifications come late, and senders slow down late",
                [sent.dscp.place, group.place],
                format!("map DSCP {dscp} to a strict queue"),
            );
        }
        return;
    };
    if !queue.strict.is_some_and(|strict| strict.value) {
        let place = queue
            .strict
            .map(|strict| strict.place)
            .or(queue.bandwidth.map(|share| share.place));
        notes.error(
            "path.cnp",
            subject,
            format!(
                "{} sends notifications with DSCP {dscp}, whose queue {} is not strict",
                sent.who, group.value
            ),
            "notifications come late, and senders slow down late",
            [Some(sent.dscp.place), Some(group.place), place]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>(),
            format!(
                "make queue {} strict, or map DSCP {dscp} to a strict one",
                group.value
            ),
        );
    }
}

fn data_at_host(sent: &Sent, nic: &Nic, subject: &str, notes: &mut Notes) {
    let priority = nic.priority(sent.dscp.value);
    let Some(lossless) = nic.lossless(priority.value) else {
        return;
    };
    notes.judged("path.host");
    if !lossless.value {
        notes.error(
            "path.host",
            subject,
            format!(
                "{} sends DSCP {}, whose priority {} is lossy on the host",
                sent.who, sent.dscp.value, priority.value
            ),
            "the host neither heeds pauses of the switch for it nor sends any: packets are lost at its port",
            [sent.dscp.place, priority.place, lossless.place],
            "turn PFC on for that priority, or map the DSCP to the lossless one",
        );
    }
}

fn notification_at_host(sent: &Sent, nic: &Nic, subject: &str, notes: &mut Notes) {
    let priority = nic.priority(sent.dscp.value);
    if nic
        .lossless(priority.value)
        .is_some_and(|lossless| lossless.value)
    {
        let places: Vec<Place> = [
            Some(sent.dscp.place),
            Some(priority.place),
            nic.pfc.map(|pfc| pfc.place),
        ]
        .into_iter()
        .flatten()
        .collect();
        notes.error(
            "path.cnp",
            subject,
            format!(
                "notifications have DSCP {}, whose priority {} is lossless on the host",
                sent.dscp.value, priority.value
            ),
            "notifications wait behind the data that they should slow down",
            places,
            "give them a priority of their own",
        );
    }
    if let (Some(tag), Some(own)) = (nic.cnp_priority, nic.cnp_dscp)
        && u32::from(sent.dscp.value) == own.value
        && tag.value != u32::from(priority.value)
    {
        notes.warning(
            "path.cnp",
            subject,
            format!(
                "notifications have DSCP {} (priority {}) and priority {} in the VLAN tag",
                own.value, priority.value, tag.value
            ),
            "which one counts depends on what the switch trusts: with DSCP the tag's has no effect",
            [own.place, tag.place, priority.place],
            "make both the same",
        );
    }
}

/// What has to hold at a host by itself.
fn alone(nic: &Nic, subject: &str, notes: &mut Notes) {
    if let (Some(pfc), Some(pause)) = (nic.pfc, nic.pause)
        && pause.value
        && pfc.value.contains(&true)
    {
        notes.error(
            "pfc.pause",
            subject,
            "pauses of the whole link are on beside PFC",
            "a pause of the whole link stops the notifications that would end the congestion",
            [pause.place, pfc.place],
            "ethtool -A ... rx off tx off",
        );
    }
    if let (Some(trust), Some(pfc)) = (nic.trust, nic.pfc)
        && trust.value != super::super::model::Trust::Dscp
        && pfc.value.contains(&true)
    {
        notes.error(
            "classify.trust",
            subject,
            format!("the host trusts {}, not the DSCP", trust.value.name()),
            "packets without VLAN tag have priority 0, whatever their DSCP",
            [trust.place, pfc.place],
            "mlnx_qos -i ... --trust dscp",
        );
    }
    if let (Some(strict), Some(bandwidth)) = (nic.strict, nic.bandwidth) {
        let shares = bandwidth
            .value
            .iter()
            .zip(strict.value)
            .filter(|(_, strict)| !strict);
        let sum: u32 = shares.map(|(share, _)| u32::from(*share)).sum();
        if sum != 100 && strict.value.contains(&false) {
            notes.error(
                "queue.shares",
                subject,
                format!("the shares of the classes are {sum} percent together"),
                "the driver refuses them",
                [bandwidth.place, strict.place],
                "make them 100 together",
            );
        }
    }
    for side in [&nic.notifies, &nic.reacts] {
        for (priority, on) in side.iter().filter(|(_, on)| on.value) {
            if let Some(lossless) = nic.lossless(*priority)
                && !lossless.value
            {
                notes.warning(
                    "ecn.elsewhere",
                    subject,
                    format!("the host takes part in ECN for priority {priority}, which is lossy"),
                    "RoCE's own priority is then not slowed down",
                    [on.place, lossless.place],
                    "turn it on for the lossless priority",
                );
            }
        }
    }
}

/// A host and a switch.
fn between(
    nic: &Nic,
    switch: &Switch,
    name: &str,
    data: &[Sent],
    subject: &str,
    notes: &mut Notes,
) {
    for port in switch.ports.iter().filter(|port| port.takes_part()) {
        let both = format!("{subject} and {name} {}", port.name);
        if let (Some(host), Some(there)) = (nic.mtu, port.mtu) {
            notes.judged("path.mtu");
            if host.value > there.value {
                notes.error(
                    "path.mtu",
                    &both,
                    format!("the host's MTU is {}, and the port takes {}", host.value, there.value),
                    "large packets are dropped without a word; small ones pass, so that connections come up and hang",
                    [host.place, there.place],
                    "raise the port's MTU, or lower the host's",
                );
            }
        }
        let Some(pfc) = nic.pfc else { continue };
        if port.pfc.is_some_and(|mode| mode.value == Pfc::Off) {
            continue;
        }
        notes.judged("path.pfc");
        let there: BTreeMap<u8, Place> = port
            .lossless
            .values()
            .map(|at| (at.value, at.place))
            .collect();
        for (priority, here) in (0..8).zip(pfc.value) {
            let Some(problem) = (match (here, there.contains_key(&priority)) {
                (true, false) => Some(format!(
                    "priority {priority} is lossless on the host, and not at the switch"
                )),
                (false, true) => Some(format!(
                    "priority {priority} is lossless at the switch, and not on the host"
                )),
                _ => None,
            }) else {
                continue;
            };
            let other = there
                .get(&priority)
                .or_else(|| there.values().next())
                .copied();
            notes.error(
                "path.pfc",
                &both,
                problem,
                "pauses that one side sends are not heeded by the other: it is lossless in one direction only",
                [Some(pfc.place), Some(other.unwrap_or(port.place))].into_iter().flatten().collect::<Vec<_>>(),
                "make the same priorities lossless at both ends",
            );
        }
        for sent in data {
            let here = nic.priority(sent.dscp.value);
            let Some(group) = port.group(sent.dscp.value) else {
                continue;
            };
            let Some(priority) = port.lossless.get(&group.value) else {
                continue;
            };
            if priority.value != here.value {
                notes.error(
                    "path.priority",
                    &both,
                    format!(
                        "DSCP {} has priority {} on the host and {} at the switch",
                        sent.dscp.value, here.value, priority.value
                    ),
                    "each side pauses a priority that the other does not send the data with",
                    [sent.dscp.place, here.place, priority.place, group.place],
                    "map the DSCP to the same priority at both ends",
                );
            }
        }
    }
}

/// Hosts have to agree with each other.
fn hosts(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    let mut first: BTreeMap<&str, (At<u32>, String)> = BTreeMap::new();
    for host in &fabric.hosts {
        for (interface, nic) in &host.nics {
            let subject = format!("{} {interface}", sources.name(host.place));
            let pfc = nic.pfc.map(|pfc| {
                let bits = pfc
                    .value
                    .iter()
                    .rev()
                    .fold(0, |bits, on| bits << 1 | u32::from(*on));
                At::new(bits, pfc.place)
            });
            let facts = [
                ("MTU", nic.mtu),
                ("DSCP of notifications", nic.cnp_dscp),
                ("set of lossless priorities (as bits)", pfc),
                ("ToS of the connection manager", nic.tos),
            ];
            for (what, value) in facts {
                let Some(value) = value else { continue };
                notes.judged("hosts.differ");
                let (known, whose) = first
                    .entry(what)
                    .or_insert_with(|| (value, subject.clone()));
                if known.value != value.value {
                    notes.warning(
                        "hosts.differ",
                        &subject,
                        format!(
                            "the {what} is {} here, and {} on {whose}",
                            value.value, known.value
                        ),
                        "one host that differs slows down every collective that it is in",
                        [value.place, known.place],
                        "make them the same",
                    );
                }
            }
        }
    }
}

/// Switches have to agree on what is lossless: a packet passes several.
fn switches(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    let parts = |switch: &Switch| {
        let port = switch
            .ports
            .iter()
            .find(|port| port.takes_part() && !port.lossless.is_empty())?;
        let priorities: BTreeMap<u8, Place> = port
            .lossless
            .values()
            .map(|at| (at.value, at.place))
            .collect();
        Some((switch.place, priorities))
    };
    let mut all = fabric.switches.iter().filter_map(parts);
    let Some((first_place, first)) = all.next() else {
        return;
    };
    for (place, priorities) in all {
        notes.judged("switches.differ");
        if priorities.keys().eq(first.keys()) {
            continue;
        }
        let show = |set: &BTreeMap<u8, Place>| {
            let set: Vec<String> = set.keys().map(u8::to_string).collect();
            set.join(",")
        };
        let places = [priorities.values().next(), first.values().next()];
        notes.error(
            "switches.differ",
            sources.name(place),
            format!(
                "priorities {} are lossless here, and {} on {}",
                show(&priorities),
                show(&first),
                sources.name(first_place)
            ),
            "pauses end where the next switch does not know them, and packets are dropped there",
            places.into_iter().flatten().copied().collect::<Vec<_>>(),
            "make the same priorities lossless on every switch",
        );
    }
}
