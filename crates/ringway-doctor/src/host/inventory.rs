//! What a host is made of and how it is set, in few words, to be laid beside that of other hosts.
//!
//! Names of devices and interfaces are left out where they can be: hosts that are alike may name them differently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Root, facts::Host, parse};

/// One thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is: `kernel`.
    pub topic: String,
    /// What was read, in the same words on all hosts where it is the same.
    pub value: String,
    /// The file or command.
    pub source: String,
}

/// Options of the kernel that make hosts differ in speed.
const OPTIONS: [&str; 8] = [
    "iommu=",
    "intel_iommu=",
    "amd_iommu=",
    "pcie_aspm=",
    "intel_idle.max_cstate=",
    "processor.max_cstate=",
    "mitigations=",
    "isolcpus=",
];

/// All that is known of a host; what cannot be read is left out.
pub(super) fn items(host: &Host<'_>) -> Vec<Item> {
    let root = host.root;
    let mut items = Items::default();
    machine(root, &mut items);
    gpus(root, host, &mut items);
    devices(root, host, &mut items);
    ports(host, &mut items);
    networks(root, host, &mut items);
    items.0
}

#[derive(Default)]
struct Items(Vec<Item>);

impl Items {
    fn add(&mut self, topic: impl Into<String>, source: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.0.push(Item {
                topic: topic.into(),
                value,
                source: source.to_owned(),
            });
        }
    }

    fn file(&mut self, root: &Root, topic: &str, path: &str) {
        if let Ok(value) = root.text(path) {
            self.add(topic, &format!("/{path}"), value);
        }
    }
}

fn machine(root: &Root, items: &mut Items) {
    items.file(root, "kernel", "proc/sys/kernel/osrelease");
    let options = root.text("proc/cmdline").unwrap_or_default();
    let mut options: Vec<&str> = options
        .split_whitespace()
        .filter(|word| OPTIONS.iter().any(|it| word.starts_with(it)))
        .collect();
    options.sort_unstable();
    items.add("kernel's options", "/proc/cmdline", options.join(" "));
    for (topic, names) in [
        ("board", ["sys_vendor", "product_name"]),
        ("BIOS", ["bios_version", "bios_date"]),
    ] {
        let words = names.map(|name| {
            root.text(&format!("sys/class/dmi/id/{name}"))
                .unwrap_or_default()
        });
        items.add(topic, "/sys/class/dmi/id", words.join(" ").trim());
    }
    let cpus = root.text("proc/cpuinfo").unwrap_or_default();
    let count = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let said = |name: &str| {
        let line = cpus.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim())
    };
    if let Some(model) = said("model name") {
        items.add("CPU", "/proc/cpuinfo", format!("{count} x {model}"));
    }
    if let Some(microcode) = said("microcode") {
        items.add("microcode", "/proc/cpuinfo", microcode);
    }
    let frequency = "sys/devices/system/cpu/cpu0/cpufreq";
    if let Some(khz) = root.number(&format!("{frequency}/cpuinfo_max_freq")) {
        let value = format!("{:.2} GHz", khz as f64 / 1e6);
        items.add(
            "CPU clock",
            &format!("/{frequency}/cpuinfo_max_freq"),
            value,
        );
    }
    items.file(root, "governor", &format!("{frequency}/scaling_governor"));
    items.file(
        root,
        "turbo off",
        "sys/devices/system/cpu/intel_pstate/no_turbo",
    );
    items.file(
        root,
        "clock source",
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
    );
    items.file(root, "NUMA nodes", "sys/devices/system/node/online");
    let memory = root.text("proc/meminfo").unwrap_or_default();
    let kib =
        parse::field(&memory, "MemTotal").and_then(|it| it.split(' ').next()?.parse::<f64>().ok());
    if let Some(kib) = kib {
        // The kernel keeps a little back, and not everywhere the same.
        items.add(
            "memory",
            "/proc/meminfo",
            format!("{:.0} GiB", kib / f64::from(1 << 20)),
        );
    }
    let limits = root.text("proc/self/limits").unwrap_or_default();
    if let Some((soft, _)) = parse::locked_memory(&limits) {
        items.add("locked memory", "/proc/self/limits", soft.to_string());
    }
}

fn gpus(root: &Root, host: &Host<'_>, items: &mut Items) {
    let dir = "proc/driver/nvidia";
    let cards: Vec<String> = root
        .names(&format!("{dir}/gpus"))
        .iter()
        .filter_map(|card| root.text(&format!("{dir}/gpus/{card}/information")).ok())
        .collect();
    let said = |name: &str| {
        counted(
            cards
                .iter()
                .filter_map(|text| Some(parse::field(text, name)?.to_owned())),
        )
    };
    items.add("GPUs", &format!("/{dir}/gpus/*/information"), said("Model"));
    items.add(
        "GPUs' BIOS",
        &format!("/{dir}/gpus/*/information"),
        said("Video BIOS"),
    );
    items.add(
        "GPUs' firmware",
        &format!("/{dir}/gpus/*/information"),
        said("GPU Firmware"),
    );
    if cards.is_empty() {
        let models = host
            .gpus()
            .filter_map(|gpu| root.text(&format!("{}/device", gpu.dir())).ok());
        items.add("GPUs", "/sys/bus/pci/devices/*/device", counted(models));
    }
    if let Ok(version) = root.text(&format!("{dir}/version")) {
        let line = version.lines().next().unwrap_or_default();
        let word = line
            .split_whitespace()
            .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
        items.add(
            "GPU driver",
            &format!("/{dir}/version"),
            word.unwrap_or(line),
        );
    }
}

