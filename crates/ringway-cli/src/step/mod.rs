//! `ringway bench step`: what each optimization of the gradient path makes of a training step.

mod model;
mod report;
mod simulate;
mod timeline;
mod train;

use std::{collections::HashMap, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ringway::{
    Builder, Communicator,
    bootstrap::{Launch, Rendezvous},
    codec::Kind,
    settings::{Settings, Source},
};

use crate::{
    fabric::{self, Order},
    launch::start_self,
    output::{self, Output},
    size,
};
use model::{Layer, Model};
use report::{Row, Table};
use timeline::{Batches, Timeline};
use train::{Figures, Trainer};

/// Measure a training step's communication, with one optimization after the other.
///
/// The gradients have the sizes and the order of a model's, and go over real transports; compute is stood in for by waiting as long
/// as each layer would take, forward a third and backward two thirds. Each stage has what those before it have:
///   baseline      every gradient by itself after backward, around one ring in the launcher's order
///   hierarchical  the algorithm by the cost model for the size, the ranks and the hosts
///   overlap       gradients go while backward runs; the next forward waits layer by layer
///   compression   gradients in fewer bytes (--codec), with what is lost added the next time
///   topology      hosts in the order, and algorithms by the shared links, of the fabric (--fabric)
///   batching      gradients that come within batch_window go together: batch_min at least, batch_max at most
///
/// With --simulate the same runs in virtual time on a fabric that need not exist: the schedules of real runs over a computed
/// network, as in `ringway sim`. Encoding takes no time there, messages of a pair of ranks have no priorities, and where nothing
/// overlaps each operation is by itself. With more than 128 hosts operations have the network one after the other, and what each
/// takes is taken from the next powers of 4 bytes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ringway bench step --model resnet152 --ranks 2
  ringway bench step --model gpt2 --scale 0.1 --ranks 4 --transport tcp --compute 0.5 --json steps.json
  ringway lab run fabric.yaml -- ringway bench step --model resnet152 --scale 0.1 --fabric fabric.yaml --rounds 3
  ringway bench step --model resnet152 --simulate fabric.yaml --order random:1")]
pub(crate) struct Step {
    /// resnet152, transformer-xl, gpt2, gpt2-xl or llama-7b-layer.
    #[arg(long, default_value = "resnet152")]
    model: Model,
    /// Of each gradient, this part of its elements: for links that are slower than the model's.
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Seconds of compute in a step; unless said, so that --share holds.
    #[arg(long, value_parser = size::seconds)]
    compute: Option<f64>,
    /// The part of the baseline's step that communication takes.
    #[arg(long, default_value_t = 0.42, value_parser = share, conflicts_with = "compute")]
    share: f64,
    /// Steps that are measured of each stage, after one that is not.
    #[arg(short = 'n', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    steps: u32,
    /// How often each stage is measured, in turns with the others; the medians count.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The last stage, or the stages to run; the baseline is always run.
    #[arg(long, value_delimiter = ',', value_enum)]
    stages: Vec<Stage>,
    /// The stage `compression`: fp16, bf16, int8, int4, int:BITS, dynamic:ERROR, topk:SHARE, threshold:MAGNITUDE or powersgd:RANK.
    #[arg(long, default_value = "fp16")]
    codec: Kind,
    /// The fabric file, for the stage `topology`; RINGWAY_FABRIC unless said.
    #[arg(long)]
    fabric: Option<PathBuf>,
    /// What may carry the data: auto, shm, tcp, rdma.
    #[arg(long)]
    transport: Option<String>,
    /// Run in virtual time on the hosts of this fabric file, a rank each.
    #[arg(long, conflicts_with_all = ["fabric", "transport", "ranks", "steps", "rounds"])]
    simulate: Option<PathBuf>,
    /// With --simulate, how many hosts take part, from the first of the file's; all unless said.
    #[arg(long, requires = "simulate")]
    hosts: Option<usize>,
    /// With --simulate, the hosts of ranks: `file`, or `random:SEED` as launchers may have it.
    #[arg(long, default_value = "file", requires = "simulate", value_parser = fabric::order)]
    order: Order,
    /// Start this many ranks on this machine.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// This is one of the ranks that --ranks has started.
    #[arg(long, hide = true)]
    started: bool,
    /// Print the layers as JSON and do no more: elements, and seconds of forward and backward of the --compute. For other
    /// programs that are to have the same step.
    #[arg(long, requires = "compute", conflicts_with_all = ["simulate", "ranks", "json"])]
    layers: bool,
    /// Write the rows as JSON to this file; `-` is the standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What is added to the stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
enum Stage {
    Baseline,
    Hierarchical,
    Overlap,
    Compression,
    Topology,
    Batching,
}

fn scale(text: &str) -> Result<f64, String> {
    part(text, 1e-6..=1.0)
}

fn share(text: &str) -> Result<f64, String> {
    part(text, 0.01..=0.99)
}

fn part(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| {
        format!(
            "expected a number from {} to {}",
            range.start(),
            range.end()
        )
    })
}

impl Step {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        let settings = self.settings()?;
        if self.layers {
            return report::layers(&self).map(|()| ExitCode::SUCCESS);
        }
        if let Some(fabric) = &self.simulate {
            let json = self.file().map(|path| Output::open("--json", path));
            let json = json.transpose()?;
            let (ranks, rows) = self.simulate(fabric, &settings)?;
            return self.finish(ranks, &rows, json);
        }
        if let (Some(ranks), false) = (self.ranks, self.started) {
            if let Some(path) = self.file() {
                output::probe("--json", path)?;
            }
            return start_self(ranks.into());
        }
        tracing_subscriber::fmt()
            .with_max_level(settings.values().log)
            .with_writer(std::io::stderr)
            .init();
        let launch = Launch::detect().context(
            "joining the ranks (start them with --ranks N, `ringway run`, torchrun, srun or mpirun)",
        )?;
        let json = match self.file().filter(|_| launch.rank == 0) {
            Some(path) => Some(Output::open("--json", path)?),
            None => None,
        };
        let rows = self.measure(&settings, &launch)?;
        if launch.rank > 0 {
            return Ok(ExitCode::SUCCESS);
        }
        self.finish(launch.size, &rows, json)
    }

    /// Leaves the rows for programs, and says whether all gradients were right.
    fn finish(&self, ranks: usize, rows: &[Row], json: Option<Output>) -> Result<ExitCode> {
        let text = report::json(self, ranks, rows)?;
        match json {
            Some(file) => file.write(&text)?,
            None if self.json.is_some() => output::print(&format!("{text}\n"))?,
            None => {}
        }
        let wrong: u64 = rows.iter().map(|row| row.figures.wrong).sum();
        if wrong > 0 {
            bail!("{wrong} gradients are wrong");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The file for JSON, if it is one.
    fn file(&self) -> Option<&std::path::Path> {
        self.json.as_deref().filter(|path| path.as_os_str() != "-")
    }

    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::load()?;
        let flag = |name: &str| Source::Flag {
            name: name.to_owned(),
        };
        if let Some(transport) = &self.transport {
            settings.set("transports", transport, flag("--transport"))?;
        }
        if let Some(fabric) = &self.fabric {
            let fabric = fabric.display().to_string();
            settings.set("fabric", &fabric, flag("--fabric"))?;
        }
        Ok(settings)
    }

    /// The stages that are wanted, and can be had.
    fn wanted(&self, has_fabric: bool) -> Vec<Stage> {
        let all = Stage::value_variants().iter().copied();
        let can_be = |stage: &Stage| *stage != Stage::Topology || has_fabric;
        all.filter(|stage| self.is_wanted(*stage) && can_be(stage))
            .collect()
    }

    fn is_wanted(&self, stage: Stage) -> bool {
        match &self.stages[..] {
            [] => true,
            [last] => stage <= *last,
            several => stage == Stage::Baseline || several.contains(&stage),
        }
    }

    /// Measures all stages in turns; rank 0 prints them as they come in the last round.
    fn measure(&self, settings: &Settings, launch: &Launch) -> Result<Vec<Row>> {
        let layers = self.scaled();
        let wanted = self.wanted(settings.values().fabric.is_some());
        // Each stage has a communicator with settings of its own, whose ranks meet through this one.
        let base = connect(settings, launch.clone(), false, false)?;
        let how = format!("{} ranks over {}", base.size(), base.path());
        let mut table = (launch.rank == 0).then(|| Table::new(self, how));
        let mut compute = self.compute;
        let mut runs: HashMap<Stage, Vec<Figures>> = HashMap::new();
        let mut rows = Vec::new();
        for (round, &stage) in (1..=self.rounds).flat_map(|r| wanted.iter().map(move |s| (r, s))) {
            let has = |other: Stage| other <= stage && wanted.contains(&other);
            let launch = Launch {
                rendezvous: Rendezvous::Store(base.store(&format!("{stage:?} {round}"))),
                ..launch.clone()
            };
            let comm = connect(
                settings,
                launch,
                has(Stage::Hierarchical),
                has(Stage::Topology),
            )?;
            let seconds = match compute {
                Some(seconds) => seconds,
                None => *compute.insert(self.compute_for_share(&comm, &layers)?),
            };
            let batches = has(Stage::Batching).then(|| Batches::of(settings));
            let timeline = Timeline::new(&layers, Duration::from_secs_f64(seconds), batches);
            let codec = if has(Stage::Compression) {
                self.codec
            } else {
                Kind::None
            };
            let mut trainer = Trainer::new(&comm, &timeline, has(Stage::Overlap), codec)?;
            let of_stage = runs.entry(stage).or_default();
            of_stage.push(trainer.run(self.steps)?);
            comm.barrier()?;
            if round == self.rounds {
                let row = Row {
                    stage,
                    operations: timeline.operations.len(),
                    compute: seconds,
                    figures: Figures::median(of_stage),
                };
                let printed = match &mut table {
                    Some(table) => table.print(&row, 4 * timeline.elements),
                    None => Ok(()),
                };
                if !output::goes_on(&comm, printed)? {
                    return Ok(rows);
                }
                rows.push(row);
            }
        }
        base.barrier()?;
        let has_topology = wanted.contains(&Stage::Topology);
        if table.is_some() && self.is_wanted(Stage::Topology) && !has_topology {
            eprintln!("ringway: without topology: no fabric file is given (--fabric)");
        }
        Ok(rows)
    }

    /// The model's layers, as large as they are to be.
    fn scaled(&self) -> Vec<Layer> {
        let mut layers = self.model.layers();
        for layer in layers.iter_mut().filter(|layer| layer.elements > 0) {
            layer.elements = ((layer.elements as f64 * self.scale) as usize).max(1);
        }
        layers
    }

    /// Seconds of compute beside which communication takes its share of the baseline's step.
    fn compute_for_share(&self, comm: &Communicator, layers: &[Layer]) -> Result<f64> {
        let timeline = Timeline::new(layers, Duration::ZERO, None);
        let figures = Trainer::new(comm, &timeline, false, Kind::None)?.run(2)?;
        Ok(figures.step * (1.0 - self.share) / self.share)
    }
}

/// A communicator for a stage.
fn connect(
    settings: &Settings,
    launch: Launch,
    choose: bool,
    topology: bool,
) -> Result<Communicator> {
    let mut settings = settings.clone();
    let stage = || Source::Flag {
        name: "--stages".to_owned(),
    };
    if !choose {
        settings.set("algorithm", "ring", stage())?;
    }
    if !topology {
        settings.set("fabric", "none", stage())?;
    }
    Ok(Builder::default()
        .settings(settings)
        .launch(launch)
        .connect()?)
}
