//! `ringway twin`: the same collectives on the same fabric, as a network of namespaces and in virtual time.

mod measure;
mod probe;
mod report;
mod simulate;

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

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
use report::{Bounds, Case, Report, Verdict};
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
    after_help = "Examples:\n  ringway twin fabric.yaml\n  ringway twin fabric.yaml --collectives all-reduce,all-gather --sizes 4M,16M --algorithms ring,double_tree --json\n  ringway twin fabric.yaml --congestion reno --queues fair     # as without loss\n  ringway twin 8-hosts.yaml 16-hosts.yaml --queues fair --within 5,15"
)]
pub(crate) struct Twin {
    #[command(flatten)]
    network: Network,
    /// More fabric files: each is made after the one before, and the summary is of all.
    also: Vec<PathBuf>,
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
    /// Fail if the errors' median or the worst is above these, in per cent, or if the order of algorithms is not the lab's.
    #[arg(long, value_name = "MEDIAN,WORST", value_parser = Bounds::parse)]
    within: Option<Bounds>,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The one of several fabrics that this process is for.
    #[arg(long, hide = true)]
    only: Option<usize>,
    /// This is the lab's process.
    #[arg(long, hide = true)]
    inside: bool,
}

/// What is run, in this order.
type Runs = Vec<(Collective, Algorithm)>;

impl Twin {
    pub(crate) fn execute(mut self) -> Result<ExitCode> {
        let mut fabrics = vec![std::mem::take(&mut self.network.fabric)];
        fabrics.append(&mut self.also);
        match self.only {
            None if fabrics.len() > 1 => self.each(&fabrics),
            only => {
                let number = only.unwrap_or(0).min(fabrics.len() - 1);
                self.network.fabric = fabrics.swap_remove(number);
                self.one()
            }
        }
    }

    /// One fabric after the other, each by a process of its own.
    fn each(self, fabrics: &[PathBuf]) -> Result<ExitCode> {
        for path in fabrics {
            let named = || path.display().to_string();
            self.check(&fabric::read(path)?).with_context(named)?;
        }
        let program = std::env::current_exe().context("finding this program")?;
        let mut reports = Vec::new();
        let mut verdict = Verdict::default();
        for (number, path) in fabrics.iter().enumerate() {
            let named = || format!("the twin of {}", path.display());
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1));
            command.args(["--only", &number.to_string()]);
            if !self.json {
                command.arg("--json");
            }
            let output = command.stderr(Stdio::inherit()).output();
            let output = output.with_context(named)?;
            if !output.status.success() {
                bail!("{} failed: {}", named(), output.status);
            }
            let report: Report = serde_json::from_slice(&output.stdout).with_context(named)?;
            if !self.json {
                let lines: String = report.cases.iter().map(Case::line).collect();
                output::print(&format!("{}{lines}\n", report.heading()))?;
            }
            verdict = verdict.and(report.verdict());
            reports.push(report);
        }
        match self.json {
            true => {
                let fabrics: Vec<_> = reports.iter().map(report::as_json).collect();
                let mut json = serde_json::json!({"fabrics": fabrics});
                verdict.add_to(&mut json);
                output::print_json(&json)?;
            }
            false => output::print(&verdict.text())?,
        }
        Ok(self.code(&verdict))
    }

    /// By what errors may be.
    fn code(&self, verdict: &Verdict) -> ExitCode {
        match self.within {
            Some(bounds) if !verdict.is_within(bounds) => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        }
    }

    fn one(self) -> Result<ExitCode> {
        if self.inside {
            return self.inside();
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

    fn inside(self) -> Result<ExitCode> {
        let lab = self.network.build()?;
        let (hosts, runs) = self.check(lab.fabric())?;
        let bench = Bench {
            lab: &lab,
            iterations: self.iterations,
            streams: self.streams,
        };
        let name = lab.fabric().name();
        let progress = |what: &str| {
            if self.json {
                eprintln!("ringway: {name}: {what} ...");
            }
        };
        progress("probes");
        let calibration = Calibration::probe(&bench, &hosts).context("probing the lab")?;
        let mut report = Report::new(&lab, hosts.len(), calibration);
        if !self.json {
            output::print(&report.heading())?;
        }
        let simulator = Simulator::new(lab.fabric(), &hosts, &calibration, self.streams)?;
        for (collective, algorithm) in runs {
            progress(&format!("{collective} by {algorithm}"));
            let measured = bench.run(&hosts, collective, algorithm, &self.sizes)?;
            report.paths += measured.paths.len();
            for times in &measured.times {
                let bytes = times.bytes;
                let outcome = simulator.run(collective, algorithm, bytes, &measured.paths)?;
                let case = Case {
                    collective: collective.name().to_owned(),
                    algorithm: algorithm.name().to_owned(),
                    bytes,
                    lab_seconds: times.median,
                    simulated_seconds: outcome.seconds,
                    bound_seconds: outcome.bound,
                    busy: measured.busy,
                    dropped: measured.dropped,
                    same_links: report::common(&measured.carried, &outcome.carried),
                };
                if !self.json {
                    output::print(&case.line())?;
                }
                report.cases.push(case);
            }
        }
        let verdict = report.verdict();
        match self.json {
            true => output::print_json(&report::as_json(&report))?,
            false => output::print(&format!(
                "\n{} connections took in the simulator the paths that they took in the lab\n{}",
                report.paths,
                verdict.text()
            ))?,
        }
        // Who has started this for one of several fabrics judges all of them.
        Ok(match self.only {
            Some(_) => ExitCode::SUCCESS,
            None => self.code(&verdict),
        })
    }
}
