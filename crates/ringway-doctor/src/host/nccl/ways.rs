//! What depends on routes and bonds: the interface that ranks meet at, whether rails meet, how long a link may be away.

use std::collections::BTreeSet;

use super::{Advice, ports::Rail, seen};
use crate::{
    finding::{Evidence, Step},
    host::{
        checks::bonds,
        facts::Host,
        parse::{self, Network, Route, routes},
    },
};

const ROUTES: &str = "proc/net/route";

/// How long a link whose carrier stays may be dead before LACP at the slow rate takes it out of a bond, in seconds (IEEE
/// 802.1AX, Long_Timeout_Time).
const SLOW_LACP: f64 = 90.0;

/// Retries of a queue pair, at most: the field has three bits (IBTA volume 1, 9.9.2.1.1).
const RETRIES: u8 = 7;

/// NCCL's own exponent of the time-out from 2.23 on; before it was less.
const USUAL: u8 = 20;

/// Where ranks meet, and where data goes without RDMA.
pub(super) fn sockets(host: &Host<'_>, rails: &[Rail<'_>], advice: &mut Advice) {
    let name = "NCCL_SOCKET_IFNAME";
    let table = routes(&host.root.text(ROUTES).unwrap_or_default());
    let least = table
        .iter()
        .filter(|it| it.is_default())
        .map(|it| it.metric)
        .min();
    let defaults: BTreeSet<&str> = table
        .iter()
        .filter(|route| route.is_default() && Some(route.metric) == least)
        .map(|route| route.interface.as_str())
        .collect();
    let usual = "ranks meet over the interface of the default route, and not over one of a bridge or container";
    let defaults: Vec<&str> = defaults.into_iter().collect();
    match defaults[..] {
        [interface] => {
            advice
                .set(name, format!("={interface}"), usual)
                .saw(ROUTES, format!("default by {interface}"))
                .likely();
        }
        [] => {
            match data_interface(rails, &table) {
                Some(interface) => {
                    advice
                    .set(name, format!("={interface}"), "there is no default route: ranks meet over the first interface of RDMA's")
                    .saw(ROUTES, format!("no default; {interface} has a network"))
                    .likely();
                }
                None => advice.leave(
                    name,
                    "there is no default route and no route of an interface of RDMA's",
                    Vec::new(),
                    vec![Step::run("ip route; ip -6 route")],
                ),
            }
        }
        _ => advice.leave(
            name,
            format!(
                "there are default routes by {}, none better than the other",
                defaults.join(" and ")
            ),
            vec![seen(ROUTES, format!("default by {}", defaults.join(", ")))],
            vec![Step::act(
                "take the interface that all hosts of the job reach each other by",
            )],
        ),
    }
}

fn data_interface<'a>(rails: &'a [Rail<'_>], table: &[Route]) -> Option<&'a str> {
    let interfaces = rails.iter().flat_map(|rail| &rail.port.netdevs);
    let mut routed = interfaces.filter(|name| table.iter().any(|route| route.interface == **name));
    routed.next().map(String::as_str)
}

/// How long a queue pair waits for an answer: as long as a bond needs to take out a dead link.
pub(super) fn patience(host: &Host<'_>, rails: &[Rail<'_>], advice: &mut Advice) {
    let bonds = bonds::bonds(host);
    let ours = |bond: &&bonds::Bond<'_>| {
        let devices = bond.devices.iter();
        devices
            .into_iter()
            .any(|device| rails.iter().any(|rail| rail.device.name == device.name))
    };
    let Some(bond) = bonds.iter().find(ours) else {
        for name in ["NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"] {
            advice.leave(
                name,
                "how long the fabric takes to lead around a link that fails is not to be seen on a host",
                Vec::new(),
                vec![Step::act(format!(
                    "NCCL from 2.23 on waits {RETRIES} times {:.1} s ({USUAL}): raise it if routes take longer",
                    seconds(USUAL)
                ))],
            );
        }
        return;
    };
    let rate = parse::field(&bond.text, "LACP rate").unwrap_or("not LACP");
    let away = if rate == "slow" { SLOW_LACP } else { 0.0 };
    let enough = |exponent: &u8| seconds(*exponent) * f64::from(RETRIES) > away;
    let exponent = (USUAL..31).find(enough).unwrap_or(USUAL);
    let why = format!(
        "{RETRIES} times {:.1} s: longer than {} needs to take out a link that is dead",
        seconds(exponent),
        bond.name
    );
    advice
        .set("NCCL_IB_TIMEOUT", exponent.to_string(), why)
        .saw(&bond.path, format!("LACP rate: {rate}"))
        .likely();
    advice
        .set(
            "NCCL_IB_RETRY_CNT",
            RETRIES.to_string(),
            "the most: each retry is one more time-out that a link may be away",
        )
        .saw(&bond.path, format!("LACP rate: {rate}"))
        .likely();
}

/// 4.096 us * 2^exponent (IBTA volume 1, 9.9.2.1.1).
fn seconds(exponent: u8) -> f64 {
    4.096e-6 * 2_f64.powi(exponent.into())
}

/// Whether a NIC of one rail reaches one of another.
pub(super) fn crossing(host: &Host<'_>, rails: &[Rail<'_>], advice: &mut Advice) {
    if rails.len() < 2 {
        return;
    }
    let name = "NCCL_CROSS_NIC";
    let table = routes(&host.root.text(ROUTES).unwrap_or_default());
    let of_rail = |rail: &Rail<'_>| -> Vec<&Route> {
        let ours = |route: &&Route| rail.port.netdevs.contains(&route.interface);
        table.iter().filter(ours).collect()
    };
    let ways: Vec<Vec<&Route>> = rails.iter().map(of_rail).collect();
    let networks: Vec<BTreeSet<Network>> = ways
        .iter()
        .map(|routes| routes.iter().map(|route| route.network).collect())
        .collect();
    let evidence: Vec<Evidence> = ways
        .iter()
        .flatten()
        .map(|route| {
            let by = route
                .gateway
                .map_or_else(|| "no gateway".to_owned(), |it| format!("by {it}"));
            seen(
                ROUTES,
                format!("{} on {}, {by}", route.network, route.interface),
            )
        })
        .collect();
    let known = ways.iter().all(|routes| !routes.is_empty());
    let apart = networks
        .iter()
        .enumerate()
        .all(|(i, own)| networks[i + 1..].iter().all(|other| own.is_disjoint(other)));
    let routed = ways.iter().flatten().any(|route| route.gateway.is_some());
    if known && apart && !routed {
        advice
            .set(
                name,
                "0",
                "each port has a network of its own and no router: rails do not reach each other",
            )
            .all(evidence)
            .likely();
        return;
    }
    let reason = if known {
        "the ports reach each other's networks: whether that is as quick as within a rail is up to the fabric"
    } else {
        "no route of some port is known: whether rails reach each other is not to be seen"
    };
    advice.leave(
        name,
        reason,
        evidence,
        vec![Step::act("0 if each rail has switches of its own, 1 if all ports of a host go to one switch; 2, the default, lets NCCL try both")],
    );
}
