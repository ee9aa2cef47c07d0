//! `ringway bench`: collectives measured as nccl-tests does.

mod case;
mod measure;
mod plot;
mod report;
mod values;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ringway::{Builder, Communicator, DataType, ReduceOp, bootstrap::Launch};

use crate::{
    launch::start_self,
    output::{self, Output},
    size,
    step::Step,
};
use case::Case;
pub(crate) use measure::Measure;
use measure::Sample;

/// Measure a collective, with nccl-tests' flags and columns.
///
/// Inside a launcher's environment (torchrun, srun, mpirun, `ringway run`) it joins that world; with --ranks it starts
/// the ranks itself, on this machine. Each iteration is a barrier, then the collective; its time is the slowest rank's.
/// Bytes are the whole vector's (in all_gather, reduce_scatter and all_to_all, all ranks' parts together). algbw = bytes
/// / time; busbw is algbw times 2(n-1)/n for all_reduce, (n-1)/n for the others but broadcast and reduce; in GB/s of 10^9
/// bytes.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  ringway bench all-reduce --ranks 2 -b 4 -e 64M -f 4
  ringway bench all-reduce --ranks 4 --transport tcp --sizes 4,64K,1M --seconds 0.5 --json -
  srun ringway bench reduce-scatter -b 1M -e 1G -d bf16 --plot bandwidth.svg")]
pub(crate) struct Bench {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all or barrier.
    #[arg(required = true)]
    collective: Option<String>,
    #[command(subcommand)]
    other: Option<Other>,
    /// The smallest size.
    #[arg(short = 'b', long = "minbytes", value_parser = size::positive, default_value = "4")]
    min: usize,
    /// The largest size.
    #[arg(short = 'e', long = "maxbytes", value_parser = size::positive, default_value = "64M")]
    max: usize,
    /// From one size to the next, times this.
    #[arg(short = 'f', long = "stepfactor", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..))]
    factor: u16,
    /// From one size to the next, plus this; in place of -f.
    #[arg(short = 'i', long = "stepbytes", value_parser = size::positive)]
    step: Option<usize>,
    /// These sizes, in place of -b, -e, -f and -i.
    #[arg(long, value_delimiter = ',', value_parser = size::positive)]
    sizes: Option<Vec<usize>>,
    /// Iterations for each size.
    #[arg(short = 'n', long = "iters", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: u32,
    /// As many iterations as this takes for each size (5 to 5000), in place of -n.
    #[arg(long, value_parser = size::seconds)]
    seconds: Option<f64>,
    /// Iterations before those that count, 3 at least.
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
    /// Devices of a rank, as nccl-tests counts them: 1.
    #[arg(short = 'g', long = "ngpus", default_value = "1", value_parser = one, hide = true)]
    _devices: u16,
    /// Threads of a process, as nccl-tests counts them: 1.
    #[arg(short = 't', long = "nthreads", default_value = "1", value_parser = one, hide = true)]
    _threads: u16,
    /// Where the buffers are: in the arena, which the ranks of a host and NICs reach without a copy, or user memory.
    #[arg(long, default_value = "arena")]
    memory: Placement,
    /// What may carry the data: auto, shm, tcp, rdma.
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

/// What is measured that is no collective.
#[derive(Clone, Debug, Subcommand)]
enum Other {
    Step(Step),
}

/// Where a benchmark's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    Arena,
    User,
}

