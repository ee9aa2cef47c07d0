//! What the cost model knows of a fabric.

use std::time::Duration;

use ringway_plan::{Link, Machine};

use crate::{
    model::Fabric,
    routes::{Port, Routes},
};

/// The way between two hosts that are as far apart as any: latency, and the rate in bytes per second of the slower NIC,
/// which is infinite if there is no such way.
pub fn farthest(fabric: &Fabric) -> (Duration, f64) {
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
/// `None` if there is no host.
pub fn machine(fabric: &Fabric) -> Option<Machine> {
    let kind = fabric.host(0)?;
    let (latency, rate) = farthest(fabric);
    let rate = if rate.is_finite() {
        rate
    } else {
        kind.local.rate
    };
    let intra = Link::new(kind.local.latency, kind.overhead, kind.local.rate);
    let inter = Link::new(latency, kind.overhead, rate);
    Some(Machine::new(intra, inter, kind.reduce).with_cards(kind.nics))
}
