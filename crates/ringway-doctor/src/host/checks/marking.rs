//! Quality of service: what data and CNPs are marked with, and what becomes of it.

use crate::host::{
    Host,
    check::{Check, Group, Said},
    facts::{Device, Mark, Quality},
    parse::{Trust, mlxconfig},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "qos.data_class",
        group: Group::Qos,
        expects: "data marked with a DSCP whose priority is lossless",
        why: "data in a lossy priority is dropped under load, and RoCE sends all again from there: slow, or time-outs",
        source: "NVIDIA, network-operator: roceOptimized leaves data unmarked; nccl: NCCL_IB_TC is 0 by default",
        run: data_class,
    },
    Check {
        id: "qos.traffic_class",
        group: Group::Qos,
        expects: "the type of service (DSCP << 2 | ECN) in a traffic class, not the DSCP",
        why: "26 in a field for 104 or 106 is DSCP 6: it marks another class, which nobody has made lossless",
        source: "RFC 2474, RFC 3168; configfs-rdma_cm; NCCL_IB_TC and UCX_IB_TRAFFIC_CLASS",
        run: traffic_class,
    },
    Check {
        id: "qos.global_class",
        group: Group::Qos,
        expects: "the driver's global class and the application's to be the same",
        why: "queue pairs that GPUs drive themselves do not get the driver's class: they alone are lossy, retry, and hang",
        source: "nccl #2383; NVIDIA, /sys/class/infiniband/*/tc/1/traffic_class",
        run: global_class,
    },
    Check {
        id: "qos.cnp",
        group: Group::Qos,
        expects: "CNPs in a priority of their own: not paused, not data's, not 0",
        why: "a notification of congestion that waits in the congestion comes too late",
        source: "NVIDIA, CNP_DSCP and cnp_dscp; network-operator writes DSCP 4, which is priority 0",
        run: cnp_class,
    },
];

/// The DSCP of Ringway's own data.
pub(in crate::host) const RINGWAY: u8 = 26;

/// Interfaces whose priorities come from the DSCP, with their device.
fn marked<'a>(host: &'a Host<'_>) -> Vec<(&'a str, &'a Quality, &'a Device)> {
    let interfaces = host.interfaces();
    host.quality()
        .filter(|(_, quality)| quality.qos.trust != Some(Trust::Pcp))
        .filter_map(|(interface, quality)| {
            let found = interfaces.iter().find(|(name, _, _)| name == interface)?;
            Some((interface, quality, found.1))
        })
        .collect()
}

fn data_class(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality, device) in marked(host) {
        let lossless = quality.qos.lossless();
        // That there is none is another finding.
        let Some(&target) = lossless.first() else {
            continue;
        };
        any = true;
        match host.data_mark(device) {
            Some(mark) => judge(said, interface, quality, device, &mark, target),
            None => {
                said.unknown(
                    interface,
                    "what the application marks its data with shows in a job only",
                    "srun, mpirun or kubectl exec ... ringway doctor --only qos",
                );
                let priority = quality.qos.priority(RINGWAY);
                if !lossless.contains(&priority) {
                    said.warn(
                        interface,
                        format!("Ringway marks its data with DSCP {RINGWAY}, which is lossy priority {priority} here"),
                    )
                    .saw(quality.source("app"), format!("DSCP {RINGWAY} to priority {priority}"))
                    .saw(quality.source("pfc"), format!("PFC on {lossless:?}"))
                    .run(quality.map_dscp(RINGWAY, target))
                    .undo(quality.map_dscp(RINGWAY, priority))
                    .act("and on all switches, which have to map it alike");
                }
            }
        }
    }
    any
}

fn judge(
    said: &mut Said,
    interface: &str,
    quality: &Quality,
    device: &Device,
    mark: &Mark,
    target: u8,
) {
    let qos = &quality.qos;
    let lossless = qos.lossless();
    let (dscp, priority) = (mark.dscp(), qos.priority(mark.dscp()));
    if lossless.contains(&priority) {
        return;
    }
    let seen = format!("{}, so DSCP {dscp} to priority {priority}", mark.value);
    if dscp == 0 {
        let wanted = (0..64).rev().find(|&it| qos.priority(it) == target);
        let wanted = if qos.priority(RINGWAY) == target {
            Some(RINGWAY)
        } else {
            wanted
        };
        let tos = wanted.map_or(106, |dscp| dscp << 2 | 2);
        said.error(interface, format!("data is not marked: it goes in priority {priority}, and {lossless:?} is lossless"))
            .saw(&mark.source, seen)
            .saw(quality.source("pfc"), format!("PFC on {lossless:?}"))
            .act(format!("put NCCL_IB_TC={tos} (or UCX_IB_TRAFFIC_CLASS={tos}) into the job's environment; for connections by rdma_cm:"))
            .run(format!("cma_roce_tos -d {} -t {tos}", device.name))
            .undo(format!("cma_roce_tos -d {} -t {}", device.name, mark.tos))
            .undo_by("take the variable out again")
            .likely();
    } else {
        said.error(
            interface,
            format!("data of DSCP {dscp} goes in lossy priority {priority}: {lossless:?} is lossless"),
        )
        .saw(&mark.source, seen)
        .saw(quality.source("pfc"), format!("PFC on {lossless:?}"))
        .run(quality.map_dscp(dscp, target))
        .act("and on all switches, which have to map it alike; or mark data with a DSCP that is lossless everywhere")
        .undo(quality.map_dscp(dscp, priority));
    }
}

