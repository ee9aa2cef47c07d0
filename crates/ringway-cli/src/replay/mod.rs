//! `ringway replay`: a recorded job on another fabric.

mod program;
mod report;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;
use ringway::{Form, Recorded, Recording};
use ringway_fabric::Fabric;
use ringway_plan::{Algorithm, Collective, DataType, Verified, generate, verify};
use ringway_sim::{Operation, Scenario, Simulation, World};

use crate::{
    fabric::{self, Order},
    input,
    machine::{choose_on, half, is_halved},
    output,
    sim::Flags,
    size,
};
use program::{Played, Program};

/// Simulate a recorded job on a fabric: what would it take on other hosts, links, with a slow host?
///
/// A job records with the setting `record`. Collectives of all its ranks are simulated as those of all ranks on the fabric, of vectors as
/// long; what the program did between stays as it was. Operations in flight together go one after the other. Single messages, forms with uneven parts
/// and collectives of some of the ranks keep the time that they took.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  RINGWAY_RECORD=job.rec ringway run -n 2 -- python train.py\n  ringway fabric new leaf-spine --hosts 64 --leaves 8 --spines 4 > fabric.yaml\n  ringway replay job.rec fabric.yaml --steps 100\n  ringway replay job.rec fabric.yaml --slow host3:0.5 --json"
)]
pub(crate) struct Replay {
    /// The recording.
    recording: PathBuf,
    /// The fabric file, see `ringway fabric new`.
    fabric: PathBuf,
    /// How many steps the job did, for times of one.
    #[arg(long, value_parser = size::count)]
    steps: Option<usize>,
    /// How many hosts take part, from the first of the file's; all unless said.
    #[arg(long)]
    hosts: Option<usize>,
    /// Ranks of each host; the GPUs of the first host unless said.
    #[arg(long, value_parser = size::count)]
    ranks_per_host: Option<usize>,
    /// The hosts of ranks: `file`, or `random:SEED` as launchers may have it.
    #[arg(long, default_value = "file", value_parser = fabric::order)]
    order: Order,
    /// `auto` is the cost model's choice for the fabric, `recorded` what the job took.
    #[arg(long, value_enum, default_value = "auto")]
    algorithm: Choice,
    /// Elements of f32 go from host to host as f16 or bf16 in hierarchical all-reduces, as with the setting of this name.
    #[arg(long, value_parser = half)]
    wire_between_hosts: Option<DataType>,
    #[command(flatten)]
    scenario: Flags,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    Auto,
    Recorded,
}

/// A file that is longer is no recording.
const MOST_BYTES: u64 = 512 << 20;

impl Replay {
    pub(crate) fn execute(self) -> Result<()> {
        let recording = read(&self.recording)?;
        let fabric = fabric::read(&self.fabric)?;
        let mut stage = Stage {
            scenario: self.scenario.scenario(&fabric)?,
            world: fabric::world(&fabric, self.hosts, self.ranks_per_host, self.order)?,
            fabric: &fabric,
            choice: self.algorithm,
            wire: self.wire_between_hosts,
            proved: HashMap::new(),
            known: HashMap::new(),
        };
        let played: Result<Vec<Played>> = recording.calls.iter().map(|c| stage.play(c)).collect();
        let played = played?;
        let (ranks, hosts) = (stage.world.ranks(), stage.world.topology().hosts().len());
        let report = report::Report {
            program: Program::run(&recording, &played),
            recording: &recording,
            played: &played,
            fabric: fabric.name(),
            ranks,
            hosts,
            steps: self.steps,
        };
        match self.json {
            true => output::print_json(&report.as_json()),
            false => output::print(&report.as_text()),
        }
    }
}

fn read(path: &Path) -> Result<Recording> {
    let what = || path.display().to_string();
    let bytes = input::bytes(path, "recording", MOST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!(
            "{}: byte {at} is no text; expected a file as the setting `record` makes",
            what()
        )
    })?;
    Recording::parse(&text).with_context(what)
}

/// Where operations are simulated.
struct Stage<'a> {
    fabric: &'a Fabric,
    world: World,
    scenario: Scenario,
    choice: Choice,
    /// As what vectors of `f32` go from host to host.
    wire: Option<DataType>,
    /// Schedules, which are the same for vectors of any size.
    proved: HashMap<(Collective, Algorithm), Verified>,
    /// What is simulated once is so for every call of the kind.
    known: HashMap<(Collective, Algorithm, usize, bool), Played>,
}

impl Stage<'_> {
    fn play(&mut self, call: &Recorded) -> Result<Played> {
        let took = call.end.map(|end| end.saturating_sub(call.begin));
        if call.form != Form::Even || !call.is_world || self.world.ranks() < 2 {
            return Ok(Played {
                algorithm: call.algorithm,
                time: took.unwrap_or_default(),
                is_kept: true,
            });
        }
        let collective = match call.collective.root() {
            Some(root) if root >= self.world.ranks() => {
                Collective::parse(call.collective.name(), 0)?
            }
            _ => call.collective,
        };
        let is_f32 = call.dtype == DataType::F32;
        let key = (collective, call.algorithm, call.bytes, is_f32);
        if let Some(&played) = self.known.get(&key) {
            return Ok(played);
        }
        let topology = self.world.topology();
        let algorithm = match self.choice {
            Choice::Recorded => call.algorithm,
            Choice::Auto => {
                let wire = self.wire.filter(|_| is_f32);
                choose_on(self.fabric, collective, call.bytes, &topology, wire)?
            }
        };
        let schedule = match self.proved.get(&(collective, algorithm)) {
            Some(proved) => proved.clone(),
            None => {
                let proved = verify(generate(collective, algorithm, &topology)?)?;
                self.proved.insert((collective, algorithm), proved.clone());
                proved
            }
        };
        let mut operation = Operation::new(&schedule, call.bytes);
        if self.wire.is_some() && is_f32 && is_halved(collective, algorithm, &topology) {
            operation = operation.with_half_between_hosts();
        }
        let outcome = Simulation::new(self.fabric, &self.world)
            .with_scenario(self.scenario.clone())
            .run_one(operation)
            .with_context(|| format!("{collective} by {algorithm} of {} bytes", call.bytes))?;
        let played = Played {
            algorithm,
            time: outcome.end.at.into(),
            is_kept: false,
        };
        self.known.insert(key, played);
        Ok(played)
    }
}
