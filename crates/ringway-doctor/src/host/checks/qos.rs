//! Quality of service: trust, PFC, ETS, buffers, ECN, pause.

use crate::host::{
    Host, Unread,
    check::{Check, Group, Said},
    facts::Quality,
    parse::{self, Selection, Trust},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "qos.trust",
        group: Group::Qos,
        expects: "priorities taken from the DSCP",
        why: "packets without a VLAN tag have no other mark: all of them land in priority 0, which is lossy",
        source: "NVIDIA, mlnx_qos --trust; dcb-apptrust(8)",
        run: trust,
    },
    Check {
        id: "qos.pfc",
        group: Group::Qos,
        expects: "one or two lossless priorities",
        why: "without PFC a full buffer drops, and RoCE sends all again from there; with PFC on all, TCP pauses RDMA",
        source: "IEEE 802.1Qbb; dcb-pfc(8); Guo and others, RDMA over commodity Ethernet at scale, SIGCOMM 2016",
        run: pfc,
    },
    Check {
        id: "qos.ets",
        group: Group::Qos,
        expects: "a traffic class of its own for each lossless priority",
        why: "what shares a queue with lossless data is paused with it, and holds it up",
        source: "IEEE 802.1Qaz; mlnx_qos: -p is priority to class, -f is PFC",
        run: ets,
    },
    Check {
        id: "qos.strict",
        group: Group::Qos,
        expects: "data not in a strict class above that of CNPs",
        why: "a strict class starves those below: no CNP gets through just when there is congestion",
        source: "IEEE 802.1Q, 8.6.8.1: strict priority; NVIDIA, RoCE with DCQCN",
        run: strict,
    },
    Check {
        id: "qos.buffers",
        group: Group::Qos,
        expects: "a receive buffer of its own for lossless priorities",
        why: "lossy traffic that fills the same buffer makes the card pause, or drop, what is lossless",
        source: "dcb-buffer(8); NVIDIA, mlnx_qos --prio2buffer",
        run: buffers,
    },
    Check {
        id: "qos.ecn",
        group: Group::Qos,
        expects: "DCQCN on for lossless priorities, on both sides",
        why: "without it only PFC stops senders, and pauses spread through the fabric",
        source: "NVIDIA, /sys/class/net/*/ecn/roce_np and roce_rp; Zhu and others, DCQCN, SIGCOMM 2015",
        run: ecn,
    },
    Check {
        id: "qos.pause",
        group: Group::Qos,
        expects: "no pause of the whole link where PFC is on",
        why: "IEEE 802.3x stops all priorities, also CNPs and acknowledgements; switches refuse both at once",
        source: "IEEE 802.3x and 802.1Qbb; ethtool(8): -a, -A",
        run: pause,
    },
];

fn trust(host: &Host<'_>, said: &mut Said) -> bool {
    for (interface, reason) in host.unknown_quality() {
        // A card that has no such thing (EOPNOTSUPP) cannot have it wrong.
        let reason = match reason {
            Unread::Absent => "neither mlnx_qos nor dcb (package iproute2) is installed".to_owned(),
            other => format!("neither mlnx_qos nor dcb tells: {other}"),
        };
        said.unknown(interface, reason, format!("mlnx_qos -i {interface}"));
    }
    let mut any = false;
    for (interface, quality) in host.quality() {
        any = true;
        match quality.qos.trust {
            Some(Trust::Dscp) => {}
            Some(Trust::Pcp) => {
                said.error(
                    interface,
                    "priorities are taken from the VLAN tag: expected from the DSCP",
                )
                .saw(quality.source("apptrust"), "trust pcp")
                .run(quality.set_trust(true))
                .undo(quality.set_trust(false))
                .likely();
            }
            None => said.unknown(
                interface,
                "what priorities are taken from is not told",
                format!("mlnx_qos -i {interface}"),
            ),
        }
    }
    any
}

/// The priority that data should have: of what it is marked with, else of Ringway's DSCP.
fn data_priority(host: &Host<'_>, interface: &str, quality: &Quality) -> u8 {
    let device = host
        .interfaces()
        .into_iter()
        .find(|(name, _, _)| name == interface)
        .map(|(_, device, _)| device);
    let mark = device.and_then(|device| host.data_mark(device));
    let dscp = mark.map_or(super::marking::RINGWAY, |mark| mark.dscp());
    match quality.qos.priority(dscp) {
        0 => quality.qos.priority(super::marking::RINGWAY),
        priority => priority,
    }
}

