//! Flows that share links: by hand, and what must hold whatever the fabric.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod common;

use std::time::Duration;

use common::{between_hosts, schedule};
use proptest::prelude::*;
use ringway_fabric::{Fabric, Hop, NodeId, Shape, random_order};
use ringway_plan::Algorithm;
use ringway_sim::{
    Background, Change, Flows, Message, Moment, Network as _, Outcome, Passage, Scenario, SimError,
    Simulation, Time, World, expected_load,
};

/// Two leaves of three hosts, one spine; 1 GB/s everywhere, 1 us for each link.
fn dumbbell() -> Fabric {
    let text = "
fabric: dumbbell
hosts:
  - {name: host, count: 6, overhead: 0us}
switches:
  - {name: leaf, count: 2, tier: leaf}
  - {name: spine, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 2}, rate: 1GB/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 1GB/s, latency: 1us}
";
    Fabric::parse(text).unwrap()
}

fn world(fabric: &Fabric, per_host: usize) -> World {
    let order: Vec<usize> = (0..fabric.hosts()).collect();
    World::new(fabric, &order, per_host).unwrap()
}

fn message(id: u32, from: usize, to: usize, bytes: u64, at: u64) -> Message {
    Message {
        id,
        from,
        to,
        stream: 0,
        bytes,
        since: Moment {
            at: Time(at),
            ..Moment::START
        },
    }
}

/// When each message left and arrived, in microseconds, in the order of leaving.
fn run(flows: &mut Flows<'_>) -> Vec<(u32, u64, u64)> {
    let mut passages = Vec::new();
    let (mut arrives, micros) = (0, |moment: Moment| moment.at.0 / 1_000_000);
    while let Some(next) = flows.next() {
        while let Some(passage) = flows.poll(next) {
            match passage {
                Passage::Arrives { at, .. } => arrives = micros(at),
                Passage::Free { id, at } => passages.push((id, micros(at), arrives)),
            }
        }
    }
    passages
}

#[test]
fn a_shared_link_is_halved_and_given_back() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0);
    // 1000 and 3000 bytes cross the spine together: 2 us at half the rate, then 2 us alone.
    flows.send(message(0, 0, 3, 1000, 0));
    flows.send(message(1, 1, 4, 3000, 0));
    // This one stays at its leaf, and shares the sender's link with nobody.
    flows.send(message(2, 2, 1, 1000, 0));
    assert_eq!(run(&mut flows), [(2, 1, 3), (0, 2, 6), (1, 4, 8)]);
}

#[test]
fn directions_of_a_link_are_apart() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0);
    flows.send(message(0, 0, 3, 1000, 0));
    flows.send(message(1, 3, 0, 1000, 0));
    assert_eq!(run(&mut flows), [(0, 1, 5), (1, 1, 5)]);
}

#[test]
fn incast_shares_the_receivers_link() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0);
    // Four at one: two of them from the other leaf. All end at 4 us.
    for (id, from) in [1, 2, 3, 4].into_iter().enumerate() {
        flows.send(message(id as u32, from, 0, 1000, 0));
    }
    let passages = run(&mut flows);
    assert!(passages.iter().all(|p| p.1 == 4), "{passages:?}");
}

#[test]
fn messages_of_a_stream_follow_each_other_and_empty_ones_take_no_time() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0);
    flows.send(message(0, 0, 1, 1000, 0));
    flows.send(message(1, 0, 1, 0, 0));
    flows.send(message(2, 0, 1, 1000, 0));
    assert_eq!(run(&mut flows), [(0, 1, 3), (1, 1, 3), (2, 2, 4)]);
}

fn micros(outcome: &Result<Outcome, SimError>) -> f64 {
    outcome.as_ref().unwrap().end.at.seconds() * 1e6
}

#[test]
fn a_slow_host_slows_a_ring_down() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let ring = schedule(Algorithm::Ring, &world);
    let run = |scenario| {
        micros(
            &Simulation::new(&fabric, &world)
                .with_scenario(scenario)
                .run(&ring, 12_000_000),
        )
    };
    let usual = run(Scenario::default());
    // 10 of 6ths of the vector at 1 GB/s.
    assert!((usual / 20_000.0 - 1.0).abs() < 0.01, "{usual}");
    let slow = run(Scenario {
        slow: vec![(2, 0.5)],
        ..Scenario::default()
    });
    assert!((slow / usual - 2.0).abs() < 0.02, "{slow}");
    let shared = run(Scenario {
        background: vec![Background {
            from: 0,
            to: 4,
            rate: 1e9,
        }],
        ..Scenario::default()
    });
    assert!((shared / usual - 2.0).abs() < 0.02, "{shared}");
    let little = run(Scenario {
        background: vec![Background {
            from: 0,
            to: 4,
            rate: 0.2e9,
        }],
        ..Scenario::default()
    });
    assert!((little / usual - 1.25).abs() < 0.02, "{little}");
}

