//! `ringway lab run`.

use std::{net::IpAddr, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::Result;
use clap::Args;
use ringway_fabric::{NodeId, Port};
use ringway_lab::{Lab, host_address};

use super::{
    network::{Network, supervise},
    stats,
};
use crate::{
    fabric::{self, Order},
    launch::{self, Job, Seat},
    output::Output,
};

/// Make a lab, run a program in its hosts, and end it.
///
/// The program starts once for each rank, in the rank's host, with the environment variables that torchrun sets; it is told
/// nothing else, so any program will do. GROUP_RANK is the number of the host, in the order of ranks. While it runs, `ringway lab rate`, `cut`, `heal`, `stats` and
/// `exec` work from outside. The exit code is that of the rank that failed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway lab run fabric.yaml -- ringway bench all-reduce --sizes 16M --algorithm ring\n  ringway lab run fabric.yaml --congestion cubic --json run.json -- ./train\n  ringway lab run fabric.yaml --ranks-per-host 1 -- sh -c 'torchrun --nnodes $WORLD_SIZE --node-rank $GROUP_RANK --nproc-per-node 2 --master-addr $MASTER_ADDR train.py'"
)]
pub(crate) struct Run {
    #[command(flatten)]
    network: Network,
    /// How the lab is called; `run-PID` unless said.
    #[arg(long)]
    name: Option<String>,
    /// How many hosts the program runs in, from the first of the file's; all unless said.
    #[arg(long)]
    hosts: Option<usize>,
    /// Ranks of each host; the GPUs of the first host unless said.
    #[arg(long)]
    ranks_per_host: Option<usize>,
    /// The hosts of ranks: `file`, or `random:SEED` as launchers may have it.
    #[arg(long, default_value = "file", value_parser = fabric::order)]
    order: Order,
    /// The port that ranks meet at.
    #[arg(long)]
    port: Option<u16>,
    /// Leave output as it is, with no rank before each line.
    #[arg(long)]
    no_prefix: bool,
    /// Write what the network was, how the program ended and what links carried to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// This is the lab's process.
    #[arg(long, hide = true)]
    inside: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl Run {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        if self.inside {
            return self.inside();
        }
        if let Some(path) = &self.json {
            Output::open("--json", path)?;
        }
        let own = format!("run-{}", std::process::id());
        let name = self.name.as_deref().unwrap_or(&own);
        let (sandbox, entry) = self.network.start("run", name, true)?;
        supervise(sandbox, &entry)
    }

    fn inside(self) -> Result<ExitCode> {
        let lab = self.network.build()?;
        let fabric = lab.fabric();
        let hosts = self.order.of(fabric::hosts(fabric, self.hosts)?);
        let per_host = fabric::ranks_per_host(fabric, self.ranks_per_host);
        let job = Job {
            command: self.command,
            seats: seats(&lab, &hosts, per_host),
            output: match self.no_prefix {
                true => launch::Output::Plain,
                false => launch::Output::Prefixed,
            },
            master: Some(IpAddr::V4(host_address(
                lab.fabric(),
                Port {
                    host: hosts[0],
                    nic: 0,
                },
            ))),
            port: self.port,
        };
        let json = self
            .json
            .map(|path| Output::open("--json", &path))
            .transpose()?;
        let began = Instant::now();
        let code = job.execute()?;
        if let Some(json) = json {
            let settings = lab.settings();
            let record = serde_json::json!({
                "fabric": fabric.name(),
                "congestion": settings.congestion,
                "mtu": settings.mtu,
                "window": settings.window,
                "seed": settings.seed,
                "queues": settings.queues,
                "ranks": job.seats.len(),
                "seconds": began.elapsed().as_secs_f64(),
                "succeeded": code == ExitCode::SUCCESS,
                "links": stats::as_json(&lab, &lab.stats()?),
            });
            json.write(&serde_json::to_string_pretty(&record)?)?;
        }
        Ok(code)
    }
}

/// `local_size` ranks in each of some hosts, those of a host one after the other.
pub(crate) fn seats(lab: &Lab, hosts: &[usize], local_size: usize) -> Vec<Seat> {
    let in_host = |(number, &host): (usize, &usize)| {
        let within = lab.within(NodeId(host));
        let seat = move |local_rank| Seat {
            host: number,
            local_rank,
            local_size,
            within: within.clone(),
        };
        (0..local_size).map(seat)
    };
    hosts.iter().enumerate().flat_map(in_host).collect()
}
