//! C-states, frequency, interrupts.

use std::collections::BTreeMap;

use crate::host::{
    Host, Unread,
    check::{Check, Group, Said},
    facts::pci_dir,
    parse::{self, CpuSet},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu.cstates",
        group: Group::Cpu,
        expects: "no sleep of 20 us and more, or a program that holds it off",
        why: "a CPU that sleeps deeply wakes up in tens to hundreds of microseconds, and lets its card's buffers fill",
        source: "Linux, Documentation/admin-guide/pm/cpuidle.rst and power/pm_qos_interface.rst",
        run: cstates,
    },
    Check {
        id: "cpu.governor",
        group: Group::Cpu,
        expects: "performance",
        why: "a CPU that is clocked down polls and reduces slower, and hosts that differ wait for the slowest",
        source: "Linux, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst",
        run: governor,
    },
    Check {
        id: "cpu.irq_affinity",
        group: Group::Cpu,
        expects: "a card's interrupts spread over CPUs of its NUMA node",
        why: "one CPU cannot serve all queues, and one of another socket serves them late",
        source: "Linux, Documentation/core-api/irq/irq-affinity.rst; mlnx-tools, set_irq_affinity_bynode.sh",
        run: irq_affinity,
    },
    Check {
        id: "cpu.binding",
        group: Group::Cpu,
        expects: "a job's process on CPUs that are near a card",
        why: "a rank on another socket than its NIC pays for each byte and message",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci: local_cpulist; proc_pid_status(5)",
        run: binding,
    },
];

/// From here on waking up takes longer than a small message.
const DEEP: u64 = 20;

