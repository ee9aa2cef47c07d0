//! Addresses of ports.

use crate::host::{
    Host,
    check::{Check, Group, Said},
    facts::{Device, Port},
    parse::{Gid, GidKind},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gids.routable",
        group: Group::Gids,
        expects: "a RoCE v2 GID with a routable address",
        why: "link-local addresses and RoCE v1 end at the first router: \"error 12, vendor 129\" between racks",
        source: "IBTA annex A17; nccl #426, #769, pytorch #81628, uccl #301",
        run: routable,
    },
    Check {
        id: "gids.index",
        group: Group::Gids,
        expects: "an index that means a routable RoCE v2 GID on every device",
        why: "what an index means differs between devices, hosts and reboots: one side v1, the other v2 connect to nobody",
        source: "NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX; nccl #426, #769",
        run: index,
    },
    Check {
        id: "gids.family",
        group: Group::Gids,
        expects: "GIDs of the address family and RoCE version that the application asks for",
        why: "an application that filters by family falls back to index 0, which is link-local",
        source: "NCCL_IB_ADDR_FAMILY and NCCL_IB_ROCE_VERSION_NUM; uccl #803",
        run: family,
    },
];

/// Whether packets to it reach other networks by RoCE v2. Where the kernel does not say the type, IPv4 in a table of two
/// entries for each address is taken for v2, as the table has both.
fn usable(gid: &Gid) -> bool {
    gid.kind == GidKind::V2 && gid.routable()
}

fn routable(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for (device, port) in host.ports().filter(|(_, port)| port.active()) {
        any = true;
        if port.gids.iter().any(usable) {
            continue;
        }
        judge_table(host, said, device, port);
    }
    any
}

fn judge_table(host: &Host<'_>, said: &mut Said, device: &Device, port: &Port) {
    let subject = device.port(port);
    let table = format!("{}/gids", port.dir);
    let Some(first) = port.gids.first() else {
        // A container's empty table has another reason, and its own check.
        if !host.surroundings.container {
            let finding = said
                .error(subject, "the port has no GID: its interface has no address, or is in another network namespace")
                .saw(table, "all entries are zero");
            give_address(finding, port);
        }
        return;
    };
    let kinds: Vec<GidKind> = port.gids.iter().map(|gid| gid.kind).collect();
    let listed: Vec<String> = port
        .gids
        .iter()
        .take(4)
        .map(|gid| format!("{} {gid}", gid.index))
        .collect();
    if kinds.iter().all(|&kind| kind == GidKind::Unknown) {
        said.unknown(
            subject,
            "the kernel does not say which GIDs are RoCE v2 here (types cannot be read)",
            format!("grep . /{}/gid_attrs/types/* 2>/dev/null", port.dir),
        );
    } else if kinds.contains(&GidKind::V2) {
        let finding = said
            .error(
                subject,
                format!("RoCE v2 has link-local addresses only, such as {first}"),
            )
            .saw(table, listed.join(", "));
        give_address(finding, port);
    } else {
        said.error(subject, "all GIDs are RoCE v1, which no router forwards")
            .saw(format!("{}/gid_attrs/types", port.dir), "IB/RoCE v1")
            .run(format!(
                "cma_roce_mode -d {} -p {} -m 2",
                device.name, port.number
            ))
            .undo(format!(
                "cma_roce_mode -d {} -p {} -m 1",
                device.name, port.number
            ))
            .act("if there is no RoCE v2 in the table after that, driver or firmware are too old")
            .likely();
    }
}

fn give_address(finding: crate::host::check::Draft<'_>, port: &Port) {
    let interface = port.netdevs.first().map_or("INTERFACE", String::as_str);
    finding
        .act("with an address of the fabric's own plan in place of 10.0.0.1/24:")
        .run(format!("ip address add 10.0.0.1/24 dev {interface}"))
        .undo(format!("ip address del 10.0.0.1/24 dev {interface}"));
}

fn index(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for name in ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"] {
        // -1 and auto choose by content.
        let Some(index) = host
            .environment
            .get(name)
            .and_then(|it| it.parse::<u32>().ok())
        else {
            continue;
        };
        any = true;
        for (device, port) in host.ports().filter(|(_, port)| port.active()) {
            let entry = port.gids.iter().find(|gid| gid.index == index);
            if entry.is_some_and(|gid| usable(gid) || gid.kind == GidKind::Unknown) {
                continue;
            }
            let found = entry.map_or_else(
                || "empty".to_owned(),
                |gid| {
                    let kind = if gid.kind == GidKind::V2 {
                        "RoCE v2"
                    } else {
                        "RoCE v1"
                    };
                    format!("{kind}, {gid}")
                },
            );
            let good = port.gids.iter().find(|gid| usable(gid));
            let finding = said
                .error(
                    device.port(port),
                    format!("{name}={index} is no routable RoCE v2 GID here: it is {found}"),
                )
                .saw(format!("environment variable {name}"), index.to_string())
                .saw(format!("{}/gids/{index}", port.dir), found)
                .act(format!(
                    "unset {name}: by default the GID is chosen by what it is (NCCL from 2.21 on)"
                ));
            let finding = match good {
                Some(gid) => finding.act(format!(
                    "or set it to {}, if that is right on all hosts",
                    gid.index
                )),
                None => finding,
            };
            finding.undo_by(format!("set {name}={index} again"));
        }
    }
    any
}

fn family(host: &Host<'_>, said: &mut Said) -> bool {
    let get = |name: &str| host.environment.get(name).map(String::as_str);
    let family = get("NCCL_IB_ADDR_FAMILY");
    let version = get("NCCL_IB_ROCE_VERSION_NUM");
    if version == Some("1") {
        said.error(
            "NCCL",
            "NCCL_IB_ROCE_VERSION_NUM=1 asks for RoCE v1, which no router forwards",
        )
        .saw("environment variable NCCL_IB_ROCE_VERSION_NUM", "1")
        .act("unset NCCL_IB_ROCE_VERSION_NUM: the default is 2")
        .undo_by("set NCCL_IB_ROCE_VERSION_NUM=1 again");
    }
    // NCCL takes IPv4 unless it is told otherwise, so this matters for jobs that say nothing, too.
    let nccl = host
        .environment
        .keys()
        .any(|name| name.starts_with("NCCL_"));
    if !nccl {
        return version.is_some();
    }
    let v4 = family.is_none_or(|family| family == "AF_INET");
    for (device, port) in host.ports().filter(|(_, port)| port.active()) {
        let mut good = port.gids.iter().filter(|gid| usable(gid)).peekable();
        if good.peek().is_none() || good.any(|gid| gid.is_v4() == v4) {
            continue;
        }
        let (has, wanted) = if v4 {
            ("IPv6", "AF_INET6")
        } else {
            ("IPv4", "AF_INET")
        };
        said.warn(
            device.port(port),
            format!("the port has {has} addresses only, and NCCL looks for the other family"),
        )
        .saw(
            "environment variable NCCL_IB_ADDR_FAMILY",
            family.unwrap_or("not set, and its default is AF_INET"),
        )
        .saw(format!("{}/gids", port.dir), format!("{has} only"))
        .act(format!(
            "put NCCL_IB_ADDR_FAMILY={wanted} into the job's environment"
        ))
        .undo_by("take it out again")
        .unverified();
    }
    true
}
