//! What differs between hosts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Aspect, Host, few, finding};
use crate::finding::{Finding, Severity};

pub(super) const DIFFERS: Aspect = Aspect {
    id: "fleet.differs",
    sign: "firmware, drivers, BIOS, clocks, MTUs, rates, models that are not the same on all hosts",
    why: "the slowest host sets the pace, and hosts that disagree about a number lose packets",
    source: "Linux, Documentation/ABI; NVIDIA, firmware release notes",
};

/// How much it matters that a topic differs; what is not named is a note.
const MATTERS: [&str; 14] = [
    "driver ",
    "firmware ",
    "GID index",
    "GPU driver",
    "GPUs",
    "MTU",
    "CPU clock",
    "clock source",
    "governor",
    "interfaces' speed",
    "link rate",
    "quality of service",
    "RDMA devices",
    "turbo off",
];

/// A topic of the inventory that is not the same on all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What it is.
    pub topic: String,
    /// Each value and its hosts, that of most hosts first; `absent` where a host has none.
    pub values: Vec<(String, Vec<String>)>,
    /// Where it was read.
    pub source: String,
}

/// All differences, in the order of the inventory.
pub fn differences(hosts: &[Host]) -> Vec<Difference> {
    let looks: Vec<_> = hosts
        .iter()
        .filter_map(|host| Some((&host.name, &host.look.as_ref()?.items)))
        .collect();
    let mut topics: Vec<(&str, &str)> = Vec::new();
    for item in looks.iter().flat_map(|(_, items)| *items) {
        if topics.iter().all(|(topic, _)| *topic != item.topic) {
            topics.push((&item.topic, &item.source));
        }
    }
    let of_topic = |(topic, source): (&str, &str)| {
        let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, items) in &looks {
            let item = items.iter().find(|item| item.topic == topic);
            let value = item.map_or("absent", |item| item.value.as_str());
            values.entry(value).or_default().push((*name).clone());
        }
        let mut values: Vec<_> = values
            .into_iter()
            .map(|(value, hosts)| (value.to_owned(), hosts))
            .collect();
        values.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
        (values.len() > 1).then(|| Difference {
            topic: topic.to_owned(),
            values,
            source: source.to_owned(),
        })
    };
    topics.into_iter().filter_map(of_topic).collect()
}

pub(super) fn judge(hosts: &[Host]) -> Vec<Finding> {
    differences(hosts).iter().map(tell).collect()
}

fn tell(difference: &Difference) -> Finding {
    let topic = &difference.topic;
    let matters = MATTERS
        .iter()
        .any(|it| topic == it || it.ends_with(' ') && topic.starts_with(it));
    let severity = if matters {
        Severity::Warning
    } else {
        Severity::Note
    };
    // With as many hosts on one side as on the other there is no odd one.
    let tie =
        difference.values.len() > 1 && difference.values[0].1.len() == difference.values[1].1.len();
    let odd = &difference.values[usize::from(!tie)..];
    let odd: Vec<&str> = odd
        .iter()
        .flat_map(|(_, hosts)| hosts)
        .map(String::as_str)
        .collect();
    let words = difference.values.iter().map(|(value, hosts)| {
        let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
        format!("{value} on {}", few(&names))
    });
    let words: Vec<String> = words.take(4).collect();
    let mut draft = finding(
        &DIFFERS,
        severity,
        &few(&odd),
        format!("{topic} differs: {}", words.join("; ")),
    );
    for (value, hosts) in &difference.values {
        let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
        draft = draft.saw(format!("{} on {}", difference.source, few(&names)), value);
    }
    draft
        .act(format!(
            "make {topic} the same on all hosts, or leave the odd ones out of the job"
        ))
        .0
}
