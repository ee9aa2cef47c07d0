//! The cost model: against the formulas of the literature, its closed forms against its run, and choices.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::time::{Duration, Instant};

use ringway_plan::{
    Algorithm, Collective, Cost, Link, Machine, Topology, Verified, choose, estimate, generate,
    predict, verify,
};

fn schedule(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Verified {
    let schedule = generate(collective, algorithm, topology).unwrap_or_else(|e| panic!("{e}"));
    verify(schedule).unwrap_or_else(|e| panic!("{e}"))
}

fn seconds(cost: Cost) -> f64 {
    cost.total.as_secs_f64()
}

/// The textbook's machine: a message of b bytes takes alpha + b beta, none of it in slices.
fn textbook(alpha: f64, rate: f64, gamma: f64) -> Machine {
    let link = Link::new(Duration::ZERO, Duration::from_secs_f64(alpha), rate);
    Machine::new(link, link, gamma).with_slice_bytes(1 << 40)
}

/// n bytes among p ranks: alpha, beta and gamma terms, as counts.
type Formula = fn(p: f64) -> (f64, f64, f64);

#[test]
fn formulas_of_the_literature_hold() {
    let formulas: [(Collective, Algorithm, Formula); 8] = [
        (Collective::AllReduce, Algorithm::Ring, |p| {
            (2.0 * (p - 1.0), 2.0 * (p - 1.0) / p, (p - 1.0) / p)
        }),
        (Collective::AllReduce, Algorithm::HalvingDoubling, |p| {
            (2.0 * p.log2(), 2.0 * (p - 1.0) / p, (p - 1.0) / p)
        }),
        (Collective::ReduceScatter, Algorithm::Ring, |p| {
            (p - 1.0, (p - 1.0) / p, (p - 1.0) / p)
        }),
        (Collective::AllGather, Algorithm::Ring, |p| {
            (p - 1.0, (p - 1.0) / p, 0.0)
        }),
        (Collective::AllGather, Algorithm::RecursiveDoubling, |p| {
            (p.log2(), (p - 1.0) / p, 0.0)
        }),
        (Collective::Broadcast { root: 0 }, Algorithm::Tree, |p| {
            (p.log2(), p.log2(), 0.0)
        }),
        (Collective::Broadcast { root: 0 }, Algorithm::Direct, |p| {
            (p - 1.0, p - 1.0, 0.0)
        }),
        (Collective::Reduce { root: 0 }, Algorithm::Tree, |p| {
            (p.log2(), p.log2(), p.log2())
        }),
    ];
    let (alpha, rate, gamma) = (1e-5, 1e9, 4e9);
    let machine = textbook(alpha, rate, gamma);
    for (collective, algorithm, formula) in formulas {
        for p in [2, 4, 8, 16] {
            let topology = Topology::single_host(p);
            let schedule = schedule(collective, algorithm, &topology);
            for bytes in [1 << 12, 1 << 20] {
                let (a, b, g) = formula(p as f64);
                let n = bytes as f64;
                let copy = if collective == Collective::AllGather {
                    n / p as f64 / gamma
                } else {
                    0.0
                };
                let want = a * alpha + b * n / rate + g * n / gamma;
                let got = seconds(predict(&schedule, bytes, &topology, &machine));
                // The rank's own part is copied, which overlaps with messages or not.
                assert!(
                    got > 0.999 * want && got < 1.001 * want + copy,
                    "{algorithm} {collective} of {p} ranks, {bytes} bytes: {got} for {want}"
                );
            }
        }
    }
}

#[test]
fn recursive_doubling_moves_whole_vectors() {
    let machine = textbook(1e-5, 1e9, 4e9);
    for p in [2, 4, 8, 16_usize] {
        let topology = Topology::single_host(p);
        let schedule = schedule(
            Collective::AllReduce,
            Algorithm::RecursiveDoubling,
            &topology,
        );
        let (rounds, n) = (f64::from(p.ilog2()), f64::from(1 << 20));
        // After an odd number of rounds the result lies in scratch, and is copied.
        let copy = if p.ilog2() % 2 == 1 { n / 4e9 } else { 0.0 };
        let want = rounds * (1e-5 + n / 1e9 + n / 4e9) + copy;
        let got = seconds(predict(&schedule, 1 << 20, &topology, &machine));
        assert!(
            (got / want - 1.0).abs() < 0.001,
            "{p} ranks: {got} for {want}"
        );
    }
}

#[test]
fn a_chain_is_a_pipeline_of_slices() {
    // p - 1 hops of m slices: (p - 1 + m - 1) (alpha + slice beta).
    let link = Link::new(Duration::ZERO, Duration::from_micros(2), 1e9);
    let machine = Machine::new(link, link, 1e9).with_slice_bytes(1 << 14);
    let topology = Topology::single_host(6);
    let schedule = schedule(
        Collective::Broadcast { root: 0 },
        Algorithm::Ring,
        &topology,
    );
    let (m, slice) = (64.0, f64::from(1 << 14));
    let want = (5.0 + m - 1.0) * (2e-6 + slice / 1e9);
    let got = seconds(predict(&schedule, 64 << 14, &topology, &machine));
    assert!((got / want - 1.0).abs() < 0.02, "{got} for {want}");
}

#[test]
fn two_trees_use_the_whole_bandwidth() {
    let link = Link::new(Duration::ZERO, Duration::from_micros(1), 1e9);
    let machine = Machine::new(link, link, 100e9).with_slice_bytes(1 << 16);
    let topology = Topology::single_host(14);
    let n = 64 << 20;
    let of = |algorithm| {
        let schedule = schedule(Collective::Broadcast { root: 0 }, algorithm, &topology);
        seconds(predict(&schedule, n, &topology, &machine))
    };
    let floor = n as f64 / 1e9;
    let (two, one) = (of(Algorithm::DoubleTree), of(Algorithm::Tree));
    assert!(
        two < 1.25 * floor,
        "double tree takes {two}; the wire alone {floor}"
    );
    assert!(
        one > 3.0 * floor,
        "the root of a binomial tree sends the vector to four children: {one}"
    );
}

#[test]
fn the_parts_of_a_cost_add_up() {
    let machine = Machine::new(Link::SHARED_MEMORY, Link::LOOPBACK, 10e9);
    let topology = Topology::uniform(2, 2);
    let schedule = schedule(Collective::AllReduce, Algorithm::Hierarchical, &topology);
    let cost = predict(&schedule, 1 << 20, &topology, &machine);
    let sum = cost.latency + cost.wire + cost.reduction;
    assert!(
        cost.total.abs_diff(sum) < Duration::from_nanos(4),
        "{cost:?}"
    );
    assert!(
        cost.latency > Duration::ZERO && cost.reduction > Duration::ZERO,
        "{cost:?}"
    );
    assert!(cost.wire > cost.latency, "{cost:?}");
    // Ranks of a host share its card.
    let more = predict(&schedule, 1 << 20, &topology, &machine.with_cards(2));
    assert!(more.wire < cost.wire.mul_f64(0.8), "{more:?} {cost:?}");
}

fn topologies() -> Vec<Topology> {
    vec![
        Topology::single_host(2),
        Topology::single_host(5),
        Topology::single_host(8),
        Topology::uniform(2, 1),
        Topology::uniform(8, 2).with_levels(vec![(0..16).map(|rank| rank / 4).collect()]),
        Topology::uniform(5, 1),
        Topology::uniform(3, 2),
        Topology::uniform(4, 4),
        Topology::new(vec![0, 0, 0, 1, 1, 2]),
    ]
}

fn machines() -> [Machine; 3] {
    let near = Link::new(Duration::from_micros(1), Duration::from_micros(1), 10e9);
    let far = Link::new(Duration::from_micros(5), Duration::from_micros(2), 3e9);
    let even = Machine::new(near, far, 10e9);
    let slow = Link::new(Duration::from_micros(30), Duration::from_micros(8), 0.125e9);
    [
        even,
        Machine::new(Link::SHARED_MEMORY, slow, 10e9),
        Machine::new(Link::LOOPBACK, slow, 40e9),
    ]
}

/// Closed forms take hosts for equal and pipelines for perfect: they are within a factor of 2.5 of the run, and
/// nine of ten within 1.4.
#[test]
fn closed_forms_agree_with_the_run() {
    let mut ratios = Vec::new();
    for topology in topologies() {
        for collective in Collective::all(0) {
            for algorithm in Algorithm::ALL
                .into_iter()
                .filter(|a| a.supports(collective))
            {
                let schedule = schedule(collective, algorithm, &topology);
                for machine in machines() {
                    for bytes in [64, 64 << 10, 4 << 20] {
                        let run = predict(&schedule, bytes, &topology, &machine);
                        let form =
                            estimate(collective, algorithm, bytes, &topology, &machine).unwrap();
                        let ratio = seconds(form) / seconds(run);
                        ratios.push((
                            ratio.max(1.0 / ratio),
                            ratio,
                            algorithm,
                            collective,
                            bytes,
                            topology.clone(),
                        ));
                    }
                }
            }
        }
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let last = ratios.last().unwrap();
    assert!(last.0 < 2.5, "{last:?}");
    let most = &ratios[ratios.len() * 9 / 10];
    assert!(most.0 < 1.4, "{most:?}");
}

#[test]
fn the_choice_costs_little_more_than_the_best() {
    for topology in topologies() {
        for collective in Collective::all(0) {
            let does = Algorithm::ALL
                .into_iter()
                .filter(|a| a.supports(collective));
            let schedules: Vec<_> = does
                .map(|a| (a, schedule(collective, a, &topology)))
                .collect();
            for machine in machines() {
                for bytes in [64, 8 << 10, 512 << 10, 16 << 20] {
                    let choice = choose(collective, bytes, &topology, &machine);
                    let run = |s: &Verified| seconds(predict(s, bytes, &topology, &machine));
                    let chosen = schedules
                        .iter()
                        .find(|(a, _)| *a == choice.algorithm)
                        .unwrap();
                    let best = schedules
                        .iter()
                        .map(|(_, s)| run(s))
                        .fold(f64::MAX, f64::min);
                    let regret = run(&chosen.1) / best;
                    let name = choice.algorithm;
                    assert!(
                        regret < 1.7,
                        "{name} {collective} of {bytes} bytes: {regret} times the best"
                    );
                    let costs: Vec<Cost> = choice.candidates.iter().map(|c| c.1).collect();
                    assert!(costs.is_sorted() && costs.len() == schedules.len());
                }
            }
        }
    }
}

#[test]
fn whole_vectors_are_not_sent_where_the_processor_would_reduce_them_all() {
    // As the engine has it for ranks that share a host but no memory; measured: decision 0005.
    let far = Link::new(Duration::from_micros(10), Duration::from_micros(5), 1.1e9);
    let machine = Machine::new(Link::LOOPBACK, far, 40e9).with_slice_bytes(512 << 10);
    let two = Topology::single_host(2);
    let of = |bytes| choose(Collective::AllReduce, bytes, &two, &machine).algorithm;
    for bytes in [4, 1 << 10, 256 << 10] {
        assert_eq!(of(bytes), Algorithm::OneShot, "{bytes}");
    }
    for bytes in [1 << 20, 64 << 20, 1 << 30] {
        assert_eq!(of(bytes), Algorithm::Direct, "{bytes}");
    }
}

#[test]
fn small_vectors_take_few_rounds_and_large_ones_few_bytes() {
    let machine = machines()[0];
    let of = |bytes, topology: &Topology| {
        choose(Collective::AllReduce, bytes, topology, &machine).algorithm
    };
    let many = Topology::uniform(32, 8);
    let start = Instant::now();
    let small = of(64, &many);
    assert!(
        start.elapsed() < Duration::from_millis(50),
        "no schedule of 256 ranks is made to choose"
    );
    let few = [
        Algorithm::RecursiveDoubling,
        Algorithm::Tree,
        Algorithm::DoubleTree,
    ];
    assert!(few.contains(&small), "{small}");
    let large = of(1 << 30, &many);
    assert!(
        matches!(
            large,
            Algorithm::Hierarchical | Algorithm::Ring | Algorithm::Torus
        ),
        "{large}"
    );
}
