//! PCI Express: links of cards, ACS, IOMMU, ASPM, read requests, errors, NUMA nodes, distance of GPUs.

use std::collections::BTreeSet;

use crate::host::{
    Host,
    check::{Check, Group, Said},
    facts::pci_dir,
    parse::{Acs, Distance, Topology, mlxconfig},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "pcie.link",
        group: Group::Pcie,
        expects: "the speed and width that the card can do",
        why: "a card that trained at half its speed or width cannot fill its port",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci: current_link_speed, max_link_width",
        run: link,
    },
    Check {
        id: "pcie.read_request",
        group: Group::Pcie,
        expects: "read requests of 4096 bytes",
        why: "small read requests keep a card of 100 Gb/s and more from filling its port when it sends",
        source: "PCI Express Base 5.0, 7.5.3.4; NVIDIA, performance tuning for ConnectX",
        run: read_request,
    },
    Check {
        id: "pcie.relaxed_ordering",
        group: Group::Pcie,
        expects: "relaxed ordering allowed",
        why: "in strict order writes wait for one another: on some processors half of the bandwidth",
        source: "PCI Express Base 5.0, 2.4 and 7.5.3.4",
        run: relaxed_ordering,
    },
    Check {
        id: "pcie.acs",
        group: Group::Pcie,
        expects: "no redirection by ACS between cards and GPUs, on bare metal",
        why: "with redirection data between a GPU and a NIC goes up to the root and back: several times slower",
        source: "PCI Express Base 5.0, 7.7.8; NCCL, troubleshooting: PCI access control services; nccl #489, #1086",
        run: acs,
    },
    Check {
        id: "pcie.iommu",
        group: Group::Pcie,
        expects: "no IOMMU translation for cards: iommu=pt",
        why: "translation of each access costs bandwidth, and breaks direct access between devices",
        source: "Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups; kernel-parameters: iommu=pt",
        run: iommu,
    },
    Check {
        id: "pcie.aspm",
        group: Group::Pcie,
        expects: "links that do not sleep",
        why: "a link that sleeps takes microseconds to wake: more than a small message takes",
        source: "Linux, Documentation/admin-guide/kernel-parameters: pcie_aspm; PCI Express Base 5.0, 5.4.1",
        run: aspm,
    },
    Check {
        id: "pcie.errors",
        group: Group::Pcie,
        expects: "no PCIe errors",
        why: "corrected errors are repeated transfers: slow; others end in a device that is reset",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",
        run: errors,
    },
    Check {
        id: "pcie.ats",
        group: Group::Pcie,
        expects: "ATS off in the card's firmware, on bare metal",
        why: "translation requests of the card cost latency where nothing is translated",
        source: "NVIDIA, GPUDirect RDMA and mlxconfig: ATS_ENABLED",
        run: ats,
    },
    Check {
        id: "pcie.numa",
        group: Group::Pcie,
        expects: "a known NUMA node for each card, and the process on CPUs of one",
        why: "data and interrupts that cross sockets cost bandwidth and a microsecond each way",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci: numa_node, local_cpulist",
        run: numa,
    },
    Check {
        id: "pcie.gpu_distance",
        group: Group::Pcie,
        expects: "a NIC at PIX or PXB for each GPU",
        why: "a GPU reaches a NIC of another socket at a fraction of the bandwidth",
        source: "nvidia-smi topo -m; NCCL, NCCL_NET_GDR_LEVEL",
        run: gpu_distance,
    },
];

