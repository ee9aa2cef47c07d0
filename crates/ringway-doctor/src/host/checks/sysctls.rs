//! Kernel settings of the network and of memory.

use std::collections::BTreeMap;

use crate::host::{
    Host,
    check::{Check, Group, Said},
    parse::{Network, routes},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "sysctls.arp",
        group: Group::Sysctls,
        expects: "arp_ignore 1 and arp_announce 2 where several RDMA interfaces share a subnet",
        why: "otherwise any interface answers for all: traffic of several NICs arrives at one, or times out",
        source: "Linux, Documentation/networking/ip-sysctl.rst; nccl #1269, ucx #5598",
        run: arp,
    },
    Check {
        id: "sysctls.rp_filter",
        group: Group::Sysctls,
        expects: "rp_filter 0 or 2 where several RDMA interfaces share a subnet",
        why: "the strict filter drops what comes in by another interface than answers would leave by",
        source: "Linux, Documentation/networking/ip-sysctl.rst: rp_filter; RFC 3704",
        run: rp_filter,
    },
    Check {
        id: "sysctls.numa_balancing",
        group: Group::Sysctls,
        expects: "0",
        why: "the kernel unmaps pages to see who uses them, and moves them: latency that comes and goes",
        source: "Linux, Documentation/admin-guide/sysctl/kernel.rst: numa_balancing",
        run: numa_balancing,
    },
];

/// Interfaces of RDMA that share a subnet, by subnet.
fn shared(host: &Host<'_>) -> BTreeMap<Network, Vec<String>> {
    let table = host.root.text("proc/net/route").unwrap_or_default();
    let names: Vec<String> = host
        .interfaces()
        .into_iter()
        .map(|(name, _, _)| name)
        .collect();
    let mut subnets: BTreeMap<Network, Vec<String>> = BTreeMap::new();
    for route in routes(&table) {
        let here = route.gateway.is_none() && (1..32).contains(&route.network.prefix);
        if here && names.contains(&route.interface) {
            let interfaces = subnets.entry(route.network).or_default();
            if !interfaces.contains(&route.interface) {
                interfaces.push(route.interface);
            }
        }
    }
    subnets.retain(|_, interfaces| interfaces.len() > 1);
    subnets
}

/// The setting that counts, and where it is from: the larger of the interface's and of all's (ip-sysctl.rst).
fn effective(host: &Host<'_>, interface: &str, name: &str) -> Option<(u64, String)> {
    [interface, "all"]
        .into_iter()
        .filter_map(|scope| {
            let path = format!("net/ipv4/conf/{scope}/{name}");
            Some((host.sysctl(&path)?, format!("proc/sys/{path}")))
        })
        .max_by_key(|(value, _)| *value)
}

fn arp(host: &Host<'_>, said: &mut Said) -> bool {
    let subnets = shared(host);
    for (subnet, interfaces) in &subnets {
        for interface in interfaces {
            let ignore = effective(host, interface, "arp_ignore");
            let announce = effective(host, interface, "arp_announce");
            let (Some(ignore), Some(announce)) = (ignore, announce) else {
                continue;
            };
            if ignore.0 >= 1 && announce.0 == 2 {
                continue;
            }
            let conf = format!("net.ipv4.conf.{interface}");
            let own = |name: &str| {
                let path = format!("net/ipv4/conf/{interface}/{name}");
                host.sysctl(&path).unwrap_or(0)
            };
            said.warn(
                interface,
                format!("{} share {}, and each answers for all of them", interfaces.join(", "), subnet),
            )
            .saw(ignore.1, ignore.0.to_string())
            .saw(announce.1, announce.0.to_string())
            .saw("proc/net/route", format!("{} on {}", subnet, interfaces.join(" and ")))
            .run(format!("sysctl -w {conf}.arp_ignore=1 {conf}.arp_announce=2"))
            .act("route by source address, too: a table and an `ip rule add from ADDRESS` for each interface; or give each NIC a subnet of its own")
            .undo(format!(
                "sysctl -w {conf}.arp_ignore={} {conf}.arp_announce={}",
                own("arp_ignore"),
                own("arp_announce")
            ));
        }
    }
    !subnets.is_empty()
}

fn rp_filter(host: &Host<'_>, said: &mut Said) -> bool {
    let subnets = shared(host);
    for interface in subnets.values().flatten() {
        let Some((1, path)) = effective(host, interface, "rp_filter") else {
            continue;
        };
        // The larger counts, so a 2 here is enough whatever all has.
        let own = host.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"));
        said.warn(
            interface,
            "the strict reverse path filter drops what comes in by the other interface",
        )
        .saw(path, "1")
        .run(format!("sysctl -w net.ipv4.conf.{interface}.rp_filter=2"))
        .undo(format!(
            "sysctl -w net.ipv4.conf.{interface}.rp_filter={}",
            own.unwrap_or(0)
        ));
    }
    !subnets.is_empty()
}

fn numa_balancing(host: &Host<'_>, said: &mut Said) -> bool {
    if host.nodes() < 2 || host.devices.is_empty() {
        return false;
    }
    let path = "kernel/numa_balancing";
    let Some(value) = host.sysctl(path) else {
        return false;
    };
    if value != 0 {
        said.warn("kernel", "the kernel moves pages between NUMA nodes")
            .saw(format!("proc/sys/{path}"), value.to_string())
            .run("sysctl -w kernel.numa_balancing=0")
            .undo(format!("sysctl -w kernel.numa_balancing={value}"));
    }
    true
}
