//! `ringway bench`: collectives measured as nccl-tests does.

mod measure;
mod plot;
mod report;
mod values;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway::{
    Algorithm, Builder, Collective, DataType, ReduceOp,
    bootstrap::Launch,
    settings::{Settings, Source},
};

use crate::{launch::Job, size};
use measure::{Measure, Sample};

/// Measure a collective, with nccl-tests' flags and columns.
///
/// Inside a launcher's environment (torchrun, srun, mpirun, `ringway run`) it joins that world; with --ranks it starts
/// the ranks itself, on this machine. Each iteration is a barrier, then the collective; its time is the slowest rank's.
/// Bytes are the whole vector's (in all_gather, reduce_scatter and all_to_all, all ranks' parts together). algbw = bytes
/// / time; busbw is algbw times 2(n-1)/n for all_reduce, (n-1)/n for the others but broadcast and reduce; in GB/s of 10^9
/// bytes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ringway bench all-reduce --ranks 2 -b 4 -e 64M -f 4
  ringway bench all-reduce --ranks 4 --transport tcp --sizes 4,64K,1M --seconds 0.5 --json -
  srun ringway bench reduce-scatter -b 1M -e 1G -d bf16 --plot bandwidth.svg")]
pub(crate) struct Bench {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all or barrier.
    collective: String,
    /// The smallest size.
    #[arg(short = 'b', long = "minbytes", value_parser = size::parse, default_value = "4")]
    min: usize,
    /// The largest size.
    #[arg(short = 'e', long = "maxbytes", value_parser = size::parse, default_value = "64M")]
    max: usize,
    /// From one size to the next, times this.
    #[arg(short = 'f', long = "stepfactor", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..))]
    factor: u16,
    /// From one size to the next, plus this; in place of -f.
    #[arg(short = 'i', long = "stepbytes", value_parser = size::parse)]
    step: Option<usize>,
    /// These sizes, in place of -b, -e, -f and -i.
    #[arg(long, value_delimiter = ',', value_parser = size::parse)]
    sizes: Option<Vec<usize>>,
    /// Iterations for each size.
    #[arg(short = 'n', long = "iters", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: u32,
    /// As many iterations as this takes for each size (5 to 5000), in place of -n.
    #[arg(long)]
    seconds: Option<f64>,
    /// Iterations before those that count.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 5)]
    warmup: u32,
    /// Check the results once for each size: 0 or 1.
    #[arg(short = 'c', long = "check", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// The type of the elements: f32, f16, bf16, f64, i8 to i64, u8 to u64 (nccl-tests' names work too).
    #[arg(short = 'd', long = "datatype", default_value = "f32")]
    dtype: DataType,
    /// The reduction: sum, prod, min, max, avg, and, or, xor.
    #[arg(short = 'o', long = "op", default_value = "sum")]
    op: ReduceOp,
    /// The root of broadcast, reduce, gather and scatter.
    #[arg(short = 'r', long = "root", default_value_t = 0)]
    root: usize,
    /// Start this many ranks on this machine.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// Where the buffers are: in the arena, which the ranks of a host and NICs reach without a copy, or user memory.
    #[arg(long, default_value = "arena")]
    memory: Placement,
    /// What may carry the data: auto, shm, tcp.
    #[arg(long)]
    transport: Option<String>,
    /// The algorithm: auto, ring, tree, double_tree, direct, ...
    #[arg(long, default_value = "auto")]
    algorithm: String,
    /// This is one of the ranks that --ranks has started.
    #[arg(long, hide = true)]
    started: bool,
    /// Write the rows as JSON to this file; `-` is the standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw bandwidth and latency by size to this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Where a benchmark's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    Arena,
    User,
}

impl Bench {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        let collective = Collective::parse(&self.collective, self.root)?;
        if collective.reduces() && !self.op.supports(self.dtype) {
            bail!(
                "{} is not defined for {}: it is for integers",
                self.op,
                self.dtype
            );
        }
        if let (Some(ranks), false) = (self.ranks, self.started) {
            return start_ranks(ranks.into());
        }
        let sizes = self.sizes()?;
        let algorithm = match self.algorithm.as_str() {
            "auto" => None,
            name => Some(name.parse::<Algorithm>()?),
        };
        if let Some(algorithm) = algorithm.filter(|a| !a.supports(collective)) {
            bail!("{algorithm} cannot do {collective}; see `ringway plan list`");
        }
        let mut settings = Settings::load()?;
        if let Some(transport) = &self.transport {
            settings.set(
                "transports",
                transport,
                Source::Flag {
                    name: "--transport".into(),
                },
            )?;
        }
        tracing_subscriber::fmt()
            .with_max_level(settings.values().log)
            .with_writer(std::io::stderr)
            .init();
        let launch = Launch::detect().context(
            "joining the ranks (start them with --ranks N, `ringway run`, torchrun, srun or mpirun)",
        )?;
        let comm = Builder::default()
            .settings(settings)
            .launch(launch)
            .connect()?;
        let measure = Measure {
            comm: &comm,
            collective,
            dtype: self.dtype,
            op: self.op,
            placement: self.memory,
            algorithm,
            iterations: self.iterations,
            seconds: self.seconds,
            warmup: self.warmup,
            check: self.check == 1,
        };
        let print = comm.rank() == 0;
        let table = print
            && self
                .json
                .as_ref()
                .is_none_or(|path| path.as_os_str() != "-");
        if table {
            report::heading(&measure);
        }
        let mut rows: Vec<Sample> = Vec::new();
        measure.settle()?;
        for bytes in sizes {
            let row = measure.size(bytes)?;
            if table {
                report::line(&row);
            }
            rows.push(row);
        }
        if print {
            if let Some(path) = &self.json {
                report::json(&rows, path)?;
            }
            if let Some(path) = self.plot.as_ref().filter(|_| !rows.is_empty()) {
                std::fs::write(path, plot::draw(&rows))
                    .with_context(|| format!("writing {}", path.display()))?;
            }
        }
        let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
        if table {
            report::summary(&rows);
        }
        comm.barrier()?;
        if wrong > 0 {
            bail!("{wrong} elements of the results are wrong");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn sizes(&self) -> Result<Vec<usize>> {
        if let Some(sizes) = &self.sizes {
            return Ok(sizes.clone());
        }
        if self.min > self.max {
            bail!(
                "-b {} is more than -e {}: expected the smallest size first",
                size::show(self.min),
                size::show(self.max)
            );
        }
        let next = |&size: &usize| match self.step {
            Some(step) => size.checked_add(step.max(1)),
            None => size.max(1).checked_mul(self.factor.into()),
        };
        Ok(std::iter::successors(Some(self.min), next)
            .take_while(|&size| size <= self.max)
            .collect())
    }
}

/// This command again, as several ranks.
fn start_ranks(ranks: usize) -> Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = vec![program.display().to_string()];
    command.extend(std::env::args().skip(1));
    command.push("--started".to_owned());
    Job {
        command,
        ranks,
        prefix: false,
        port: None,
    }
    .execute()
}
