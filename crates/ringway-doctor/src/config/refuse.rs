//! What a system cannot express, and why. Sources of the limits stand in `docs/lossless.md`.

use super::Target;
use crate::intent::{Action, DEFAULT, Feature, Intent, Level, Line, Time};

/// Each reason why `target` cannot express `intent`, with its remedy; none if it can.
pub(super) fn reasons(intent: &Intent, target: Target) -> Vec<String> {
    let mut reasons = Vec::new();
    if !target.is_switch() {
        return reasons;
    }
    frames(intent, target, &mut reasons);
    queues(intent, target, &mut reasons);
    if !intent.leaves_out(target.name(), Feature::Ecn) {
        marking(intent, target, &mut reasons);
    }
    if intent.watchdog.enabled.value && !intent.leaves_out(target.name(), Feature::Watchdog) {
        watchdog(intent, target, &mut reasons);
    }
    reasons
}

fn frames(intent: &Intent, target: Target, reasons: &mut Vec<String>) {
    let most = target.jumbo();
    let (what, asked) = match &intent.switch.mtu {
        Some(mtu) => ("switch.mtu", mtu.value),
        None => ("mtu", intent.mtu.value),
    };
    if asked > most {
        reasons.push(format!(
            "{what} is {asked}, and ports take at most {most}: lower it"
        ));
    }
}

fn queues(intent: &Intent, target: Target, reasons: &mut Vec<String>) {
    let strict: Vec<_> = intent
        .classes
        .iter()
        .filter(|(_, class)| class.strict.value)
        .map(|(name, _)| name.as_str())
        .collect();
    if matches!(target, Target::Nxos | Target::Junos) && strict.len() > 1 {
        reasons.push(format!(
            "there is one strict queue, and {} are strict: give all but one `bandwidth`",
            strict.join(" and ")
        ));
    }
    for (name, class) in &intent.classes {
        let priority = class.priority.value.0;
        if target == Target::Nxos && priority == 7 && !class.strict.value && !strict.is_empty() {
            reasons.push(format!(
                "class `{name}` would have queue 7, which is the strict one's: take another priority than 7"
            ));
        }
        if target == Target::Eos && priority == 7 {
            reasons.push(format!(
                "class `{name}` has priority 7, and traffic class 7 is the switch's own: take another"
            ));
        }
        let elsewhere = class.code_points().into_iter().find(|d| d / 8 != priority);
        if let (Target::Onyx, Some(dscp)) = (target, elsewhere) {
            reasons.push(format!(
                "DSCP {dscp} of class `{name}` has priority {}, DSCP / 8, and the command that changes this was not \
                 verified: take priority {} or another DSCP",
                dscp / 8,
                dscp / 8
            ));
        }
    }
    if target == Target::Junos {
        let lossless = intent.classes.values().filter(|c| c.lossless.value).count();
        let shared = intent
            .classes
            .iter()
            .filter(|(name, class)| {
                name.as_str() != DEFAULT && !class.lossless.value && !class.strict.value
            })
            .count();
        if lossless > 3 || shared > 2 {
            reasons.push(
                "queues 4 to 6 are for lossless classes and 1 and 2 for others that share: take fewer classes"
                    .to_owned(),
            );
        }
    }
}

fn marking(intent: &Intent, target: Target, reasons: &mut Vec<String>) {
    let leave = format!("or leave it out (leave_out: {{{target}: [ecn]}})");
    for (name, class) in &intent.classes {
        let Some(ecn) = &class.ecn else { continue };
        let levels = [("min", ecn.min.value), ("max", ecn.max.value)];
        for (which, level) in levels {
            let place = format!("classes.{name}.ecn.{which}");
            if target == Target::Junos {
                if let Level::Bytes(size) = level {
                    reasons.push(format!(
                        "{place} is {size}, and Junos marks by percent of the queue's fill: write percent, {leave}"
                    ));
                }
                continue;
            }
            let Some(bytes) = level.bytes(intent.buffer.as_ref().map(|buffer| buffer.value)) else {
                reasons.push(format!(
                    "{place} is {level} of a buffer of unknown size: give `buffer`, or bytes, {leave}"
                ));
                continue;
            };
            let kilobytes = matches!(
                target,
                Target::Nxos | Target::Eos | Target::Onyx | Target::Os10
            );
            if kilobytes && bytes % 1000 != 0 {
                reasons.push(format!(
                    "{place} is {bytes} bytes, and thresholds are in kB: take a multiple of 1kB, {leave}"
                ));
            }
        }
        if target == Target::Onyx && ecn.probability.value.0 != 100 {
            reasons.push(format!(
                "classes.{name}.ecn.probability is {}, and the command has none: take 100, {leave}",
                ecn.probability.value.0
            ));
        }
    }
}

