//! `ringway sim`: collectives on a fabric, in virtual time.

mod packets;
mod report;
mod scenario;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ringway_fabric::{Distances, Fabric, Pattern, place};
use ringway_plan::{Algorithm, Collective, DataType, Topology, Verified, generate, verify};
use ringway_sim::{Level, Operation, Outcome, Simulation, World, chrome_trace};

pub(crate) use scenario::Flags;

use crate::{
    fabric::{self, Order},
    machine::{choose_on, half, is_halved},
    output::{self, Output},
    size,
};

/// Run a collective on a fabric, in virtual time.
///
/// The schedules and the executor are those of real runs; the network is computed: flows share links fairly (max-min), switches
/// hash them onto equal paths. What that leaves out makes real runs slower: queues, pauses, losses, congestion control's search
/// for its rate, packet headers; `--level packet` has them, at a cost. The same arguments give the same outcome.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway sim fabric.yaml all-reduce --sizes 1M,64M --algorithm ring,hierarchical\n  ringway sim fabric.yaml all-reduce --order random:1 --place\n  ringway sim fabric.yaml all-reduce --slow host3:0.5 --down leaf0-spine1@1ms-2ms --svg hot.svg\n  ringway sim fabric.yaml gather --background 'all>host0:10Gbit/s' --json\n  ringway sim fabric.yaml all-to-all --sizes 16M --level packet --links 8\n  ringway sim fabric.yaml all-reduce --level packet --lossy --buffer 4M --congestion none"
)]
pub(crate) struct Sim {
    /// The fabric file, see `ringway fabric new`.
    fabric: PathBuf,
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all or barrier.
    collective: String,
    /// Bytes of the vector.
    #[arg(long, value_delimiter = ',', value_parser = size::positive, default_value = "1M,16M,256M")]
    sizes: Vec<usize>,
    /// Algorithms; `auto` is the cost model's choice for the size, `all` are all that do the collective.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    algorithm: Vec<String>,
    /// How many hosts take part, from the first of the file's; all unless said.
    #[arg(long)]
    hosts: Option<usize>,
    /// Ranks of each host; the GPUs of the first host unless said.
    #[arg(long, value_parser = size::count)]
    ranks_per_host: Option<usize>,
    /// The hosts of ranks: `file`, or `random:SEED` as launchers may have it.
    #[arg(long, default_value = "file", value_parser = fabric::order)]
    order: Order,
    /// Put the order right for each algorithm first, as `ringway fabric place` does.
    #[arg(long)]
    place: bool,
    /// The root of broadcast, reduce, gather and scatter.
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// How much of the network is modelled.
    #[arg(long, value_enum, default_value_t = Fidelity::Flow)]
    level: Fidelity,
    /// Other UDP source ports, and so other collisions.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Streams (queue pairs) of each pair of ranks and lane, each with a path of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    streams: u32,
    /// In which slices messages move; larger where vectors would have too many.
    #[arg(long, value_parser = size::positive, default_value = "128K")]
    slice: usize,
    /// Elements of f32 go from host to host as f16 or bf16 in hierarchical all-reduces, as with the setting of this name.
    #[arg(long, value_parser = half)]
    wire_between_hosts: Option<DataType>,
    #[command(flatten)]
    scenario: Flags,
    #[command(flatten)]
    packets: packets::Settings,
    /// Print so many of the busiest links of the last run.
    #[arg(long, default_value_t = 0, conflicts_with = "json")]
    links: usize,
    /// Print what the end of the last run waited for, step by step.
    #[arg(long, conflicts_with = "json")]
    critical_path: bool,
    /// Draw the fabric with its hot links, of the last run, to this SVG file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write the last run to this file, as Perfetto and chrome://tracing open it.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// [`Level`] by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fidelity {
    /// NICs send and receive one message at a time; links between are never full.
    Latency,
    /// Flows share links fairly, and switches hash them onto equal paths.
    Flow,
    /// Packets wait, are marked, paused and lost; RoCE and DCQCN answer that.
    Packet,
}

/// A simulated operation.
struct Run {
    algorithm: Algorithm,
    /// As what elements go from host to host, if not as they are.
    wire: Option<DataType>,
    outcome: Outcome,
    /// Of its algorithm's order of hosts: links between hosts that talk, on average.
    mean_hops: f64,
}

impl Run {
    /// Switches between hosts that talk, on average: one less than links. Hosts of a torus forward, and count.
    fn mean_switches(&self) -> f64 {
        (self.mean_hops - 1.0).max(0.0)
    }
}

