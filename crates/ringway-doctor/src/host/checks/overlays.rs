//! Overlay networks: tunnels that carry the traffic of pods.

use crate::host::{
    Host,
    check::{Check, Group, Said},
    parse::{Route, routes},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "overlays.data",
        group: Group::Overlays,
        expects: "training traffic on an interface that is no tunnel",
        why: "tunnels cost CPU time and bandwidth, and lose DSCP and ECN unless they copy them",
        source: "RFC 7348 (VXLAN), RFC 6040 (ECN and tunnels); Kubernetes, cluster networking",
        run: data,
    },
    Check {
        id: "overlays.mtu",
        group: Group::Overlays,
        expects: "an MTU that leaves room for the tunnel's header",
        why: "50 bytes over IPv4, 70 over IPv6: what does not fit is dropped or cut in pieces",
        source: "RFC 7348, section 5",
        run: mtu,
    },
];

/// Why it is taken for a tunnel: what the kernel says, or a name that network plugins give.
fn tunnel(host: &Host<'_>, interface: &str) -> Option<(String, String)> {
    let path = format!("sys/class/net/{interface}/uevent");
    let text = host.root.text(&path).unwrap_or_default();
    let kind = text.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    if let Some(kind @ ("vxlan" | "geneve" | "wireguard")) = kind {
        return Some((path, format!("DEVTYPE={kind}")));
    }
    let names = [
        "flannel.",
        "vxlan",
        "cilium_vxlan",
        "cilium_geneve",
        "tunl",
        "geneve",
        "weave",
        "wg",
    ];
    names
        .iter()
        .any(|name| interface.starts_with(name))
        .then(|| {
            (
                format!("sys/class/net/{interface}"),
                "named like a tunnel".to_owned(),
            )
        })
}

fn data(host: &Host<'_>, said: &mut Said) -> bool {
    let mut wanted: Vec<(String, String)> = host
        .interfaces()
        .into_iter()
        .map(|(name, device, _)| (name, format!("RDMA device {}", device.name)))
        .collect();
    for variable in ["NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"] {
        let value = host.environment.get(variable);
        for name in value.into_iter().flat_map(|value| value.split(',')) {
            let name = name.trim_start_matches('=');
            wanted.push((name.to_owned(), format!("environment variable {variable}")));
        }
    }
    wanted.dedup();
    for (interface, user) in &wanted {
        if let Some((path, sign)) = tunnel(host, interface) {
            said.warn(interface, format!("the interface is a tunnel, and data goes over it ({user})"))
                .saw(path, sign)
                .saw(user, interface)
                .act("use the interface below the tunnel: hostNetwork for the pod, or a second interface (macvlan, ipvlan, sriov) for data")
                .undo_by("name the tunnel again")
                .likely();
        }
    }
    pod_network(host, said) || !wanted.is_empty()
}

/// A pod whose only way out is an interface with room left for a tunnel's header.
fn pod_network(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.surroundings.kubernetes || !host.interfaces().is_empty() {
        return false;
    }
    let table = host.root.text("proc/net/route").unwrap_or_default();
    let Some(default) = routes(&table).into_iter().find(Route::is_default) else {
        return false;
    };
    let name = default.interface;
    let path = format!("sys/class/net/{name}/mtu");
    let Some(mtu) = host.root.number(&path) else {
        return false;
    };
    // 1500 or 9000, less what VXLAN, IP-in-IP, Geneve or WireGuard takes.
    if [1500, 8951, 9001, 9000].contains(&mtu) {
        return true;
    }
    let room = [1500, 9000, 9001]
        .into_iter()
        .find(|whole| mtu < *whole && whole - mtu <= 100);
    if let Some(whole) = room {
        said.warn(
            &name,
            format!("the pod's only way out has an MTU of {mtu}, {} less than {whole}: as in an overlay", whole - mtu),
        )
        .saw(path, mtu.to_string())
        .saw("proc/net/route", format!("default by {name}"))
        .act("run the pod with hostNetwork: true, or give it a second interface of the data network (annotation k8s.v1.cni.cncf.io/networks)")
        .undo_by("take the line out again")
        .likely();
    }
    true
}

fn mtu(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for name in host.root.names("sys/class/net") {
        let dir = format!("sys/class/net/{name}");
        let Some((_, sign)) = tunnel(host, &name).filter(|(_, sign)| sign.contains("vxlan")) else {
            continue;
        };
        let lower = host.root.names(&dir);
        let lower = lower.iter().find_map(|entry| entry.strip_prefix("lower_"));
        let own = host.root.number(&format!("{dir}/mtu"));
        let (Some(lower), Some(own)) = (lower, own) else {
            continue;
        };
        let below = format!("sys/class/net/{lower}/mtu");
        let Some(most) = host.root.number(&below) else {
            continue;
        };
        any = true;
        if own + 50 > most {
            said.warn(
                &name,
                format!(
                    "its MTU is {own}: expected {} or less over {lower}",
                    most.saturating_sub(50)
                ),
            )
            .saw(format!("{dir}/uevent"), sign)
            .saw(format!("{dir}/mtu"), own.to_string())
            .saw(below, most.to_string())
            .run(format!(
                "ip link set dev {name} mtu {}",
                most.saturating_sub(50)
            ))
            .undo(format!("ip link set dev {name} mtu {own}"));
        }
    }
    any
}