fn one(priority: u8) -> [bool; 8] {
    let mut pfc = [false; 8];
    pfc[usize::from(priority & 7)] = true;
    pfc
}

fn pfc(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality) in host.quality() {
        let Some(now) = quality.qos.pfc else {
            continue;
        };
        any = true;
        let lossless = quality.qos.lossless();
        let shown = format!("{lossless:?}");
        let priority = data_priority(host, interface, quality);
        let problem = match lossless.len() {
            0 => "no priority is lossless".to_owned(),
            1 | 2 => continue,
            8 => "all priorities are lossless".to_owned(),
            many => format!("{many} priorities are lossless: expected one or two"),
        };
        said.warn(interface, problem)
            .saw(quality.source("pfc"), format!("PFC on {shown}"))
            .act("the switch's port has to have the same:")
            .run(quality.set_pfc(one(priority)))
            .undo(quality.set_pfc(now))
            .likely();
    }
    any
}

fn ets(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality) in host.quality() {
        let (Some(classes), Some(pfc)) = (quality.qos.class, quality.qos.pfc) else {
            continue;
        };
        any = true;
        let shown = format!("priority to class {classes:?}");
        // One class for each priority is mlx5's default; it swaps 0 and 1.
        let apart = [1, 0, 2, 3, 4, 5, 6, 7];
        let vector = classes.map(|class| class == 1);
        let binary = classes.iter().all(|&class| class < 2);
        let ones = vector.iter().filter(|&&on| on).count();
        if binary && (1..=2).contains(&ones) && pfc == [false; 8] {
            said.error(
                interface,
                "priorities were given classes with what looks like the flags of PFC: mlnx_qos -p in place of -f",
            )
            .saw(quality.source("ets"), shown)
            .saw(quality.source("pfc"), "PFC on no priority")
            .run(quality.map_classes(apart))
            .run(quality.set_pfc(vector))
            .undo(quality.set_pfc(pfc))
            .undo(quality.map_classes(classes))
            .likely();
            continue;
        }
        for priority in quality.qos.lossless() {
            let class = classes[usize::from(priority)];
            let others: Vec<usize> = (0..8)
                .filter(|&it| classes[it] == class && !pfc[it])
                .collect();
            if others.is_empty() {
                continue;
            }
            said.warn(
                interface,
                format!("lossless priority {priority} shares class {class} with lossy {others:?}"),
            )
            .saw(quality.source("ets"), shown.clone())
            .run(quality.map_classes(apart))
            .undo(quality.map_classes(classes));
        }
    }
    any
}

fn strict(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality) in host.quality() {
        let qos = &quality.qos;
        let Some(cnp) = super::marking::cnp(host, interface) else {
            continue;
        };
        let cnp_class = qos.class_of(qos.priority(cnp.dscp));
        for priority in qos.lossless() {
            let (Some(data), Some(cnp_class)) = (qos.class_of(priority), cnp_class) else {
                continue;
            };
            any = true;
            let is_strict = |class| {
                matches!(
                    qos.selection_of(class),
                    Some(Selection::Strict | Selection::Vendor)
                )
            };
            let below = !is_strict(cnp_class) || cnp_class < data;
            if !is_strict(data) || !below || data == cnp_class {
                continue;
            }
            said.warn(
                interface,
                format!("data's class {data} is strict and goes before the CNPs' class {cnp_class}"),
            )
            .saw(quality.source("ets"), format!("class {data}: {:?}, class {cnp_class}: {:?}", qos.selection_of(data), qos.selection_of(cnp_class)))
            .saw(&cnp.source, &cnp.value)
            .act(format!("give class {data} a share (ets, 50 %) and class {cnp_class} strict priority: mlnx_qos -i {interface} -s ... -t ..., or dcb ets set dev {interface} tc-tsa {data}:ets {cnp_class}:strict tc-bw {data}:50"))
            .undo_by("set both back to what the evidence says")
            .likely();
        }
    }
    any
}

