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

/// Reads them all.
pub fn counters(root: &Root) -> Sample {
    let host = Host::look(root);
    let interfaces: Vec<Vec<String>> = host
        .interfaces()
        .into_iter()
        .filter(|(_, device, _)| !device.software)
        .map(|(name, _, _)| vec!["ethtool".to_owned(), "-S".to_owned(), name])
        .collect();
    let commands: Vec<Vec<&str>> = interfaces
        .iter()
        .map(|command| command.iter().map(String::as_str).collect())
        .collect();
    root.prepare(&commands);
    host.ports()
        .map(|(device, port)| {
            let mut rdma = BTreeMap::new();
            for kind in ["counters", "hw_counters"] {
                let dir = format!("{}/{kind}", port.dir);
                for name in root.names(&dir) {
                    // `lifespan` is a setting: for how long the driver answers from its cache.
                    if let (Some(value), true) =
                        (root.number(&format!("{dir}/{name}")), name != "lifespan")
                    {
                        rdma.insert(name, value);
                    }
                }
            }
            let interface = port.netdevs.first().cloned();
            let told = interface
                .as_deref()
                .filter(|_| !device.software)
                .and_then(|name| root.output(&["ethtool", "-S", name]).ok());
            let quality = host
                .quality()
                .find(|(name, _)| interface.as_deref() == Some(*name));
            let counters = PortCounters {
                dir: port.dir.clone(),
                rdma,
                ethernet: told.as_deref().map(parse::statistics).unwrap_or_default(),
                lossless: quality.map_or_else(Vec::new, |(_, it)| it.qos.lossless()),
                interface,
            };
            (device.port(port), counters)
        })
        .collect()
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
