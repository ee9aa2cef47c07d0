//! The same stages in virtual time, on a fabric that need not exist.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use ringway::{codec::Kind, settings::Settings};
use ringway_fabric::{Distances, Fabric, Hop, Pattern, machine, place_within};
use ringway_plan::{Algorithm, Collective, Machine, Topology, Verified, choose, generate, verify};
use ringway_sim::{Act, HopLoad, Operation, Simulation, World, expected_load};

use super::{
    Stage, Step,
    report::{Row, Table},
    timeline::{Batches, Timeline},
    train::Figures,
};
use crate::fabric;

/// Work for the search of the hosts' order, and ranks up to which contention of all algorithms is known: as in a job.
const WORK: u64 = 5_000_000;
const MOST_RANKS: usize = 256;

/// Ranks up to which operations that are under way together are simulated together, and each length by itself: an operation of
/// 1,024 ranks alone has up to two million messages.
const MOST_TOGETHER: usize = 128;

/// With more ranks an algorithm is simulated for powers of this, and what lies between two of them is taken from both: time is
/// a latency and bytes at a rate, within each.
const SPACING: usize = 4;

/// The ranks on the fabric, and the schedules that stages have used.
struct Network<'a> {
    fabric: &'a Fabric,
    world: World,
    machine: Machine,
    /// As the launcher has the ranks, and with hosts side by side in the fabric's order.
    topologies: [Topology; 2],
    schedules: HashMap<(Algorithm, bool), Verified>,
    busiest: HashMap<Algorithm, f64>,
    /// What single operations of some bytes came to, with an algorithm and an order of hosts.
    passed: HashMap<(Algorithm, bool, usize), Passed>,
}

/// What communication came to.
#[derive(Clone, Copy)]
struct Passed {
    seconds: f64,
    /// Bytes that hosts have sent, each on average.
    sent: f64,
}

impl Step {
    /// How many ranks there are, and all stages that are wanted; these are printed as they come.
    pub(super) fn simulate(&self, file: &Path, settings: &Settings) -> Result<(usize, Vec<Row>)> {
        let fabric = fabric::read(file)?;
        let hosts = fabric::hosts(&fabric, self.hosts)?;
        if hosts < 2 {
            bail!("--simulate with 1 host, which has nothing to exchange: expected 2 or more");
        }
        let bits = match self.codec {
            Kind::Fp16 | Kind::Bf16 => 16,
            codec => bail!("--codec {codec}: --simulate knows fp16 and bf16"),
        };
        let world = World::new(&fabric, &self.order.of(hosts), 1)?;
        let mut network = Network::new(&fabric, world)?;
        let layers = self.scaled();
        let wanted = self.wanted(true);
        let mut table = Table::new(
            self,
            format!("{hosts} hosts of {} in virtual time", fabric.name()),
        );
        let mut compute = self.compute;
        // The baseline's communication, if it was needed to find the compute.
        let mut first = None;
        let mut rows = Vec::new();
        for &stage in &wanted {
            let has = |other: Stage| other <= stage && wanted.contains(&other);
            let batches = has(Stage::Batching).then(|| Batches::of(settings));
            let width = if has(Stage::Compression) { bits / 8 } else { 4 };
            let choice = match (has(Stage::Hierarchical), has(Stage::Topology)) {
                (false, _) => Chooser::Ring,
                (true, on_fabric) => Chooser::Cost { on_fabric },
            };
            let seconds = match compute {
                Some(seconds) => seconds,
                None => {
                    let timeline = Timeline::new(&layers, Duration::ZERO, None);
                    let passed = network.one_by_one(&timeline, width, choice)?;
                    let alone = first.insert(passed).seconds;
                    *compute.insert(alone * (1.0 - self.share) / self.share)
                }
            };
            let timeline = Timeline::new(&layers, Duration::from_secs_f64(seconds), batches);
            let (step, sent) = if has(Stage::Overlap) {
                let passed = if hosts <= MOST_TOGETHER {
                    network.at_once(&timeline, width, choice)?
                } else {
                    network.in_turn(&timeline, width, choice)?
                };
                (passed.seconds, passed.sent)
            } else {
                let passed = match first.take() {
                    Some(passed) => passed,
                    None => network.one_by_one(&timeline, width, choice)?,
                };
                (passed.seconds + seconds, passed.sent)
            };
            let row = Row {
                stage,
                operations: timeline.operations.len(),
                compute: seconds,
                figures: Figures {
                    step,
                    exposed: step - seconds,
                    processor: None,
                    wire: sent,
                    wrong: 0,
                },
            };
            table.print(&row, 4 * timeline.elements)?;
            rows.push(row);
        }
        Ok((hosts, rows))
    }
}

