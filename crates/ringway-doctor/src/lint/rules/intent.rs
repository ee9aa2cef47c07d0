//! Against an intent: what the generator would write, read back into the model and compared with what is there.

use std::{collections::BTreeMap, path::Path, rc::Rc};

use super::super::{
    model::{DscpMap, Fabric, Host, Nic, Port, Queue, Switch},
    notes::Notes,
    read_back,
    source::{At, Place, Sources},
};
use crate::{
    config::{Purpose, Target, View, render},
    intent::{DEFAULT, Intent},
};

/// A value of one side and the other, and the intent's line.
struct Difference {
    what: String,
    wanted: String,
    found: Option<(String, Place)>,
    line: u32,
}

pub(super) fn judge(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    for (place, intent) in &fabric.intents {
        let mut known: BTreeMap<Target, Option<(Rc<Switch>, View)>> = BTreeMap::new();
        for switch in &fabric.switches {
            let system = switch.system;
            let wanted = known
                .entry(system)
                .or_insert_with(|| wanted(intent, system, *place, notes));
            if let Some((wanted, view)) = wanted {
                let subject = sources.name(switch.place);
                let lines = Lines { intent, view };
                let found = compare_switch(wanted, switch, &lines);
                tell(found, *place, subject, switch.place, notes);
            }
        }
        for host in &fabric.hosts {
            judge_host(intent, host, *place, sources.name(host.place), notes);
        }
    }
}

fn wanted(
    intent: &Intent,
    system: Target,
    place: Place,
    notes: &mut Notes,
) -> Option<(Rc<Switch>, View)> {
    let rendered = render(intent, system, Purpose::Apply, None::<&Path>);
    let (Ok(rendered), Ok(view)) = (&rendered, View::new(intent, system)) else {
        let reason = rendered
            .err()
            .map_or_else(String::new, |error| error.to_string());
        notes.cannot(
            "intent",
            system.name(),
            format!("no configuration to compare with: {reason}"),
        );
        return None;
    };
    let switch = read_back(&rendered.text, system, place)?;
    Some((Rc::new(switch), view))
}

fn tell(
    found: Vec<(String, Difference)>,
    intent: Place,
    subject: &str,
    file: Place,
    notes: &mut Notes,
) {
    notes.judged("intent");
    for (port, difference) in found {
        let (value, place) = difference
            .found
            .unwrap_or_else(|| ("nothing".to_owned(), file));
        notes.error(
            "intent",
            format!("{subject} {port}"),
            format!("{}: the intent wants {}, found {value}", difference.what, difference.wanted),
            "what differs from the intent differs from the other switches and hosts made from it",
            [intent.line(difference.line.max(1)), place],
            "ringway fabric config INTENT.yaml --for ... prints what is wanted; or correct the intent",
        );
    }
}

/// Where the intent says what.
struct Lines<'a> {
    intent: &'a Intent,
    view: &'a View,
}

impl Lines<'_> {
    fn dscp(&self, dscp: u8) -> u32 {
        let class = self.intent.class_of(dscp).map(|(_, class)| class);
        let line = class.map(|class| {
            class
                .dscp
                .as_ref()
                .map_or(class.priority.line, |dscp| dscp.line)
        });
        line.unwrap_or(0)
    }

    fn group(&self, group: u8) -> u32 {
        let view = self.view.classes.iter().find(|class| class.group == group);
        let name = view.map_or(DEFAULT, |class| &class.name);
        self.intent
            .class(name)
            .map_or(0, |class| class.priority.line)
    }

    fn marking(&self, group: u8) -> u32 {
        let view = self.view.classes.iter().find(|class| class.group == group);
        let ecn = view.and_then(|class| self.intent.class(&class.name)?.ecn.as_ref());
        ecn.map_or_else(|| self.group(group), |ecn| ecn.min.line)
    }

    fn watchdog(&self) -> u32 {
        let watchdog = &self.intent.watchdog;
        let times = [&watchdog.detect, &watchdog.poll, &watchdog.restore];
        let time = times.into_iter().flatten().map(|time| time.line).next();
        time.unwrap_or(watchdog.enabled.line)
    }

    /// Of the NIC with that interface or device, else of the first.
    fn nic(&self, name: &str) -> u32 {
        let nics = &self.intent.host.nics;
        let its = nics
            .iter()
            .find(|nic| nic.interface.value.0 == name || nic.device.0 == name);
        its.or(nics.first()).map_or(0, |nic| nic.interface.line)
    }

    fn mtu(&self) -> u32 {
        self.intent
            .switch
            .mtu
            .as_ref()
            .map_or(self.intent.mtu.line, |mtu| mtu.line)
    }
}

