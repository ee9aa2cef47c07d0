//! Simulated times against the formulas of the literature, where nothing is shared.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::time::Duration;

use ringway_fabric::Fabric;
use ringway_plan::{
    Algorithm, Collective, Link, Machine, Schedule, Topology, Verified, generate, predict, verify,
};
use ringway_sim::{Level, Operation, Simulation, World};

/// Of a message: its sender's overhead and two links.
const ALPHA: f64 = 2e-6 + 2.0 * 1.5e-6;
/// Bytes per second.
const RATE: f64 = 12.5e9;
const REDUCE: f64 = 40e9;

/// Hosts of one GPU at one switch.
fn star(hosts: usize) -> Fabric {
    let text = format!(
        "fabric: star
hosts:
  - {{name: host, count: {hosts}, overhead: 2us, reduce: 40GB/s}}
switches:
  - {{name: leaf, tier: leaf}}
links:
  - {{from: host, to: leaf, join: full, rate: 100Gbit/s, latency: 1500ns}}
"
    );
    Fabric::parse(&text).unwrap()
}

fn schedule(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Verified {
    let schedule = generate(collective, algorithm, topology).unwrap_or_else(|e| panic!("{e}"));
    verify(schedule).unwrap_or_else(|e| panic!("{e}"))
}

/// All ranks of a fabric, and a schedule for them.
struct Case<'a> {
    fabric: &'a Fabric,
    world: World,
    schedule: Verified,
}

impl<'a> Case<'a> {
    fn new(
        fabric: &'a Fabric,
        per_host: usize,
        (collective, algorithm): (Collective, Algorithm),
    ) -> Self {
        let order: Vec<usize> = (0..fabric.hosts()).collect();
        let world = World::new(fabric, &order, per_host).unwrap();
        let schedule = schedule(collective, algorithm, &world.topology());
        Self {
            fabric,
            world,
            schedule,
        }
    }

    /// Seconds; messages are not cut.
    fn run(&self, level: Level, bytes: usize) -> f64 {
        let simulation = Simulation::new(self.fabric, &self.world)
            .with_level(level)
            .with_slice_bytes(1 << 40);
        let end = simulation.run(&self.schedule, bytes).unwrap().end;
        let parts = [end.latency, end.wire, end.contention, end.reduction];
        assert_eq!(parts.map(|p| p.0).iter().sum::<u64>(), end.at.0, "{end:?}");
        end.at.seconds()
    }
}

/// n bytes among p ranks: how often alpha, beta and gamma count.
type Formula = fn(p: f64) -> (f64, f64, f64);

const fn ring(p: f64) -> (f64, f64, f64) {
    (2.0 * (p - 1.0), 2.0 * (p - 1.0) / p, (p - 1.0) / p)
}

const fn half_ring(p: f64) -> (f64, f64, f64) {
    (p - 1.0, (p - 1.0) / p, (p - 1.0) / p)
}

fn halving(p: f64) -> (f64, f64, f64) {
    (2.0 * p.log2(), 2.0 * (p - 1.0) / p, (p - 1.0) / p)
}

fn doubling(p: f64) -> (f64, f64, f64) {
    (p.log2(), p.log2(), p.log2() + p.log2() % 2.0)
}

fn check(
    levels: &[Level],
    what: (Collective, Algorithm),
    formula: Formula,
    ranks: &[usize],
    sizes: &[usize],
) {
    for &p in ranks {
        let fabric = star(p);
        let case = Case::new(&fabric, 1, what);
        for &level in levels {
            for &bytes in sizes {
                let (alpha, beta, gamma) = formula(p as f64);
                let n = bytes as f64;
                let want = alpha * ALPHA + beta * n / RATE + gamma * n / REDUCE;
                let got = case.run(level, bytes);
                assert!(
                    (got / want - 1.0).abs() < 0.01,
                    "{what:?} on {level:?} of {p} ranks, {bytes} bytes: {got} for {want}"
                );
            }
        }
    }
}

