//! `ringway explain` as a rank of a job: by what its links do.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway::{
    Algorithm, Builder, Collective, Communicator, DataType, Link, ReduceOp, bootstrap::Launch,
    settings::Settings,
};

use super::{Candidate, Explain, why};
use crate::{
    bench::{Measure, Placement},
    output,
};

/// What is predicted to take longer than the choice by more than this is not run.
const RUN: u32 = 4;

impl Explain {
    pub(super) fn in_job(&self, collective: Collective) -> Result<()> {
        let launch = Launch::detect().context(
            "joining a job (name a fabric with --fabric, or start this as ranks, such as by `ringway run -n 2 -- ringway explain ...`)",
        )?;
        let settings = Settings::load()?;
        tracing_subscriber::fmt()
            .with_max_level(settings.values().log)
            .with_writer(std::io::stderr)
            .init();
        let by_setting = format!("setting algorithm ({})", settings.source("algorithm"));
        let comm = Builder::default()
            .settings(settings)
            .launch(launch)
            .connect()?;
        let bytes = vector(collective, self.size, comm.size());
        if self.iters > 0 {
            // Measuring the job's own choice has algorithms tried.
            self.measure(&comm, collective, bytes, None, 1)?;
        }
        let mut candidates: Vec<Candidate> = comm
            .candidates(collective, bytes)
            .into_iter()
            .map(|c| Candidate {
                algorithm: c.algorithm,
                wire: c.wire,
                cost: c.cost,
                contention: c.contention,
                thousandths: c.thousandths,
                busiest: String::new(),
                simulated: None,
                measured: None,
            })
            .collect();
        let chosen = comm.algorithm(collective, bytes);
        let most = candidates
            .first()
            .map_or(Duration::MAX, |c| c.total() * RUN);
        let mut again = None;
        if self.iters > 0 {
            let algorithms: Vec<Algorithm> = candidates
                .iter()
                .filter(|c| c.total() <= most || c.algorithm == chosen)
                .map(|c| c.algorithm)
                // Once more: what the same differs by from itself.
                .chain([chosen])
                .collect();
            let mut medians = self.in_turns(&comm, collective, bytes, &algorithms)?;
            again = medians.pop();
            for (algorithm, median) in algorithms.iter().zip(medians) {
                let candidate = candidates.iter_mut().find(|c| c.algorithm == *algorithm);
                if let Some(candidate) = candidate {
                    candidate.measured = Some(median);
                }
            }
        }
        comm.barrier()?;
        if comm.rank() > 0 {
            return Ok(());
        }
        let hosts = comm.hosts();
        let why = match candidates.first() {
            Some(first) if first.algorithm == chosen => why(&candidates),
            _ if comm.path() == "shm" => Some(format!(
                "{chosen} is the choice: ranks that share memory reach it all at the same cost, without messages"
            )),
            _ => Some(format!("{chosen} is the choice: {by_setting}")),
        };
        if self.json {
            let mut json = self.as_json(collective, hosts, &candidates);
            json["bytes"] = bytes.into();
            json["choice"] = chosen.name().into();
            json["why"] = why.into();
            json["links"] = links(&comm);
            json["replans"] = replans(&comm).into();
            json["choice_again_seconds"] = again.map(|time| time.as_secs_f64()).into();
            return output::print_json(&json);
        }
        let mut text = format!(
            "{collective} of {bytes} bytes in this job: {} ranks on {hosts} hosts, over {}\n{}",
            comm.size(),
            comm.path(),
            machine(&comm)
        );
        for replan in replans(&comm) {
            text += &format!("  {replan}\n");
        }
        text += &self.as_text(hosts, &candidates, why);
        if let Some(line) = accuracy(&candidates, chosen, again) {
            text += &line;
        }
        output::print(&text)
    }

