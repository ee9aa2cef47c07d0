//! What a host shows.

use ringway_doctor::host::Root;
use serde_json::Value;

/// A host as far as a fabric file describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Host {
    pub(super) numa: usize,
    /// NUMA nodes of GPUs.
    pub(super) gpus: Vec<usize>,
    pub(super) nics: Vec<Nic>,
}

impl Host {
    /// The cards that messages of jobs use: those of the highest rate, and one where no rate is known.
    pub(super) fn rails(&self) -> &[Nic] {
        let known = self.nics.iter().filter(|nic| nic.rate.is_some()).count();
        let fastest = self.nics.iter().filter(|nic| nic.rate == self.nics[0].rate);
        match known {
            0 => &self.nics[..self.nics.len().min(1)],
            _ => &self.nics[..fastest.count()],
        }
    }
}

/// A network card with a link.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Nic {
    pub(super) name: String,
    pub(super) numa: usize,
    /// Bits per second; the kernel tells it of links that are up.
    pub(super) rate: Option<f64>,
    /// The switch that LLDP names at it.
    pub(super) switch: Option<String>,
}

pub(super) fn name(root: &Root) -> String {
    let name = root.text("proc/sys/kernel/hostname");
    name.unwrap_or_else(|_| "host".to_owned())
}

pub(super) fn host(root: &Root) -> Host {
    let numa = root.names("sys/devices/system/node");
    let numa = numa.iter().filter(|name| is_numbered(name, "node")).count();
    let mut nics = nics(root, numa.max(1));
    let said = root.output(&["lldpcli", "show", "neighbors", "-f", "json"]);
    let said = said.ok().and_then(|said| serde_json::from_str(&said).ok());
    if let Some(said) = said.filter(|_| !nics.is_empty()) {
        for nic in &mut nics {
            nic.switch = neighbour(&said, &nic.name);
        }
    }
    Host {
        numa: numa.max(1),
        gpus: gpus(root, numa.max(1)),
        nics,
    }
}

fn is_numbered(name: &str, before: &str) -> bool {
    let rest = name.strip_prefix(before);
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// A device's NUMA node; the kernel says -1 where there is but one.
fn node(root: &Root, device: &str, nodes: usize) -> usize {
    let node = root.number(&format!("{device}/numa_node"));
    let node = node.and_then(|node| usize::try_from(node).ok());
    node.filter(|&node| node < nodes).unwrap_or(0)
}

/// 3D controllers and accelerators of any vendor, and displays of those who make GPUs that compute.
fn gpus(root: &Root, nodes: usize) -> Vec<usize> {
    let devices = root.names("sys/bus/pci/devices");
    let is_gpu = |path: &str| {
        let word = |what: &str| {
            let text = root.text(&format!("{path}/{what}")).unwrap_or_default();
            u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
        };
        match word("class") >> 8 {
            0x0302 | 0x1200 => true,
            0x0300 => matches!(word("vendor"), 0x10de | 0x1002),
            _ => false,
        }
    };
    devices
        .iter()
        .map(|device| format!("sys/bus/pci/devices/{device}"))
        .filter(|path| is_gpu(path))
        .map(|path| node(root, &path, nodes))
        .collect()
}

/// Cards that are devices, not bridges and tunnels, and whose link is up, where any are; the fastest first.
fn nics(root: &Root, nodes: usize) -> Vec<Nic> {
    let all: Vec<Nic> = root
        .names("sys/class/net")
        .into_iter()
        .filter(|name| root.exists(&format!("sys/class/net/{name}/device")))
        .map(|name| {
            let path = format!("sys/class/net/{name}");
            // Mbit/s; -1 without a link.
            let rate = root.number(&format!("{path}/speed"));
            let rate = rate.filter(|&rate| rate > 0 && rate < u64::from(u32::MAX));
            Nic {
                numa: node(root, &format!("{path}/device"), nodes),
                rate: rate.map(|rate| rate as f64 * 1e6),
                switch: None,
                name,
            }
        })
        .collect();
    let mut up: Vec<Nic> = all
        .iter()
        .filter(|nic| nic.rate.is_some())
        .cloned()
        .collect();
    up.sort_by(|a, b| b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0)));
    if up.is_empty() { all } else { up }
}

