//! Containers and Kubernetes.

use crate::host::{
    Host, Unread,
    check::{Check, Group, Said},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "containers.netdev",
        group: Group::Containers,
        expects: "a network interface of the card in the container",
        why: "without it the GID table is empty, and connections fail with \"No such device\"",
        source: "k8s-rdma-shared-dev-plugin #101, k8s-rdma-sriov-dev-plugin #33",
        run: netdev,
    },
    Check {
        id: "containers.netns",
        group: Group::Containers,
        expects: "RDMA namespaces shared with the shared device plugin, exclusive with SR-IOV and the rdma CNI plugin",
        why: "in the wrong mode the container sees no device, or addresses of other namespaces: ADDR_ERROR -19",
        source: "rdma-system(8); k8s-rdma-shared-dev-plugin #87, sriov-network-device-plugin #342",
        run: netns,
    },
    Check {
        id: "containers.vf_mtu",
        group: Group::Containers,
        expects: "an MTU of the virtual function that its card has, too",
        why: "the card drops what is longer than its own MTU, whatever the virtual function says",
        source: "Linux, drivers/net/ethernet/mellanox/mlx5: virtual functions and their physical function",
        run: vf_mtu,
    },
];

fn netdev(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.surroundings.container {
        return false;
    }
    let active: Vec<_> = host.ports().filter(|(_, port)| port.active()).collect();
    let any = !active.is_empty();
    // With shared namespaces a container sees all devices of its host: one that works will do.
    if active.iter().any(|(_, port)| !port.gids.is_empty()) {
        return any;
    }
    for (device, port) in active {
        let finding = said
            .error(
                device.port(port),
                "the device is here, its network interface is not: the port has no GID",
            )
            .saw(format!("{}/gids", port.dir), "all entries are zero")
            .saw("sys/class/net", host.root.names("sys/class/net").join(", "));
        if host.surroundings.kubernetes {
            finding
                .act("give the pod a second interface of the same card: annotation k8s.v1.cni.cncf.io/networks with a NetworkAttachmentDefinition of macvlan, ipvlan or sriov, in the pod's own namespace")
                .undo_by("take the annotation out again");
        } else {
            finding
                .act("start the container with --network host, or give it an interface of the card (docker network create -d macvlan)")
                .undo_by("start it without");
        }
    }
    any
}

fn netns(host: &Host<'_>, said: &mut Said) -> bool {
    if !host.surroundings.container {
        return false;
    }
    let command = ["rdma", "system", "show"];
    let nodes = host.root.names("dev/infiniband");
    let uverbs = nodes.iter().find(|name| name.starts_with("uverbs"));
    let output = match host.root.output(&command) {
        Ok(output) => output,
        // Without RDMA there is nothing to be right or wrong.
        Err(Unread::Absent) | Err(Unread::Failed(_))
            if host.devices.is_empty() && uverbs.is_none() =>
        {
            return false;
        }
        Err(reason) => {
            said.unknown(
                "RDMA namespaces",
                format!("whether they are shared or exclusive: {reason}"),
                command.join(" "),
            );
            return true;
        }
    };
    let mut words = output.split_whitespace();
    let mode = words
        .find(|word| *word == "netns")
        .and_then(|_| words.next());
    let mode = mode.unwrap_or_default();
    let set = |mode: &str| format!("rdma system set netns {mode}");
    if let (Some(node), true, "exclusive") = (uverbs, host.devices.is_empty(), mode) {
        said.error("RDMA namespaces", "the device's node is here, the device is in another namespace")
            .saw(command.join(" "), "netns exclusive")
            .saw(format!("dev/infiniband/{node}"), "there")
            .saw("sys/class/infiniband", "empty")
            .act("with the shared device plugin, on the host and while no other network namespace exists:")
            .run(set("shared"))
            .undo(set("exclusive"));
    }
    let function = host.devices.iter().find(|device| device.virtual_function);
    if let (Some(device), "shared") = (function, mode) {
        said.warn(&device.name, "a virtual function in a container, with RDMA namespaces shared")
            .saw(command.join(" "), "netns shared")
            .saw(format!("{}/device/physfn", device.dir), "there")
            .act("on the host, while no other network namespace exists (put it into the module's options to keep it: options ib_core netns_mode=0):")
            .run(set("exclusive"))
            .act("and name the rdma plugin in the chain of the NetworkAttachmentDefinition, which has to be in the pod's namespace")
            .undo(set("shared"))
            .likely();
    }
    true
}

fn vf_mtu(host: &Host<'_>, said: &mut Said) -> bool {
    let mut any = false;
    for device in host.devices.iter().filter(|device| device.virtual_function) {
        let parent = format!("{}/device/physfn/net", device.dir);
        let mtu = |path: &str| host.root.number(&format!("{path}/mtu"));
        for name in device.ports.iter().flat_map(|port| &port.netdevs) {
            let own = mtu(&format!("sys/class/net/{name}"));
            let cards = host.root.names(&parent);
            let card = cards
                .iter()
                .find_map(|card| Some((card, mtu(&format!("{parent}/{card}"))?)));
            let (Some(own), Some((card, most))) = (own, card) else {
                continue;
            };
            any = true;
            if own > most {
                said.error(name, format!("its MTU is {own}, that of its card {most}"))
                    .saw(format!("sys/class/net/{name}/mtu"), own.to_string())
                    .saw(format!("{parent}/{card}/mtu"), most.to_string())
                    .act("on the host:")
                    .run(format!("ip link set dev {card} mtu {own}"))
                    .undo(format!("ip link set dev {card} mtu {most}"));
            }
        }
    }
    any
}