    /// Medians of the algorithms' times. They take turns, for what comes and goes to hit all alike.
    fn in_turns(
        &self,
        comm: &Communicator,
        collective: Collective,
        bytes: usize,
        algorithms: &[Algorithm],
    ) -> Result<Vec<Duration>> {
        let mut times = vec![Vec::new(); algorithms.len()];
        for _ in 0..self.iters {
            for (times, &algorithm) in times.iter_mut().zip(algorithms) {
                times.push(self.measure(comm, collective, bytes, Some(algorithm), 1)?);
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort_unstable();
            times[(times.len() - 1) / 2]
        };
        Ok(times.into_iter().map(median).collect())
    }

    fn measure(
        &self,
        comm: &Communicator,
        collective: Collective,
        bytes: usize,
        algorithm: Option<Algorithm>,
        iterations: u32,
    ) -> Result<Duration> {
        let measure = Measure {
            comm,
            collective,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            placement: Placement::Arena,
            algorithm,
            iterations,
            seconds: None,
            warmup: 1,
            check: false,
        };
        let median = measure.size(bytes)?.percentile(0.5);
        Ok(Duration::from_secs_f64(median / 1e6))
    }
}

/// Whole elements, and as many for each rank's part.
fn vector(collective: Collective, bytes: usize, ranks: usize) -> usize {
    let unit = match collective.has_parts() {
        true => size_of::<f32>() * ranks,
        false => size_of::<f32>(),
    };
    match collective {
        Collective::Barrier => 0,
        _ => (bytes / unit).max(1) * unit,
    }
}

/// By what the model predicts.
fn machine(comm: &Communicator) -> String {
    let machine = comm.machine();
    let link = |name: &str, link: Link| {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        format!(
            "  {name:13} latency {:.1} us, overhead {:.1} us, {:.3} GB/s, {:.1} % slower for each further sender\n",
            micros(link.latency()),
            micros(link.overhead()),
            link.rate() / 1e9,
            link.unsteady() as f64 / 10.0
        )
    };
    format!(
        "links and processors, {}:\n{}{}  {:13} {:.1} GB/s\n",
        comm.origin(),
        link("between hosts", machine.inter()),
        link("within a host", machine.intra()),
        "reductions",
        machine.reduce_rate() / 1e9
    )
}

fn links(comm: &Communicator) -> serde_json::Value {
    let machine = comm.machine();
    let link = |link: Link| {
        serde_json::json!({
            "latency_seconds": link.latency().as_secs_f64(),
            "overhead_seconds": link.overhead().as_secs_f64(),
            "bytes_per_second": link.rate(),
            "unsteady": link.unsteady() as f64 / 1e3,
        })
    };
    serde_json::json!({
        "origin": comm.origin().to_string(),
        "between": link(machine.inter()),
        "within": link(machine.intra()),
        "reduced_bytes_per_second": machine.reduce_rate(),
    })
}

/// What has changed since the job began.
fn replans(comm: &Communicator) -> Vec<String> {
    comm.replans().iter().map(ToString::to_string).collect()
}

/// How far predictions were off, and what the choice cost; `again` is what it took when measured once more in the same turns.
fn accuracy(
    candidates: &[Candidate],
    chosen: Algorithm,
    again: Option<Duration>,
) -> Option<String> {
    let mut off: Vec<f64> = candidates
        .iter()
        .filter_map(|c| Some((c.off()? - 1.0).abs() * 100.0))
        .collect();
    off.sort_by(f64::total_cmp);
    let (median, most) = (*off.get(off.len() / 2)?, *off.last()?);
    let best = candidates
        .iter()
        .filter_map(|c| Some((c.measured?, c.algorithm)));
    let (best, quickest) = best.min()?;
    let choice = candidates.iter().find(|c| c.algorithm == chosen)?;
    let times =
        |time: Duration, other: Duration| time.as_secs_f64() / other.as_secs_f64().max(1e-12);
    let took = choice.measured?;
    let (ratio, itself) = (times(took, best), times(again?, took));
    Some(format!(
        "predictions were off by {median:.0} % in the median, {most:.0} % at most; the choice took {ratio:.2} times as long as the quickest, \
         {quickest}, and {itself:.2} times as long as itself, measured twice\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_whole_elements_for_each_rank() {
        assert_eq!(vector(Collective::AllReduce, 25_000_001, 3), 25_000_000);
        assert_eq!(vector(Collective::AllGather, 100, 3), 96);
        assert_eq!(vector(Collective::AllGather, 4, 3), 12);
        assert_eq!(vector(Collective::Barrier, 4, 3), 0);
    }
}
