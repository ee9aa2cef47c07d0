//! RDMA devices, their drivers and libraries, and the drivers of GPUs.

use std::collections::BTreeMap;

use crate::host::{
    Host, Unread,
    check::{Check, Group, Said},
    parse::Version,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "devices.present",
        group: Group::Devices,
        expects: "an RDMA device",
        why: "without one messages take TCP, or RDMA in software: both cost CPU time and latency",
        source: "Linux, Documentation/ABI/stable/sysfs-class-infiniband",
        run: present,
    },
    Check {
        id: "devices.driver",
        group: Group::Devices,
        expects: "an RDMA driver for each card that can do RDMA",
        why: "the driver for Ethernet alone makes no RDMA device",
        source: "Linux, drivers/infiniband/hw: which module goes with which",
        run: driver,
    },
    Check {
        id: "devices.nodes",
        group: Group::Devices,
        expects: "/dev/infiniband/uverbsN and rdma_cm, to be read and written",
        why: "programs reach a device through its node only",
        source: "rdma-core, Documentation/udev.md",
        run: nodes,
    },
    Check {
        id: "devices.provider",
        group: Group::Devices,
        expects: "libibverbs' provider for each device",
        why: "libibverbs finds no device whose provider is not installed, and says \"no devices\" only",
        source: "rdma-core, libibverbs/init.c: reads /etc/libibverbs.d",
        run: provider,
    },
    Check {
        id: "devices.firmware",
        group: Group::Devices,
        expects: "one firmware on all cards of a model",
        why: "cards of different firmware differ in congestion control and in speed: the slowest sets the pace",
        source: "NVIDIA, firmware release notes; Linux, Documentation/ABI/stable/sysfs-class-infiniband: fw_ver",
        run: firmware,
    },
    Check {
        id: "devices.gpu_driver",
        group: Group::Devices,
        expects: "NVIDIA's driver 450.80.02 or newer",
        why: "older drivers lack what CUDA 11 and GPUDirect RDMA need",
        source: "NVIDIA, CUDA compatibility guide: minimum driver of CUDA 11",
        run: gpu_driver,
    },
    Check {
        id: "devices.gpudirect",
        group: Group::Devices,
        expects: "nvidia_peermem, or dma-buf: Linux 5.12 and NVIDIA's open modules",
        why: "without it data of GPUs is copied through host memory: 33 GB/s in place of 93 were seen (nccl #1412)",
        source: "NVIDIA, GPUDirect RDMA documentation; nccl #489, #1086, #1412",
        run: gpudirect,
    },
    Check {
        id: "devices.fabric_manager",
        group: Group::Devices,
        expects: "nv-fabricmanager where there are NVSwitches",
        why: "without it GPUs behind NVSwitches cannot be initialised",
        source: "NVIDIA, Fabric Manager user guide",
        run: fabric_manager,
    },
];

/// Drivers for Ethernet and the modules that add RDMA.
const MODULES: [(&str, &str); 8] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("mlx4_en", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("qede", "qedr"),
    ("ionic", "ionic_rdma"),
];

fn present(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.devices.is_empty() {
        return true;
    }
    let class = "sys/class/infiniband";
    let seen = if host.root.exists(class) {
        "empty"
    } else {
        "absent"
    };
    let finding = said
        .note("host", "there is no RDMA device")
        .saw(class, seen)
        .act("nothing, if TCP is meant");
    if host.surroundings.kubernetes {
        finding
            .act("else ask for the device in the pod: resources: {limits: {rdma/NAME: 1}}, with the name that the device plugin has")
            .undo_by("take the line out again");
    } else if host.surroundings.container {
        finding
            .act("else start the container with --device /dev/infiniband --ulimit memlock=-1 --network host")
            .undo_by("start it without");
    } else {
        let netdevs = host.root.names("sys/class/net");
        let interface = netdevs.iter().find(|name| *name != "lo");
        let interface = interface.map_or("eth0", String::as_str);
        finding
            .act("for trying RDMA out any interface can have it in the kernel's software:")
            .run(format!(
                "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}"
            ))
            .undo("rdma link delete rxe0");
    }
    true
}