#[test]
fn a_link_that_flaps_costs_its_time_and_one_that_stays_down_is_told() {
    let fabric = dumbbell();
    let world = world(&fabric, 1);
    let ring = schedule(Algorithm::Ring, &world);
    let [leaf, spine] = ["leaf0", "spine"].map(|n| fabric.node(n).unwrap());
    let link = fabric.between(leaf, spine)[0];
    let change = |ms, share| Change {
        at: Duration::from_millis(ms),
        link,
        share,
    };
    let run = |changes| {
        let scenario = Scenario {
            changes,
            ..Scenario::default()
        };
        Simulation::new(&fabric, &world)
            .with_scenario(scenario)
            .run(&ring, 12_000_000)
    };
    let usual = micros(&run(vec![]));
    let flapped = micros(&run(vec![change(5, 0.0), change(9, 1.0)]));
    assert!((flapped - usual - 4000.0).abs() < 20.0, "{flapped} {usual}");
    let error = run(vec![change(5, 0.0)]).unwrap_err();
    assert!(matches!(error, SimError::Stalled { .. }), "{error}");
    assert!(error.to_string().contains("waiting for rank"), "{error}");
}

#[test]
fn switches_route_around_what_is_down() {
    let shape = Shape::LeafSpine {
        hosts: 8,
        leaves: 2,
        spines: 2,
        gpus: 1,
    };
    let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
    let world = world(&fabric, 1);
    let ring = schedule(Algorithm::Ring, &world);
    let run = |changes, after| {
        let scenario = Scenario {
            changes,
            reroute_after: Duration::from_micros(after),
            ..Scenario::default()
        };
        Simulation::new(&fabric, &world)
            .with_scenario(scenario)
            .run(&ring, 64 << 20)
            .unwrap()
    };
    let usual = run(vec![], 100);
    let hot = usual.hottest();
    // The uplink that the ring's one flow out of leaf 0 took.
    let [leaf, host] = ["leaf0", "host0"].map(|n| fabric.node(n).unwrap());
    let uplink = hot
        .iter()
        .map(|h| Hop::of_index(h.hop))
        .find(|h| h.ends(&fabric.links()[h.link]).0 == leaf && h.link >= fabric.hosts())
        .unwrap()
        .link;
    assert!(host.0 < fabric.hosts());
    let down = Change {
        at: Duration::from_micros(500),
        link: uplink,
        share: 0.0,
    };
    let late = run(vec![down], 1000);
    let early = run(vec![down], 100);
    let [usual, early, late] = [usual, early, late].map(|o| o.end.at.seconds() * 1e6);
    assert!(early > usual + 50.0, "{early} {usual}");
    assert!((late - early - 900.0).abs() < 100.0, "{late} {early}");
}