fn cstates(host: &Host<'_>, said: &mut Said) -> bool {
    if host.cards().next().is_none() || host.surroundings.guest {
        return false;
    }
    let dir = "sys/devices/system/cpu/cpu0/cpuidle";
    let states = host.root.names(dir);
    let deep: Vec<(String, String, u64)> = states
        .iter()
        .filter_map(|state| {
            let path = format!("{dir}/{state}");
            let latency = host.root.number(&format!("{path}/latency"))?;
            let disabled = host.root.number(&format!("{path}/disable")) == Some(1);
            let name = host.root.text(&format!("{path}/name")).ok()?;
            (latency >= DEEP && !disabled).then_some((path, name, latency))
        })
        .collect();
    if deep.is_empty() {
        return !states.is_empty();
    }
    let names: Vec<&str> = deep.iter().map(|(_, name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let held = "dev/cpu_dma_latency";
    let limit = match host.root.bytes(held) {
        Ok(bytes) => <[u8; 4]>::try_from(bytes.get(..4).unwrap_or_default())
            .ok()
            .map(i32::from_le_bytes),
        Err(Unread::Denied) => {
            said.unknown(
                "CPUs",
                format!("{names} are allowed; whether a program holds them off (/{held}) is for root to see"),
                format!("od -An -td4 /{held}"),
            );
            return true;
        }
        Err(_) => None,
    };
    // Microseconds that somebody has asked for; by default 2,000 s.
    if limit.is_some_and(|limit| u64::try_from(limit).is_ok_and(|limit| limit < DEEP)) {
        return true;
    }
    let mut finding = said.warn("CPUs", format!("they may sleep deeply: {names}"));
    for (path, name, latency) in &deep {
        finding = finding.saw(format!("{path}/latency"), format!("{name}: {latency} us"));
    }
    finding
        .saw(
            held,
            limit.map_or_else(|| "absent".to_owned(), |limit| format!("{limit} us")),
        )
        .run("tuned-adm profile network-latency")
        .act("or hold /dev/cpu_dma_latency open with 0 in it while jobs run")
        .undo("tuned-adm profile balanced");
    true
}

fn governor(host: &Host<'_>, said: &mut Said) -> bool {
    let dir = "sys/devices/system/cpu";
    let mut governors: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for cpu in host.root.names(dir) {
        let number = cpu.strip_prefix("cpu").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let path = format!("{dir}/{cpu}/cpufreq/scaling_governor");
        if let Ok(governor) = host.root.text(&path) {
            governors.entry(governor).or_insert((0, path)).0 += 1;
        }
    }
    let all: usize = governors.values().map(|(count, _)| count).sum();
    for (governor, (count, path)) in &governors {
        if governor == "performance" {
            continue;
        }
        let driver = host
            .root
            .text(&format!("{dir}/cpu0/cpufreq/scaling_driver"));
        let driver = driver.unwrap_or_default();
        // Such drivers leave the clock to the processor, which raises it under load whatever the word.
        let hardware = matches!(driver.as_str(), "intel_pstate" | "amd-pstate-epp");
        let problem = format!("{count} of {all} CPUs have the governor {governor}");
        let finding = if hardware {
            said.note("CPUs", problem)
        } else {
            said.warn("CPUs", problem)
        };
        finding
            .saw(path, governor)
            .saw(format!("{dir}/cpu0/cpufreq/scaling_driver"), driver)
            .run("cpupower frequency-set -g performance")
            .undo(format!("cpupower frequency-set -g {governor}"));
    }
    !governors.is_empty()
}

fn irq_affinity(host: &Host<'_>, said: &mut Said) -> bool {
    // Which CPU serves an interrupt is a matter of the host's, and of the hypervisor's.
    if host.surroundings.container || host.surroundings.guest {
        return false;
    }
    let table = host.root.text("proc/interrupts").unwrap_or_default();
    let known = parse::interrupts(&table);
    let mut any = false;
    for (device, address) in host.cards() {
        let dir = pci_dir(address);
        let local = host.root.text(&format!("{dir}/local_cpulist"));
        let local = CpuSet::parse(&local.unwrap_or_default());
        let lists: Vec<(String, CpuSet)> = known
            .iter()
            .filter(|interrupt| interrupt.name.contains(address))
            // Those for commands and events are few and rare.
            .filter(|interrupt| interrupt.name.contains("comp"))
            .filter_map(|interrupt| {
                let path = format!("proc/irq/{}/smp_affinity_list", interrupt.number);
                let list = host.root.text(&path).ok()?;
                Some((path, CpuSet::parse(&list)))
            })
            .collect();
        let Some((first, one)) = lists.first() else {
            continue;
        };
        any = true;
        let stuck = lists.len() > 1 && one.len() == 1 && lists.iter().all(|(_, set)| set == one);
        let remote: Vec<_> = lists.iter().filter(|(_, set)| !set.meets(&local)).collect();
        let node = host.root.text(&format!("{dir}/numa_node"));
        let node = node.unwrap_or_default();
        let interface = device.ports.iter().find_map(|port| port.netdevs.first());
        let interface = interface.map_or("INTERFACE", String::as_str);
        let finding = if stuck {
            said.warn(
                &device.name,
                format!("all {} interrupts of queues go to CPU {one}", lists.len()),
            )
            .saw(first, one.to_string())
        } else if !local.is_empty() && remote.len() * 2 > lists.len() {
            let (path, set) = remote[0];
            said.warn(
                &device.name,
                format!(
                    "{} of {} interrupts of queues go to CPUs that are far from the card ({local})",
                    remote.len(),
                    lists.len()
                ),
            )
            .saw(path, set.to_string())
            .saw(format!("{dir}/local_cpulist"), local.to_string())
        } else {
            continue;
        };
        let finding = if host.runs("irqbalance") {
            finding
                .act("first keep irqbalance from moving them back: put IRQBALANCE_ARGS=--banmod=mlx5_core into /etc/default/irqbalance (Red Hat: /etc/sysconfig/irqbalance)")
                .run("systemctl restart irqbalance")
        } else {
            finding
        };
        let mut finding = finding.run(format!("set_irq_affinity_bynode.sh {node} {interface}"));
        for (path, set) in &lists {
            finding = finding.undo(format!("echo {set} > /{path}"));
        }
    }
    any
}

fn binding(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.surroundings.job || host.nodes() < 2 || host.cards().next().is_none() {
        return false;
    }
    let path = "proc/self/status";
    let status = host.root.text(path).unwrap_or_default();
    let Some(list) = parse::field(&status, "Cpus_allowed_list") else {
        return false;
    };
    let allowed = CpuSet::parse(list);
    let near: Vec<(&str, CpuSet)> = host
        .cards()
        .filter_map(|(device, address)| {
            let file = format!("{}/local_cpulist", pci_dir(address));
            let local = CpuSet::parse(&host.root.text(&file).ok()?);
            (!local.is_empty()).then_some((device.name.as_str(), local))
        })
        .collect();
    if near.is_empty() || near.iter().any(|(_, local)| local.meets(&allowed)) {
        return true;
    }
    let mut finding = said
        .warn(
            "this process",
            format!("it may run on CPUs {allowed} only, and no RDMA device is near them"),
        )
        .saw(path, format!("Cpus_allowed_list {allowed}"));
    for (name, local) in near {
        finding = finding.saw(
            format!("sys/class/infiniband/{name}/device/local_cpulist"),
            local.to_string(),
        );
    }
    finding
        .act("bind ranks near their NIC: numactl --cpunodebind=N, srun --cpu-bind, mpirun --map-by")
        .undo_by("bind them as before");
    true
}
