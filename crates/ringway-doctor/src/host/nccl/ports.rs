//! Which ports data takes, and which of their addresses.

use std::collections::BTreeSet;

use super::{Advice, seen};
use crate::{
    finding::{Evidence, Step},
    host::{
        facts::{Device, Host, Port},
        parse::{Gid, GidKind},
    },
};

/// A port that data takes.
pub(super) struct Rail<'a> {
    pub(super) device: &'a Device,
    pub(super) port: &'a Port,
    /// Its addresses that packets of RoCE v2 reach from other networks.
    gids: Vec<&'a Gid>,
}

impl Rail<'_> {
    /// As NCCL calls it: `mlx5_0:1`.
    fn name(&self) -> String {
        format!("{}:{}", self.device.name, self.port.number)
    }

    fn gid(&self, gid: &Gid) -> Evidence {
        let path = format!("{}/gids/{}", self.port.dir, gid.index);
        seen(path, format!("RoCE v2, {gid}"))
    }
}

/// The ports, and the settings that say so; none if data goes over TCP, or it cannot be known.
pub(super) fn choose<'a>(host: &'a Host<'_>, advice: &mut Advice) -> Vec<Rail<'a>> {
    let rails = candidates(host);
    if rails.is_empty() {
        without(host, advice);
        return rails;
    }
    let states = rails
        .iter()
        .map(|rail| seen(format!("{}/state", rail.port.dir), &rail.port.state));
    advice
        .set(
            "NCCL_IB_DISABLE",
            "0",
            "there are ports with a routable RoCE v2 address",
        )
        .all(states);
    let infiniband = infiniband(host);
    if !infiniband.is_empty() {
        advice.leave(
            "NCCL_IB_HCA",
            "there are active ports of InfiniBand and of Ethernet: which network the job is for is not to be seen",
            infiniband,
            vec![Step::act("take the ports of the network that all hosts of the job are on")],
        );
        return Vec::new();
    }
    let rails = devices(rails, advice);
    addresses(&rails, advice);
    rails
}

/// Active ports with an address; of cards, where there are any.
fn candidates<'a>(host: &'a Host<'_>) -> Vec<Rail<'a>> {
    let rails = host.ports().filter(|(_, port)| port.active());
    let mut rails: Vec<Rail<'a>> = rails
        .map(|(device, port)| Rail {
            device,
            port,
            gids: port
                .gids
                .iter()
                .filter(|gid| gid.kind == GidKind::V2 && gid.routable())
                .collect(),
        })
        .filter(|rail| !rail.gids.is_empty())
        .collect();
    if rails.iter().any(|rail| !rail.device.software) {
        rails.retain(|rail| !rail.device.software);
    }
    rails
}

/// Active ports of InfiniBand.
fn infiniband(host: &Host<'_>) -> Vec<Evidence> {
    let ports = host.devices.iter().flat_map(|device| &device.ports);
    ports
        .filter(|port| !port.ethernet && port.active())
        .map(|port| seen(format!("{}/link_layer", port.dir), "InfiniBand"))
        .collect()
}

/// No port can be used as it is.
fn without(host: &Host<'_>, advice: &mut Advice) {
    if host.devices.is_empty() {
        advice.leave(
            "NCCL_IB_DISABLE",
            "there is no RDMA device, by which data goes over TCP; whether other hosts of the job have one is not to be seen",
            vec![seen("sys/class/infiniband", "empty or absent")],
            vec![Step::act(
                "if none is to use RDMA, NCCL_IB_DISABLE=1 on all hosts says so; if others do, mend this one: ringway doctor",
            )],
        );
        return;
    }
    let infiniband = infiniband(host);
    if !infiniband.is_empty() {
        advice.leave(
            "NCCL_IB_HCA",
            "the active ports are InfiniBand's: NCCL finds them by itself, and its settings for RoCE do not apply",
            infiniband,
            vec![],
        );
        return;
    }
    let states = host.devices.iter().flat_map(|device| &device.ports);
    let states = states
        .map(|port| seen(format!("{}/state", port.dir), &port.state))
        .collect();
    advice.leave(
        "NCCL_IB_DISABLE",
        "there are RDMA devices, and no active port of theirs is known to have a routable RoCE v2 address",
        states,
        vec![
            Step::run("ringway doctor --only gids"),
            Step::act("until that is mended, NCCL_IB_DISABLE=1 on all hosts makes data go over TCP"),
        ],
    );
}