impl Sim {
    pub(crate) fn execute(self) -> Result<()> {
        self.packets.check(self.level == Fidelity::Packet)?;
        let fabric = fabric::read(&self.fabric)?;
        let collective = Collective::parse(&self.collective, self.root)?;
        let hosts = fabric::hosts(&fabric, self.hosts)?;
        let per_host = fabric::ranks_per_host(&fabric, self.ranks_per_host);
        let svg = self
            .svg
            .as_deref()
            .map(|path| Output::open("--svg", path))
            .transpose()?;
        let trace = self
            .trace
            .as_deref()
            .map(|path| Output::open("--trace", path))
            .transpose()?;

        let mut runs = Vec::new();
        let mut last_world = None;
        let mut known: Vec<(Algorithm, World, Verified, f64)> = Vec::new();
        for &bytes in &self.sizes {
            for algorithm in self.algorithms(&fabric, collective, bytes, hosts, per_host)? {
                let at = match known.iter().position(|k| k.0 == algorithm) {
                    Some(at) => at,
                    None => {
                        known.push(self.prepare(&fabric, collective, algorithm, hosts, per_host)?);
                        known.len() - 1
                    }
                };
                let (_, world, schedule, mean_hops) = &known[at];
                let mut simulation = Simulation::new(&fabric, world)
                    .with_level(match self.level {
                        Fidelity::Latency => Level::Latency,
                        Fidelity::Flow => Level::Flow,
                        Fidelity::Packet => Level::Packet,
                    })
                    .with_packets(self.packets.settings())
                    .with_scenario(self.scenario.scenario(&fabric)?)
                    .with_seed(self.seed)
                    .with_streams(self.streams)
                    .with_slice_bytes(self.slice);
                if trace.is_some() || self.critical_path {
                    simulation = simulation.with_records();
                }
                let wire = self
                    .wire_between_hosts
                    .filter(|_| is_halved(collective, algorithm, &world.topology()));
                let mut operation = Operation::new(schedule, bytes);
                if wire.is_some() {
                    operation = operation.with_half_between_hosts();
                }
                let outcome = simulation
                    .run_one(operation)
                    .with_context(|| format!("{collective} by {algorithm} of {bytes} bytes"))?;
                runs.push(Run {
                    algorithm,
                    wire,
                    outcome,
                    mean_hops: *mean_hops,
                });
                last_world = Some(at);
            }
        }
        let (Some(run), Some(at)) = (runs.last(), last_world) else {
            bail!("no algorithm was named that does {collective}");
        };
        if let Some(svg) = svg {
            let load: Vec<f64> = run.outcome.hops.iter().map(|h| h.busy).collect();
            svg.write(&fabric::draw(&fabric, Some(&load)))?;
        }
        if let Some(trace) = trace {
            trace.write(&chrome_trace(&run.outcome, &known[at].1, &fabric))?;
        }
        if self.json {
            let json = report::as_json(&fabric, collective, &runs);
            return output::print_json(&json);
        }
        let mut text = report::as_text(&fabric, collective, hosts, per_host, &runs);
        if self.links > 0 {
            text += &format!("\n{}", report::links(&fabric, &run.outcome, self.links));
        }
        if self.critical_path {
            text += &format!("\n{}", report::critical_path(&run.outcome));
        }
        output::print(&text)
    }

    fn algorithms(
        &self,
        fabric: &Fabric,
        collective: Collective,
        bytes: usize,
        hosts: usize,
        per_host: usize,
    ) -> Result<Vec<Algorithm>> {
        let mut algorithms = Vec::new();
        for name in &self.algorithm {
            match name.as_str() {
                "all" => {
                    let able = Algorithm::ALL
                        .into_iter()
                        .filter(|a| a.supports(collective));
                    algorithms.extend(able);
                }
                "auto" => {
                    let topology = Topology::uniform(hosts, per_host);
                    let wire = self.wire_between_hosts;
                    algorithms.push(choose_on(fabric, collective, bytes, &topology, wire)?);
                }
                name => algorithms.push(name.parse()?),
            }
        }
        Ok(algorithms)
    }

    /// The ranks' hosts, the schedule, and how far neighbours are apart.
    fn prepare(
        &self,
        fabric: &Fabric,
        collective: Collective,
        algorithm: Algorithm,
        hosts: usize,
        per_host: usize,
    ) -> Result<(Algorithm, World, Verified, f64)> {
        let mut order = self.order.of(hosts);
        let mut distances = Distances::of(fabric);
        if self.place && hosts > 1 {
            let topology = Topology::uniform(hosts, per_host);
            let schedule = generate(collective, algorithm, &topology)?;
            let pattern = Pattern::new(&schedule, &topology);
            order = place(&pattern, &mut distances, &order).best.order;
        }
        let world = World::new(fabric, &order, per_host)?;
        let topology = world.topology();
        let schedule = verify(generate(collective, algorithm, &topology)?)?;
        let mean_hops = distances.mean_hops(&Pattern::new(&schedule, &topology), &order);
        Ok((algorithm, world, schedule, mean_hops))
    }
}
