//! `ringway replay`: a recorded job on another fabric.

mod program;
mod report;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ringway::{Form, Recorded, Recording};
use ringway_fabric::Fabric;
use ringway_plan::{Algorithm, Collective, DataType, Verified, generate, verify};
use ringway_sim::{Act, Elapsed, Operation, Scenario, Simulation, World};

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
/// long; what the program did between stays as it was. Operations in flight together share the network. Single messages, forms with uneven parts
/// and collectives of some of the ranks keep the time that they took; with such in flight, operations go one after the other.
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
            chosen: HashMap::new(),
            proved: HashMap::new(),
            known: HashMap::new(),
        };
        let mut played = Vec::with_capacity(recording.calls.len());
        let together = program::together(&recording, |call| stage.keeps(call));
        for (call, &is_together) in recording.calls.iter().zip(&together) {
            played.push(stage.play(call, is_together)?);
        }
        let program = Program::run(&recording, &together, &mut played, |calls, played, acts| {
            stage.play_together(calls, played, acts)
        })?;
        let (ranks, hosts) = (stage.world.ranks(), stage.world.topology().hosts().len());
        let report = report::Report {
            program,
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
    /// The cost model's choices, by bytes and whether elements are of `f32`.
    chosen: HashMap<(Collective, usize, bool), Algorithm>,
    /// Schedules, which are the same for vectors of any size.
    proved: HashMap<(Collective, Algorithm), Verified>,
    /// What is simulated once is so for every call of the kind.
    known: HashMap<(Collective, Algorithm, usize, bool), Played>,
}

impl Stage<'_> {
    /// Whether a call keeps the time that it took.
    fn keeps(&self, call: &Recorded) -> bool {
        call.form != Form::Even || !call.is_world || self.world.ranks() < 2
    }

    /// An operation by itself, or, where it is in flight together with others, only its algorithm.
    fn play(&mut self, call: &Recorded, is_together: bool) -> Result<Played> {
        let took = call.end.map(|end| end.saturating_sub(call.begin));
        if self.keeps(call) {
            return Ok(Played {
                algorithm: call.algorithm,
                time: took.unwrap_or_default(),
                is_kept: true,
            });
        }
        let collective = self.collective(call)?;
        let is_f32 = call.dtype == DataType::F32;
        let key = (collective, call.algorithm, call.bytes, is_f32);
        if let Some(&played) = self.known.get(&key) {
            return Ok(played);
        }
        let algorithm = match self.choice {
            Choice::Recorded => call.algorithm,
            Choice::Auto => self.choose(collective, call.bytes, is_f32)?,
        };
        if is_together {
            return Ok(Played {
                algorithm,
                time: Duration::ZERO,
                is_kept: false,
            });
        }
        let schedule = self.schedule(collective, algorithm)?;
        let outcome = self
            .simulation()
            .run_one(self.operation(call, algorithm, &schedule))
            .with_context(|| format!("{collective} by {algorithm} of {} bytes", call.bytes))?;
        let played = Played {
            algorithm,
            time: outcome.end.at.into(),
            is_kept: false,
        };
        self.known.insert(key, played);
        Ok(played)
    }

    fn choose(&mut self, collective: Collective, bytes: usize, is_f32: bool) -> Result<Algorithm> {
        let key = (collective, bytes, is_f32);
        if let Some(&algorithm) = self.chosen.get(&key) {
            return Ok(algorithm);
        }
        let wire = self.wire.filter(|_| is_f32);
        let topology = self.world.topology();
        let algorithm = choose_on(self.fabric, collective, bytes, &topology, wire)?;
        self.chosen.insert(key, algorithm);
        Ok(algorithm)
    }

    /// Operations in flight together, with what the program does meanwhile.
    fn play_together(
        &mut self,
        calls: &[&Recorded],
        played: &[Played],
        acts: &[Act],
    ) -> Result<Elapsed> {
        let mut schedules = Vec::with_capacity(calls.len());
        for (call, played) in calls.iter().zip(played) {
            let collective = self.collective(call)?;
            schedules.push(self.schedule(collective, played.algorithm)?);
        }
        let both = calls.iter().zip(played).zip(&schedules);
        let operations: Vec<Operation<'_>> = both
            .map(|((call, played), schedule)| self.operation(call, played.algorithm, schedule))
            .collect();
        self.simulation()
            .run_program(&operations, acts)
            .with_context(|| format!("{} operations in flight together", calls.len()))
    }

    fn simulation(&self) -> Simulation<'_> {
        Simulation::new(self.fabric, &self.world).with_scenario(self.scenario.clone())
    }

    /// What a call does, among the ranks on the fabric.
    fn collective(&self, call: &Recorded) -> Result<Collective> {
        Ok(match call.collective.root() {
            Some(root) if root >= self.world.ranks() => {
                Collective::parse(call.collective.name(), 0)?
            }
            _ => call.collective,
        })
    }

    fn operation<'s>(
        &self,
        call: &Recorded,
        algorithm: Algorithm,
        schedule: &'s Verified,
    ) -> Operation<'s> {
        let operation = Operation::new(schedule, call.bytes);
        let is_narrow = self.wire.is_some()
            && call.dtype == DataType::F32
            && is_halved(call.collective, algorithm, &self.world.topology());
        match is_narrow {
            true => operation.with_half_between_hosts(),
            false => operation,
        }
    }

    fn schedule(&mut self, collective: Collective, algorithm: Algorithm) -> Result<Verified> {
        if let Some(proved) = self.proved.get(&(collective, algorithm)) {
            return Ok(proved.clone());
        }
        let topology = self.world.topology();
        let proved = verify(generate(collective, algorithm, &topology)?)?;
        self.proved.insert((collective, algorithm), proved.clone());
        Ok(proved)
    }
}