const BOTH: [Level; 2] = [Level::Latency, Level::Flow];
const SIZES: [usize; 2] = [1 << 14, 1 << 24];
const POWERS: [usize; 5] = [2, 4, 16, 64, 128];

#[test]
fn halving_and_doubling() {
    let what = (Collective::AllReduce, Algorithm::HalvingDoubling);
    check(&BOTH, what, halving, &POWERS, &SIZES);
    // After an odd number of rounds recursive doubling copies its result out of scratch.
    let what = (Collective::AllReduce, Algorithm::RecursiveDoubling);
    check(&BOTH, what, doubling, &POWERS, &SIZES);
}

#[test]
fn bursts() {
    // All messages of a burst share the NIC and end together, so that reductions come after the last.
    let what = (Collective::AllReduce, Algorithm::Direct);
    let formula: Formula = |p| (2.0, 2.0 * (p - 1.0) / p, (p - 1.0) / p);
    check(&[Level::Flow], what, formula, &[2, 4, 16], &[1 << 28]);
    let what = (Collective::AllReduce, Algorithm::OneShot);
    check(
        &[Level::Flow],
        what,
        |p| (1.0, p - 1.0, p - 1.0),
        &[2, 4, 16],
        &[1 << 28],
    );
}

#[test]
fn rings() {
    let (what, ranks) = ((Collective::AllReduce, Algorithm::Ring), [2, 3, 8, 24, 64]);
    check(&BOTH, what, ring, &ranks, &SIZES);
    let what = (Collective::ReduceScatter, Algorithm::Ring);
    check(&BOTH, what, half_ring, &ranks, &SIZES);
}

#[test]
fn a_program_that_ranks_of_a_ring_share_takes_as_long_as_one_for_each() {
    let fabric = star(8);
    let case = Case::new(&fabric, 1, (Collective::AllReduce, Algorithm::Ring));
    let each = verify(Schedule {
        programs: case.schedule.programs.iter().cloned().collect(),
        ..Schedule::clone(&case.schedule)
    })
    .unwrap();
    assert!(case.schedule.programs.as_turned().is_some());
    assert!(each.programs.as_turned().is_none());
    for level in BOTH {
        let simulation = Simulation::new(&fabric, &case.world).with_level(level);
        let end = |schedule| simulation.run(schedule, 8 << 20).unwrap().end.at;
        assert_eq!(end(&case.schedule), end(&each), "{level:?}");
    }
}

#[test]
fn half_precision_between_hosts_halves_the_wire_and_casts_twice() {
    for p in [2, 3, 8] {
        let fabric = star(p);
        let what = (Collective::AllReduce, Algorithm::Hierarchical);
        let case = Case::new(&fabric, 1, what);
        for level in BOTH {
            let simulation = Simulation::new(&fabric, &case.world)
                .with_level(level)
                .with_slice_bytes(1 << 40);
            let operation = Operation::new(&case.schedule, 24 << 20).with_half_between_hosts();
            let outcome = simulation.run_one(operation).unwrap();
            // A ring: each message is cast, sent, and cast again; those of the first half are reduced after that.
            let (p, n) = (p as f64, f64::from(24 << 20));
            let messages = 2.0 * (p - 1.0);
            let (wire, casts) = (n / p / 2.0 / RATE, 2.0 * n / p / REDUCE);
            let want = messages * (ALPHA + wire + casts + 0.5 * n / p / REDUCE);
            let got = outcome.end.at.seconds();
            assert!(
                (got / want - 1.0).abs() < 0.01,
                "{p} on {level:?}: {got} for {want}"
            );
            let sent: f64 = outcome.hops.iter().step_by(2).map(|hop| hop.bytes).sum();
            assert!((sent / (messages * n / 2.0) - 1.0).abs() < 0.01, "{sent}");
        }
    }
}