fn compare_switch(wanted: &Switch, found: &Switch, lines: &Lines<'_>) -> Vec<(String, Difference)> {
    let mut all = Vec::new();
    for port in &wanted.ports {
        match found
            .ports
            .iter()
            .find(|its| same_port(&its.name, &port.name))
        {
            Some(its) => {
                let mut differences = Vec::new();
                compare_port(port, its, lines, &mut differences);
                all.extend(
                    differences
                        .into_iter()
                        .map(|difference| (port.name.clone(), difference)),
                );
            }
            None => all.push((
                port.name.clone(),
                Difference {
                    what: format!("port {}", port.name),
                    wanted: "it configured".to_owned(),
                    found: None,
                    line: 0,
                },
            )),
        }
    }
    for port in &found.ports {
        if !port.name.contains('*')
            && !wanted
                .ports
                .iter()
                .any(|its| same_port(&port.name, &its.name))
            && port.takes_part()
        {
            all.push((
                port.name.clone(),
                Difference {
                    what: format!("port {}", port.name),
                    wanted: "nothing of it".to_owned(),
                    found: Some(("a configuration".to_owned(), port.place)),
                    line: 0,
                },
            ));
        }
    }
    let mut times = Compare::default();
    let (a, b) = (&wanted.watchdog, &found.watchdog);
    times.number("watchdog: poll in ms", a.poll, b.poll, lines.watchdog());
    times.number(
        "watchdog: detection in ms",
        a.detect,
        b.detect,
        lines.watchdog(),
    );
    times.number(
        "watchdog: restoration in ms",
        a.restore,
        b.restore,
        lines.watchdog(),
    );
    let action = |action: Option<At<_>>| {
        action.map(|at: At<crate::intent::Action>| {
            At::new(format!("{:?}", at.value).to_lowercase(), at.place)
        })
    };
    times.values(
        "watchdog: action",
        action(a.action),
        action(b.action),
        lines.watchdog(),
    );
    all.extend(
        times
            .0
            .into_iter()
            .map(|difference| (String::new(), difference)),
    );
    all
}

/// A pattern such as `et-*` is every port that it fits.
fn same_port(found: &str, wanted: &str) -> bool {
    found == wanted
        || found
            .strip_suffix('*')
            .is_some_and(|prefix| wanted.starts_with(prefix))
}

#[derive(Default)]
struct Compare(Vec<Difference>);

impl Compare {
    fn values<T: PartialEq + std::fmt::Display>(
        &mut self,
        what: &str,
        wanted: Option<At<T>>,
        found: Option<At<T>>,
        line: u32,
    ) {
        let same = match (&wanted, &found) {
            (Some(wanted), Some(found)) => wanted.value == found.value,
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.0.push(Difference {
                what: what.to_owned(),
                wanted: wanted.map_or_else(|| "nothing".to_owned(), |at| at.value.to_string()),
                found: found.map(|at| (at.value.to_string(), at.place)),
                line,
            });
        }
    }

    fn number(&mut self, what: &str, wanted: Option<At<u32>>, found: Option<At<u32>>, line: u32) {
        self.values(what, wanted, found, line);
    }
}

