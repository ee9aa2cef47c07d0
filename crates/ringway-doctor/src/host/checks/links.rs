//! Ports, their MTUs, and what was lost on the wire.

use std::collections::BTreeMap;

use crate::host::{
    Host, Unread,
    check::{Check, Group, Said},
    parse,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "links.state",
        group: Group::Links,
        expects: "4: ACTIVE and 5: LinkUp",
        why: "queue pairs of a port that is down reach nobody",
        source: "Linux, Documentation/ABI/stable/sysfs-class-infiniband",
        run: state,
    },
    Check {
        id: "links.layer",
        group: Group::Links,
        expects: "Ethernet",
        why: "RoCE runs over Ethernet; an InfiniBand port needs a subnet manager and other GIDs",
        source: "Linux, Documentation/ABI/stable/sysfs-class-infiniband: link_layer",
        run: layer,
    },
    Check {
        id: "links.rate",
        group: Group::Links,
        expects: "one rate on all ports of a model",
        why: "a collective goes at the pace of its slowest port",
        source: "Linux, Documentation/ABI/stable/sysfs-class-infiniband: rate",
        run: rate,
    },
    Check {
        id: "links.mtu",
        group: Group::Links,
        expects: "4200 or more, the same on all RDMA interfaces",
        why: "a RoCE MTU of 4096 needs room for headers; of 1500 bytes 1024 are left, and hosts that differ cannot connect",
        source: "IBTA annex A17; nccl-mesh-plugin #12: MTU 4096 assumed where the port had 1024",
        run: mtu,
    },
    Check {
        id: "links.errors",
        group: Group::Links,
        expects: "no errors since the driver was loaded",
        why: "symbol and receive errors are a bad cable or module; ICRC errors are a cable or a box that rewrites packets",
        source: "Linux, drivers/infiniband/core/sysfs.c and hw/mlx5/counters.c",
        run: errors,
    },
    Check {
        id: "links.firewall",
        group: Group::Links,
        expects: "UDP port 4791 let in, for RDMA in software",
        why: "soft RoCE takes its packets through the firewall; cards do not",
        source: "Linux, drivers/infiniband/sw/rxe; IBTA annex A17: UDP port 4791",
        run: firewall,
    },
];

fn state(host: &Host<'_>, said: &mut Said) -> bool {
    let up = host.ports().filter(|(_, port)| port.active()).count();
    let mut any = false;
    for (device, port) in host.ports() {
        any = true;
        if port.active() {
            continue;
        }
        let interface = port.netdevs.first();
        // IFF_UP (linux/if.h): somebody wants the port to work.
        let flags = interface.and_then(|name| {
            let flags = host
                .root
                .text(&format!("sys/class/net/{name}/flags"))
                .ok()?;
            u64::from_str_radix(flags.trim_start_matches("0x"), 16).ok()
        });
        let wanted = flags.is_none_or(|flags| flags & 1 == 1);
        let problem = format!("the port is {} ({})", port.state, port.physical);
        let subject = device.port(port);
        let finding = match (wanted, up) {
            (_, 0) => said.error(subject, format!("{problem}, and no other is active")),
            (true, _) => said.warn(subject, problem),
            // A second port that nobody uses.
            (false, _) => said.note(subject, format!("{problem}: its interface is switched off")),
        };
        let finding = finding
            .saw(format!("{}/state", port.dir), &port.state)
            .saw(format!("{}/phys_state", port.dir), &port.physical);
        match interface {
            Some(name) if !wanted || flags.is_none() => finding
                .run(format!("ip link set dev {name} up"))
                .undo(format!("ip link set dev {name} down")),
            _ => finding.act("check cable, module and the switch's port: no light arrives, or the other end is off"),
        };
    }
    any
}

fn layer(host: &Host<'_>, said: &mut Said) -> bool {
    for device in &host.devices {
        for port in device.ports.iter().filter(|port| !port.ethernet) {
            let finding = said
                .note(
                    device.port(port),
                    "the port is InfiniBand: it is left out of all other checks",
                )
                .saw(format!("{}/link_layer", port.dir), "InfiniBand");
            if let (Some(address), true) = (&device.address, device.is_mlx5()) {
                let set = |kind: u8| {
                    format!(
                        "mlxconfig -y -d {address} set LINK_TYPE_P{}={kind}",
                        port.number
                    )
                };
                finding
                    .act("if it is to be Ethernet (takes effect after a restart of the host):")
                    .run(set(2))
                    .undo(set(1));
            }
        }
    }
    !host.devices.is_empty()
}

