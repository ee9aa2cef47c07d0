//! Which host each rank should have.
//!
//! An algorithm's schedule says how many bytes go from which rank to which ([`Pattern`]); the fabric, or a measured
//! matrix, says over which links these go ([`Distances`]). Of two orders of hosts the better one has less on its most
//! loaded link, in seconds; of equals, fewer links to cross. Few hosts are placed by trying all orders, more by local search:
//! exchanges, reversals (2-opt: Croes 1958) and moved runs (Or-opt: Or 1976), from the best of several starts. The work is
//! bounded and counted, not timed, so that all ranks come to the same order.

mod distances;
mod pattern;
mod search;

pub use distances::{BadMatrix, Distances, Matrix};
pub use pattern::Pattern;

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng as _, SeedableRng as _},
};

use search::State;

/// Up to so many hosts, all orders are tried.
const EXACT: usize = 8;

/// Link loads that may be changed in a search: some seconds of one core.
const WORK: u64 = 200_000_000;

/// What an order of hosts makes of the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Seconds that the most loaded link is busy for each byte of the vector.
    pub seconds_per_byte: f64,
    /// Which link that is: [`Hop::index`](crate::Hop::index) on a fabric, `from * hosts + to` in a matrix.
    pub busiest: usize,
    /// Links that a message crosses, on average over the pairs that send; of a matrix, microseconds of latency.
    pub mean_hops: f64,
}

/// How an order was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// All orders were tried.
    Exact,
    /// The order that was given.
    Given,
    /// Each host beside the nearest that was left.
    Nearest,
}

/// An order of hosts and its load.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// `order[i]` is the host that the i-th host of the schedule should be.
    pub order: Vec<usize>,
    /// What it makes of the links.
    pub load: Load,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The order that was given.
    pub given: Placed,
    /// The best that was found; the given one if none is better.
    pub best: Placed,
    /// Where the search began.
    pub start: Start,
    /// Improvements that were made from there.
    pub moves: u64,
    /// Whether no single exchange, reversal or moved run would improve it: false if the work ran out.
    pub settled: bool,
}

/// Looks for the order of hosts by which `pattern` loads the links least, beginning with `order`. Deterministic.
///
/// # Panics
/// If `order` is no permutation of the pattern's hosts, or the distances are of fewer.
pub fn place(pattern: &Pattern, distances: &mut Distances<'_>, order: &[usize]) -> Placement {
    place_within(pattern, distances, order, WORK)
}

/// As [`place`], with so much work for the local search: changes of a link's load, of which a core does some tens of
/// millions a second.
///
/// # Panics
/// As [`place`].
pub fn place_within(
    pattern: &Pattern,
    distances: &mut Distances<'_>,
    order: &[usize],
    work: u64,
) -> Placement {
    assert_eq!(
        order.len(),
        pattern.hosts(),
        "one host for each of the pattern's"
    );
    let mut given = State::new(pattern, distances, order.to_vec());
    let first = given.placed();
    if order.len() <= EXACT {
        let best = search::all(&mut given);
        return Placement {
            given: first,
            best,
            start: Start::Exact,
            moves: 0,
            settled: true,
        };
    }
    let chain = given.distances().chain(order);
    let near = State::new(pattern, given.distances(), chain).placed();
    let (start, begin) = match near.load.better_than(&first.load) {
        true => (Start::Nearest, near.order),
        false => (Start::Given, order.to_vec()),
    };
    let mut state = State::new(pattern, distances, begin);
    let (moves, settled) = search::improve(&mut state, work);
    Placement {
        given: first,
        best: state.placed(),
        start,
        moves,
        settled,
    }
}

/// A random order of so many hosts, the same for the same seed.
pub fn random_order(hosts: usize, seed: u64) -> Vec<usize> {
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..hosts).collect();
    for i in (1..hosts).rev() {
        order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
    order
}

