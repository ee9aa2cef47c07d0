//! What the lab does: `ringway bench` in its hosts, and the paths of its connections.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    net::{IpAddr, Ipv4Addr},
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use ringway_fabric::{Hop, Port};
use ringway_lab::{Lab, Tuple, host_address, scratch};
use ringway_plan::{Algorithm, Collective};
use ringway_sim::Paths;
use serde_json::Value;

use crate::{
    lab::seats,
    launch::{Job, Output},
    processors::Processors,
};

/// When connections are looked at first: when ranks have met and settled.
const FIRST_LOOK: Duration = Duration::from_millis(1500);

/// And how often then. A look costs processor time.
const LOOK_EVERY: Duration = Duration::from_secs(4);

/// A connection that has carried less than this part of the one that has carried most is not for long messages.
const IDLE: f64 = 0.02;

/// How collectives are measured.
pub(super) struct Bench<'a> {
    pub(super) lab: &'a Lab,
    pub(super) iterations: u32,
    pub(super) streams: u32,
}

/// What came of it.
pub(super) struct Measured {
    pub(super) times: Vec<Times>,
    pub(super) paths: Paths,
    /// Which part of the machine's processor time was in use, from the job's start to its end.
    pub(super) busy: f64,
    /// Packets that found a link's queue full.
    pub(super) dropped: u64,
    /// By [`Hop::index`], bytes that went over each link.
    pub(super) carried: Vec<f64>,
}

/// Seconds of an operation, over its iterations.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// Of the vector.
    pub(super) bytes: usize,
    pub(super) median: f64,
    pub(super) least: f64,
}

/// Bytes that each connection has sent, by its host.
type Sent = BTreeMap<(usize, Tuple), u64>;

impl Bench<'_> {
    /// Times of a collective with one rank in each of `hosts`.
    pub(super) fn run(
        &self,
        hosts: &[usize],
        collective: Collective,
        algorithm: Algorithm,
        sizes: &[usize],
    ) -> Result<Measured> {
        let what = || format!("{collective} by {algorithm} on {} hosts", hosts.len());
        let file = scratch().join("bench.json");
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let program = std::env::current_exe().context("finding this program")?;
        let command = [
            "env",
            &format!("RINGWAY_STREAMS={}", self.streams),
            // Whose traffic would count for the paths of connections.
            "RINGWAY_PROBES=off",
            &program.display().to_string(),
            "bench",
            collective.name(),
            "--algorithm",
            algorithm.name(),
            "--sizes",
            &sizes.join(","),
            "--iters",
            &self.iterations.to_string(),
            "--check",
            "0",
            "--json",
            &file.display().to_string(),
        ];
        let first = Port {
            host: hosts[0],
            nic: 0,
        };
        let job = Job {
            command: command.map(str::to_owned).to_vec(),
            seats: seats(self.lab, hosts, 1),
            output: Output::Errors,
            master: Some(IpAddr::V4(host_address(self.lab.fabric(), first))),
            port: None,
        };
        let (links, before) = (self.lab.stats()?, Processors::now()?);
        let (code, sent) = thread::scope(|scope| {
            let (running, ended) = channel::<()>();
            let watch = scope.spawn(move || self.watch(hosts, &ended));
            // Ranks are killed when the thread that started them ends: this one.
            let code = job.execute();
            drop(running);
            let sent = watch.join().map_err(|_| anyhow!("watching connections"))?;
            anyhow::Ok((code?, sent?))
        })?;
        if code != ExitCode::SUCCESS {
            bail!("{} failed in the lab", what());
        }
        let busy = Processors::now()?.busy_since(before);
        let (mut dropped, mut carried) = (0, Vec::with_capacity(links.len()));
        for (after, before) in self.lab.stats()?.iter().zip(&links) {
            dropped += after.dropped - before.dropped;
            carried.push((after.bytes - before.bytes) as f64);
        }
        let text = fs::read_to_string(&file).with_context(what)?;
        let rows: Vec<Value> = serde_json::from_str(&text).with_context(what)?;
        let row = |row: &Value| {
            let seconds = |key: &str| Some(row["time_us"][key].as_f64()? / 1e6);
            Some(Times {
                bytes: usize::try_from(row["bytes"].as_u64()?).ok()?,
                median: seconds("p50")?,
                least: seconds("min")?,
            })
        };
        let times: Option<Vec<Times>> = rows.iter().map(row).collect();
        Ok(Measured {
            times: times.with_context(|| format!("{}: rows without times", what()))?,
            paths: self.paths(hosts, &sent)?,
            busy,
            dropped,
            carried,
        })
    }

    /// Looks at the connections of hosts from time to time, until the job has ended.
    fn watch(&self, hosts: &[usize], ended: &Receiver<()>) -> Result<Sent> {
        let mut sent = Sent::new();
        let mut wait = FIRST_LOOK;
        while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            for &host in hosts {
                for connection in self.lab.connections(host)? {
                    let known = sent.entry((host, connection.tuple)).or_default();
                    *known = connection.sent.max(*known);
                }
            }
            // Ranks may take longer to meet.
            wait = match sent.is_empty() {
                true => FIRST_LOOK,
                false => LOOK_EVERY,
            };
        }
        Ok(sent)
    }

    /// The paths of the connections that carried long messages, by the ranks' numbers.
    fn paths(&self, hosts: &[usize], sent: &Sent) -> Result<Paths> {
        let fabric = self.lab.fabric();
        let rank_of: HashMap<Ipv4Addr, usize> = hosts
            .iter()
            .enumerate()
            .flat_map(|(rank, &host)| {
                let nics = 0..fabric.host(host).map_or(1, |kind| kind.nics);
                nics.map(move |nic| (host_address(fabric, Port { host, nic }), rank))
            })
            .collect();
        // Of two ranks: bytes, the sender's host, and what switches hash.
        type Candidate = (u64, usize, Tuple);
        let mut pairs: BTreeMap<(usize, usize), Vec<Candidate>> = BTreeMap::new();
        for (&(host, tuple), &bytes) in sent {
            let ranks = (rank_of.get(&tuple.from.0), rank_of.get(&tuple.to.0));
            if let (Some(&from), Some(&to)) = ranks {
                pairs
                    .entry((from, to))
                    .or_default()
                    .push((bytes, host, tuple));
            }
        }
        let mut flows = Vec::new();
        let mut keys = Vec::new();
        for (pair, mut connections) in pairs {
            connections.sort_unstable_by(|a, b| b.cmp(a));
            let most = connections.first().map_or(0, |c| c.0);
            connections.retain(|c| c.0 > 0 && c.0 as f64 >= IDLE * most as f64);
            if connections.is_empty() {
                continue;
            }
            // Where only some carried anything, the others take the same ways.
            for stream in 0..self.streams {
                let (_, host, tuple) = connections[stream as usize % connections.len()];
                keys.push((pair.0, pair.1, stream));
                flows.push((host, tuple));
            }
        }
        let traced: Vec<Vec<Hop>> = self.lab.trace(&flows)?;
        Ok(keys
            .into_iter()
            .zip(traced)
            .filter(|(_, hops)| !hops.is_empty())
            .collect())
    }
}
