//! Every collective, with every algorithm that does it, verifies for any number of ranks and shape of hosts.

use ringway_plan::{Algorithm, Collective, Topology, Verified, generate, verify};

fn verified(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Verified {
    let fail = |error: &dyn std::error::Error| -> ! {
        panic!("{algorithm} {collective:?} on {topology:?}: {error}")
    };
    let schedule = generate(collective, algorithm, topology).unwrap_or_else(|error| fail(&error));
    verify(schedule).unwrap_or_else(|error| fail(&error))
}

/// Shapes of `n` ranks: one host; hosts of two and of three with a smaller last one; one large host among small ones; ranks
/// dealt to hosts in turn; each on a host of its own.
fn shapes(n: usize) -> Vec<Topology> {
    let by = |host: &dyn Fn(usize) -> usize| Topology::new((0..n).map(host).collect());
    vec![
        by(&|_| 0),
        by(&|r| r / 2),
        by(&|r| r / 3),
        by(&|r| r.saturating_sub(n / 2)),
        by(&|r| r % 3),
        by(&|r| r),
    ]
}

fn check_all(n: usize, topology: &Topology) {
    for collective in Collective::all(n / 3) {
        for algorithm in Algorithm::ALL
            .into_iter()
            .filter(|a| a.supports(collective))
        {
            let schedule = verified(collective, algorithm, topology);
            let in_place = collective != Collective::AllToAll || n == 1;
            assert_eq!(
                schedule.in_place(),
                in_place,
                "{algorithm} {collective:?} of {n}"
            );
            assert_eq!(schedule.algorithm, algorithm.name());
        }
    }
}

#[test]
fn every_algorithm_verifies_on_few_ranks_of_any_shape() {
    for n in 1..=17 {
        for topology in shapes(n) {
            check_all(n, &topology);
        }
    }
}

#[test]
fn every_algorithm_verifies_on_many_ranks() {
    for n in [24, 32, 64] {
        check_all(n, &Topology::single_host(n));
        check_all(n, &Topology::uniform(n / 8, 8));
    }
}
