//! A fabric file, each value with where it comes from.

use std::fmt::Write as _;

use super::look::Host;

/// A link's rate in bits per second, its latency in seconds, and where both come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Links {
    /// From a host to its leaf.
    pub(super) rate: f64,
    pub(super) rate_is: &'static str,
    /// Of one of the links on the way.
    pub(super) latency: f64,
    pub(super) latency_is: &'static str,
    /// Of a leaf's hosts together upwards, for each host.
    pub(super) upwards: Option<f64>,
}

/// 10 Gbit/s, where nothing tells.
const RATE: f64 = 10e9;

/// The order of what switches and cables take.
const LATENCY: f64 = 1e-6;

impl Links {
    /// As the kernel tells.
    pub(super) fn read(host: &Host) -> Self {
        let rate = host.nics.iter().find_map(|nic| nic.rate);
        Self {
            rate: rate.unwrap_or(RATE),
            rate_is: if rate.is_some() { "read" } else { "guessed" },
            latency: LATENCY,
            latency_is: "guessed",
            upwards: None,
        }
    }
}

/// The leaves of hosts' cards, numbered as they come, the first cards' first; if a switch is named at each. `switches` has the names
/// by host and card, empty where there is none.
pub(super) fn by_lldp(switches: &[Vec<String>]) -> Option<Vec<Vec<usize>>> {
    let cards = switches.first().map_or(0, Vec::len);
    let is_named = |names: &Vec<String>| {
        names.len() == cards && cards > 0 && !names.iter().any(String::is_empty)
    };
    if !switches.iter().all(is_named) {
        return None;
    }
    let mut known: Vec<&String> = Vec::new();
    for name in (0..cards).flat_map(|card| switches.iter().map(move |names| &names[card])) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    let number = |name: &String| known.iter().position(|known| *known == name);
    let leaves = |names: &Vec<String>| names.iter().filter_map(number).collect();
    Some(switches.iter().map(leaves).collect())
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Of hosts.
    pub(super) names: Vec<String>,
    /// By host and card: the number of its leaf, from 0.
    pub(super) leaves: Vec<Vec<usize>>,
    pub(super) leaves_are: &'static str,
    pub(super) links: Links,
    /// The first; the others are taken to be alike.
    pub(super) host: Host,
}

impl Found {
    /// The file.
    pub(super) fn text(&self) -> String {
        let leaves = self.leaves.iter().flatten().max();
        let leaves = leaves.map_or(1, |last| last + 1);
        let (group, foreign) = group(&self.names);
        let mut text = String::from(
            "# Written by `ringway fabric discover`. Each value says whether it was read on the first host, measured\n\
             # between hosts, or guessed.\n",
        );
        if foreign {
            text += "# Hosts have other names than the file can give them: jobs that are told of it will not find theirs.\n";
            for (at, name) in self.names.iter().enumerate() {
                let _ = writeln!(text, "#   {group}{at} is {}", plain(name));
            }
        }
        text += "fabric: discovered\n\nhosts:\n";
        self.hosts(&group, &mut text);
        let _ = writeln!(
            text,
            "\nswitches:\n  # Which hosts are at one leaf: {}.",
            self.leaves_are
        );
        let _ = writeln!(text, "  - {{name: leaf, count: {leaves}, tier: leaf}}");
        if leaves > 1 {
            text += "  # What is above the leaves is guessed: one spine for all that is there.\n";
            text += "  - {name: spine, count: 1, tier: spine}\n";
        }
        self.links(&group, leaves, &mut text);
        text
    }

    fn hosts(&self, group: &str, text: &mut String) {
        let host = &self.host;
        let mut line = |key: &str, value: String, is: &str| {
            let pair = format!("{key}: {value}");
            let _ = writeln!(text, "    {pair:32}# {is}");
        };
        // A group's first line.
        line("count", self.names.len().to_string(), "read");
        let gpus = host.gpus.len();
        line(
            "gpus",
            gpus.max(1).to_string(),
            match gpus {
                0 => "guessed: no GPU was found, a host is one rank",
                _ => "read: /sys/bus/pci/devices",
            },
        );
        line("nics", host.rails().len().max(1).to_string(), &nics(host));
        line(
            "numa",
            host.numa.to_string(),
            "read: /sys/devices/system/node",
        );
        if gpus > 0 {
            line(
                "gpu_numa",
                format!("{:?}", host.gpus),
                "read: numa_node of each",
            );
        }
        if !host.nics.is_empty() {
            let numa: Vec<usize> = host.rails().iter().map(|nic| nic.numa).collect();
            line("nic_numa", format!("{numa:?}"), "read: numa_node of each");
        }
        let at = text.rfind("    count:").unwrap_or(0);
        text.replace_range(at..at + 4, &format!("  - name: {group}\n    "));
    }

