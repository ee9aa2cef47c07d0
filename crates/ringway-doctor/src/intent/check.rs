//! What the values of an intent have to be to each other.

use std::{collections::BTreeMap, path::Path};

use super::{CNP, Class, DATA, DEFAULT, Intent, IntentError, Level};
use crate::config::Target;

/// Bytes of a RoCE v2 packet beside its payload: Ethernet with VLAN tag and CRC are not counted by an IP MTU, so IPv6
/// (40), UDP (8), BTH (12), RETH (16), immediate data (4) and ICRC (4) remain.
const HEADERS: u32 = 84;

/// Refuses an intent that contradicts itself.
pub(super) fn check(intent: &Intent, path: &Path) -> Result<(), IntentError> {
    let refuse = |line: u32, what: String, remedy: &str| {
        Err(IntentError::Contradiction {
            path: path.to_owned(),
            line,
            what,
            remedy: remedy.to_owned(),
        })
    };
    for name in [DATA, CNP, DEFAULT] {
        if !intent.classes.contains_key(name) {
            return refuse(
                1,
                format!("`classes` has no class `{name}`"),
                "every intent has data (RoCE), cnp (congestion notifications) and default (the rest)",
            );
        }
    }
    let mut priorities: BTreeMap<_, &str> = BTreeMap::new();
    let mut code_points: BTreeMap<u8, &str> = BTreeMap::new();
    for (name, class) in &intent.classes {
        class_alone(name, class, intent, &refuse)?;
        if let Some(other) = priorities.insert(class.priority.value, name) {
            return refuse(
                class.priority.line,
                format!(
                    "classes `{other}` and `{name}` both have priority {}",
                    class.priority.value.0
                ),
                "give each class a priority of its own, or make them one class with several DSCPs",
            );
        }
        for dscp in class.code_points() {
            if let Some(other) = code_points.insert(dscp, name) {
                return refuse(
                    class.dscp.as_ref().map_or(0, |dscp| dscp.line),
                    format!("DSCP {dscp} belongs to `{other}` and to `{name}`"),
                    "a packet has one class: take it out of one",
                );
            }
        }
    }
    let shared: u32 = intent
        .classes
        .values()
        .filter_map(|class| class.bandwidth.as_ref())
        .map(|bandwidth| u32::from(bandwidth.value.0))
        .sum();
    if shared != 100 {
        let line = intent.classes[DATA]
            .bandwidth
            .as_ref()
            .map_or(0, |bandwidth| bandwidth.line);
        return refuse(
            line,
            format!("the bandwidths of all classes are {shared} percent together"),
            "make them 100: schedulers share the whole link",
        );
    }
    mtu(intent, &refuse)?;
    watchdog(intent, &refuse)?;
    if intent.host.nics.is_empty() {
        return refuse(
            1,
            "`host.nics` is empty".to_owned(),
            "name at least one: {interface: eth1, device: mlx5_0}",
        );
    }
    if intent.name.0.contains('.') {
        return refuse(
            1,
            format!("`name` is {}", intent.name.0),
            "take a name without `.`: SONiC has none in the names of profiles",
        );
    }
    for system in intent.leave_out.keys() {
        if system.parse::<Target>().is_err() {
            return refuse(
                1,
                format!("`leave_out` names the system `{system}`"),
                &format!("known are {}", Target::names().join(", ")),
            );
        }
    }
    Ok(())
}

type Refuse<'a> = &'a dyn Fn(u32, String, &str) -> Result<(), IntentError>;