/// The ports of the highest rate: slower ones are for something else, and a collective goes at the pace of its slowest.
fn devices<'a>(rails: Vec<Rail<'a>>, advice: &mut Advice) -> Vec<Rail<'a>> {
    let rate = |rail: &Rail<'_>| rail.port.gigabits().unwrap_or(0.0);
    let most = rails.iter().map(rate).fold(0.0, f64::max);
    let (fast, slow): (Vec<_>, Vec<_>) = rails.into_iter().partition(|rail| rate(rail) >= most);
    let names: Vec<String> = fast.iter().map(Rail::name).collect();
    let why = if slow.is_empty() {
        "all active ports with a routable address; `=`: these and no others that begin alike"
    } else {
        "the active ports of the highest rate; `=`: these and no others that begin alike"
    };
    let rates = fast.iter().chain(&slow).map(|rail| {
        let rate = rail.port.rate.clone();
        seen(
            format!("{}/rate", rail.port.dir),
            rate.unwrap_or_else(|| "unknown".to_owned()),
        )
    });
    advice
        .set("NCCL_IB_HCA", format!("={}", names.join(",")), why)
        .all(rates)
        .likely();
    fast
}

/// The GID of each port: by an index that is right for all, and by what it is.
fn addresses(rails: &[Rail<'_>], advice: &mut Advice) {
    let of = |rail: &Rail<'_>, v4: bool| -> BTreeSet<u32> {
        let gids = rail.gids.iter().filter(|gid| gid.is_v4() == v4);
        gids.map(|gid| gid.index).collect()
    };
    let Some(v4) = [true, false]
        .into_iter()
        .find(|&v4| rails.iter().all(|rail| !of(rail, v4).is_empty()))
    else {
        let gids = rails
            .iter()
            .filter_map(|rail| Some(rail.gid(rail.gids.first()?)));
        let evidence: Vec<Evidence> = gids.collect();
        let ask = || vec![Step::act("give all ports addresses of one family")];
        let reason = "some ports have IPv4 addresses only, and others IPv6 only";
        advice.leave("NCCL_IB_ADDR_FAMILY", reason, evidence.clone(), ask());
        advice.leave("NCCL_IB_GID_INDEX", reason, evidence, ask());
        return;
    };
    let evidence: Vec<Evidence> = rails
        .iter()
        .flat_map(|rail| {
            let gids = rail.gids.iter().filter(|gid| gid.is_v4() == v4);
            gids.map(|gid| rail.gid(gid))
        })
        .collect();
    advice
        .set(
            "NCCL_IB_ROCE_VERSION_NUM",
            "2",
            "RoCE v1 ends at the first router",
        )
        .all(evidence.clone());
    let family = if v4 { "AF_INET" } else { "AF_INET6" };
    advice
        .set(
            "NCCL_IB_ADDR_FAMILY",
            family,
            "all ports have addresses of this family; by it NCCL from 2.21 on finds the GID",
        )
        .all(evidence.clone());
    index(rails, v4, evidence, advice);
}

fn index(rails: &[Rail<'_>], v4: bool, evidence: Vec<Evidence>, advice: &mut Advice) {
    let name = "NCCL_IB_GID_INDEX";
    let several = rails.iter().find(|rail| {
        let gids = rail.gids.iter().filter(|gid| gid.is_v4() == v4);
        let netdevs: BTreeSet<_> = gids.filter_map(|gid| gid.netdev.as_deref()).collect();
        netdevs.len() > 1
    });
    if let Some(rail) = several {
        advice.leave(
            name,
            format!("{} has addresses of several interfaces: which of the networks the job is for is not to be seen", rail.name()),
            evidence,
            vec![Step::act("take the index of the network that all hosts of the job are on, or NCCL_IB_ADDR_RANGE")],
        );
        return;
    }
    let fits = |index: u32| {
        let has = |rail: &Rail<'_>| {
            rail.gids
                .iter()
                .any(|gid| gid.index == index && gid.is_v4() == v4)
        };
        rails.iter().all(has)
    };
    let common = rails
        .iter()
        .flat_map(|rail| &rail.gids)
        .map(|gid| gid.index)
        .filter(|&it| fits(it))
        .min();
    let Some(index) = common else {
        advice.leave(
            name,
            "no index is right for all ports: leave it unset, NCCL from 2.21 on finds each port's own",
            evidence,
            vec![Step::act(
                "with an older NCCL give all ports addresses in the same order, so that the indices are equal",
            )],
        );
        return;
    };
    advice
        .set(
            name,
            index.to_string(),
            "a routable RoCE v2 GID on all these ports of this host; NCCL before 2.21 does not choose by itself",
        )
        .all(evidence)
        // Indices change when addresses come and go.
        .likely();
}