fn driver(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for function in host.functions.iter().filter(|it| it.is_nic()) {
        let dir = function.dir();
        if host.root.exists(&format!("{dir}/infiniband")) {
            any = true;
            continue;
        }
        let Some(driver) = &function.driver else {
            // Mellanox makes no card that cannot do RDMA; of others this is not known.
            if function.vendor == 0x15b3 && !host.surroundings.container {
                any = true;
                said.warn(&function.address, "a card of NVIDIA's has no driver")
                    .saw(format!("{dir}/vendor"), "0x15b3")
                    .saw(format!("{dir}/driver"), "absent")
                    .run("modprobe mlx5_core && modprobe mlx5_ib")
                    .undo("modprobe -r mlx5_ib mlx5_core");
            }
            continue;
        };
        let module = MODULES.iter().find(|(ethernet, _)| ethernet == driver);
        let Some((_, module)) = module else { continue };
        // A class of devices that is there means that the driver has decided: not every card of a family does RDMA.
        let loaded = host.root.exists(&format!("sys/module/{module}"));
        if loaded || host.surroundings.container {
            continue;
        }
        any = true;
        let problem = format!("{driver} drives the card, but {module} is not loaded");
        let finding = if driver.starts_with("mlx") {
            said.warn(&function.address, problem)
        } else {
            said.note(&function.address, problem)
        };
        finding
            .saw(format!("{dir}/driver"), driver)
            .saw(format!("sys/module/{module}"), "absent")
            .run(format!("modprobe {module}"))
            .undo(format!("modprobe -r {module}"));
    }
    any
}

fn nodes(host: &Host<'_>, said: &mut Said) -> bool {
    if host.devices.is_empty() {
        return false;
    }
    let class = "sys/class/infiniband_verbs";
    let numbers: BTreeMap<String, String> = host
        .root
        .names(class)
        .into_iter()
        .filter_map(|node| {
            let device = host.root.text(&format!("{class}/{node}/ibdev")).ok()?;
            Some((device, node))
        })
        .collect();
    for device in &host.devices {
        let Some(node) = numbers.get(&device.name) else {
            said.error(&device.name, "the kernel offers it to no program")
                .saw(class, "has no entry for it")
                .run("modprobe ib_uverbs")
                .undo("modprobe -r ib_uverbs");
            continue;
        };
        judge_node(
            host,
            said,
            &device.name,
            &format!("dev/infiniband/{node}"),
            true,
        );
    }
    judge_node(host, said, "rdma_cm", "dev/infiniband/rdma_cm", false);
    true
}

fn judge_node(host: &Host<'_>, said: &mut Said, subject: &str, path: &str, needed: bool) {
    let Err(reason) = host.root.writable(path) else {
        return;
    };
    let problem = match reason {
        Unread::Denied => format!("this user may not open /{path}"),
        _ => format!("/{path} is missing"),
    };
    let finding = if needed {
        said.error(subject, problem)
    } else {
        said.warn(subject, problem)
    };
    let finding = finding.saw(path, reason.to_string());
    if host.surroundings.kubernetes {
        finding
            .act("ask for the device in the pod: resources: {limits: {rdma/NAME: 1}}, with the name that the device plugin has")
            .undo_by("take the line out again");
    } else if host.surroundings.container {
        finding
            .act("start the container with --device /dev/infiniband")
            .undo_by("start it without");
    } else if reason == Unread::Denied {
        finding
            .run(format!("chmod 0666 /{path}"))
            .act("for ever: install rdma-core, whose udev rules give all users this right")
            .undo(format!("chmod 0600 /{path}"));
    } else {
        finding
            .run("modprobe ib_uverbs && modprobe rdma_ucm")
            .undo("modprobe -r rdma_ucm ib_uverbs");
    }
}

/// Drivers and their providers' files in /etc/libibverbs.d.
const PROVIDERS: [(&str, &str); 7] = [
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("qede", "qedr"),
    ("efa", "efa"),
];

fn provider(host: &Host<'_>, said: &mut Said) -> bool {
    let dir = "etc/libibverbs.d";
    let there = host.root.names(dir);
    let mut any = false;
    for device in &host.devices {
        let known = PROVIDERS
            .iter()
            .find(|(driver, _)| Some(*driver) == device.driver.as_deref());
        let provider = match known {
            Some((_, provider)) => provider,
            None if device.software => "rxe",
            None => continue,
        };
        any = true;
        let file = format!("{provider}.driver");
        // Soft iWARP is a device in software, too.
        if there.contains(&file) || (device.software && there.iter().any(|it| it == "siw.driver")) {
            continue;
        }
        let install = if host.root.exists("etc/redhat-release") {
            ("dnf install -y libibverbs", "dnf remove -y libibverbs")
        } else {
            (
                "apt-get install -y ibverbs-providers",
                "apt-get remove -y ibverbs-providers",
            )
        };
        said.error(
            &device.name,
            format!("libibverbs' provider {provider} is not installed"),
        )
        .saw(format!("{dir}/{file}"), "absent")
        .likely()
        .run(install.0)
        .undo(install.1);
    }
    any
}