/// How an operation comes to its algorithm.
#[derive(Clone, Copy)]
enum Chooser {
    /// A ring in the launcher's order.
    Ring,
    /// By the cost model, and with the links that are shared where the fabric is known to the job.
    Cost { on_fabric: bool },
}

impl<'a> Network<'a> {
    fn new(fabric: &'a Fabric, world: World) -> Result<Self> {
        let hosts: Vec<usize> = (0..world.ranks()).map(|r| world.place(r).host).collect();
        let ring = Pattern::ring(hosts.len());
        let order = place_within(&ring, &mut Distances::of(fabric), &hosts, WORK)
            .best
            .order;
        Ok(Self {
            fabric,
            machine: machine(fabric).context("the fabric has no hosts")?,
            topologies: [Topology::new(hosts), world.topology().with_order(order)],
            world,
            schedules: HashMap::new(),
            busiest: HashMap::new(),
            passed: HashMap::new(),
        })
    }

    /// The operations of a step one after the other, each by itself: those of one length take as long as each other.
    fn one_by_one(&mut self, timeline: &Timeline, width: usize, choice: Chooser) -> Result<Passed> {
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        for operation in &timeline.operations {
            *lengths.entry(width * operation.elements.len()).or_default() += 1;
        }
        let mut all = Passed {
            seconds: 0.0,
            sent: 0.0,
        };
        for (bytes, count) in lengths {
            let one = self.alone(bytes, choice)?;
            all.seconds += one.seconds * count as f64;
            all.sent += one.sent * count as f64;
        }
        Ok(all)
    }

    /// An operation by itself.
    fn alone(&mut self, bytes: usize, choice: Chooser) -> Result<Passed> {
        let (algorithm, on_fabric) = self.choice(bytes, choice)?;
        if self.world.ranks() <= MOST_TOGETHER {
            return self.run(algorithm, on_fabric, bytes);
        }
        self.between(algorithm, on_fabric, bytes)
    }

    /// An operation by itself, from two of other sizes.
    fn between(&mut self, algorithm: Algorithm, on_fabric: bool, bytes: usize) -> Result<Passed> {
        let mut least = SPACING;
        while least * SPACING < bytes {
            least *= SPACING;
        }
        let most = least * SPACING;
        let low = self.run(algorithm, on_fabric, least)?;
        let high = self.run(algorithm, on_fabric, most)?;
        let part = (bytes as f64 - least as f64) / (most - least) as f64;
        let between = |low: f64, high: f64| low + part * (high - low);
        Ok(Passed {
            seconds: between(low.seconds, high.seconds),
            sent: between(low.sent, high.sent),
        })
    }

    fn run(&mut self, algorithm: Algorithm, on_fabric: bool, bytes: usize) -> Result<Passed> {
        if let Some(&passed) = self.passed.get(&(algorithm, on_fabric, bytes)) {
            return Ok(passed);
        }
        let schedule = self.known(algorithm, on_fabric)?;
        let outcome = Simulation::new(self.fabric, &self.world).run(&schedule, bytes)?;
        let passed = Passed {
            seconds: outcome.end.at.seconds(),
            sent: self.sent(&outcome.hops),
        };
        self.passed.insert((algorithm, on_fabric, bytes), passed);
        Ok(passed)
    }

    /// As [`Self::at_once`], but operations have the network one after the other, in the order in which they may begin. What is
    /// bound by latency takes longer so than it would side by side.
    fn in_turn(&mut self, timeline: &Timeline, width: usize, choice: Chooser) -> Result<Passed> {
        let mut ends = vec![0.0; timeline.operations.len()];
        let (mut now, mut free, mut sent) = (0.0_f64, 0.0_f64, 0.0);
        for slot in timeline.slots.iter().rev() {
            now += slot.backward.as_secs_f64();
            for &operation in &slot.starts {
                let bytes = width * timeline.operations[operation].elements.len();
                let one = self.alone(bytes, choice)?;
                free = now.max(free) + one.seconds;
                sent += one.sent;
                ends[operation] = free;
            }
        }
        for slot in &timeline.slots {
            let needs = slot.needs.iter().map(|&operation| ends[operation]);
            now = needs.fold(now, f64::max) + slot.forward.as_secs_f64();
        }
        Ok(Passed { seconds: now, sent })
    }

