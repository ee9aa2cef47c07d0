//! All-reduces as long as the program's, by those algorithms that may be the quickest: the model says which these are, and time
//! which it is.

use std::time::{Duration, Instant};

use ringway_plan::{Algorithm, Collective, ReduceOp};

use crate::{
    Communicator, Element, Error, Request,
    buffer::{exclusive, shared},
    engine::Tried,
};

/// What a trial may cost.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// What is predicted to take more than so many thousandths of the quickest's time is not tried.
    likely: u128,
    /// Trials take about so long, or as long as three turns.
    time: Duration,
}

impl Effort {
    /// Once for a length: probes at start time a long vector once, and were seen to be off by 1.8.
    pub(crate) const WIDE: Self = Self {
        likely: 2000,
        time: Duration::from_millis(1500),
    };

    /// While a job waits for links to be looked at.
    pub(crate) const BRIEF: Self = Self {
        likely: 1300,
        time: Duration::from_millis(600),
    };
}

/// Whatever has not once in two turns been within so many thousandths of the least time of all drops out.
const BEHIND: u64 = 1250;

/// Turns, beside the first, which does not count.
const TURNS: std::ops::RangeInclusive<usize> = 2..=25;

/// The longest vector, which stands for all that are longer: 4 MiB.
const LONGEST: usize = 4 << 20;

/// What came of a trial.
pub(crate) struct Trial {
    pub(crate) tried: Tried,
    /// By the place in [`Algorithm::ALL`].
    pub(super) times: [Option<Duration>; Algorithm::ALL.len()],
}

/// What algorithms take by predictions for all-reduces of `bytes`, the same on all ranks of `comm`, which all call this and on which
/// nothing else runs. It is tried until the quickest of all, by what is known then, was tried.
pub(crate) fn tried(comm: &Communicator, bytes: usize, effort: Effort) -> Result<Trial, Error> {
    let mut tried = Tried::new(bytes);
    let mut times = [None; Algorithm::ALL.len()];
    let mut is_first = true;
    loop {
        // Of each its prediction, and what of that it takes as far as is known.
        let mut known: Vec<(u128, u128, Algorithm)> = comm
            .candidates(Collective::AllReduce, bytes.min(LONGEST))
            .into_iter()
            .map(|candidate| {
                let plain = (candidate.cost.total + candidate.contention).as_nanos();
                let factor = tried
                    .of(candidate.algorithm)
                    .unwrap_or(candidate.thousandths);
                (
                    plain * u128::from(factor) / 1000,
                    plain,
                    candidate.algorithm,
                )
            })
            .collect();
        known.sort_unstable();
        let least = known.first().map_or(0, |first| first.0);
        // At first all that may be, also if probes, which had a bad moment, deny it; then what should be quicker than what the
        // tried have turned out to be.
        let may_be = |&(known, plain, _): &(u128, u128, Algorithm)| match is_first {
            true => known * 1000 <= least * effort.likely || plain <= least,
            false => known <= least,
        };
        let likely: Vec<(u128, Algorithm)> = known
            .iter()
            .filter(|k| may_be(k) && tried.of(k.2).is_none())
            .map(|k| (k.1, k.2))
            .collect();
        // Nothing to choose from, or nothing left to try.
        if likely.is_empty() || (is_first && likely.len() == 1) {
            return Ok(Trial { tried, times });
        }
        is_first = false;
        let algorithms: Vec<Algorithm> = likely.iter().map(|l| l.1).collect();
        let found = timed(comm, &algorithms, bytes, effort)?;
        for ((plain, algorithm), took) in likely.iter().zip(found) {
            let thousandths = took.as_nanos() * 1000 / (*plain).max(1);
            tried.set(*algorithm, thousandths.clamp(10, 100_000) as u64);
            times[algorithm.place()] = Some(took);
        }
    }
}

