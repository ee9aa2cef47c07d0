//! The counters of RDMA ports at one moment.

use std::collections::BTreeMap;

use crate::host::{Root, facts::Host, parse};

/// The counters of all Ethernet ports of RDMA devices, by `device port N`.
pub type Sample = BTreeMap<String, PortCounters>;

/// The counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Where the device's own counters are.
    pub dir: String,
    /// The network interface.
    pub interface: Option<String>,
    /// The standard's counters and the driver's (`counters`, `hw_counters`), by name.
    pub rdma: BTreeMap<String, u64>,
    /// The interface's (`ethtool -S`), by name.
    pub ethernet: BTreeMap<String, u64>,
    /// The priorities that are lossless, if that is known.
    pub lossless: Vec<u8>,
}

impl PortCounters {
    /// How much a counter has risen since `before`. Queue pairs' counters have 32 bits and wrap; one that has fallen
    /// otherwise was set to zero in between.
    pub fn rise(&self, before: &Self, name: &str) -> u64 {
        let of = |all: &Self| {
            all.rdma
                .get(name)
                .or_else(|| all.ethernet.get(name))
                .copied()
        };
        match (of(before), of(self)) {
            (Some(old), Some(new)) if new >= old => new - old,
            (Some(old), Some(new)) if old <= u64::from(u32::MAX) && old - new > 1 << 31 => {
                new + (1 << 32) - old
            }
            (_, Some(new)) if of(before).is_some() => new,
            _ => 0,
        }
    }

    /// The file or command that tells a counter.
    pub fn source(&self, name: &str) -> String {
        if self.ethernet.contains_key(name) {
            return format!(
                "ethtool -S {}",
                self.interface.as_deref().unwrap_or_default()
            );
        }
        format!("/{}/*counters", self.dir)
    }
}

/// The ports whose counters are read: what does not change while a job runs.
pub struct Ports(Vec<(String, PortCounters, bool)>);

impl Ports {
    /// All Ethernet ports of RDMA devices.
    pub fn of(root: &Root) -> Self {
        let host = Host::look(root);
        let ports = host.ports().map(|(device, port)| {
            let interface = port.netdevs.first().cloned();
            let quality = host
                .quality()
                .find(|(name, _)| interface.as_deref() == Some(*name));
            let counters = PortCounters {
                dir: port.dir.clone(),
                lossless: quality.map_or_else(Vec::new, |(_, it)| it.qos.lossless()),
                interface,
                ..PortCounters::default()
            };
            (device.port(port), counters, device.software)
        });
        Self(ports.collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads all counters. A root keeps the outputs of commands, so each look takes another.
    pub fn sample(&self, root: &Root) -> Sample {
        let told = |port: &PortCounters, software: bool| {
            let interface = port.interface.clone().filter(|_| !software)?;
            Some(["ethtool".to_owned(), "-S".to_owned(), interface])
        };
        let commands: Vec<_> = self
            .0
            .iter()
            .filter_map(|(_, port, software)| told(port, *software))
            .collect();
        let commands: Vec<Vec<&str>> = commands
            .iter()
            .map(|command| command.iter().map(String::as_str).collect())
            .collect();
        root.prepare(&commands);
        self.0
            .iter()
            .map(|(name, port, software)| {
                let output = told(port, *software)
                    .and_then(|command| root.output(&command.each_ref().map(String::as_str)).ok());
                let counters = PortCounters {
                    rdma: rdma_counters(root, &port.dir),
                    ethernet: output.as_deref().map(parse::statistics).unwrap_or_default(),
                    ..port.clone()
                };
                (name.clone(), counters)
            })
            .collect()
    }
}

fn rdma_counters(root: &Root, port: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for kind in ["counters", "hw_counters"] {
        let dir = format!("{port}/{kind}");
        for name in root.names(&dir) {
            // `lifespan` is a setting: for how long the driver answers from its cache.
            if let (Some(value), true) = (root.number(&format!("{dir}/{name}")), name != "lifespan")
            {
                counters.insert(name, value);
            }
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_rise_wrap_and_start_again() {
        let port = |value: u64| PortCounters {
            rdma: BTreeMap::from([("out_of_sequence".to_owned(), value)]),
            ..PortCounters::default()
        };
        let rise = |old, new| port(new).rise(&port(old), "out_of_sequence");
        assert_eq!(rise(5, 7), 2);
        assert_eq!(rise(u64::from(u32::MAX) - 1, 3), 5);
        assert_eq!(rise(1000, 3), 3);
        assert_eq!(rise(u64::MAX, 3), 3);
        assert_eq!(port(7).rise(&PortCounters::default(), "out_of_sequence"), 0);
    }
}