fn compare_port(wanted: &Port, found: &Port, lines: &Lines<'_>, out: &mut Vec<Difference>) {
    let mut compare = Compare::default();
    compare.number("MTU", wanted.mtu, found.mtu, lines.mtu());
    compare.number(
        "cable length in m",
        wanted.cable,
        found.cable,
        lines.intent.switch.cable.line,
    );
    let trust = |port: &Port| {
        port.trust
            .map(|trust| At::new(trust.value.name(), trust.place))
    };
    compare.values("trust", trust(wanted), trust(found), 0);
    let pfc = |port: &Port| {
        port.pfc
            .map(|pfc| At::new(format!("{:?}", pfc.value).to_lowercase(), pfc.place))
    };
    compare.values("PFC", pfc(wanted), pfc(found), 0);
    let pause = |port: &Port| port.pause.map(|pause| At::new(pause.value, pause.place));
    compare.values("flow control of the link", pause(wanted), pause(found), 0);
    let watched = |port: &Port| {
        port.watched.as_ref().map(|watched| {
            let shown = watched
                .value
                .as_ref()
                .map_or_else(|| "on".to_owned(), |list| format!("{list:?}"));
            At::new(shown, watched.place)
        })
    };
    compare.values(
        "watchdog",
        watched(wanted),
        watched(found),
        lines.watchdog(),
    );
    if !Rc::ptr_eq(&wanted.dscp, &found.dscp) {
        code_points(&wanted.dscp, &found.dscp, lines, &mut compare);
    }
    for group in union(wanted.lossless.keys(), found.lossless.keys()) {
        let priority = |port: &Port| port.lossless.get(&group).copied();
        let what = format!("lossless priority of class {group}");
        compare.values(&what, priority(wanted), priority(found), lines.group(group));
    }
    let nothing = Queue::default();
    for group in union(wanted.queues.keys(), found.queues.keys()) {
        let queue = |port: &'_ Port| port.queues.get(&group).cloned();
        let (a, b) = (queue(wanted), queue(found));
        if let (None, Some(_)) | (Some(_), None) = (&a, &b) {
            let what = format!("queue {group}");
            let here = b.as_ref().map(|_| At::new("one", found.place));
            compare.values(
                &what,
                a.as_ref().map(|_| At::new("one", wanted.place)),
                here,
                lines.group(group),
            );
        }
        queues(
            group,
            a.as_ref().unwrap_or(&nothing),
            b.as_ref().unwrap_or(&nothing),
            lines,
            &mut compare,
        );
    }
    for name in union(wanted.others.keys(), found.others.keys()) {
        let other = |port: &Port| port.others.get(&name).copied();
        compare.number(&name, other(wanted), other(found), 0);
    }
    out.append(&mut compare.0);
}

fn code_points(wanted: &DscpMap, found: &DscpMap, lines: &Lines<'_>, compare: &mut Compare) {
    for (dscp, (a, b)) in (0..64).zip(wanted.iter().zip(found)) {
        compare.values(&format!("class of DSCP {dscp}"), *a, *b, lines.dscp(dscp));
    }
}

fn queues(group: u8, a: &Queue, b: &Queue, lines: &Lines<'_>, compare: &mut Compare) {
    let line = lines.group(group);
    let strict = |queue: &Queue| queue.strict.filter(|strict| strict.value);
    compare.values(
        &format!("queue {group}: strict"),
        strict(a),
        strict(b),
        line,
    );
    compare.number(
        &format!("queue {group}: share"),
        a.bandwidth,
        b.bandwidth,
        line,
    );
    let line = lines.marking(group);
    let mut field = |what: &str, of: fn(&super::super::model::Ecn) -> Option<At<u64>>| {
        let what = format!("queue {group}: {what} of marking");
        compare.values(
            &what,
            a.ecn.as_ref().and_then(of),
            b.ecn.as_ref().and_then(of),
            line,
        );
    };
    field("minimum", |ecn| Some(ecn.min));
    field("maximum", |ecn| Some(ecn.max));
    field("probability", |ecn| {
        ecn.probability.map(|p| At::new(p.value.into(), p.place))
    });
    field("ECN", |ecn| {
        Some(At::new(ecn.marks.value.into(), ecn.marks.place))
    });
}

fn union<'a, K: Clone + Ord + 'a>(
    a: impl Iterator<Item = &'a K>,
    b: impl Iterator<Item = &'a K>,
) -> Vec<K> {
    let set: std::collections::BTreeSet<K> = a.chain(b).cloned().collect();
    set.into_iter().collect()
}