/// The time of an all-reduce by each algorithm, in turns, from which those that are behind drop out: medians of the slowest rank's, the
/// same on all ranks. (Lower quartiles prefer what is quick when shapers' buckets happen to be full.)
pub(super) fn timed(
    comm: &Communicator,
    algorithms: &[Algorithm],
    bytes: usize,
    effort: Effort,
) -> Result<Vec<Duration>, Error> {
    // Of a single short element too there is something to send.
    let elements = (bytes.min(LONGEST) / size_of::<f32>()).max(1);
    let input = vec![0.0_f32; elements];
    let mut output = vec![0.0_f32; elements];
    let mut turn = |racing: &[usize]| -> Result<Vec<u64>, Error> {
        let mut times = Vec::with_capacity(racing.len());
        for &at in racing {
            let (from, to) = (shared(&input), exclusive(&mut output));
            let request = Request::new(Collective::AllReduce, f32::DTYPE, from, to);
            let request = request.algorithm(algorithms[at]);
            comm.barrier()?;
            let began = Instant::now();
            comm.run(request.reduce_op(ReduceOp::Sum))?;
            times.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        let memory = exclusive(&mut times);
        let request = Request::new(Collective::AllReduce, u64::DTYPE, memory, memory);
        comm.run(
            request
                .reduce_op(ReduceOp::Max)
                .algorithm(Algorithm::RecursiveDoubling),
        )?;
        Ok(times)
    };
    let mut racing: Vec<usize> = (0..algorithms.len()).collect();
    let cold = turn(&racing)?;
    let mut spent: u64 = cold.iter().sum();
    let mut least = cold;
    let mut all = vec![Vec::new(); algorithms.len()];
    for turns in 0..*TURNS.end() {
        let is_decided = racing.len() == 1 && algorithms.len() > 1;
        let is_enough = is_decided || u128::from(spent) >= effort.time.as_nanos();
        if turns >= *TURNS.start() && is_enough {
            break;
        }
        for (&at, time) in racing.iter().zip(turn(&racing)?) {
            spent = spent.saturating_add(time);
            least[at] = least[at].min(time);
            all[at].push(time);
        }
        racing = ahead(&least, &racing);
    }
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        Duration::from_nanos(times[(times.len() - 1) / 2])
    };
    Ok(all.into_iter().map(median).collect())
}

/// Those of `racing` whose least time is not [`BEHIND`].
fn ahead(least: &[u64], racing: &[usize]) -> Vec<usize> {
    let first = racing.iter().map(|&at| least[at]).min().unwrap_or(0);
    let limit = u128::from(first) * u128::from(BEHIND) / 1000;
    let is_ahead = |at: &usize| u128::from(least[*at]) <= limit;
    racing.iter().copied().filter(is_ahead).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Over, world_on};

    #[test]
    fn all_ranks_find_the_same_and_the_quickest_was_tried() {
        let hosts = ["a", "b", "c", "d"];
        let found = world_on(&hosts, Over::Messages, &[], |comm| {
            (
                tried(&comm, 64 << 10, Effort::BRIEF).unwrap().tried,
                comm.candidates(Collective::AllReduce, 64 << 10),
            )
        });
        assert!(found.iter().all(|(tried, _)| *tried == found[0].0));
        let (tried, candidates) = &found[0];
        let known = |c: &&crate::Candidate| {
            (c.cost.total + c.contention) * tried.of(c.algorithm).unwrap_or(c.thousandths) as u32
        };
        let quickest = candidates.iter().min_by_key(known).unwrap();
        let count = Algorithm::ALL
            .iter()
            .filter(|&&a| tried.of(a).is_some())
            .count();
        assert!(tried.of(quickest.algorithm).is_some(), "{tried:?}");
        assert!(count >= 2, "{tried:?}");
    }

    #[test]
    fn what_is_behind_drops_out() {
        let least = [900, 1100, 1125, 9000];
        assert_eq!(ahead(&least, &[0, 1, 2, 3]), [0, 1, 2]);
        assert_eq!(ahead(&least, &[1, 3]), [1]);
        assert_eq!(ahead(&[0, 0, 1], &[0, 1, 2]), [0, 1]);
    }
}