impl Bench {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        if let Some(Other::Step(step)) = self.other {
            return step.execute();
        }
        let case = Case::new(&self)?;
        if let (Some(ranks), false) = (self.ranks, self.started) {
            // What is wrong is said once, here, and not by each rank.
            case.check(ranks.into())?;
            self.files()
                .try_for_each(|(flag, path)| output::probe(flag, path))?;
            return start_self(ranks.into());
        }
        tracing_subscriber::fmt()
            .with_max_level(case.settings.values().log)
            .with_writer(std::io::stderr)
            .init();
        let launch = Launch::detect().context(
            "joining the ranks (start them with --ranks N, `ringway run`, torchrun, srun or mpirun)",
        )?;
        case.check(launch.size)?;
        let comm = Builder::default()
            .settings(case.settings.clone())
            .launch(launch)
            .connect()?;
        let files = if comm.rank() == 0 {
            // All ranks are to know why nothing is measured.
            Files::open(&self).inspect_err(|error| comm.abort(&format!("{error:#}")))?
        } else {
            Files::default()
        };
        let Some(rows) = self.measure(&comm, &case)? else {
            return Ok(ExitCode::SUCCESS);
        };
        // Before files are written: what fails then is no other rank's fault.
        comm.barrier()?;
        if comm.rank() > 0 {
            return Ok(ExitCode::SUCCESS);
        }
        files.write(&rows)?;
        let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
        if wrong > 0 {
            bail!("{wrong} elements of the results are wrong");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Measures all sizes; rank 0 prints them as they come. None on other ranks where it cannot.
    fn measure(&self, comm: &Communicator, case: &Case) -> Result<Option<Vec<Sample>>> {
        let measure = Measure {
            comm,
            collective: case.collective,
            dtype: self.dtype,
            op: self.op,
            placement: self.memory,
            algorithm: case.algorithm,
            iterations: self.iterations,
            seconds: self.seconds,
            // The first of all open connections.
            warmup: self.warmup.max(3),
            check: self.check == 1,
        };
        let print = comm.rank() == 0;
        let table = print && !self.json.as_deref().is_some_and(is_stdout);
        let (vectors, remark) = case.vectors(comm.size());
        if let Some(remark) = remark.filter(|_| print) {
            eprintln!("ringway: {remark}");
        }
        let say = |text: &str| match table {
            true => output::goes_on(comm, output::print(text)),
            false => output::goes_on(comm, Ok(())),
        };
        if !say(&report::heading(&measure))? {
            return Ok(None);
        }
        let mut rows = Vec::with_capacity(vectors.len());
        measure.settle()?;
        for bytes in vectors {
            let row = measure.size(bytes)?;
            if !say(&report::line(&row))? {
                return Ok(None);
            }
            rows.push(row);
        }
        if !say(&report::summary(&rows))? {
            return Ok(None);
        }
        Ok(Some(rows))
    }

    /// The files to write, each with its flag.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let json = self.json.as_deref().filter(|path| !is_stdout(path));
        let plot = self.plot.as_deref();
        [("--json", json), ("--plot", plot)]
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path?)))
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Where rank 0 writes what was measured.
#[derive(Default)]
struct Files {
    /// On the standard output, too or only.
    print_json: bool,
    json: Option<Output>,
    plot: Option<Output>,
}

impl Files {
    fn open(bench: &Bench) -> Result<Self> {
        let open = |wanted| {
            let file = bench.files().find(|(flag, _)| *flag == wanted);
            file.map(|(flag, path)| Output::open(flag, path))
                .transpose()
        };
        Ok(Self {
            print_json: bench.json.as_deref().is_some_and(is_stdout),
            json: open("--json")?,
            plot: open("--plot")?,
        })
    }

    /// Writes all that can be written. Rows that cannot are printed.
    fn write(self, rows: &[Sample]) -> Result<()> {
        let text = report::json(rows)?;
        let json = self.json.map_or(Ok(()), |file| file.write(&text));
        if self.print_json || json.is_err() {
            output::print(&format!("{text}\n"))?;
        }
        let plot = self
            .plot
            .map_or(Ok(()), |file| file.write(&plot::draw(rows)));
        json.and(plot)
    }
}

/// nccl-tests' counts of what each process has several of there.
fn one(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        _ => Err(
            "expected 1: a process is one rank; --ranks N or a launcher starts several".to_owned(),
        ),
    }
}
