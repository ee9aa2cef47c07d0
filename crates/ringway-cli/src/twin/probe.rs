//! What the simulator has to know of this machine, from small probes in the lab.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_fabric::{Fabric, Port, Routes};
use ringway_plan::{Algorithm, Collective};
use serde::{Deserialize, Serialize};

use super::measure::Bench;

/// Two hosts exchange vectors of these sizes; the difference is the wire's, the rest what the messages cost.
const SIZES: [usize; 2] = [256 << 10, 2 << 20];

/// How often each is exchanged.
const ITERATIONS: u32 = 12;

/// Bytes of a packet that are headers of IPv4 and TCP, with TCP's timestamps; and of the frame around it.
const HEADERS: f64 = 52.0;
const ETHERNET: f64 = 14.0;

/// Messages of an all-reduce of two that follow each other: half of the vector there, and half back.
const MESSAGES: f64 = 2.0;

/// The costs of a message between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Calibration {
    /// Bytes of data for each byte of a link's rate.
    pub(super) payload: f64,
    /// Seconds that a message takes that no byte of it and no link does.
    #[serde(rename = "overhead_seconds")]
    pub(super) overhead: f64,
    /// Seconds that each link on the way adds.
    #[serde(rename = "link_latency_seconds")]
    pub(super) link_latency: f64,
}

/// Messages between two hosts.
struct Probe {
    /// Seconds that each costs.
    cost: f64,
    /// Bytes per second.
    rate: f64,
    /// Links on the way.
    links: usize,
    /// Bytes per second of the slowest of them.
    narrowest: f64,
}

impl Calibration {
    /// Measures between the first host, and its nearest and farthest of `hosts`.
    pub(super) fn probe(bench: &Bench<'_>, hosts: &[usize]) -> Result<Self> {
        let fabric = bench.lab.fabric();
        let routes = Routes::new(fabric);
        let port = |host| Port { host, nic: 0 };
        let far = |&&host: &&usize| routes.hops(fabric, port(hosts[0]), port(host));
        let others = || hosts[1..].iter().filter(|host| far(host).is_some());
        let ends = (others().min_by_key(far), others().rev().max_by_key(far));
        let (Some(&near), Some(&distant)) = ends else {
            anyhow::bail!(
                "{} reaches no other host",
                fabric.node_name(ringway_fabric::NodeId(hosts[0]))
            );
        };
        let near = probe(bench, &routes, hosts[0], near)?;
        let distant = probe(bench, &routes, hosts[0], distant)?;
        let more = distant.links.saturating_sub(near.links).max(1) as f64;
        let link_latency = ((distant.cost - near.cost) / more).max(0.0);
        Ok(Self {
            payload: near.rate / near.narrowest,
            // A bucket that filled up meanwhile can make up for more than all of it.
            overhead: (near.cost - link_latency * near.links as f64).max(0.0),
            link_latency,
        })
    }

    /// The fabric as the simulator has to see it: links carry data only, and times are this machine's.
    pub(super) fn apply(&self, fabric: &Fabric) -> Fabric {
        let (overhead, latency) = [self.overhead, self.link_latency]
            .map(Duration::from_secs_f64)
            .into();
        fabric.clone().with(
            |host| host.overhead = overhead,
            |link| {
                link.rate *= self.payload;
                link.latency = latency;
            },
        )
    }
}

fn probe(bench: &Bench<'_>, routes: &Routes, from: usize, to: usize) -> Result<Probe> {
    let fabric = bench.lab.fabric();
    let pair = [from, to];
    let bench = Bench {
        iterations: ITERATIONS,
        ..*bench
    };
    let measured = bench.run(&pair, Collective::AllReduce, Algorithm::Ring, &SIZES)?;
    let [small, large] = measured.times[..] else {
        anyhow::bail!("expected two sizes, found {}", measured.times.len());
    };
    // The least of the times: what else the machine does only adds to them.
    let port = |host| Port { host, nic: 0 };
    let path = routes
        .path(fabric, port(from), port(to), 0)
        .context("there is no path")?;
    let rates = path.iter().map(|hop| fabric.links()[hop.link].rate);
    let narrowest = rates.fold(f64::INFINITY, f64::min);
    // On a busy machine the small vector may have had the worse luck: no link carries more data than packets hold.
    let mtu = f64::from(bench.lab.settings().mtu);
    let most = narrowest * (mtu - HEADERS) / (mtu + ETHERNET);
    let measured = (large.bytes - small.bytes) as f64 / (large.least - small.least).max(1e-9);
    let rate = measured.min(most);
    Ok(Probe {
        cost: (small.least - small.bytes as f64 / rate) / MESSAGES,
        rate,
        links: path.len(),
        narrowest,
    })
}
