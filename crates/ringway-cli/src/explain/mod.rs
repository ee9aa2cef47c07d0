//! `ringway explain`: which algorithm, and why.

mod job;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ringway_fabric::{Fabric, Hop, machine};
use ringway_plan::{Algorithm, Collective, Cost, DataType, Topology, choose, generate, verify};
use ringway_sim::{Operation, Simulation, World, expected_load};

use crate::{
    fabric::{self, Order},
    machine::{half, halved, is_halved},
    output, size,
    table::{Side, table},
};

/// Explain which algorithm is the quickest for a size, and why: on a fabric, or as a rank of a job.
///
/// For each algorithm: the cost model's time, split in what the slowest rank spends it on; and contention, by how much the
/// busiest link between hosts takes longer than the model's wire time, if switches spread flows evenly. The choice has the
/// smallest sum. With --simulate, `ringway sim` runs each of them too. Without --fabric it joins the job that a launcher started it in, as
/// all ranks: predictions then go by what links were measured to do when the job started, and stand beside what the
/// algorithms take.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway explain all-reduce 25MB --fabric fabric.yaml\n  ringway explain all-reduce 25MB --fabric fabric.yaml --order random:1 --simulate\n  ringway explain all-gather 1M --fabric fabric.yaml --hosts 16 --json\n  ringway lab run fabric.yaml -- ringway explain all-reduce 25MB"
)]
pub(crate) struct Explain {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all or barrier.
    collective: String,
    /// Bytes of the vector.
    #[arg(value_parser = size::positive)]
    size: usize,
    /// The fabric file, see `ringway fabric new`.
    #[arg(long)]
    fabric: Option<PathBuf>,
    /// How many hosts take part, from the first of the file's; all unless said.
    #[arg(long, requires = "fabric")]
    hosts: Option<usize>,
    /// Ranks of each host; the GPUs of the first host unless said.
    #[arg(long, value_parser = size::count, requires = "fabric")]
    ranks_per_host: Option<usize>,
    /// The hosts of ranks: `file`, or `random:SEED` as launchers may have it.
    #[arg(long, default_value = "file", value_parser = fabric::order, requires = "fabric")]
    order: Order,
    /// Run every algorithm in virtual time too.
    #[arg(long, requires = "fabric")]
    simulate: bool,
    /// Elements of f32 go from host to host as f16 or bf16 in hierarchical all-reduces; in a job, that is the setting of this name.
    #[arg(long, value_parser = half, requires = "fabric")]
    wire_between_hosts: Option<DataType>,
    /// In a job: how often to run each algorithm that is predicted to take 4 times as long as the choice at most. They take turns.
    #[arg(long, default_value_t = 3, conflicts_with = "fabric")]
    iters: u32,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// An algorithm's prediction.
struct Candidate {
    algorithm: Algorithm,
    /// As what elements go from host to host, if not as they are.
    wire: Option<DataType>,
    cost: Cost,
    contention: Duration,
    /// What was measured of the algorithm at the job's start, in thousandths of the sum.
    thousandths: u64,
    /// The busiest link between hosts.
    busiest: String,
    simulated: Option<Duration>,
    /// The median.
    measured: Option<Duration>,
}

impl Candidate {
    fn total(&self) -> Duration {
        (self.cost.total + self.contention).mul_f64(self.thousandths as f64 / 1e3)
    }

    /// What was measured, by the prediction.
    fn off(&self) -> Option<f64> {
        Some(self.measured?.as_secs_f64() / self.total().as_secs_f64().max(1e-12))
    }
}

impl Explain {
    pub(crate) fn execute(self) -> Result<()> {
        let collective = Collective::parse(&self.collective, 0)?;
        let Some(path) = &self.fabric else {
            return self.in_job(collective);
        };
        let fabric = fabric::read(path)?;
        let world = fabric::world(&fabric, self.hosts, self.ranks_per_host, self.order)?;
        let (ranks, hosts) = (world.ranks(), world.topology().hosts().len());
        let mut candidates = self.candidates(&fabric, &world, collective)?;
        candidates.sort_by_key(|c| (c.total(), c.algorithm));
        let heading = format!(
            "{collective} of {} bytes on {}: {ranks} ranks on {hosts} hosts\n",
            self.size,
            fabric.name(),
        );
        match self.json {
            true => {
                let mut json = self.as_json(collective, hosts, &candidates);
                json["fabric"] = fabric.name().into();
                output::print_json(&json)
            }
            false => {
                output::print(&(heading + &self.as_text(hosts, &candidates, why(&candidates))))
            }
        }
    }

