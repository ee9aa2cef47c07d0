//! What the cost model knows of a fabric.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_fabric::{Fabric, Port, Routes};
use ringway_plan::{Choice, Collective, Link, Machine, Topology, choose};

/// The way between two hosts that are as far apart as any: latency, and the rate of the slower NIC.
fn inter_host(fabric: &Fabric) -> (Duration, f64) {
    let routes = Routes::new(fabric);
    let port = |host| Port { host, nic: 0 };
    let from = port(0);
    let far = (1..fabric.hosts()).max_by_key(|&host| routes.hops(fabric, from, port(host)));
    let path = far.and_then(|host| routes.path(fabric, from, port(host), 0));
    let path = path.unwrap_or_default();
    let links = || path.iter().map(|hop| &fabric.links()[hop.link]);
    let latency = links().map(|l| l.latency).sum();
    let ends = [links().next(), links().next_back()];
    let rates = ends.into_iter().flatten().map(|l| l.rate);
    (latency, rates.fold(f64::INFINITY, f64::min))
}

/// The machines of a fabric whose hosts are like the first. It knows no links that hosts share.
fn machine(fabric: &Fabric) -> Result<Machine> {
    let kind = fabric.host(0).context("the fabric has no hosts")?;
    let (latency, rate) = inter_host(fabric);
    let rate = if rate.is_finite() {
        rate
    } else {
        kind.local.rate
    };
    let intra = Link::new(kind.local.latency, kind.overhead, kind.local.rate);
    let inter = Link::new(latency, kind.overhead, rate);
    Ok(Machine::new(intra, inter, kind.reduce).with_cards(kind.nics))
}

/// The cost model's choice for a fabric.
pub(crate) fn choose_on(
    fabric: &Fabric,
    collective: Collective,
    bytes: usize,
    topology: &Topology,
) -> Result<Choice> {
    Ok(choose(collective, bytes, topology, &machine(fabric)?))
}