#[test]
fn trees_by_ports() {
    // A parent sends to one child at a time; sharing its link among children makes all of them wait for the last.
    let what = (Collective::Broadcast { root: 0 }, Algorithm::Tree);
    check(
        &[Level::Latency],
        what,
        |p| (p.log2(), p.log2(), 0.0),
        &POWERS,
        &SIZES,
    );
    let what = (Collective::Reduce { root: 0 }, Algorithm::Tree);
    check(
        &[Level::Latency],
        what,
        |p| (p.log2(), p.log2(), p.log2()),
        &POWERS,
        &[1 << 24],
    );
}

#[test]
#[ignore = "minutes, even released: cargo test --release -p ringway-sim --test closed -- --ignored"]
fn a_thousand_ranks() {
    let reduce = |algorithm| (Collective::AllReduce, algorithm);
    check(&BOTH, reduce(Algorithm::Ring), ring, &[1024], &SIZES);
    check(
        &BOTH,
        reduce(Algorithm::HalvingDoubling),
        halving,
        &[256, 1024],
        &SIZES,
    );
    check(
        &BOTH,
        reduce(Algorithm::RecursiveDoubling),
        doubling,
        &[256, 1024],
        &SIZES,
    );
    tori(&[32]);
    hierarchies_of(&[(128, 8)]);
}

/// Rails: every GPU its own NIC and switch, so that groups of equal GPUs are stars of their own.
fn rails(hosts: usize, gpus: usize) -> Fabric {
    let text = format!(
        "fabric: rails
hosts:
  - {{name: host, count: {hosts}, gpus: {gpus}, nics: {gpus}, overhead: 0us, reduce: 40GB/s, local: {{rate: 100GB/s, latency: 1us}}}}
switches:
  - {{name: leaf, count: {gpus}, tier: leaf}}
links:
  - {{from: host, to: leaf, join: {{rails: 1}}, rate: 100Gbit/s, latency: 2us}}
"
    );
    Fabric::parse(&text).unwrap()
}

/// Reduce-scatter inside, a ring on every rail, all-gather inside (split rail).
fn hierarchies_of(sizes: &[(usize, usize)]) {
    for &(hosts, gpus) in sizes {
        let fabric = rails(hosts, gpus);
        let what = (Collective::AllReduce, Algorithm::Hierarchical);
        let case = Case::new(&fabric, gpus, what);
        for bytes in SIZES {
            let (n, k, h) = (bytes as f64, gpus as f64, hosts as f64);
            let inside = 1e-6 + (k - 1.0) / k * n / 100e9;
            let across = 2.0 * (h - 1.0) * (4e-6 + n / (k * h) / RATE);
            let reduced = ((k - 1.0) / k + (h - 1.0) / (k * h)) * n / REDUCE;
            let want = 2.0 * inside + across + reduced;
            let got = case.run(Level::Flow, bytes);
            assert!(
                (got / want - 1.0).abs() < 0.01,
                "{hosts} hosts of {gpus}, {bytes} bytes: {got} for {want}"
            );
        }
    }
}

#[test]
fn hierarchies() {
    hierarchies_of(&[(2, 8), (8, 4), (16, 8)]);
}

/// Hosts that are linked as the algorithm's grid, so that neither half of the vector is in the other's way.
fn torus(side: usize) -> Fabric {
    let text = format!(
        "fabric: torus
hosts:
  - {{name: host, count: {count}, nics: 4, forwards: true, overhead: 0us, reduce: 100TB/s}}
links:
  - {{from: host, to: host, join: {{torus: [{side}, {side}]}}, rate: 100Gbit/s, latency: 1us}}
",
        count = side * side
    );
    Fabric::parse(&text).unwrap()
}

/// Half of the vector goes along rows, then columns, the other half the other way round.
fn tori(sides: &[usize]) {
    for &side in sides {
        let fabric = torus(side);
        let case = Case::new(&fabric, 1, (Collective::AllReduce, Algorithm::Torus));
        for bytes in SIZES {
            let (x, n) = (side as f64, bytes as f64);
            let want = 4.0 * (x - 1.0) * 1e-6 + (1.0 - 1.0 / (x * x)) * n / RATE;
            let got = case.run(Level::Flow, bytes);
            assert!(
                (got / want - 1.0).abs() < 0.01,
                "{side} x {side}, {bytes} bytes: {got} for {want}"
            );
        }
    }
}

