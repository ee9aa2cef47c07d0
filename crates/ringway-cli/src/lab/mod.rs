//! `ringway lab`: a fabric as a network of namespaces on this machine.

mod change;
mod enter;
mod network;
mod run;
mod stats;
mod up;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ringway_lab::{LabError, Registry};

pub(crate) use network::{Network, supervise};
pub(crate) use run::seats;

/// Run programs on a fabric that is made of network namespaces, on this machine.
///
/// Hosts and switches of a fabric file are network namespaces, links are veth pairs with the file's rates in both directions, switches
/// route with ECMP by addresses and ports. Latencies of the file are not made: what takes time is the processor and what waits in
/// queues. Root is not needed where users may make namespaces. A lab lives in namespaces of its own: it cannot touch the machine's
/// network, and nothing of it stays when it ends, kill -9 included.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric new leaf-spine --hosts 8 --leaves 2 --spines 2 --gpus 1 > fabric.yaml   # set rates of some 100Mbit/s\n  ringway lab run fabric.yaml -- ringway bench all-reduce --sizes 16M\n  ringway lab up fabric.yaml && ringway lab exec host0 -- ping -c 3 host7\n  ringway lab rate spine0 50% && ringway lab cut leaf0-spine1 && ringway lab stats\n  ringway lab down"
)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take links away; then switches route around them.
    Cut(change::Cut),
    /// End a lab, with all that runs in it.
    Down(up::Down),
    /// Run a command in a host or switch.
    Exec(enter::Exec),
    /// Give links back that were cut.
    Heal(change::Heal),
    /// Show the labs that are up.
    List(up::List),
    /// Give links another rate.
    Rate(change::Rate),
    /// Within a lab, run a command in another host, as ssh would: for mpirun and the like.
    Rsh(enter::Rsh),
    /// Make a lab, run a program in its hosts, and end it.
    Run(run::Run),
    /// Show what links have carried.
    Stats(stats::Stats),
    /// Make a lab that stays until `ringway lab down`.
    Up(up::Up),
}

impl Lab {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        match self.command {
            Command::Cut(cut) => cut.execute().map(|()| ExitCode::SUCCESS),
            Command::Down(down) => down.execute().map(|()| ExitCode::SUCCESS),
            Command::Exec(exec) => exec.execute(),
            Command::Heal(heal) => heal.execute().map(|()| ExitCode::SUCCESS),
            Command::List(list) => list.execute().map(|()| ExitCode::SUCCESS),
            Command::Rate(rate) => rate.execute().map(|()| ExitCode::SUCCESS),
            Command::Rsh(rsh) => rsh.execute(),
            Command::Run(run) => run.execute(),
            Command::Stats(stats) => stats.execute().map(|()| ExitCode::SUCCESS),
            Command::Up(up) => up.execute(),
        }
    }
}

/// Which lab is meant.
#[derive(Debug, Args)]
struct Which {
    /// Its name; not needed if only one is up.
    #[arg(long)]
    name: Option<String>,
}

impl Which {
    /// Its name. A name that no lab has is found out later.
    fn find(&self, registry: &Registry) -> Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let up: Vec<String> = registry.all()?.into_iter().map(|e| e.name).collect();
        match &up[..] {
            [only] => Ok(only.clone()),
            [] => Err(LabError::NoLab {
                name: up::NAME.to_owned(),
                up,
            }
            .into()),
            _ => anyhow::bail!(
                "there are {} labs; say which with --name: {}",
                up.len(),
                up.join(", ")
            ),
        }
    }
}
