//! Bonds of ports.

use crate::host::{
    Host,
    check::{Check, Group, Said},
    facts::Device,
    parse,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "links.bond",
        group: Group::Links,
        expects: "802.3ad with layer3+4, and one RDMA device for the bond",
        why: "RDMA fails over and spreads only by the bond's own device; other modes and policies leave a port idle",
        source: "NVIDIA, RoCE over LAG; Linux, Documentation/networking/bonding.rst",
        run: bond,
    },
    Check {
        id: "links.bond_ece",
        group: Group::Links,
        expects: "UCX_RC_ECE=0 over bonds",
        why: "UCX 1.22 turns on a congestion control that took a bond from 23 GB/s to 3 MB/s",
        source: "ucx #11955",
        run: bond_ece,
    },
];

/// A bond that RDMA devices are on.
pub(in crate::host) struct Bond<'a> {
    pub(in crate::host) name: String,
    /// Its file, and what that says.
    pub(in crate::host) path: String,
    pub(in crate::host) text: String,
    members: Vec<String>,
    pub(in crate::host) devices: Vec<&'a Device>,
}

pub(in crate::host) fn bonds<'a>(host: &'a Host<'_>) -> Vec<Bond<'a>> {
    let names = host.root.names("proc/net/bonding").into_iter();
    names
        .filter_map(|name| {
            let path = format!("proc/net/bonding/{name}");
            let text = host.root.text(&path).ok()?;
            let members: Vec<String> = text
                .lines()
                .filter_map(|line| line.strip_prefix("Slave Interface: "))
                .map(str::to_owned)
                .collect();
            let on = |netdev: &String| *netdev == name || members.contains(netdev);
            let devices: Vec<&Device> = host
                .ports()
                .filter(|(_, port)| port.netdevs.iter().any(on))
                .map(|(device, _)| device)
                .collect();
            (!devices.is_empty()).then_some(Bond {
                name,
                path,
                text,
                members,
                devices,
            })
        })
        .collect()
}

fn bond(host: &Host<'_>, said: &mut Said) -> bool {
    let bonds = bonds(host);
    for bond in &bonds {
        let mode = parse::field(&bond.text, "Bonding Mode").unwrap_or_default();
        let policy = parse::field(&bond.text, "Transmit Hash Policy").unwrap_or_default();
        if !mode.contains("802.3ad") {
            said.warn(&bond.name, format!("the bond's mode is {mode}: expected IEEE 802.3ad"))
                .saw(&bond.path, format!("Bonding Mode: {mode}"))
                .act("set the mode to 802.3ad (4) where the bond is defined, and LACP on the switch's ports")
                .undo_by("set the mode back to what the evidence says")
                .likely();
        } else if !policy.starts_with("layer3+4") {
            let file = format!("/sys/class/net/{}/bonding/xmit_hash_policy", bond.name);
            let before = policy.split(' ').next().unwrap_or("layer2");
            said.warn(
                &bond.name,
                format!("the hash policy is {policy}: expected layer3+4"),
            )
            .saw(&bond.path, format!("Transmit Hash Policy: {policy}"))
            .run(format!("echo layer3+4 > {file}"))
            .undo(format!("echo {before} > {file}"));
        }
        if bond.devices.len() > 1 {
            let devices: Vec<&str> = bond.devices.iter().map(|it| it.name.as_str()).collect();
            said.warn(
                &bond.name,
                format!("the bond's ports have devices of their own ({}): expected one for the bond", devices.join(", ")),
            )
            .saw(&bond.path, bond.members.join(", "))
            .act("make the bond before RDMA is used: take it down, restart the driver (systemctl restart openibd, or modprobe -r mlx5_ib; modprobe mlx5_ib), and bring it up")
            .likely();
        }
    }
    !bonds.is_empty()
}

fn bond_ece(host: &Host<'_>, said: &mut Said) -> bool {
    let bonds = bonds(host);
    let ucx = host.environment.keys().any(|name| name.starts_with("UCX_"));
    let (Some(bond), true) = (bonds.first(), ucx) else {
        return false;
    };
    let set = host.environment.get("UCX_RC_ECE");
    if set.is_none_or(|value| !matches!(value.as_str(), "0" | "n" | "no")) {
        said.note(&bond.name, "UCX over a bond: UCX_RC_ECE is not 0")
            .saw(&bond.path, bond.members.join(", "))
            .saw(
                "environment variable UCX_RC_ECE",
                set.map_or("not set", String::as_str),
            )
            .act("with UCX 1.22 and newer put UCX_RC_ECE=0 into the job's environment")
            .undo_by("take it out again")
            .unverified();
    }
    true
}