    fn links(&self, group: &str, leaves: usize, text: &mut String) {
        let links = &self.links;
        let quantity = |bits: f64| format!("{}kbit/s", (bits / 1e3).round().max(1.0));
        let latency = format!("{}ns", (links.latency * 1e9).round().max(1.0));
        let _ = writeln!(
            text,
            "\nlinks:\n  # Rates are {}, latencies {}.",
            links.rate_is, links.latency_is
        );
        for (at, cards) in self.leaves.iter().enumerate() {
            for same in cards.chunk_by(|a, b| a == b) {
                let parallel = match same.len() {
                    1 => String::new(),
                    several => format!(", parallel: {several}"),
                };
                let _ = writeln!(
                    text,
                    "  - {{from: {group}{at}, to: leaf{}, join: full, rate: {}, latency: {latency}{parallel}}}",
                    same[0],
                    quantity(links.rate)
                );
            }
        }
        if leaves > 1 {
            let each = links.upwards.unwrap_or(links.rate);
            let is = if links.upwards.is_some() {
                "measured"
            } else {
                "guessed"
            };
            let _ = writeln!(
                text,
                "  # What a leaf's hosts get upwards together is {is}."
            );
            for leaf in 0..leaves {
                let at_leaf = self
                    .leaves
                    .iter()
                    .map(|cards| cards.iter().filter(|l| **l == leaf));
                // What was measured is of a host, however many of its cards are there.
                let members: usize = match links.upwards {
                    Some(_) => at_leaf.filter(|cards| cards.clone().count() > 0).count(),
                    None => at_leaf.map(Iterator::count).sum(),
                };
                let _ = writeln!(
                    text,
                    "  - {{from: leaf{leaf}, to: spine0, join: full, rate: {}, latency: {latency}}}",
                    quantity(each * members as f64)
                );
            }
        }
    }
}

fn nics(host: &Host) -> String {
    let names: Vec<String> = host.rails().iter().map(|nic| plain(&nic.name)).collect();
    match (names.len(), host.nics.len()) {
        (0, _) => "guessed: no card was found".to_owned(),
        (rails, all) if rails == all => format!("read: {}", names.join(" ")),
        (_, all) => format!("read: {}, the fastest of {all}", names.join(" ")),
    }
}

/// The group whose members have these names, and whether they have others. Members are numbered from 0.
fn group(names: &[String]) -> (String, bool) {
    let prefix = names
        .first()
        .and_then(|name| name.strip_suffix('0'))
        .unwrap_or_default();
    let is_fit = !prefix.is_empty()
        && !prefix.ends_with(|c: char| c.is_ascii_digit())
        && prefix
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_')
        && names
            .iter()
            .enumerate()
            .all(|(at, name)| *name == format!("{prefix}{at}"));
    match is_fit {
        true => (prefix.to_owned(), false),
        false => ("host".to_owned(), true),
    }
}

/// For a comment.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use ringway_fabric::{Fabric, levels};

    use super::{super::look::Nic, *};

    fn found(names: &[&str], racks: &[usize]) -> Found {
        let nic = |name: &str| Nic {
            name: name.to_owned(),
            numa: 1,
            rate: Some(100e9),
            switch: None,
        };
        let host = Host {
            numa: 2,
            gpus: vec![0, 0, 1, 1],
            nics: vec![nic("eth0"), nic("eth1")],
        };
        Found {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            leaves: racks.iter().map(|&rack| vec![rack; 2]).collect(),
            leaves_are: "measured",
            links: Links {
                upwards: Some(25e9),
                ..Links::read(&host)
            },
            host,
        }
    }

    #[test]
    fn the_file_is_a_fabric_with_the_racks() {
        let text = found(&["node0", "node1", "node2", "node3"], &[0, 1, 0, 1]).text();
        let fabric = Fabric::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        assert_eq!(fabric.hosts(), 4);
        assert_eq!(levels(&fabric), [[0, 1, 0, 1]]);
        let kind = fabric.host(0).unwrap();
        assert_eq!((kind.gpus, kind.nics, kind.numa), (4, 2, 2));
        assert_eq!(kind.nic_numa, [1, 1]);
        assert!(fabric.node("node3").is_some());
        // Two hosts of 25 Gbit/s.
        let up = fabric
            .links()
            .iter()
            .map(|l| l.rate)
            .fold(f64::INFINITY, f64::min);
        assert!((up - 50e9 / 8.0).abs() < 1e3, "{up}");
    }

    #[test]
    fn cards_at_switches_of_their_own_are_rails() {
        let names = |all: [&str; 2]| all.map(str::to_owned).to_vec();
        let switches = [["a0", "b0"], ["a1", "b1"], ["a0", "b0"]].map(names);
        let leaves = by_lldp(&switches).unwrap();
        assert_eq!(leaves, [[0, 2], [1, 3], [0, 2]]);
        assert_eq!(by_lldp(&[names(["a0", ""])]), None);
        assert_eq!(by_lldp(&[Vec::new()]), None);
        let rails = Found {
            leaves,
            ..found(&["node0", "node1", "node2"], &[0, 0, 0])
        };
        let text = rails.text();
        let fabric = Fabric::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        let leaf = |host: &str, nic: usize| {
            let links = fabric.links_of(fabric.node(host).unwrap());
            fabric.node_name(links[nic].1)
        };
        assert_eq!([leaf("node2", 0), leaf("node2", 1)], ["leaf0", "leaf2"]);
        assert_eq!([leaf("node1", 0), leaf("node1", 1)], ["leaf1", "leaf3"]);
    }

    #[test]
    fn hosts_of_any_names_and_a_host_alone_are_fabrics_too() {
        let text = found(&["gpu-a\n", "gpu-b"], &[0, 0]).text();
        assert!(
            text.contains("#   host0 is gpu-a?\n#   host1 is gpu-b\n"),
            "{text}"
        );
        assert_eq!(Fabric::parse(&text).unwrap().hosts(), 2);
        let mut alone = found(&["x"], &[0]);
        alone.leaves = vec![vec![0]];
        alone.host = Host {
            numa: 1,
            ..Host::default()
        };
        let text = alone.text();
        let fabric = Fabric::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        assert_eq!((fabric.hosts(), fabric.host(0).unwrap().gpus), (1, 1));
    }
}