fn link(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, address) in host.cards() {
        // A virtual function has no link of its own.
        if device.virtual_function {
            continue;
        }
        let dir = pci_dir(address);
        let read = |file: &str| host.root.text(&format!("{dir}/{file}")).ok();
        let mut wrong = Vec::new();
        for kind in ["speed", "width"] {
            let (now, most) = (format!("current_link_{kind}"), format!("max_link_{kind}"));
            let (Some(is), Some(can)) = (read(&now), read(&most)) else {
                continue;
            };
            any = true;
            let number = |text: &str| {
                let word = text.trim_start_matches('x').split(' ').next()?;
                word.parse::<f64>().ok()
            };
            if let (Some(a), Some(b)) = (number(&is), number(&can))
                && a < b
            {
                wrong.extend([(now, is), (most, can)]);
            }
        }
        if wrong.is_empty() {
            continue;
        }
        let words: Vec<_> = wrong
            .chunks(2)
            .map(|pair| format!("{} of {}", pair[0].1, pair[1].1))
            .collect();
        let mut finding = said.warn(
            &device.name,
            format!("the card's link runs at {}", words.join(", ")),
        );
        for (file, value) in wrong {
            finding = finding.saw(format!("{dir}/{file}"), value);
        }
        finding
            .act("see whether the slot can do as much; reseat the card or its riser, and see the link's speed in the BIOS")
            .undo_by("set the BIOS back")
            .likely();
    }
    any
}

fn read_request(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, address) in host.cards().filter(|(device, _)| !device.virtual_function) {
        any = true;
        let control = match host.express(address) {
            Ok(control) => control,
            Err(reason) => {
                said.unknown(
                    &device.name,
                    format!("the largest read request: {reason}"),
                    format!("lspci -s {address} -vv | grep MaxReadReq"),
                );
                continue;
            }
        };
        let size = control.read_request();
        if size < 4096 {
            // The field alone is written: the rest of the word is the baseline's.
            let set = |value: u16| format!("setpci -s {address} CAP_EXP+8.w={value:04x}:7000");
            said.warn(
                &device.name,
                format!("the largest read request is {size} bytes: expected 4096"),
            )
            .saw(
                format!("{}/config", pci_dir(address)),
                format!(
                    "Device Control {:#06x}, MaxReadReq {size}",
                    control.device_control
                ),
            )
            .run(set(0x5000))
            .undo(set(control.device_control & 0x7000))
            .likely();
        }
    }
    any
}

fn relaxed_ordering(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, address) in host.cards().filter(|(device, _)| !device.virtual_function) {
        // That it is not known is told once, by the check of read requests.
        let Ok(control) = host.express(address) else {
            continue;
        };
        any = true;
        if !control.relaxed_ordering() {
            said.note(
                &device.name,
                "the card may not let its requests overtake one another",
            )
            .saw(
                format!("{}/config", pci_dir(address)),
                format!("Device Control {:#06x}, RlxdOrd-", control.device_control),
            )
            .run(format!("setpci -s {address} CAP_EXP+8.w=0010:0010"))
            .undo(format!("setpci -s {address} CAP_EXP+8.w=0000:0010"))
            .likely();
        }
    }
    any
}

/// The bridges above cards and GPUs.
fn bridges(host: &Host<'_>) -> BTreeSet<String> {
    let mut bridges: BTreeSet<String> = host
        .devices
        .iter()
        .flat_map(|device| device.bridges.iter().cloned())
        .collect();
    for gpu in host.gpus() {
        let place = host.root.resolve(&gpu.dir());
        let parts = place.split('/');
        let above = parts.filter(|part| part.len() == gpu.address.len() && part.contains(':'));
        bridges.extend(above.filter(|part| *part != gpu.address).map(str::to_owned));
    }
    bridges
}