fn buffers(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality) in host.quality() {
        let (Some(buffers), Some(pfc)) = (quality.qos.buffer, quality.qos.pfc) else {
            continue;
        };
        any = true;
        let shown = format!("priority to buffer {buffers:?}");
        for priority in quality.qos.lossless() {
            let own = buffers[usize::from(priority)];
            let shared: Vec<usize> = (0..8)
                .filter(|&it| buffers[it] == own && !pfc[it])
                .collect();
            let size = quality.qos.sizes.map(|sizes| sizes[usize::from(own & 7)]);
            if !shared.is_empty() {
                let apart = pfc.map(u8::from);
                said.warn(
                    interface,
                    format!("lossless priority {priority} shares receive buffer {own} with lossy {shared:?}"),
                )
                .saw(quality.source("buffer"), shown.clone())
                .run(quality.map_buffers(apart))
                .undo(quality.map_buffers(buffers));
            } else if size == Some(0) {
                said.error(
                    interface,
                    format!("receive buffer {own} of lossless priority {priority} has no room"),
                )
                .saw(
                    quality.source("buffer"),
                    format!("{shown}, buffer {own}: 0 bytes"),
                )
                .act("let the driver size the buffers: set the cable's length in metres")
                .run(format!("mlnx_qos -i {interface} --cable_len 5"))
                .undo(format!(
                    "mlnx_qos -i {interface} --cable_len {}",
                    quality.qos.cable.unwrap_or(7)
                ))
                .likely();
            }
        }
    }
    any
}

fn ecn(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality) in host.quality() {
        let mut told = false;
        for priority in quality.qos.lossless() {
            for (side, role) in [("roce_rp", "sender"), ("roce_np", "receiver")] {
                let path = format!("sys/class/net/{interface}/ecn/{side}/enable/{priority}");
                let Some(value) = host.root.number(&path) else {
                    continue;
                };
                told = true;
                if value == 0 {
                    said.warn(
                        interface,
                        format!("DCQCN is off for priority {priority}, as {role}"),
                    )
                    .saw(&path, "0")
                    .run(format!("echo 1 > /{path}"))
                    .undo(format!("echo 0 > /{path}"));
                }
            }
        }
        any |= told;
        if !told && !quality.qos.lossless().is_empty() && !host.surroundings.container {
            let address = host
                .interfaces()
                .into_iter()
                .find(|(name, _, _)| name == interface)
                .and_then(|(_, device, _)| device.address.clone());
            if let Some(address) = address {
                said.unknown(
                    interface,
                    "whether DCQCN is on: this driver shows it to root only, or not at all",
                    format!("grep . /sys/kernel/debug/mlx5/{address}/cc_params/*"),
                );
            }
        }
    }
    any
}

fn pause(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, device, _) in host.interfaces() {
        if device.software || device.virtual_function {
            continue;
        }
        // Without PFC a pause of the whole link is a way to be lossless.
        let mut quality = host.quality().filter(|(name, _)| *name == interface);
        if quality.any(|(_, quality)| quality.qos.pfc == Some([false; 8])) {
            continue;
        }
        let command = ["ethtool", "-a", interface.as_str()];
        let output = match host.root.output(&command) {
            Ok(output) => output,
            Err(reason) => {
                let reason = format!("whether the whole link may be paused: ethtool: {reason}");
                said.unknown(&interface, reason, command.join(" "));
                continue;
            }
        };
        let Some(parse::Pause { autoneg, rx, tx }) = parse::pause(&output) else {
            continue;
        };
        any = true;
        let word = |on| if on { "on" } else { "off" };
        if rx || tx {
            said.warn(&interface, "pause frames stop the whole link")
                .saw(
                    command.join(" "),
                    format!("RX {}, TX {}", word(rx), word(tx)),
                )
                .run(format!("ethtool -A {interface} autoneg off rx off tx off"))
                .undo(format!(
                    "ethtool -A {interface}{} rx {} tx {}",
                    autoneg.map_or_else(String::new, |on| format!(" autoneg {}", word(on))),
                    word(rx),
                    word(tx)
                ));
        }
    }
    any
}