    /// A step from the beginning of backward to the end of the next forward, which waits layer by layer.
    fn at_once(&mut self, timeline: &Timeline, width: usize, choice: Chooser) -> Result<Passed> {
        let bytes = timeline.operations.iter().map(|o| width * o.elements.len());
        let bytes: Vec<usize> = bytes.collect();
        let schedules: Result<Vec<Verified>> =
            bytes.iter().map(|&b| self.schedule(b, choice)).collect();
        let schedules = schedules?;
        let both = schedules.iter().zip(&bytes);
        let operations: Vec<Operation<'_>> = both.map(|(s, &b)| Operation::new(s, b)).collect();
        let mut acts = Vec::new();
        for slot in timeline.slots.iter().rev() {
            acts.push(Act::Compute(slot.backward.into()));
            acts.extend(slot.starts.iter().map(|&o| Act::Start(o)));
        }
        for slot in &timeline.slots {
            acts.extend(slot.needs.iter().map(|&o| Act::Wait(o)));
            acts.push(Act::Compute(slot.forward.into()));
        }
        let elapsed = Simulation::new(self.fabric, &self.world).run_program(&operations, &acts)?;
        Ok(Passed {
            seconds: elapsed.end.seconds(),
            sent: self.sent(&elapsed.hops),
        })
    }

    /// Bytes that hosts have sent, each on average.
    fn sent(&self, hops: &[HopLoad]) -> f64 {
        let from_host = |load: &&HopLoad| {
            let hop = Hop::of_index(load.hop);
            hop.ends(&self.fabric.links()[hop.link]).0.0 < self.fabric.hosts()
        };
        let sum: f64 = hops.iter().filter(from_host).map(|load| load.bytes).sum();
        sum / self.world.ranks() as f64
    }

    fn schedule(&mut self, bytes: usize, choice: Chooser) -> Result<Verified> {
        let (algorithm, on_fabric) = self.choice(bytes, choice)?;
        self.known(algorithm, on_fabric)
    }

    /// The algorithm of an operation, and whether hosts are in the fabric's order.
    fn choice(&mut self, bytes: usize, choice: Chooser) -> Result<(Algorithm, bool)> {
        Ok(match choice {
            Chooser::Ring => (Algorithm::Ring, false),
            Chooser::Cost { on_fabric } => (self.algorithm(bytes, on_fabric)?, on_fabric),
        })
    }

    fn known(&mut self, algorithm: Algorithm, on_fabric: bool) -> Result<Verified> {
        if let Some(schedule) = self.schedules.get(&(algorithm, on_fabric)) {
            return Ok(schedule.clone());
        }
        let topology = &self.topologies[usize::from(on_fabric)];
        let schedule = verify(generate(Collective::AllReduce, algorithm, topology)?)?;
        self.schedules
            .insert((algorithm, on_fabric), schedule.clone());
        Ok(schedule)
    }

    /// The quickest by the cost model; on the fabric, with what links that several share take longer.
    fn algorithm(&mut self, bytes: usize, on_fabric: bool) -> Result<Algorithm> {
        let topology = &self.topologies[usize::from(on_fabric)];
        let choice = choose(Collective::AllReduce, bytes, topology, &self.machine);
        if !on_fabric || self.world.ranks() > MOST_RANKS {
            return Ok(choice.algorithm);
        }
        let mut quickest = None;
        for (algorithm, cost) in choice.candidates {
            let busiest = match self.busiest.get(&algorithm) {
                Some(&busiest) => busiest,
                None => {
                    let schedule = self.known(algorithm, true)?;
                    let load = expected_load(self.fabric, &self.world, &schedule)?;
                    let busiest = load.into_iter().fold(0.0, f64::max);
                    *self.busiest.entry(algorithm).or_insert(busiest)
                }
            };
            let time = cost.total + cost.contention(busiest * bytes as f64);
            quickest = quickest.into_iter().chain([(time, algorithm)]).min();
        }
        Ok(quickest.map_or(choice.algorithm, |(_, algorithm)| algorithm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_sizes_is_nearly_as_if_it_were_simulated() {
        let text = "
fabric: leaf-spine
hosts:
  - {name: host, count: 16}
switches:
  - {name: leaf, count: 4, tier: leaf}
  - {name: spine, count: 2, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 4}, rate: 100Gbit/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 100Gbit/s, latency: 1us}
";
        let fabric = Fabric::parse(text).unwrap();
        let order: Vec<usize> = (0..16).map(|rank| rank * 7 % 16).collect();
        let world = World::new(&fabric, &order, 1).unwrap();
        let mut network = Network::new(&fabric, world).unwrap();
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
            for on_fabric in [false, true] {
                for bytes in [100, 5_000, 300_000, 20_000_000] {
                    let exact = network.run(algorithm, on_fabric, bytes).unwrap().seconds;
                    let between = network.between(algorithm, on_fabric, bytes).unwrap();
                    let off = between.seconds / exact;
                    assert!((0.95..1.05).contains(&off), "{algorithm} {bytes}: {off}");
                }
            }
        }
    }
}