fn traffic_class(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality, device) in marked(host) {
        let lossless = quality.qos.lossless();
        let variables = [
            "NCCL_IB_TC",
            "NCCL_IB_FIFO_TC",
            "NCCL_GIN_IB_TC",
            "UCX_IB_TRAFFIC_CLASS",
        ];
        let marks = variables.iter().filter_map(|name| host.variable_mark(name));
        let marks = marks
            .chain(host.connection_mark(device))
            .chain(host.global_mark(device));
        for mark in marks {
            any = true;
            let lossy = !lossless.contains(&quality.qos.priority(mark.dscp()));
            // The number itself, taken for a DSCP, would be right.
            let meant = mark.tos < 64 && lossless.contains(&quality.qos.priority(mark.tos));
            if !(lossy && meant && mark.tos != 0) {
                continue;
            }
            let right = mark.tos << 2 | 2;
            said.error(
                interface,
                format!(
                    "{} is a DSCP in a field for the type of service: it marks DSCP {}",
                    mark.tos,
                    mark.dscp()
                ),
            )
            .saw(&mark.source, &mark.value)
            .act(format!("set it to {right}: DSCP {} with ECT(0)", mark.tos))
            .undo_by(format!("set it to {} again", mark.tos));
        }
    }
    any
}

fn global_class(host: &Host<'_>, said: &mut Said) -> bool {
    let nccl = host
        .environment
        .keys()
        .any(|name| name.starts_with("NCCL_"));
    let mut any = false;
    for (interface, quality, device) in marked(host) {
        let Some(global) = host.global_mark(device).filter(|mark| mark.tos != 0) else {
            continue;
        };
        any = true;
        let priority = |mark: &Mark| quality.qos.priority(mark.dscp());
        if !nccl {
            continue;
        }
        for name in ["NCCL_IB_TC", "NCCL_GIN_IB_TC"] {
            let own = host.variable_mark(name);
            if own
                .as_ref()
                .is_some_and(|own| priority(own) == priority(&global))
            {
                continue;
            }
            let seen = own.map_or_else(|| "not set: 0".to_owned(), |own| own.value);
            said.warn(
                interface,
                format!("the driver marks data with {}, {name} does not: queue pairs of GPUs go in another priority", global.tos),
            )
            .saw(&global.source, &global.value)
            .saw(format!("environment variable {name}"), &seen)
            .act(format!("put {name}={} into the job's environment", global.tos))
            .undo_by(format!("{name} was {seen}"))
            .likely();
        }
    }
    any
}

/// What CNPs are marked with.
pub(super) struct Cnp {
    pub(super) dscp: u8,
    pub(super) source: String,
    pub(super) value: String,
    /// The firmware's setting that says it; none if it is the driver's file.
    setting: Option<String>,
}

/// What the card marks CNPs with: the driver's file, else the firmware's setting.
pub(super) fn cnp(host: &Host<'_>, interface: &str) -> Option<Cnp> {
    let path = format!("sys/class/net/{interface}/ecn/roce_np/cnp_dscp");
    if let Some(dscp) = host.root.number(&path) {
        return Some(Cnp {
            dscp: u8::try_from(dscp).ok()?,
            source: path,
            value: dscp.to_string(),
            setting: None,
        });
    }
    let interfaces = host.interfaces();
    let (_, device, port) = interfaces.iter().find(|(name, _, _)| name == interface)?;
    let command = ["mlxconfig", "-d", device.address.as_deref()?, "query"];
    let settings = mlxconfig(&host.root.output(&command).ok()?);
    let name = format!("CNP_DSCP_P{}", port.number);
    let dscp = u8::try_from(*settings.get(&name)?).ok()?;
    Some(Cnp {
        dscp,
        source: command.join(" "),
        value: format!("{name} {dscp}"),
        setting: Some(name),
    })
}

fn cnp_class(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (interface, quality, device) in marked(host) {
        let Some(cnp) = cnp(host, interface) else {
            continue;
        };
        any = true;
        let priority = quality.qos.priority(cnp.dscp);
        let problem = if cnp.dscp > 63 {
            format!(
                "CNPs have DSCP {}: a DSCP is 63 at most, this is a type of service",
                cnp.dscp
            )
        } else if quality.qos.lossless().contains(&priority) {
            format!(
                "CNPs (DSCP {}) go in lossless priority {priority}, which is paused",
                cnp.dscp
            )
        } else if priority == 0 {
            format!(
                "CNPs (DSCP {}) go in priority 0, with all that is not marked",
                cnp.dscp
            )
        } else {
            continue;
        };
        let finding = said
            .warn(interface, problem)
            .saw(&cnp.source, &cnp.value)
            .saw(
                quality.source("app"),
                format!("DSCP {} to priority {priority}", cnp.dscp),
            );
        let file = format!("/sys/class/net/{interface}/ecn/roce_np/cnp_dscp");
        let finding = match (&device.address, &cnp.setting) {
            (Some(address), Some(setting)) => {
                let set = |dscp: u8| {
                    format!(
                        "mlxconfig -y -d {address} set {setting}={dscp} && mlxfwreset -y -d {address} reset"
                    )
                };
                finding.run(set(48)).undo(set(cnp.dscp))
            }
            _ => finding
                .run(format!("echo 48 > {file}"))
                .undo(format!("echo {} > {file}", cnp.dscp)),
        };
        finding
            .act("48 is priority 6 by default; on all hosts and switches alike")
            .likely();
    }
    any
}
