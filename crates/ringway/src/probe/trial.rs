//! All-reduces as long as the program's, by those algorithms that may be the quickest: the model says which these are, and time
//! which it is.

use std::time::{Duration, Instant};

use ringway_plan::{Algorithm, Collective, ReduceOp};

use crate::{
    Communicator, Element, Error, Request,
    buffer::{exclusive, shared},
    engine::Tried,
};

/// What is predicted to take more than so many thousandths of the quickest's time is not tried.
const LIKELY: u128 = 1300;

/// Algorithms that are tried, at most.
const MOST: usize = 6;

/// All of it takes about so long, or as long as each of them twice.
const BUDGET: Duration = Duration::from_millis(1500);

/// Turns, beside the first, which does not count.
const TURNS: std::ops::RangeInclusive<u128> = 2..=9;

/// The longest vector, which stands for all that are longer: 4 MiB.
const LONGEST: usize = 4 << 20;

/// What algorithms take by predictions for all-reduces of `bytes`, the same on all ranks of `comm`, which all call this and on which
/// nothing else runs. It is tried until the quickest of all, by what is known then, was tried.
pub(crate) fn tried(comm: &Communicator, bytes: usize) -> Result<Tried, Error> {
    let mut tried = Tried::new(bytes);
    let mut left = MOST;
    while left > 0 {
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
        let likely: Vec<(u128, Algorithm)> = known
            .iter()
            .filter(|k| k.0 * 1000 <= least * LIKELY && tried.of(k.2).is_none())
            .map(|k| (k.1, k.2))
            .take(left)
            .collect();
        // Nothing to choose from, or nothing left to try.
        if likely.is_empty() || (left == MOST && likely.len() == 1) {
            break;
        }
        left -= likely.len();
        let algorithms: Vec<Algorithm> = likely.iter().map(|l| l.1).collect();
        for ((plain, algorithm), took) in likely.iter().zip(timed(comm, &algorithms, bytes)?) {
            let thousandths = took.as_nanos() * 1000 / (*plain).max(1);
            tried.set(*algorithm, thousandths.clamp(10, 100_000) as u64);
        }
    }
    Ok(tried)
}

/// The time of an all-reduce by each algorithm, in turns: medians of the slowest rank's, the same on all ranks.
pub(super) fn timed(
    comm: &Communicator,
    algorithms: &[Algorithm],
    bytes: usize,
) -> Result<Vec<Duration>, Error> {
    // Of a single short element too there is something to send.
    let elements = (bytes.min(LONGEST) / size_of::<f32>()).max(1);
    let input = vec![0.0_f32; elements];
    let mut output = vec![0.0_f32; elements];
    let mut turn = || -> Result<Vec<u64>, Error> {
        let mut times = Vec::with_capacity(algorithms.len());
        for &algorithm in algorithms {
            let (from, to) = (shared(&input), exclusive(&mut output));
            let request = Request::new(Collective::AllReduce, f32::DTYPE, from, to);
            comm.barrier()?;
            let began = Instant::now();
            comm.run(request.reduce_op(ReduceOp::Sum).algorithm(algorithm))?;
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
    let first: u64 = turn()?.iter().sum();
    let turns = (BUDGET.as_nanos() / u128::from(first).max(1)).clamp(*TURNS.start(), *TURNS.end());
    let all = (0..turns).map(|_| turn()).collect::<Result<Vec<_>, _>>()?;
    let median = |at: usize| {
        let mut times: Vec<u64> = all.iter().map(|times| times[at]).collect();
        times.sort_unstable();
        Duration::from_nanos(times[(times.len() - 1) / 2])
    };
    Ok((0..algorithms.len()).map(median).collect())
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
                tried(&comm, 64 << 10).unwrap(),
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
        assert!(
            tried.of(quickest.algorithm).is_some() || count == MOST,
            "{tried:?}"
        );
        assert!((2..=MOST).contains(&count), "{tried:?}");
    }
}
