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
use ringway_plan::{Algorithm, Collective, Verified, generate, verify};
use ringway_sim::{Scenario, Simulation, World};

use crate::{
    fabric::{self, Order},
    input,
    machine::choose_on,
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
    /// Schedules, which are the same for vectors of any size.
    proved: HashMap<(Collective, Algorithm), Verified>,
    /// What is simulated once is so for every call of the kind.
    known: HashMap<(Collective, Algorithm, usize), Played>,
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
        let key = (collective, call.algorithm, call.bytes);
        if let Some(&played) = self.known.get(&key) {
            return Ok(played);
        }
        let topology = self.world.topology();
        let algorithm = match self.choice {
            Choice::Recorded => call.algorithm,
            Choice::Auto => choose_on(self.fabric, collective, call.bytes, &topology)?.algorithm,
        };
        let schedule = match self.proved.get(&(collective, algorithm)) {
            Some(proved) => proved.clone(),
            None => {
                let proved = verify(generate(collective, algorithm, &topology)?)?;
                self.proved.insert((collective, algorithm), proved.clone());
                proved
            }
        };
        let outcome = Simulation::new(self.fabric, &self.world)
            .with_scenario(self.scenario.clone())
            .run(&schedule, call.bytes)
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