    fn candidates(
        &self,
        fabric: &Fabric,
        world: &World,
        collective: Collective,
    ) -> Result<Vec<Candidate>> {
        let topology: Topology = world.topology();
        let machine = machine(fabric).context("the fabric has no hosts")?;
        let choice = choose(collective, self.size, &topology, &machine);
        let mut candidates = Vec::new();
        for (algorithm, cost) in choice.candidates {
            let is_meant = is_halved(collective, algorithm, &topology);
            let wire = self.wire_between_hosts.filter(|_| is_meant);
            let cost = wire
                .and_then(|_| halved(collective, algorithm, self.size, &topology, &machine))
                .unwrap_or(cost);
            let crossing = wire.map_or(self.size, |wire| {
                self.size / DataType::F32.size() * wire.size()
            });
            let schedule = generate(collective, algorithm, &topology)?;
            let load = expected_load(fabric, world, &schedule)?;
            let most = load
                .iter()
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            let (link, seconds) = most.map_or((0, 0.0), |(link, s)| (link, s * crossing as f64));
            let busiest = match seconds > 0.0 {
                true => Hop::of_index(link).name(fabric),
                false => String::new(),
            };
            let simulated = match self.simulate {
                false => None,
                true => {
                    eprintln!("ringway: {collective} by {algorithm} in virtual time ...");
                    let schedule = verify(schedule)?;
                    let mut operation = Operation::new(&schedule, self.size);
                    if wire.is_some() {
                        operation = operation.with_half_between_hosts();
                    }
                    let outcome = Simulation::new(fabric, world).run_one(operation)?;
                    Some(outcome.end.at.into())
                }
            };
            candidates.push(Candidate {
                algorithm,
                wire,
                cost,
                contention: cost.contention(seconds),
                thousandths: 1000,
                busiest,
                simulated,
                measured: None,
            });
        }
        Ok(candidates)
    }

    fn as_text(&self, hosts: usize, candidates: &[Candidate], why: Option<String>) -> String {
        let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        let in_job = self.fabric.is_none();
        let rows: Vec<Vec<String>> = candidates
            .iter()
            .map(|c| {
                let mut row = vec![match c.wire {
                    Some(wire) => format!("{}, {wire} between hosts", c.algorithm),
                    None => c.algorithm.to_string(),
                }];
                let parts = [c.cost.latency, c.cost.wire, c.contention, c.cost.reduction];
                row.push(micros(c.total()));
                row.extend(parts.map(micros));
                if in_job {
                    row.push(format!("{:.2}", c.thousandths as f64 / 1e3));
                }
                row.push(c.simulated.or(c.measured).map_or_else(String::new, micros));
                row.push(match in_job {
                    true => c.off().map_or_else(String::new, |off| format!("{off:.2}")),
                    false => c.busiest.clone(),
                });
                row
            })
            .collect();
        let (times, last) = match in_job {
            true => ("measured us", ("measured/predicted", Side::Right)),
            false if self.simulate => ("simulated us", ("busiest link", Side::Left)),
            false => ("", ("busiest link", Side::Left)),
        };
        let columns = [
            ("algorithm", Side::Left),
            ("predicted us", Side::Right),
            ("latency", Side::Right),
            ("wire", Side::Right),
            ("contention", Side::Right),
            ("reduction", Side::Right),
            ("tuned", Side::Right),
            (times, Side::Right),
            last,
        ];
        let columns: Vec<_> = columns
            .into_iter()
            .filter(|c| in_job || c.0 != "tuned")
            .collect();
        let mut text = format!("\n{}", table(&columns, &rows));
        if let Some(why) = why {
            text += &format!("\n{why}\n");
        }
        let (rule, range) = rule_of_thumb(hosts);
        text += &format!("rule of thumb for {range}: {rule}");
        let by_rule = candidates.iter().find(|c| c.algorithm == rule);
        if let (Some(rule), Some(first)) = (by_rule, candidates.first()) {
            let ratio = rule.total().as_secs_f64() / first.total().as_secs_f64().max(1e-12);
            text += &format!(", predicted {ratio:.2} times the choice");
        }
        text.push('\n');
        text
    }

