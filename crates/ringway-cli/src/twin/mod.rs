//! `ringway twin`: the same collectives on the same fabric, as a network of namespaces and in virtual time.

mod measure;
mod probe;
mod report;
mod simulate;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_fabric::Fabric;
use ringway_plan::{Algorithm, Collective};

use crate::{
    fabric,
    lab::{Network, supervise},
    output, size,
};
use measure::Bench;
use probe::Calibration;
use report::Case;
use simulate::Simulator;

/// Run collectives in a lab and in the simulator, and compare.
///
/// The fabric is made of network namespaces, one rank in each host, and each collective measured there by `ringway bench`. Then the same
/// schedules run in virtual time, on the level of flows. What the simulator has to know of this machine comes from probes between two hosts,
/// done first: what a message costs, what each link on its way adds, and how much of a link's rate is left for data. Which
/// paths the lab's connections took is asked of its switches. Choose rates at which the processors are not what is measured:
/// all hosts together should not send more than some GB/s.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway twin fabric.yaml\n  ringway twin fabric.yaml --collectives all-reduce,all-gather --sizes 4M,16M --algorithms ring,double_tree --json\n  ringway twin fabric.yaml --congestion reno --window 128K     # as without loss"
)]
pub(crate) struct Twin {
    #[command(flatten)]
    network: Network,
    /// Collectives; those of a root have rank 0 there.
    #[arg(long, value_delimiter = ',', default_value = "all-reduce")]
    collectives: Vec<String>,
    /// Bytes of the vector.
    #[arg(long, value_delimiter = ',', value_parser = size::positive, default_value = "1M,4M")]
    sizes: Vec<usize>,
    /// Algorithms; `all` are all that do the collective.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ring,halving_doubling,double_tree,direct"
    )]
    algorithms: Vec<String>,
    /// How many hosts take part, from the first of the file's; all unless said.
    #[arg(long)]
    hosts: Option<usize>,
    /// Iterations for each size, after five that do not count; the median counts.
    #[arg(short = 'n', long = "iters", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iterations: u32,
    /// TCP connections of each pair of ranks that long messages share. Of several the rank takes the one with the least to send, the
    /// simulator one after the other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// This is the lab's process.
    #[arg(long, hide = true)]
    inside: bool,
}

/// What is run, in this order.
type Runs = Vec<(Collective, Algorithm)>;

impl Twin {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        if self.inside {
            return self.inside().map(|()| ExitCode::SUCCESS);
        }
        // What is wrong is said before anything is made.
        self.check(&fabric::read(&self.network.fabric)?)?;
        let name = format!("twin-{}", std::process::id());
        let (sandbox, entry) = self.network.start("twin", &name, true)?;
        supervise(sandbox, &entry)
    }

    /// The hosts that take part, and what is run on them.
    fn check(&self, fabric: &Fabric) -> Result<(Vec<usize>, Runs)> {
        let hosts: Vec<usize> = (0..fabric::hosts(fabric, self.hosts)?).collect();
        if hosts.len() < 2 {
            bail!("one host has nobody to send to: expected at least 2");
        }
        let mut runs = Vec::new();
        for name in &self.collectives {
            let collective = Collective::parse(name, 0)?;
            if collective == Collective::Barrier {
                bail!("a barrier carries no data: there is nothing of the network to compare");
            }
            for algorithm in &self.algorithms {
                match algorithm.as_str() {
                    "all" => runs.extend(Algorithm::ALL.map(|a| (collective, a))),
                    name => runs.push((collective, name.parse()?)),
                }
            }
        }
        runs.retain(|(collective, algorithm)| algorithm.supports(*collective));
        if runs.is_empty() {
            bail!(
                "none of these algorithms does any of these collectives; see `ringway plan list`"
            );
        }
        Ok((hosts, runs))
    }

    fn inside(self) -> Result<()> {
        let lab = self.network.build()?;
        let (hosts, runs) = self.check(lab.fabric())?;
        let bench = Bench {
            lab: &lab,
            iterations: self.iterations,
            streams: self.streams,
        };
        let calibration = Calibration::probe(&bench, &hosts).context("probing the lab")?;
        if !self.json {
            output::print(&report::heading(&lab, hosts.len(), &calibration))?;
        }
        let simulator = Simulator::new(lab.fabric(), &hosts, &calibration, self.streams)?;
        let mut cases = Vec::new();
        let mut paths = 0;
        for (collective, algorithm) in runs {
            let measured = bench.run(&hosts, collective, algorithm, &self.sizes)?;
            paths += measured.paths.len();
            for times in &measured.times {
                let bytes = times.bytes;
                let outcome = simulator.run(collective, algorithm, bytes, &measured.paths)?;
                let case = Case {
                    collective,
                    algorithm,
                    bytes,
                    lab: times.median,
                    simulated: outcome.seconds,
                    bound: outcome.bound,
                };
                if !self.json {
                    output::print(&case.line())?;
                }
                cases.push(case);
            }
        }
        match self.json {
            true => output::print_json(&report::as_json(
                &lab,
                hosts.len(),
                &calibration,
                &cases,
                paths,
            )),
            false => output::print(&report::summary(&cases, paths)),
        }
    }
}
