//! `ringway fabric`: the network under a job: as a file, what is wrong with it, and its configuration.

mod check;
mod config;
mod discover;
mod job;
mod lint;
mod new;
mod path;
mod picture;
mod place;
mod show;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use ringway_sim::World;

use crate::input;

pub(crate) use picture::draw;
pub(crate) use place::{Order, order};

/// Describe the network under a job, check it, place ranks on it, configure its switches and hosts.
#[derive(Debug, Args)]
pub(crate) struct Fabric {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a fabric: every leaf to every spine, oversubscription, bisection, paths, single points of failure, speeds.
    Check(check::Check),
    /// The configuration of a switch or host for an intent, what undoes it, and what verifies it.
    Config(config::Config),
    /// Write a fabric file of what this host shows, or what the hosts of a job show and reach.
    Discover(discover::Discover),
    /// Kubernetes manifests of a job over the lossless network.
    K8s(job::K8s),
    /// Find contradictions between configurations of switches, hosts and applications.
    Lint(lint::Lint),
    /// Write a commented fabric file of a usual topology, to be edited.
    New(new::New),
    /// Show the equal paths between two hosts, and which of them flows take.
    Path(path::Path),
    /// Find the order of hosts by which an algorithm loads the links least.
    Place(place::Place),
    /// Show a fabric as a table, or draw it.
    Show(show::Show),
    /// A Slurm script of a job over the lossless network.
    Slurm(job::Slurm),
}

impl Fabric {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        match self.command {
            Command::Check(check) => check.execute(),
            Command::Config(config) => config.execute().map(|()| ExitCode::SUCCESS),
            Command::Discover(discover) => discover.execute().map(|()| ExitCode::SUCCESS),
            Command::K8s(k8s) => k8s.execute().map(|()| ExitCode::SUCCESS),
            Command::Lint(lint) => Ok(lint.execute()),
            Command::New(new) => new.execute().map(|()| ExitCode::SUCCESS),
            Command::Path(path) => path.execute().map(|()| ExitCode::SUCCESS),
            Command::Place(place) => place.execute().map(|()| ExitCode::SUCCESS),
            Command::Show(show) => show.execute().map(|()| ExitCode::SUCCESS),
            Command::Slurm(slurm) => slurm.execute().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// The largest fabric file, in bytes: those of ten thousand hosts that are not alike have a million.
const LARGEST: u64 = 64 << 20;

/// The fabric of a file.
pub(crate) fn read(path: &Path) -> Result<ringway_fabric::Fabric> {
    let text = input::text(path, "fabric", LARGEST)
        .context("expected a fabric, as `ringway fabric new` writes one")?;
    ringway_fabric::Fabric::parse(&text).with_context(|| path.display().to_string())
}

/// How many hosts of a fabric take part, from the first: all unless said by `--hosts`.
pub(crate) fn hosts(fabric: &ringway_fabric::Fabric, wanted: Option<usize>) -> Result<usize> {
    let hosts = wanted.unwrap_or_else(|| fabric.hosts());
    if !(1..=fabric.hosts()).contains(&hosts) {
        bail!(
            "--hosts {hosts}: expected 1 to {}, those of the fabric",
            fabric.hosts()
        );
    }
    Ok(hosts)
}

/// Ranks of each host: the GPUs of the first unless said.
pub(crate) fn ranks_per_host(fabric: &ringway_fabric::Fabric, wanted: Option<usize>) -> usize {
    let gpus = fabric.host(0).map_or(1, |kind| kind.gpus);
    wanted.unwrap_or(gpus).max(1)
}

/// More ranks than these would make schedules of millions of steps.
const MOST_RANKS: usize = 1024;

/// The ranks of a fabric whose schedules are proved one after the other, as said by `--hosts`, `--ranks-per-host` and `--order`.
pub(crate) fn world(
    fabric: &ringway_fabric::Fabric,
    hosts_wanted: Option<usize>,
    per_host: Option<usize>,
    order: Order,
) -> Result<World> {
    let hosts = hosts(fabric, hosts_wanted)?;
    let per_host = ranks_per_host(fabric, per_host);
    let ranks = hosts * per_host;
    if ranks > MOST_RANKS {
        bail!("{ranks} ranks; expected {MOST_RANKS} at most, choose --hosts or --ranks-per-host");
    }
    Ok(World::new(fabric, &order.of(hosts), per_host)?)
}

/// `12.5 GB/s`.
pub(crate) fn gigabytes(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}