fn fabrics() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (1..4_usize, 1..4_usize, 1..4_usize, 1..4_usize).prop_map(
            |(each, leaves, spines, gpus)| {
                Shape::LeafSpine {
                    hosts: each * leaves,
                    leaves,
                    spines,
                    gpus,
                }
            }
        ),
        Just(Shape::FatTree { k: 4, gpus: 1 }),
        (1..3_usize, 1..4_usize).prop_map(|(each, rails)| Shape::RailOptimised {
            hosts: 2 * each,
            rails,
            blocks: 2,
            spines: 2,
        }),
        (1..4_usize, 2..4_usize).prop_map(|(x, y)| Shape::Torus {
            size: vec![x, y],
            gpus: 2,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_byte_arrives_once_and_no_link_is_above_its_rate(
        shape in fabrics(),
        algorithm in proptest::sample::select(Algorithm::ALL.to_vec()),
        bytes in 1..200_000_usize,
        streams in 1..4_u32,
        seed: u64,
    ) {
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let gpus = fabric.host(0).unwrap().gpus;
        let world = World::new(&fabric, &random_order(fabric.hosts(), seed), gpus).unwrap();
        let schedule = schedule(algorithm, &world);
        let simulation = Simulation::new(&fabric, &world)
            .with_seed(seed)
            .with_streams(streams)
            .with_slice_bytes(1 << 14)
            .with_records();
        let outcome = simulation.run(&schedule, bytes).unwrap();
        let sent = between_hosts(&schedule, &world, bytes) as f64;
        let (mut out, mut into) = (0.0, 0.0);
        for load in &outcome.hops {
            prop_assert!(load.busy <= 1.0 + 1e-6, "{load:?}");
            let hop = Hop::of_index(load.hop);
            let (from, to) = hop.ends(&fabric.links()[hop.link]);
            let host = |n: NodeId| n.0 < fabric.hosts();
            if host(from) && !host(to) {
                out += load.bytes;
            }
            if host(to) && !host(from) {
                into += load.bytes;
            }
        }
        if fabric.switches().count() > 0 {
            prop_assert_eq!((out, into), (sent, sent));
        }
        // On hosts' own links, where there is no choice of paths, expected loads are what was carried, but for chunks of
        // unequal size.
        if fabric.switches().count() > 0 && bytes >= 200 * schedule.chunks {
            let expected = expected_load(&fabric, &world, &schedule).unwrap();
            for load in &outcome.hops {
                let link = fabric.links()[load.hop / 2];
                if link.a.0 < fabric.hosts() {
                    let seconds = load.bytes / link.rate;
                    let error = (expected[load.hop] * bytes as f64 - seconds).abs();
                    prop_assert!(error <= 0.01 * seconds, "{load:?}");
                }
            }
        }
        let end = outcome.end;
        let parts = [end.latency, end.wire, end.contention, end.reduction].map(|p| p.0);
        prop_assert_eq!(parts.iter().sum::<u64>(), end.at.0);
        // The critical path begins with something that waited for nothing, and goes forward to the end.
        let path = outcome.critical_path();
        if let (Some(first), Some(last)) = (path.first(), path.last()) {
            prop_assert!(first.cause.is_none());
            prop_assert_eq!(last.ended.max(end.at), end.at.max(last.ended));
            for pair in path.windows(2) {
                prop_assert!(pair[0].begun <= pair[1].begun);
            }
        }
        // The same arguments, the same picoseconds.
        prop_assert_eq!(simulation.run(&schedule, bytes).unwrap(), outcome);
    }

    /// Sharing never makes it faster than having the network alone.
    #[test]
    fn contention_is_never_negative(shape in fabrics(), bytes in 1..10_000_000_usize, seed: u64) {
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let world = World::new(&fabric, &random_order(fabric.hosts(), seed), 1).unwrap();
        let schedule = schedule(Algorithm::HalvingDoubling, &world);
        let outcome = Simulation::new(&fabric, &world).with_seed(seed).run(&schedule, bytes).unwrap();
        let p = world.ranks() as f64;
        let bound = 2.0 * (p - 1.0) / p * bytes as f64 / 50e9 / fabric.links_of(NodeId(0)).len() as f64;
        prop_assert!(outcome.end.at.seconds() >= bound * 0.999 || p < 2.0);
    }
}

/// Two spines, and two messages that hashes may or may not part: known paths decide.
#[test]
fn paths_that_are_known_are_taken() {
    let shape = Shape::LeafSpine {
        hosts: 4,
        leaves: 2,
        spines: 2,
        gpus: 1,
    };
    let slow = |link: &mut ringway_fabric::Link| (link.rate, link.latency) = (1e9, Duration::ZERO);
    let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
    let fabric = fabric.with(|host| host.overhead = Duration::ZERO, slow);
    let world = world(&fabric, 1);
    let routes = ringway_fabric::Routes::new(&fabric);
    let over = |from: usize, to: usize, spine: &str| {
        let spine = fabric.node(spine).unwrap();
        let port = |host| ringway_fabric::Port { host, nic: 0 };
        let mut paths = (0..100).map(|flow| routes.path(&fabric, port(from), port(to), flow));
        let through = |path: &Vec<Hop>| path[1].ends(&fabric.links()[path[1].link]).1 == spine;
        paths.find_map(|path| path.filter(through)).unwrap()
    };
    let seconds = |spines: [&str; 2]| {
        let paths = [
            ((0, 2, 0), over(0, 2, spines[0])),
            ((1, 3, 0), over(1, 3, spines[1])),
        ];
        let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0)
            .with_paths(paths.into_iter().collect());
        flows.send(message(0, 0, 2, 1000, 0));
        flows.send(message(1, 1, 3, 1000, 0));
        run(&mut flows).last().unwrap().1
    };
    assert_eq!(seconds(["spine0", "spine1"]), 1);
    assert_eq!(seconds(["spine1", "spine1"]), 2);
}