fn devices(root: &Root, host: &Host<'_>, items: &mut Items) {
    let class = "/sys/class/infiniband/*";
    let kinds = host.devices.iter().map(|device| {
        let model = device.model.as_deref().unwrap_or("in software");
        format!(
            "{model} ({})",
            device.driver.as_deref().unwrap_or("no driver of a card's")
        )
    });
    items.add("RDMA devices", class, counted(kinds));
    let mut firmware: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for device in host.devices.iter().filter(|device| !device.software) {
        let model = device.model.as_deref().unwrap_or("unknown model");
        let version = root
            .text(&format!("{}/fw_ver", device.dir))
            .unwrap_or_default();
        firmware.entry(model).or_default().push(version);
    }
    for (model, versions) in firmware {
        items.add(
            format!("firmware of {model}"),
            &format!("{class}/fw_ver"),
            counted(versions.into_iter()),
        );
    }
    let mut drivers: Vec<&str> = host
        .devices
        .iter()
        .filter_map(|it| it.driver.as_deref())
        .collect();
    drivers.sort_unstable();
    drivers.dedup();
    for driver in drivers {
        // Drivers of the kernel's own have its version.
        items.file(
            root,
            &format!("driver {driver}"),
            &format!("sys/module/{driver}/version"),
        );
    }
}

fn ports(host: &Host<'_>, items: &mut Items) {
    let active = || host.ports().filter(|(_, port)| port.active());
    let rates = active().filter_map(|(_, port)| port.rate.clone());
    items.add(
        "link rate",
        "/sys/class/infiniband/*/ports/*/rate",
        counted(rates),
    );
    let states = host.ports().map(|(_, port)| port.state.clone());
    items.add(
        "state of ports",
        "/sys/class/infiniband/*/ports/*/state",
        counted(states),
    );
    let indices = active().filter_map(|(_, port)| {
        let good = |gid: &&parse::Gid| gid.kind == parse::GidKind::V2 && gid.routable();
        Some(port.gids.iter().find(good)?.index.to_string())
    });
    items.add(
        "GID index",
        "/sys/class/infiniband/*/ports/*/gid_attrs/types",
        counted(indices),
    );
    let quality = host.quality().map(|(_, quality)| {
        let qos = &quality.qos;
        let trust = qos
            .trust
            .map_or_else(|| "unknown".to_owned(), |it| it.to_string());
        format!(
            "trust {trust}, PFC on {:?}, DSCP 26 to {}, 48 to {}",
            qos.lossless(),
            qos.priority(26),
            qos.priority(48)
        )
    });
    items.add("quality of service", "mlnx_qos or dcb", counted(quality));
}

/// MTUs of the interfaces that data may take: RDMA's, else all that have routes and are no bridge.
fn networks(root: &Root, host: &Host<'_>, items: &mut Items) {
    let mut names: Vec<String> = host
        .interfaces()
        .into_iter()
        .map(|(name, _, _)| name)
        .collect();
    if names.is_empty() {
        let table = root.text("proc/net/route").unwrap_or_default();
        names = parse::routes(&table)
            .into_iter()
            .map(|route| route.interface)
            .collect();
        names.retain(|name| !root.exists(&format!("sys/class/net/{name}/bridge")));
        names.sort_unstable();
        names.dedup();
    }
    let file = |name: &str, file: &str| root.number(&format!("sys/class/net/{name}/{file}"));
    let mtus = names.iter().filter_map(|name| file(name, "mtu"));
    items.add(
        "MTU",
        "/sys/class/net/*/mtu",
        counted(mtus.map(|mtu| mtu.to_string())),
    );
    // Virtual interfaces have no speed, or one that is made up.
    let real = names
        .iter()
        .filter(|name| root.exists(&format!("sys/class/net/{name}/device")));
    let speeds = real.filter_map(|name| file(name, "speed"));
    items.add(
        "interfaces' speed",
        "/sys/class/net/*/speed",
        counted(speeds.map(|speed| format!("{speed} Mb/s"))),
    );
}

/// `2 x this, that`: each value once, with how often it is there.
fn counted(values: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let words = counts.into_iter().map(|(value, count)| match count {
        1 => value,
        _ => format!("{count} x {value}"),
    });
    words.collect::<Vec<_>>().join(", ")
}