#[test]
fn square_tori() {
    tori(&[3, 4, 8]);
}

/// Collectives by every algorithm, on machines that both models know, are what the cost model's own run says. Of a vector that each
/// rank sends whole to each other, slices are as many as ranks times ranks: it is no longer than one.
fn are_the_cost_models(collectives: &[Collective], machines: &[(usize, usize)], sizes: &[usize]) {
    for &(hosts, gpus) in machines {
        let text = format!(
            "fabric: star
hosts:
  - {{name: host, count: {hosts}, gpus: {gpus}, overhead: 0us, reduce: 40GB/s, local: {{rate: 100GB/s, latency: 1us}}}}
switches:
  - {{name: leaf, tier: leaf}}
links:
  - {{from: host, to: leaf, join: full, rate: 100Gbit/s, latency: 2us}}
"
        );
        let fabric = Fabric::parse(&text).unwrap();
        let order: Vec<usize> = (0..hosts).collect();
        let world = World::new(&fabric, &order, gpus).unwrap();
        let topology = world.topology();
        let link = |us, rate| Link::new(Duration::from_micros(us), Duration::ZERO, rate);
        let machine = Machine::new(link(1, 100e9), link(4, RATE), REDUCE);
        for &collective in collectives {
            for algorithm in Algorithm::ALL
                .into_iter()
                .filter(|a| a.supports(collective))
            {
                let schedule = schedule(collective, algorithm, &topology);
                for &bytes in sizes {
                    let bytes = match algorithm {
                        Algorithm::OneShot if world.ranks() > 64 => bytes.min(128 << 10),
                        _ => bytes,
                    };
                    let simulation = Simulation::new(&fabric, &world).with_level(Level::Latency);
                    let got = simulation.run(&schedule, bytes).unwrap().end.at.seconds();
                    let want = predict(&schedule, bytes, &topology, &machine)
                        .total
                        .as_secs_f64();
                    let off = got / want - 1.0;
                    println!(
                        "{collective} by {algorithm} on {hosts} hosts of {gpus}, {bytes} bytes: {:.3} us, off by {:.4} %",
                        got * 1e6,
                        off * 100.0
                    );
                    assert!(
                        off.abs() < 0.01,
                        "{collective} by {algorithm} on {hosts} hosts of {gpus}, {bytes} bytes: {got} for {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn ports_are_the_cost_models() {
    let machines = [(5, 1), (8, 1), (3, 4), (8, 8)];
    are_the_cost_models(&Collective::all(0), &machines, &[1 << 10, 1 << 22]);
}

const THOUSAND: [(usize, usize); 4] = [(256, 1), (32, 8), (1024, 1), (128, 8)];

#[test]
#[ignore = "minutes, even released: cargo test --release -p ringway-sim --test closed -- --ignored"]
fn a_thousand_ports_all_reduce() {
    are_the_cost_models(&[Collective::AllReduce], &THOUSAND, &[1 << 22]);
}

#[test]
#[ignore = "minutes, even released: cargo test --release -p ringway-sim --test closed -- --ignored"]
fn a_thousand_ports_with_parts() {
    let collectives = Collective::all(0).into_iter().filter(|c| c.has_parts());
    let collectives: Vec<_> = collectives.collect();
    are_the_cost_models(&collectives, &THOUSAND, &[1 << 22]);
}

#[test]
#[ignore = "minutes, even released: cargo test --release -p ringway-sim --test closed -- --ignored"]
fn a_thousand_ports_with_a_root() {
    let root = 0;
    let collectives = [
        Collective::Barrier,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ];
    are_the_cost_models(&collectives, &THOUSAND, &[1 << 22]);
}