fn acs(host: &Host<'_>, said: &mut Said) -> bool {
    // In a virtual machine ACS with ATS is what lets devices reach one another.
    if host.surroundings.guest || host.gpus().next().is_none() || host.cards().next().is_none() {
        return false;
    }
    let bridges = bridges(host);
    let mut hidden = Vec::new();
    for bridge in &bridges {
        let path = format!("{}/config", pci_dir(bridge));
        let Ok(config) = host.root.bytes(&path) else {
            continue;
        };
        if config.len() <= 256 {
            hidden.push(bridge.as_str());
        } else if let Some(acs) = Acs::parse(&config).filter(|acs| acs.redirects()) {
            said.warn(
                bridge,
                "the bridge redirects what passes between the devices below it to the root",
            )
            .saw(&path, format!("ACS control {:#06x}", acs.control))
            // The bits that redirect alone: others are not what is meant, and their rollback would not be either.
            .run(format!("setpci -s {bridge} ECAP_ACS+0x6.w=0000:{:04x}", Acs::REDIRECTS))
            .act("it comes back at each start of the host: run it from a unit, or turn ACS off in the BIOS, whatever is advised for NUMA: that is right for virtual machines only")
            .undo(format!(
                "setpci -s {bridge} ECAP_ACS+0x6.w={:04x}:{:04x}",
                acs.control & Acs::REDIRECTS,
                Acs::REDIRECTS
            ))
            .likely();
        }
    }
    if !hidden.is_empty() {
        said.unknown(
            "bridges",
            format!(
                "whether ACS redirects is for root to see, on {}",
                hidden.join(", ")
            ),
            "lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'",
        );
    }
    !bridges.is_empty()
}

fn iommu(host: &Host<'_>, said: &mut Said) -> bool {
    if host.surroundings.guest || host.cards().next().is_none() {
        return false;
    }
    for (device, address) in host.cards() {
        let path = format!("{}/iommu_group/type", pci_dir(address));
        let Ok(kind) = host.root.text(&path) else {
            continue;
        };
        if kind.starts_with("DMA") {
            let line = host.root.text("proc/cmdline").unwrap_or_default();
            said.warn(&device.name, format!("the IOMMU translates the card's accesses ({kind})"))
                .saw(&path, kind)
                .saw("proc/cmdline", line)
                .run("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && update-grub && reboot")
                .undo("sed -i 's/^\\(GRUB_CMDLINE_LINUX=\"\\)iommu=pt /\\1/' /etc/default/grub && update-grub && reboot")
                .act("Red Hat: grubby --update-kernel=ALL --args=iommu=pt, and --remove-args=iommu=pt to undo it")
                .likely();
        }
    }
    true
}

fn aspm(host: &Host<'_>, said: &mut Said) -> bool {
    if host.cards().next().is_none() {
        return false;
    }
    let path = "sys/module/pcie_aspm/parameters/policy";
    let policy = host.root.text(path).unwrap_or_default();
    let chosen = policy.split('[').nth(1).and_then(|it| it.split(']').next());
    if let Some(chosen @ ("powersave" | "powersupersave")) = chosen {
        said.warn("host", format!("links may sleep: the policy is {chosen}"))
            .saw(path, &policy)
            .run(format!("echo performance > /{path}"))
            .undo(format!("echo {chosen} > /{path}"));
        return true;
    }
    if chosen == Some("performance") {
        return true;
    }
    for (device, address) in host.cards().filter(|(device, _)| !device.virtual_function) {
        // That others than root cannot see it is told by the check of read requests.
        if let Ok(control) = host.express(address)
            && control.aspm()
        {
            let link = control.link_control;
            said.warn(&device.name, "the card's link may sleep")
                .saw(
                    format!("{}/config", pci_dir(address)),
                    format!("Link Control {link:#06x}"),
                )
                .run(format!("setpci -s {address} CAP_EXP+10.w=0000:0003"))
                .undo(format!(
                    "setpci -s {address} CAP_EXP+10.w={:04x}:0003",
                    link & 3
                ));
        }
    }
    true
}