fn firmware(host: &Host<'_>, said: &mut Said) -> bool {
    let mut models: BTreeMap<&str, Vec<(&str, &Version)>> = BTreeMap::new();
    for device in &host.devices {
        if let (Some(model), Some(version), false) =
            (&device.model, &device.firmware, device.virtual_function)
        {
            models
                .entry(model)
                .or_default()
                .push((&device.dir, version));
        }
    }
    for (model, cards) in &models {
        let newest = cards.iter().map(|(_, version)| *version).max();
        let Some(newest) = newest else { continue };
        let old: Vec<_> = cards.iter().filter(|(_, it)| *it != newest).collect();
        if old.is_empty() {
            continue;
        }
        let mut finding = said
            .warn(
                *model,
                format!(
                    "{} of {} cards have older firmware than {newest}",
                    old.len(),
                    cards.len()
                ),
            )
            .act("update the older ones with mlxfwmanager or the vendor's tool, at a time without jobs")
            .undo_by("burn the version that the evidence names");
        for (dir, version) in cards {
            finding = finding.saw(format!("{dir}/fw_ver"), version.to_string());
        }
    }
    !models.is_empty()
}

/// The version in /proc/driver/nvidia/version: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...`.
fn nvidia_version(text: &str) -> Option<Version> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    line.split_whitespace()
        .filter(|word| word.contains('.'))
        .find_map(Version::parse)
}

const NVIDIA: &str = "proc/driver/nvidia/version";

fn gpu_driver(host: &Host<'_>, said: &mut Said) -> bool {
    if host.gpus().next().is_none() {
        return false;
    }
    let Ok(text) = host.root.text(NVIDIA) else {
        said.warn("GPUs", "NVIDIA's driver is not loaded")
            .saw(NVIDIA, "absent")
            .run("modprobe nvidia")
            .undo("modprobe -r nvidia");
        return true;
    };
    match nvidia_version(&text) {
        Some(version) if version.before(&[450, 80, 2]) => {
            said.error(
                "GPUs",
                format!("the driver is {version}: expected 450.80.02 or newer"),
            )
            .saw(NVIDIA, text.lines().next().unwrap_or_default())
            .act("install a newer driver and restart the host")
            .undo_by("install the driver that the evidence names");
        }
        Some(_) => {}
        None => said.unknown(
            "GPUs",
            "the driver's version was not understood",
            "nvidia-smi",
        ),
    }
    true
}

fn gpudirect(host: &Host<'_>, said: &mut Said) -> bool {
    if host.gpus().next().is_none() || host.cards().next().is_none() {
        return false;
    }
    let modules = host.root.text("proc/modules").unwrap_or_default();
    let loaded = |name: &str| {
        let mut names = modules
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        names.any(|module| module == name)
    };
    if loaded("nvidia_peermem") || loaded("nv_peer_mem") {
        return true;
    }
    let release = host.root.text("proc/sys/kernel/osrelease");
    let release = release.unwrap_or_default();
    let new = Version::parse(&release).is_some_and(|version| !version.before(&[5, 12]));
    let version = host.root.text(NVIDIA).unwrap_or_default();
    let open = version.contains("Open Kernel Module");
    if new && open {
        return true;
    }
    let flavour = if open {
        "Open Kernel Module"
    } else {
        "not the open modules"
    };
    said.warn(
        "GPUs",
        "neither nvidia_peermem is loaded nor can dma-buf be used: NICs cannot reach the GPUs' memory",
    )
    .saw("proc/modules", "without nvidia_peermem and nv_peer_mem")
    .saw("proc/sys/kernel/osrelease", &release)
    .saw(NVIDIA, flavour)
    .run("modprobe nvidia-peermem")
    .act("for ever: put nvidia-peermem into /etc/modules-load.d/nvidia-peermem.conf")
    .undo("modprobe -r nvidia-peermem")
    .likely();
    true
}

fn fabric_manager(host: &Host<'_>, said: &mut Said) -> bool {
    // NVIDIA's bridges of the class "other".
    let dir = "sys/bus/pci/devices";
    let is_switch = |address: &String| {
        let is = |file, text| {
            let path = format!("{dir}/{address}/{file}");
            host.root.text(&path).is_ok_and(|it| it == text)
        };
        is("vendor", "0x10de") && is("class", "0x068000")
    };
    if host.gpus().next().is_none() || host.surroundings.container {
        return false;
    }
    let Some(switch) = host.root.names(dir).into_iter().find(is_switch) else {
        return false;
    };
    if !host.runs("nv-fabricmanage") {
        said.error("NVSwitch", "nv-fabricmanager does not run")
            .saw(format!("{dir}/{switch}/class"), "0x068000")
            .saw("proc/*/comm", "none is nv-fabricmanage")
            .run("systemctl enable --now nvidia-fabricmanager")
            .undo("systemctl disable --now nvidia-fabricmanager")
            .likely();
    }
    true
}