/// The switch at an interface, as lldpd tells it. Of one neighbour it makes an object where of several it makes a list.
fn neighbour(said: &Value, interface: &str) -> Option<String> {
    let all = &said["lldp"]["interface"];
    let one = match all {
        Value::Array(list) => list.iter().find_map(|entry| entry.get(interface)),
        object => object.get(interface),
    };
    let chassis = one?["chassis"].as_object()?;
    let (name, rest) = chassis.iter().next()?;
    // A switch without a name is told by its address only.
    let name = match name.as_str() {
        "id" => rest["value"].as_str()?,
        name => name,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let base =
                std::env::temp_dir().join(format!("ringway-look-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = base.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(base)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn gpus_cards_and_nodes_are_read() {
        let tree = Tree::new(
            "gpus",
            &[
                ("proc/sys/kernel/hostname", "gpu7\n"),
                ("sys/devices/system/node/node0/cpulist", "0-31"),
                ("sys/devices/system/node/node1/cpulist", "32-63"),
                ("sys/devices/system/node/possible", "0-1"),
                ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
                ("sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n"),
                ("sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n"),
                ("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n"),
                // What a server shows its console with.
                ("sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n"),
                ("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1a03\n"),
                ("sys/class/net/eth0/speed", "100000\n"),
                ("sys/class/net/eth0/device/numa_node", "1\n"),
                ("sys/class/net/eth1/speed", "-1\n"),
                ("sys/class/net/eth1/device/numa_node", "0\n"),
                ("sys/class/net/eth2/speed", "200000\n"),
                ("sys/class/net/eth2/device/numa_node", "1\n"),
                ("sys/class/net/docker0/speed", "10000\n"),
            ],
        );
        let root = Root::recorded(&tree.0).unwrap();
        assert_eq!(name(&root), "gpu7");
        let eth0 = Nic {
            name: "eth0".to_owned(),
            numa: 1,
            rate: Some(100e9),
            switch: None,
        };
        let eth2 = Nic {
            name: "eth2".to_owned(),
            rate: Some(200e9),
            ..eth0.clone()
        };
        let expected = Host {
            numa: 2,
            gpus: vec![1, 0],
            nics: vec![eth2, eth0],
        };
        let found = host(&root);
        assert_eq!(found, expected);
        let rails: Vec<&str> = found.rails().iter().map(|n| n.name.as_str()).collect();
        assert_eq!(rails, ["eth2"]);
        let empty = Tree::new("empty", &[("proc/version", "")]);
        let root = Root::recorded(&empty.0).unwrap();
        let nothing = host(&root);
        assert_eq!((nothing.numa, nothing.rails().len()), (1, 0));
    }

    #[test]
    fn lldp_names_the_switch() {
        let chassis = r#"{"leaf3": {"id": {"type": "mac", "value": "00:11"}}}"#;
        let eth0 = format!(r#"{{"eth0": {{"chassis": {chassis}}}}}"#);
        let one = format!(r#"{{"lldp": {{"interface": {eth0}}}}}"#);
        let list = format!(r#"{{"lldp": {{"interface": [{{"eth9": {{}}}}, {eth0}]}}}}"#);
        for said in [one, list] {
            let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{said}: {e}"));
            assert_eq!(neighbour(&said, "eth0").as_deref(), Some("leaf3"));
            assert_eq!(neighbour(&said, "eth1"), None);
        }
        let nameless = r#"{"lldp": {"interface": {"eth0": {"chassis": {"id": {"type": "mac", "value": "00:11"}}}}}}"#;
        let said: Value = serde_json::from_str(nameless).unwrap();
        assert_eq!(neighbour(&said, "eth0").as_deref(), Some("00:11"));
    }
}
