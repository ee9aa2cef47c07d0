//! Every collective, with every algorithm that does it, verifies for any number of ranks and shape of hosts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use proptest::prelude::*;
use ringway_plan::{
    Algorithm, Collective, GenerateError, Op, Topology, Verified, generate, verify,
};

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

#[test]
fn every_parameter_verifies() {
    for n in [2, 7, 12] {
        for parameter in 1..=n + 1 {
            let topology = Topology::uniform(n, 1)
                .with_channels(parameter)
                .with_group(parameter)
                .with_torus_width(parameter);
            check_all(n, &topology);
        }
    }
}

/// Racks and pods of any sizes, over hosts of any sizes, in any order of ranks.
fn hierarchies() -> impl Strategy<Value = Topology> {
    let numbers = |n: usize| prop::collection::vec(0..4_usize, n);
    (2..20_usize, 1..4_usize).prop_flat_map(move |(n, levels)| {
        (numbers(n), prop::collection::vec(numbers(n), levels))
            .prop_map(|(hosts, levels)| Topology::new(hosts).with_levels(levels))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_hierarchy_verifies(topology in hierarchies()) {
        verified(Collective::AllReduce, Algorithm::Hierarchical, &topology);
    }
}

/// 2 pods of 2 racks of 2 hosts of 2 ranks: everything crosses pods once each way, spread over all ranks.
#[test]
fn deep_hierarchies_share_the_upper_links() {
    let of = |size: usize| (0..16).map(|rank| rank / size).collect::<Vec<_>>();
    let topology = Topology::uniform(8, 2).with_levels(vec![of(4), of(8)]);
    let schedule = verified(Collective::AllReduce, Algorithm::Hierarchical, &topology);
    for rank in 0..16 {
        let crossing = |size: usize| sent(&schedule, rank, |r| r / size).0;
        // Of the ranks of a pod each has an eighth, half of which it exchanges with the other pod, up and down.
        let expected = [8, 4, 2].map(|size| 2.0 * 0.5 / size as f64);
        assert!((crossing(8) - expected[0]).abs() < 1e-9);
        assert!((crossing(4) - expected[0] - expected[1]).abs() < 1e-9);
        assert!((crossing(2) - expected[0] - expected[1] - expected[2]).abs() < 1e-9);
    }
}

/// The bytes, in vectors, that `rank` sends to ranks of other hosts, and those it sends in all.
fn sent(schedule: &Verified, rank: usize, host: impl Fn(usize) -> usize) -> (f64, f64) {
    let steps = schedule.programs[rank].lanes.iter().flat_map(|l| &l.steps);
    let mut sums = (0.0, 0.0);
    for step in steps {
        if let Op::Send { peer, src } = step.op {
            let bytes = src.count as f64 / schedule.chunks as f64;
            sums.1 += bytes;
            sums.0 += if host(peer) == host(rank) { 0.0 } else { bytes };
        }
    }
    sums
}

#[test]
fn rings_and_direct_send_the_fewest_bytes() {
    for algorithm in [
        Algorithm::Ring,
        Algorithm::Direct,
        Algorithm::Torus,
        Algorithm::HalvingDoubling,
    ] {
        let schedule = verified(Collective::AllReduce, algorithm, &Topology::single_host(16));
        for rank in 0..16 {
            let (_, all) = sent(&schedule, rank, |_| 0);
            assert!(
                (all - 2.0 * 15.0 / 16.0).abs() < 1e-9,
                "{algorithm} rank {rank}: {all}"
            );
        }
    }
}

#[test]
fn in_a_double_tree_no_rank_forwards_both_halves() {
    for n in [7, 8, 31, 32] {
        let schedule = verified(
            Collective::AllReduce,
            Algorithm::DoubleTree,
            &Topology::single_host(n),
        );
        for rank in 0..n {
            let lanes = &schedule.programs[rank].lanes;
            let reduces = |l: &&ringway_plan::Lane| {
                l.steps
                    .iter()
                    .any(|s| matches!(s.op, Op::RecvReduce { .. }))
            };
            assert!(
                lanes.iter().filter(reduces).count() <= 1,
                "{n} ranks, rank {rank}"
            );
        }
    }
}

#[test]
fn hierarchies_use_every_member_between_hosts_and_cross_little() {
    let host = |r: usize| r / 4;
    let topology = Topology::uniform(3, 4);
    let schedule = verified(Collective::AllReduce, Algorithm::Hierarchical, &topology);
    for rank in 0..12 {
        // A ring of three hosts on a quarter of the vector.
        let (crossing, _) = sent(&schedule, rank, host);
        assert!(
            (crossing - 2.0 * 2.0 / 3.0 / 4.0).abs() < 1e-9,
            "rank {rank}: {crossing}"
        );
    }
    for algorithm in [
        Algorithm::Tree,
        Algorithm::Ring,
        Algorithm::DoubleTree,
        Algorithm::Hierarchical,
    ] {
        let schedule = verified(Collective::Broadcast { root: 5 }, algorithm, &topology);
        let crossing: f64 = (0..12).map(|r| sent(&schedule, r, host).0).sum();
        let bound = if algorithm == Algorithm::Ring {
            3.0
        } else {
            2.0
        };
        assert!(crossing <= bound + 1e-9, "{algorithm}: {crossing}");
    }
}

#[test]
fn rings_keep_little_scratch() {
    let ring = verified(
        Collective::ReduceScatter,
        Algorithm::Ring,
        &Topology::single_host(16),
    );
    assert!(ring.programs.iter().all(|p| p.scratch.len() <= 2));
}

#[test]
fn wrong_requests_name_the_remedy() {
    let two = Topology::single_host(2);
    let error = generate(Collective::AllToAll, Algorithm::Ring, &two).unwrap_err();
    assert_eq!(
        error.to_string(),
        "algorithm ring does not do all_to_all; choose one of direct"
    );
    let root = generate(Collective::Reduce { root: 2 }, Algorithm::Tree, &two).unwrap_err();
    assert!(
        matches!(
            root,
            GenerateError::Root {
                root: 2,
                ranks: 2,
                ..
            }
        ),
        "{root}"
    );
    let none = generate(
        Collective::Barrier,
        Algorithm::Direct,
        &Topology::new(vec![]),
    );
    assert_eq!(none, Err(GenerateError::NoRanks));
}