fn class_alone(
    name: &str,
    class: &Class,
    intent: &Intent,
    refuse: Refuse<'_>,
) -> Result<(), IntentError> {
    let line = class.priority.line;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !(1..=11).contains(&name.len()) || !name.chars().all(fits) {
        return refuse(
            line,
            format!("a class is called `{name}`"),
            "names of classes have 1 to 11 lower-case letters, digits and `_`",
        );
    }
    if (name == DEFAULT) != class.dscp.is_none() {
        let (what, remedy) = if class.dscp.is_none() {
            (
                format!("class `{name}` has no `dscp`"),
                "name the code points that belong to it",
            )
        } else {
            (
                "class `default` has a `dscp`".to_owned(),
                "leave it out: the default class gets what no other class names",
            )
        };
        return refuse(line, what, remedy);
    }
    if name == DEFAULT
        && (class.priority.value.0 != 0 || class.lossless.value || class.strict.value)
    {
        return refuse(
            line,
            "class `default` has to have priority 0, and to be neither lossless nor strict"
                .to_owned(),
            "everything that nobody marked is in it, and arrives as 0: one slow receiver of it would pause all",
        );
    }
    if class.lossless.value && class.code_points().contains(&0) {
        return refuse(
            class.dscp.as_ref().map_or(line, |dscp| dscp.line),
            format!("DSCP 0 belongs to class `{name}`, which is lossless"),
            "take another: everything that nobody marked has 0, and would pause RoCE",
        );
    }
    if class.lossless.value && name == CNP {
        return refuse(
            class.lossless.line,
            "class `cnp` is lossless".to_owned(),
            "notifications must get through while data is paused: leave `lossless` out",
        );
    }
    if class.lossless.value && class.strict.value {
        return refuse(
            class.strict.line,
            format!("class `{name}` is lossless and strict"),
            "a strict class with bulk data starves the notifications that would slow it down: give it `bandwidth`",
        );
    }
    if class.strict.value == class.bandwidth.is_some() {
        return refuse(
            line,
            format!("class `{name}` has to have either `strict: true` or `bandwidth`"),
            "strict classes go first; the others share what is left by bandwidth",
        );
    }
    let Some(ecn) = &class.ecn else {
        return Ok(());
    };
    let buffer = intent.buffer.as_ref().map(|buffer| buffer.value);
    if matches!(ecn.min.value, Level::Percent(_)) != matches!(ecn.max.value, Level::Percent(_)) {
        return refuse(
            ecn.max.line,
            format!("`ecn` of class `{name}` mixes bytes and percent"),
            "write `min` and `max` in the same unit",
        );
    }
    let ordered = match (ecn.min.value, ecn.max.value) {
        (Level::Percent(min), Level::Percent(max)) => min < max,
        (min, max) => min.bytes(buffer) < max.bytes(buffer),
    };
    if !ordered {
        return refuse(
            ecn.max.line,
            format!(
                "`ecn` of class `{name}` has min {} and max {}",
                ecn.min.value, ecn.max.value
            ),
            "marking begins at `min` and is complete at `max`: make `max` the greater",
        );
    }
    if let (Some(max), Some(buffer)) = (ecn.max.value.bytes(buffer), buffer)
        && max > buffer.0
    {
        return refuse(
            ecn.max.line,
            format!(
                "`ecn` of class `{name}` has max {}, more than the buffer of {buffer}",
                ecn.max.value
            ),
            "a queue as long as that never forms: take 10% to 15% of the buffer",
        );
    }
    Ok(())
}

fn mtu(intent: &Intent, refuse: Refuse<'_>) -> Result<(), IntentError> {
    const LEAST: u32 = 4096 + HEADERS;
    let host = &intent.mtu;
    if !(LEAST..=9600).contains(&host.value) {
        return refuse(
            host.line,
            format!("`mtu` is {}, expected {LEAST} to 9600", host.value),
            "RoCE's largest payload is 4096 bytes, and takes 9000 comfortably",
        );
    }
    if let Some(switch) = &intent.switch.mtu
        && !(host.value..=10_000).contains(&switch.value)
    {
        return refuse(
            switch.line,
            format!(
                "`switch.mtu` is {}, expected {} (the hosts') to 10000",
                switch.value, host.value
            ),
            "switches must pass what hosts send",
        );
    }
    let cable = &intent.switch.cable;
    if !(1..=2000).contains(&cable.value) {
        return refuse(
            cable.line,
            format!("`switch.cable` is {} m, expected 1 to 2000", cable.value),
            "headroom is made for the longest cable",
        );
    }
    let lanes = &intent.switch.sonic_lanes;
    if ![1, 2, 4, 8].contains(&lanes.value) {
        return refuse(
            lanes.line,
            format!(
                "`switch.sonic_lanes` is {}, expected 1, 2, 4 or 8",
                lanes.value
            ),
            "it is the distance of port names: Ethernet0, Ethernet4, ... has 4",
        );
    }
    Ok(())
}

fn watchdog(intent: &Intent, refuse: Refuse<'_>) -> Result<(), IntentError> {
    let watchdog = &intent.watchdog;
    for (name, longer) in [("detect", &watchdog.detect), ("restore", &watchdog.restore)] {
        if let (Some(poll), Some(longer)) = (&watchdog.poll, longer)
            && longer.value < poll.value
        {
            return refuse(
                longer.line,
                format!(
                    "`watchdog.{name}` is {}, less than `watchdog.poll`, {}",
                    longer.value, poll.value
                ),
                "queues are looked at only once a poll",
            );
        }
    }
    Ok(())
}
