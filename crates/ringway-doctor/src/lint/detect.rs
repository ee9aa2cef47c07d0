//! What a file is.

use crate::config::{SHOWS, Target, UNDOES};

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Variables or settings of an application.
    Application,
    /// A script that sets up a host.
    Host,
    /// An intent.
    Intent,
    /// Manifests of Kubernetes.
    Manifest,
    /// A systemd unit that sets up a host.
    Unit,
    /// What undoes a configuration, or shows it.
    Aside,
    /// The configuration of a switch.
    Switch(Target),
}

impl Kind {
    /// The kind of that name: a system, `host`, `host-unit`, `intent`, `k8s`, `slurm` or `env`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            // A script for Slurm sets variables.
            "env" | "slurm" => Some(Self::Application),
            "host" => Some(Self::Host),
            "host-unit" => Some(Self::Unit),
            "intent" => Some(Self::Intent),
            "k8s" => Some(Self::Manifest),
            _ => name
                .parse()
                .ok()
                .filter(|target: &Target| target.is_switch())
                .map(Self::Switch),
        }
    }
}

/// What speaks for each kind: how lines begin. The kind that most lines speak for is taken.
const SIGNS: &[(Kind, &[&str])] = &[
    (
        Kind::Application,
        &[
            "NCCL_",
            "UCX_",
            "RINGWAY_",
            "export NCCL_",
            "export UCX_",
            "export RINGWAY_",
            "communication:",
        ],
    ),
    (
        Kind::Host,
        &[
            "#!/bin/bash",
            "#!/bin/sh",
            "run mlnx_qos",
            "mlnx_qos",
            "run dcb",
            "dcb app",
            "dcb pfc set",
            "dcb ets",
            "cma_roce_tos",
            "ip link set",
            "sysctl -w",
        ],
    ),
    (Kind::Intent, &["classes:"]),
    (
        Kind::Switch(Target::Nvue),
        &["nv set", "- set:", "- header:"],
    ),
    (
        Kind::Switch(Target::Junos),
        &[
            "set class-of-service",
            "class-of-service {",
            "set interfaces",
        ],
    ),
    (
        Kind::Switch(Target::Onyx),
        &["interface ethernet 1/", "dcb priority-flow-control", "roce"],
    ),
    (
        Kind::Switch(Target::Os10),
        &[
            "trust dscp-map",
            "qos-map traffic-class",
            "wred ",
            "match queue",
            "service-policy output type",
            "service-policy input type",
            "interface ethernet1/",
            "trust-map",
        ],
    ),
    (
        Kind::Switch(Target::Nxos),
        &[
            "class-map type qos",
            "policy-map type qos",
            "class type network-qos",
            "class type queuing",
            "service-policy type",
            "set qos-group",
            "interface Ethernet1/",
            "system qos",
            "feature ",
        ],
    ),
    (
        Kind::Switch(Target::Eos),
        &[
            "qos map dscp",
            "qos profile",
            "service-profile",
            "uc-tx-queue",
            "tx-queue",
            "priority-flow-control pause",
            "qos trust",
            "priority-flow-control on",
            "priority-flow-control priority",
            "interface Ethernet",
        ],
    ),
];

/// How far into a file its head is looked for, in lines.
const HEAD: usize = 12;

/// What a file is by its contents; none if nothing speaks for anything.
pub fn detect(text: &str) -> Option<Kind> {
    let mut head = text.lines().take(HEAD);
    if head.any(|line| [UNDOES, SHOWS].iter().any(|it| line.contains(it))) {
        return Some(Kind::Aside);
    }
    // A script may write a manifest or a unit.
    let is_script = text.starts_with("#!");
    let mut lines = text.lines().map(str::trim_end);
    if !is_script && lines.clone().any(|line| line.starts_with("apiVersion:")) {
        return Some(Kind::Manifest);
    }
    if !is_script && lines.any(|line| matches!(line, "[Unit]" | "[Service]")) {
        return Some(Kind::Unit);
    }
    if text.trim_start().starts_with('{') {
        return Some(Kind::Switch(Target::Sonic));
    }
    if text.lines().any(|line| line.starts_with("classes:")) {
        return Some(Kind::Intent);
    }
    let mut votes = vec![0usize; SIGNS.len()];
    for line in text.lines() {
        let line = line.trim();
        for (vote, (_, signs)) in votes.iter_mut().zip(SIGNS) {
            *vote += usize::from(signs.iter().any(|sign| line.starts_with(sign)));
        }
    }
    let (votes, index) = votes.into_iter().zip((0..SIGNS.len()).rev()).max()?;
    let (kind, _) = SIGNS.get(SIGNS.len() - 1 - index)?;
    (votes > 0).then_some(*kind)
}