fn rate(host: &Host<'_>, said: &mut Said) -> bool {
    let mut best: BTreeMap<&str, f64> = BTreeMap::new();
    let active = || {
        host.ports()
            .filter(|(device, port)| port.active() && !device.software)
    };
    for (device, port) in active() {
        if let Some(rate) = port.gigabits() {
            let most = best
                .entry(device.model.as_deref().unwrap_or_default())
                .or_default();
            *most = most.max(rate);
        }
    }
    for (device, port) in active() {
        let model = device.model.as_deref().unwrap_or_default();
        if let (Some(rate), Some(&most)) = (port.gigabits(), best.get(model))
            && rate < most
        {
            said.warn(
                device.port(port),
                format!("the port runs at {rate} Gb/s, others of its model at {most}"),
            )
            .saw(format!("{}/rate", port.dir), port.rate.clone().unwrap_or_default())
            .act("reseat or replace cable and module; see whether speed and FEC are fixed on the switch's port")
            .likely();
        }
    }
    !best.is_empty()
}

/// What a RoCE MTU of 4096 needs: GRH or IP, UDP, BTH, RETH, immediate data and ICRC, with something to spare.
const ENOUGH: u64 = 4200;

fn mtu(host: &Host<'_>, said: &mut Said) -> bool {
    let mtus: Vec<(String, u64, bool)> = host
        .interfaces()
        .into_iter()
        .filter_map(|(name, device, _)| {
            let mtu = host.root.number(&format!("sys/class/net/{name}/mtu"))?;
            Some((name, mtu, device.software))
        })
        .collect();
    let most = mtus.iter().map(|(_, mtu, _)| *mtu).max().unwrap_or(0);
    for (name, mtu, software) in &mtus {
        let path = format!("sys/class/net/{name}/mtu");
        let target = most.max(9000);
        let finding = if *mtu < ENOUGH {
            let left = [4096, 2048, 1024, 512, 256]
                .into_iter()
                .find(|it| it + 104 <= *mtu);
            let left = left.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let problem = format!("the MTU is {mtu}: expected {ENOUGH} or more; RoCE's is {left}");
            // Who tries RDMA out in software wants it to work, not to be fast.
            if *software {
                said.note(name, problem)
            } else {
                said.warn(name, problem)
            }
        } else if *mtu < most {
            said.warn(
                name,
                format!("the MTU is {mtu}, that of another RDMA interface {most}"),
            )
        } else {
            continue;
        };
        finding
            .saw(&path, mtu.to_string())
            .act("first see that all hosts and switches on the way take as much:")
            .run(format!("ip link set dev {name} mtu {target}"))
            .undo(format!("ip link set dev {name} mtu {mtu}"));
    }
    !mtus.is_empty()
}

/// Counters that are zero on a good wire, and what they are called where people look for them.
const FAULTS: [&str; 6] = [
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "counters/link_downed",
    "hw_counters/rx_icrc_encapsulated",
];

fn errors(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, port) in host.ports() {
        let counted: Vec<(String, u64)> = FAULTS
            .iter()
            .filter_map(|counter| {
                let path = format!("{}/{counter}", port.dir);
                Some((path.clone(), host.root.number(&path)?))
            })
            .collect();
        any |= !counted.is_empty();
        let wrong: Vec<_> = counted.iter().filter(|(_, value)| *value > 0).collect();
        if wrong.is_empty() {
            continue;
        }
        let mut finding = said
            .note(device.port(port), "errors since the driver was loaded")
            .act("see whether they rise while a job runs: ringway doctor watch; if so, clean or replace cable and module")
            .likely();
        for (path, value) in wrong {
            finding = finding.saw(path, value.to_string());
        }
    }
    any
}

fn firewall(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.devices.iter().any(|device| device.software) {
        return false;
    }
    let command = ["nft", "list", "ruleset"];
    match host.root.output(&command) {
        Ok(rules) => {
            if let Some(rule) = parse::drops_roce(&rules) {
                said.error("firewall", "packets to UDP port 4791 are dropped")
                    .saw("nft list ruleset", rule)
                    .run("nft insert rule inet filter input udp dport 4791 accept")
                    .undo("nft -a list chain inet filter input  # then: nft delete rule inet filter input handle N")
                    .likely();
            }
        }
        // Who has no nft has few rules; older tools write theirs into the same tables.
        Err(Unread::Absent) => return false,
        Err(reason) => said.unknown(
            "firewall",
            format!("its rules are for root: {reason}"),
            command.join(" "),
        ),
    }
    true
}