fn watchdog(intent: &Intent, target: Target, reasons: &mut Vec<String>) {
    let name = target.name();
    if target == Target::Os10 {
        reasons.push(
            "no command of a PFC watchdog was found for OS10: go without (leave_out: {os10: [watchdog]})".to_owned(),
        );
        return;
    }
    if intent.leaves_out(name, Feature::WatchdogTimers) {
        return;
    }
    let watchdog = &intent.watchdog;
    let leave = format!("or take the system's own (leave_out: {{{name}: [watchdog_timers]}})");
    if watchdog.action.value == Action::Forward && !matches!(target, Target::Sonic | Target::Eos) {
        reasons.push(format!(
            "watchdog.action is forward, and only drop is there: take drop, {leave}"
        ));
    }
    let timers = [
        ("poll", &watchdog.poll),
        ("detect", &watchdog.detect),
        ("restore", &watchdog.restore),
    ];
    let given = timers
        .iter()
        .filter_map(|(timer, time)| time.as_ref().map(|Line { value, .. }| (*timer, value.0)));
    for (timer, ms) in given {
        let wrong = match (target, timer) {
            (Target::Nxos, "poll") => (ms != 100).then_some("queues are looked at every 100 ms"),
            (Target::Nxos, _) => (ms % 100 != 0).then_some("it is a multiple of 100 ms"),
            (Target::Sonic, "poll") => {
                (!(100..=1000).contains(&ms)).then_some("it is 100 to 1000 ms")
            }
            (Target::Sonic, "detect") => {
                (!(100..=5000).contains(&ms)).then_some("it is 100 to 5000 ms")
            }
            (Target::Sonic, _) => (ms < 100).then_some("it is at least 100 ms"),
            (Target::Eos, "poll") => (!(5..=30_000).contains(&ms)).then_some("it is 5 ms to 30 s"),
            (Target::Eos, _) => (ms % 10 != 0).then_some("it has two decimals of a second"),
            (Target::Nvue, "poll") => {
                (!(100..=5000).contains(&ms)).then_some("it is 100 to 5000 ms")
            }
            (Target::Nvue, "restore") => Some("there is no such setting"),
            (Target::Junos, "poll") => {
                (ms != 100).then_some("only the default of 100 ms was verified")
            }
            (Target::Junos, _) => (ms != 200).then_some("only the default of 200 ms was verified"),
            (Target::Onyx, _) => Some("there is no such setting"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            reasons.push(format!(
                "watchdog.{timer} is {ms}ms, and {wrong}: change it, {leave}"
            ));
        }
    }
    relations(intent, target, &leave, reasons);
}

/// What the times have to be to each other, defaults included.
fn relations(intent: &Intent, target: Target, leave: &str, reasons: &mut Vec<String>) {
    let timers = Timers::new(intent, target);
    match target {
        Target::Sonic if timers.detect < timers.poll || timers.restore < timers.poll => {
            reasons.push(format!(
                "the watchdog would poll every {} ms and detect in {} and restore in {}: polling must not take longer, {leave}",
                timers.poll, timers.detect, timers.restore
            ));
        }
        Target::Eos if timers.poll * 2 > timers.detect.min(timers.restore) => {
            reasons.push(format!(
                "watchdog.poll is {}ms, more than half of detect ({}) and restore ({}), and EOS would replace it by a \
                 value of its own: lower it, {leave}",
                timers.poll, timers.detect, timers.restore
            ));
        }
        Target::Nvue
            if !timers.detect.is_multiple_of(timers.poll) || timers.detect / timers.poll > 1000 =>
        {
            reasons.push(format!(
                "watchdog.detect is {}ms, and detection takes 1 to 1000 polls of {}ms: make it a multiple, {leave}",
                timers.detect, timers.poll
            ));
        }
        _ => {}
    }
}

/// The watchdog's times as a system gets them, in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) poll: u32,
    pub(super) detect: u32,
    pub(super) restore: u32,
}

impl Timers {
    /// The intent's, and what the system takes where it gives none.
    pub(super) fn new(intent: &Intent, target: Target) -> Self {
        let watchdog = &intent.watchdog;
        let own = intent.leaves_out(target.name(), Feature::WatchdogTimers);
        let given = |time: &Option<Line<Time>>| {
            time.as_ref()
                .filter(|_| !own)
                .map(|Line { value, .. }| value.0)
        };
        let asked = given(&watchdog.poll);
        let at_least = asked.unwrap_or(0);
        let detect = given(&watchdog.detect).unwrap_or_else(|| match target {
            Target::Sonic => at_least.max(200),
            Target::Nvue => 3 * asked.unwrap_or(100),
            _ => (2 * at_least).max(200),
        });
        let restore = given(&watchdog.restore).unwrap_or_else(|| match target {
            Target::Sonic => 2 * detect,
            _ => (2 * at_least).max(detect),
        });
        let shorter = detect.min(restore);
        let poll = asked.unwrap_or_else(|| match target {
            Target::Sonic => shorter.min(200),
            Target::Eos => (shorter / 2).min(100),
            _ => 100,
        });
        Self {
            poll,
            detect,
            restore,
        }
    }
}
