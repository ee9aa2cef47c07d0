//! Several operations at once, and computation beside them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway_fabric::Fabric;
use ringway_plan::{Algorithm, Collective, Verified, generate, verify};
use ringway_sim::{Act, Operation, SimError, Simulation, Time, World};

const BYTES: usize = 64 << 20;

/// Four hosts at one switch, with latencies that vanish beside what a vector takes.
fn star() -> Fabric {
    let text = "fabric: star
hosts:
  - {name: host, count: 4, overhead: 1ns, reduce: 100TB/s}
switches:
  - {name: leaf, tier: leaf}
links:
  - {from: host, to: leaf, join: full, rate: 100Gbit/s, latency: 1ns}
";
    Fabric::parse(text).unwrap()
}

fn ring(world: &World) -> Verified {
    let schedule = generate(Collective::AllReduce, Algorithm::Ring, &world.topology()).unwrap();
    verify(schedule).unwrap()
}

/// Seconds that ranks take for `acts`, with two all-reduces of [`BYTES`] to start.
fn seconds(acts: &[Act]) -> f64 {
    let fabric = star();
    let world = World::new(&fabric, &[0, 1, 2, 3], 1).unwrap();
    let schedule = ring(&world);
    let operations = [Operation::new(&schedule, BYTES); 2];
    let elapsed = Simulation::new(&fabric, &world)
        .run_program(&operations, acts)
        .unwrap();
    elapsed.end.seconds()
}

fn about(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.05,
        "{found} s, expected {expected}"
    );
}

/// A ring's 2 (n - 1) / n vectors at the rate of the links.
const ALONE: f64 = 1.5 * BYTES as f64 / 12.5e9;

#[test]
fn operations_that_are_under_way_together_share_the_links() {
    let one = seconds(&[Act::Start(0), Act::Wait(0)]);
    about(one, ALONE);
    let after_each_other = seconds(&[Act::Start(0), Act::Wait(0), Act::Start(1), Act::Wait(1)]);
    about(after_each_other, 2.0 * ALONE);
    let together = seconds(&[Act::Start(0), Act::Start(1), Act::Wait(0), Act::Wait(1)]);
    about(together, 2.0 * ALONE);
}

#[test]
fn computation_hides_what_is_under_way() {
    let compute = |share: f64| Act::Compute(Time((share * ALONE * 1e12) as u64));
    let acts = |share| [Act::Start(0), compute(share), Act::Wait(0), compute(1.0)];
    about(seconds(&acts(0.5)), 2.0 * ALONE);
    about(seconds(&acts(3.0)), 4.0 * ALONE);
    about(seconds(&[compute(1.0)]), ALONE);
}

#[test]
fn one_operation_is_what_run_makes_of_it() {
    let fabric = star();
    let world = World::new(&fabric, &[0, 1, 2, 3], 1).unwrap();
    let schedule = ring(&world);
    let outcome = Simulation::new(&fabric, &world)
        .run(&schedule, BYTES)
        .unwrap();
    let alone = seconds(&[Act::Start(0), Act::Wait(0)]);
    assert!((outcome.end.at.seconds() - alone).abs() < 1e-12);
}

#[test]
fn programs_that_make_no_sense_are_refused() {
    let fabric = star();
    let world = World::new(&fabric, &[0, 1, 2, 3], 1).unwrap();
    let schedule = ring(&world);
    for acts in [
        &[Act::Wait(0)][..],
        &[Act::Start(1)],
        &[Act::Start(0), Act::Start(0)],
    ] {
        let refused =
            Simulation::new(&fabric, &world).run_program(&[Operation::new(&schedule, 8)], acts);
        let at = acts.len() - 1;
        assert_eq!(
            refused.unwrap_err(),
            SimError::Program { at, operations: 1 }
        );
    }
}
