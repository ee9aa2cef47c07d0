//! Links of a running job, measured anew.

use std::{sync::Arc, time::Duration};

use ringway_fabric::{Distances, Matrix, Pattern, place_within};

use super::{MOST_COMPARED, Numbers, Origin, measure, pairs, share, trial};
use crate::{
    Communicator, Error,
    engine::{Kind, Policy, lock},
};
use ringway_plan::{Algorithm, Collective};

/// Another order must load its slowest pair, and operations by another plan take, less than so much of what the one before
/// does: what probes differ by is no reason to change.
const WORTH: f64 = 0.85;

/// Work for the search of the hosts' order: a tenth of a second.
const WORK: u64 = 5_000_000;

/// A better plan.
pub(crate) struct Found {
    pub(crate) policy: Arc<Policy>,
    /// How hosts stood side by side, and do by the policy.
    pub(crate) orders: [Vec<usize>; 2],
    /// The slowest neighbours in each: from, to, bytes per second.
    pub(crate) slowest: [Option<(usize, usize, u64)>; 2],
    /// What an all-reduce of as many bytes took by the plan before, after links had changed, and takes by this one.
    pub(crate) took: [Duration; 2],
}

/// Measures links as at a job's start, and between pairs of hosts; finds the order of hosts by which the slowest pair is the
/// quickest; and tries all-reduces as long as operations of `kind` by it. A plan for all ranks, if these gain by it. `comm` is a group of
/// all ranks, on which nothing has run, by the policy that counts now.
///
/// # Errors
/// A rank failed meanwhile.
pub(crate) fn again(comm: &Communicator, kind: Kind) -> Result<Option<Found>, Error> {
    let engine = comm.engine();
    let policy = lock(&comm.group.plans).policy();
    // What the program or a setting says stays as it is.
    let chosen = comm.algorithm(kind.collective, kind.bytes) == kind.algorithm
        && policy
            .overrides
            .algorithm(kind.collective, kind.bytes)
            .is_none();
    let rates = pairs::rates(comm)?;
    let took = trial::timed(comm, &[kind.algorithm], kind.bytes, trial::Effort::BRIEF)?[0];
    let before = order(comm, &policy);
    let wanted = match (comm.rank(), &rates) {
        (0, Some(rates)) => better(rates, &before),
        _ => before.clone(),
    };
    let mut words: Vec<u64> = wanted.iter().map(|&host| host as u64).collect();
    share(comm, &mut words)?;
    let now: Vec<usize> = words.iter().map(|&host| host as usize).collect();
    let mut next = Policy {
        tuning: None,
        tried: Vec::new(),
        order: match now == before {
            true => policy.order.clone(),
            false => Some(now.clone().into()),
        },
        origin: Origin::Changed,
        plan: policy.plan.wrapping_add(1),
        ..(*policy).clone()
    };
    engine.adopt_in(Arc::new(next.clone()), &comm.group);
    let mut words = measure(comm)?.words();
    share(comm, &mut words)?;
    let numbers = Numbers::from_words(words);
    next.machine = numbers.machine(&policy.machine, engine.slice_bytes);
    next.tuning = Some(numbers.tuning);
    engine.adopt_in(Arc::new(next.clone()), &comm.group);
    let mut times = [None; Algorithm::ALL.len()];
    if chosen && kind.collective == Collective::AllReduce && comm.size() <= MOST_COMPARED {
        let trial = trial::tried(comm, kind.bytes, trial::Effort::BRIEF)?;
        times = trial.times;
        next.tried.push(trial.tried);
        engine.adopt_in(Arc::new(next.clone()), &comm.group);
    }
    // The one that these operations take: what another does for all-reduces is no gain for an all-to-all.
    let algorithm = match chosen {
        true => comm.algorithm(kind.collective, kind.bytes),
        false => kind.algorithm,
    };
    let takes = match times[algorithm.place()] {
        Some(time) => time,
        None => trial::timed(comm, &[algorithm], kind.bytes, trial::Effort::BRIEF)?[0],
    };
    if takes >= took.mul_f64(WORTH) {
        return Ok(None);
    }
    let slowest = |order: &[usize]| slowest(rates.as_deref()?, order);
    Ok(Some(Found {
        policy: Arc::new(next),
        slowest: [slowest(&before), slowest(&now)],
        orders: [before, now],
        took: [took, takes],
    }))
}

/// Hosts side by side, numbered by their lowest rank.
fn order(comm: &Communicator, policy: &Policy) -> Vec<usize> {
    let hosts = comm.engine().world.hosts();
    match (&policy.order, &policy.site) {
        (Some(order), _) => order.to_vec(),
        (None, Some(site)) => {
            let place = |host: &Vec<usize>| {
                let on = site.host(host[0]);
                site.order().iter().position(|&other| other == on)
            };
            let mut order: Vec<usize> = (0..hosts.len()).collect();
            order.sort_by_key(|&host| place(&hosts[host]));
            order
        }
        (None, None) => (0..hosts.len()).collect(),
    }
}

/// The order of hosts whose slowest neighbours are the quickest; the one before unless the gain is worth it.
fn better(rates: &[Vec<u64>], before: &[usize]) -> Vec<usize> {
    let rates = rates
        .iter()
        .map(|row| row.iter().map(|&r| r as f64).collect());
    let Ok(matrix) = Matrix::new(rates.collect(), None) else {
        return before.to_vec();
    };
    let ring = Pattern::ring(before.len());
    let placement = place_within(&ring, &mut Distances::measured(&matrix), before, WORK);
    let [given, best] = [&placement.given, &placement.best].map(|p| p.load.seconds_per_byte);
    match best < given * WORTH {
        true => placement.best.order,
        false => before.to_vec(),
    }
}

/// The pair of a ring's neighbours with the lowest rate.
fn slowest(rates: &[Vec<u64>], order: &[usize]) -> Option<(usize, usize, u64)> {
    let next = order.iter().cycle().skip(1);
    order
        .iter()
        .zip(next)
        .map(|(&from, &to)| (from, to, rates[from][to]))
        .min_by_key(|pair| pair.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_pair_is_kept_apart_if_that_is_worth_it() {
        let mut rates = vec![vec![100_u64; 5]; 5];
        let order = [0, 1, 2, 3, 4];
        assert_eq!(better(&rates, &order), order);
        rates[1][2] = 50;
        assert_eq!(slowest(&rates, &order), Some((1, 2, 50)));
        let found = better(&rates, &order);
        assert_eq!(slowest(&rates, &found).unwrap().2, 100, "{found:?}");
        rates[1][2] = 90;
        assert_eq!(better(&rates, &order), order);
        // A host whose every pair is slow is slow in any order.
        (0..5).for_each(|other| (rates[3][other], rates[other][3]) = (50, 50));
        assert_eq!(better(&rates, &order), order);
    }
}