fn errors(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, address) in host.cards() {
        for kind in ["fatal", "nonfatal", "correctable"] {
            let path = format!("{}/aer_dev_{kind}", pci_dir(address));
            let Ok(text) = host.root.text(&path) else {
                continue;
            };
            any = true;
            let total = text.lines().find(|line| line.starts_with("TOTAL_ERR"));
            let count = total.and_then(|line| line.split_whitespace().last()?.parse::<u64>().ok());
            let Some(count) = count.filter(|&count| count > 0) else {
                continue;
            };
            let problem = format!("{count} {kind} errors since the host was started");
            let finding = if kind == "correctable" {
                said.note(&device.name, problem)
            } else {
                said.warn(&device.name, problem)
            };
            finding
                .saw(path, total.unwrap_or_default())
                .act("see whether they rise; if so, reseat the card or its riser, then replace it")
                .likely();
        }
    }
    any
}

fn ats(host: &Host<'_>, said: &mut Said) -> bool {
    if host.surroundings.guest || host.surroundings.container {
        return false;
    }
    let mut any = false;
    for (device, address) in host.cards() {
        let command = ["mlxconfig", "-d", address, "query"];
        let Ok(output) = host.root.output(&command) else {
            continue;
        };
        any = true;
        if mlxconfig(&output).get("ATS_ENABLED") == Some(&1) {
            said.note(
                &device.name,
                "the card asks for translations (ATS) on bare metal",
            )
            .saw(command.join(" "), "ATS_ENABLED True(1)")
            .run(format!(
                "mlxconfig -y -d {address} set ATS_ENABLED=0 && mlxfwreset -y -d {address} reset"
            ))
            .undo(format!(
                "mlxconfig -y -d {address} set ATS_ENABLED=1 && mlxfwreset -y -d {address} reset"
            ))
            .unverified();
        }
    }
    any
}

fn numa(host: &Host<'_>, said: &mut Said) -> bool {
    if host.nodes() < 2 || host.cards().next().is_none() {
        return false;
    }
    for (device, address) in host.cards() {
        let path = format!("{}/numa_node", pci_dir(address));
        if host.root.text(&path).is_ok_and(|node| node == "-1") {
            said.warn(&device.name, "the BIOS does not say which NUMA node the card is on")
                .saw(path, "-1")
                .saw(
                    "sys/devices/system/node/online",
                    host.root.text("sys/devices/system/node/online").unwrap_or_default(),
                )
                .act("update the BIOS, or see its settings for NUMA and sub-NUMA clustering; until then bind ranks by hand: numactl --cpunodebind=N --membind=N")
                .undo_by("set the BIOS back");
        }
    }
    true
}

fn gpu_distance(host: &Host<'_>, said: &mut Said) -> bool {
    if host.gpus().next().is_none() || host.cards().next().is_none() {
        return false;
    }
    let command = ["nvidia-smi", "topo", "-m"];
    let output = match host.root.output(&command) {
        Ok(output) => output,
        Err(reason) => {
            said.unknown(
                "GPUs",
                format!("their distance from NICs: {reason}"),
                command.join(" "),
            );
            return true;
        }
    };
    let topology = Topology::parse(&output);
    let known = |name: &str| host.devices.iter().any(|device| device.name == name);
    for (gpu, nics) in &topology.gpus {
        let nearest = nics
            .iter()
            .filter(|(name, _)| known(name))
            .min_by_key(|(_, distance)| **distance);
        let Some((nic, &distance)) = nearest else {
            continue;
        };
        let problem = format!("the nearest NIC, {nic}, is at {}", distance.name());
        let finding = match distance {
            Distance::Bridge | Distance::Bridges => continue,
            Distance::HostBridge | Distance::Node => said.note(gpu, problem),
            Distance::System => said.warn(gpu, problem),
        };
        finding
            .saw(command.join(" "), format!("{gpu} {nic} {}", distance.name()))
            .act("put a NIC below the GPU's PCIe switch; where that cannot be, let ranks use the nearest (NCCL_IB_HCA) and stage through host memory (NCCL_NET_GDR_LEVEL)")
            .undo_by("unset NCCL_IB_HCA and NCCL_NET_GDR_LEVEL")
            .likely();
    }
    !topology.gpus.is_empty()
}