impl Load {
    /// Whether this is less by more than what rounding makes.
    pub(crate) fn better_than(&self, other: &Self) -> bool {
        const ROUNDING: f64 = 1e-9;
        let (mine, others) = (self.seconds_per_byte, other.seconds_per_byte);
        match () {
            () if mine < others * (1.0 - ROUNDING) => true,
            () if mine > others * (1.0 + ROUNDING) => false,
            () => self.mean_hops < other.mean_hops * (1.0 - ROUNDING),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringway_plan::{Algorithm, Collective, Topology, generate};

    use super::*;
    use crate::{Fabric, Shape};

    fn pattern(algorithm: Algorithm, topology: &Topology) -> Pattern {
        let schedule = generate(Collective::AllReduce, algorithm, topology).unwrap();
        Pattern::new(&schedule, topology)
    }

    /// Pods of two leaves of four hosts, 2:1 oversubscribed at both tiers.
    fn three_tier(pods: usize) -> Fabric {
        let shape = Shape::ThreeTier {
            hosts: 8 * pods,
            pods,
            leaves: 2,
            oversubscription: 2,
            gpus: 1,
        };
        Fabric::parse(&shape.file().unwrap()).unwrap()
    }

    #[test]
    fn a_ring_finds_its_way_back_from_a_random_order() {
        let fabric = three_tier(4);
        let ring = pattern(Algorithm::Ring, &Topology::uniform(32, 1));
        let mut distances = Distances::of(&fabric);
        let sorted: Vec<usize> = (0..32).collect();
        let best = place(&ring, &mut distances, &sorted);
        let found = place(&ring, &mut distances, &random_order(32, 7));
        assert!(found.settled);
        let (found, best, random) = (found.best.load, best.best.load, found.given.load);
        assert!((found.seconds_per_byte / best.seconds_per_byte - 1.0).abs() < 1e-6);
        assert!(
            random.mean_hops > 1.9 * found.mean_hops,
            "{random:?} {found:?}"
        );
        // 4 hosts to a leaf and 2 leaves to a pod: 24 of 32 neighbours at 2 links, 4 at 4, 4 at 6.
        let mean = (24.0 * 2.0 + 4.0 * 4.0 + 4.0 * 6.0) / 32.0;
        assert!((found.mean_hops - mean).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn every_algorithm_is_placed_no_worse_than_in_the_order_of_the_file() {
        let fabric = three_tier(2);
        let hosts = Topology::uniform(16, 1);
        for algorithm in [
            Algorithm::DoubleTree,
            Algorithm::HalvingDoubling,
            Algorithm::Hierarchical,
            Algorithm::Ring,
            Algorithm::Torus,
            Algorithm::Tree,
        ] {
            let topology = match algorithm {
                Algorithm::Hierarchical => hosts.clone().with_group(4),
                _ => hosts.clone(),
            };
            let pattern = pattern(algorithm, &topology);
            let sorted: Vec<usize> = (0..16).collect();
            let mut distances = Distances::of(&fabric);
            let file = State::new(&pattern, &mut distances, sorted).placed().load;
            let random = place(&pattern, &mut distances, &random_order(16, 1));
            let load = random.best.load;
            assert!(
                load.better_than(&random.given.load),
                "{algorithm}: {random:?}"
            );
            assert!(
                load.seconds_per_byte < file.seconds_per_byte * 1.1,
                "{algorithm}: {load:?} for {file:?}"
            );
        }
    }

    #[test]
    fn a_slow_pair_is_not_made_neighbours() {
        let n = 6;
        let slow = |i: usize, j: usize| (i, j) == (0, 1) || (i, j) == (1, 0);
        let rates = (0..n).map(|i| {
            (0..n)
                .map(|j| if slow(i, j) { 1e8 } else { 1e10 })
                .collect()
        });
        let matrix = Matrix::new(rates.collect(), None).unwrap();
        let ring = pattern(Algorithm::Ring, &Topology::uniform(n, 1));
        let placement = place(
            &ring,
            &mut Distances::measured(&matrix),
            &[0, 1, 2, 3, 4, 5],
        );
        let order = placement.best.order;
        let gap = order
            .iter()
            .position(|&h| h == 0)
            .unwrap()
            .abs_diff(order.iter().position(|&h| h == 1).unwrap());
        assert!(gap != 1 && gap != n - 1, "{order:?}");
        assert!(
            placement.given.load.seconds_per_byte > 50.0 * placement.best.load.seconds_per_byte
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Local search finds what trying all orders finds, within a tenth, and never loses a host.
        #[test]
        fn local_search_is_near_the_best(rates in proptest::collection::vec(1e8..1e10_f64, 49)) {
            let matrix = rates.chunks(7).map(<[f64]>::to_vec).collect();
            let matrix = Matrix::new(matrix, None).unwrap();
            let ring = pattern(Algorithm::Ring, &Topology::uniform(7, 1));
            let mut distances = Distances::measured(&matrix);
            let exact = place(&ring, &mut distances, &[0, 1, 2, 3, 4, 5, 6]).best.load;
            let mut state = State::new(&ring, &mut distances, vec![0, 1, 2, 3, 4, 5, 6]);
            let (_, settled) = search::improve(&mut state, WORK);
            let found = state.placed();
            let mut hosts = found.order.clone();
            hosts.sort_unstable();
            prop_assert_eq!(hosts, vec![0, 1, 2, 3, 4, 5, 6]);
            prop_assert!(settled);
            prop_assert!(!found.load.better_than(&exact));
            // Loads are kept up to date by differences: they must be what they are from scratch.
            let anew = State::new(&ring, &mut distances, found.order.clone()).placed().load;
            prop_assert!((anew.seconds_per_byte / found.load.seconds_per_byte - 1.0).abs() < 1e-9);
            prop_assert!((anew.mean_hops - found.load.mean_hops).abs() < 1e-9);
        }

        #[test]
        fn random_orders_are_permutations(hosts in 1..200_usize, seed: u64) {
            let mut order = random_order(hosts, seed);
            prop_assert_eq!(&order, &random_order(hosts, seed));
            order.sort_unstable();
            prop_assert_eq!(order, (0..hosts).collect::<Vec<_>>());
        }
    }
}