    fn as_json(
        &self,
        collective: Collective,
        hosts: usize,
        candidates: &[Candidate],
    ) -> serde_json::Value {
        let rows: Vec<_> = candidates
            .iter()
            .map(|c| {
                serde_json::json!({
                    "algorithm": c.algorithm.name(),
                    "wire_between_hosts": c.wire.map(DataType::name),
                    "predicted_seconds": c.total().as_secs_f64(),
                    "latency_seconds": c.cost.latency.as_secs_f64(),
                    "wire_seconds": c.cost.wire.as_secs_f64(),
                    "contention_seconds": c.contention.as_secs_f64(),
                    "reduction_seconds": c.cost.reduction.as_secs_f64(),
                    "simulated_seconds": c.simulated.map(|s| s.as_secs_f64()),
                    "tuned": c.thousandths as f64 / 1e3,
                    "measured_seconds": c.measured.map(|s| s.as_secs_f64()),
                    "busiest_link": c.busiest,
                })
            })
            .collect();
        serde_json::json!({
            "collective": collective.name(),
            "bytes": self.size,
            "choice": candidates.first().map(|c| c.algorithm.name()),
            "why": why(candidates),
            "rule_of_thumb": rule_of_thumb(hosts).0.name(),
            "candidates": rows,
        })
    }
}

/// The choice against the next: what it saves most on.
fn why(candidates: &[Candidate]) -> Option<String> {
    let [first, second, ..] = candidates else {
        return candidates
            .first()
            .map(|c| format!("{}: there is no other", c.algorithm));
    };
    let parts = |c: &Candidate| {
        [
            ("latency", c.cost.latency),
            ("wire time", c.cost.wire),
            ("contention", c.contention),
            ("reduction", c.cost.reduction),
        ]
    };
    let both = parts(first).into_iter().zip(parts(second));
    let saved = both.map(|((what, mine), (_, others))| {
        let seconds = others.as_secs_f64() - mine.as_secs_f64();
        (seconds, what)
    });
    let most = saved.max_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, what) = most?;
    if first.total() == second.total() {
        let (first, second) = (first.algorithm, second.algorithm);
        return Some(format!(
            "{first} is the choice: {second} would take as long"
        ));
    }
    let ratio = second.total().as_secs_f64() / first.total().as_secs_f64().max(1e-12);
    if seconds <= 0.0 && first.thousandths != second.thousandths {
        return Some(format!(
            "{} is the choice: {} would take {ratio:.2} times as long, by what was measured of both at the job's start",
            first.algorithm, second.algorithm,
        ));
    }
    Some(format!(
        "{} is the choice: {} would take {ratio:.2} times as long, most for {what} ({:.1} us more)",
        first.algorithm,
        second.algorithm,
        seconds * 1e6
    ))
}

/// What is often told: an algorithm for each size of cluster, whatever the vector and the network.
const fn rule_of_thumb(hosts: usize) -> (Algorithm, &'static str) {
    match hosts {
        0..16 => (Algorithm::Ring, "less than 16 nodes"),
        16..=64 => (Algorithm::Hierarchical, "16 to 64 nodes"),
        _ => (Algorithm::Torus, "more than 64 nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_thumb_changes_at_16_and_64() {
        let rule = |hosts| rule_of_thumb(hosts).0;
        assert_eq!(
            [rule(15), rule(16)],
            [Algorithm::Ring, Algorithm::Hierarchical]
        );
        assert_eq!(
            [rule(64), rule(65)],
            [Algorithm::Hierarchical, Algorithm::Torus]
        );
    }
}