fn judge_host(intent: &Intent, found: &Host, place: Place, subject: &str, notes: &mut Notes) {
    let Ok(rendered) = render(intent, Target::Host, Purpose::Apply, None::<&Path>) else {
        return;
    };
    let Ok(view) = View::new(intent, Target::Host) else {
        return;
    };
    let wanted = super::super::read_back_host(&rendered.text, place);
    let lines = Lines {
        intent,
        view: &view,
    };
    let mut all = Vec::new();
    for name in union(wanted.nics.keys(), found.nics.keys()) {
        match (wanted.nics.get(&name), found.nics.get(&name)) {
            (Some(wanted), Some(found)) => {
                let mut compare = Compare::default();
                compare_nic(wanted, found, &lines, &mut compare);
                all.extend(
                    compare
                        .0
                        .into_iter()
                        .map(|difference| (name.clone(), difference)),
                );
            }
            (wanted, found) => all.push((
                name.clone(),
                Difference {
                    what: format!("{name} of `host.nics`"),
                    wanted: if wanted.is_some() {
                        "it configured"
                    } else {
                        "nothing of it"
                    }
                    .to_owned(),
                    found: found.map(|nic| ("a configuration".to_owned(), nic.place)),
                    line: lines.nic(&name),
                },
            )),
        }
    }
    let mut compare = Compare::default();
    for name in union(wanted.settings.keys(), found.settings.keys()) {
        let setting = |host: &Host| host.settings.get(&name).copied();
        compare.number(&name, setting(&wanted), setting(found), 0);
    }
    all.extend(
        compare
            .0
            .into_iter()
            .map(|difference| (String::new(), difference)),
    );
    tell(all, place, subject, found.place, notes);
}

fn compare_nic(wanted: &Nic, found: &Nic, lines: &Lines<'_>, compare: &mut Compare) {
    compare.number("MTU", wanted.mtu, found.mtu, lines.intent.mtu.line);
    let trust = |nic: &Nic| {
        nic.trust
            .map(|trust| At::new(trust.value.name(), trust.place))
    };
    compare.values("trust", trust(wanted), trust(found), 0);
    code_points(&wanted.dscp, &found.dscp, lines, compare);
    let list = |value: Option<At<[bool; 8]>>| {
        value.map(|at| {
            At::new(
                at.value.map(|on| if on { "1" } else { "0" }).join(","),
                at.place,
            )
        })
    };
    let numbers = |value: Option<At<[u8; 8]>>| {
        value.map(|at| At::new(at.value.map(|n| n.to_string()).join(","), at.place))
    };
    compare.values(
        "PFC by priority",
        list(wanted.pfc),
        list(found.pfc),
        lines.group(3),
    );
    compare.values(
        "class by priority",
        numbers(wanted.classes),
        numbers(found.classes),
        0,
    );
    compare.values(
        "strict by class",
        list(wanted.strict),
        list(found.strict),
        0,
    );
    compare.values(
        "share by class",
        numbers(wanted.bandwidth),
        numbers(found.bandwidth),
        0,
    );
    compare.number(
        "cable length in m",
        wanted.cable,
        found.cable,
        lines.intent.switch.cable.line,
    );
    let cnp = lines.intent.class(crate::intent::CNP);
    let line = cnp.map_or(0, |class| class.priority.line);
    compare.number(
        "DSCP of notifications",
        wanted.cnp_dscp,
        found.cnp_dscp,
        line,
    );
    compare.number(
        "priority of notifications",
        wanted.cnp_priority,
        found.cnp_priority,
        line,
    );
    let data = lines.intent.class(crate::intent::DATA);
    let line = data.map_or(0, |class| class.priority.line);
    compare.number("ToS of the connection manager", wanted.tos, found.tos, line);
    compare.number(
        "ToS of all queue pairs",
        wanted.traffic_class,
        found.traffic_class,
        line,
    );
    for (what, side) in [
        ("answers marks", (&wanted.notifies, &found.notifies)),
        ("slows down", (&wanted.reacts, &found.reacts)),
    ] {
        for priority in union(side.0.keys(), side.1.keys()) {
            let of = |map: &BTreeMap<u8, At<bool>>| map.get(&priority).copied();
            compare.values(
                &format!("{what} for priority {priority}"),
                of(side.0),
                of(side.1),
                line,
            );
        }
    }
    compare.values("flow control of the link", wanted.pause, found.pause, 0);
}
