//! Properties of generated fabrics, whatever their size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use ringway_fabric::{Fabric, Hop, NodeId, Port, Routes, Severity, Shape, check};

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (1..5_usize, 1..6_usize, 1..5_usize, 1..9_usize).prop_map(
            |(each, leaves, spines, gpus)| {
                Shape::LeafSpine {
                    hosts: each * leaves,
                    leaves,
                    spines,
                    gpus,
                }
            }
        ),
        (1..4_usize).prop_map(|half| Shape::FatTree {
            k: 2 * half,
            gpus: 1
        }),
        (1..4_usize, 1..5_usize, 1..4_usize, 1..4_usize).prop_map(
            |(each, rails, blocks, spines)| Shape::RailOptimised {
                hosts: each * blocks,
                rails,
                blocks,
                spines,
            }
        ),
        (1..4_usize, 1..4_usize, 1..4_usize, 1..5_usize).prop_map(
            |(each, pods, leaves, oversubscription)| Shape::ThreeTier {
                hosts: each * pods * leaves,
                pods,
                leaves,
                oversubscription,
                gpus: 1,
            }
        ),
        proptest::collection::vec(1..5_usize, 2..4).prop_map(|size| Shape::Torus { size, gpus: 1 }),
    ]
}

/// What a path must be: links that follow each other from the first host to the second.
fn leads(fabric: &Fabric, path: &[Hop], from: usize, to: usize) -> bool {
    let mut at = NodeId(from);
    for hop in path {
        let (start, end) = hop.ends(&fabric.links()[hop.link]);
        if start != at {
            return false;
        }
        at = end;
    }
    at == NodeId(to)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_host_reaches_every_other(shape in shapes(), flow: u64) {
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let routes = Routes::new(&fabric);
        for from in 0..fabric.hosts() {
            for to in 0..fabric.hosts() {
                let ends = (Port { host: from, nic: 0 }, Port { host: to, nic: 0 });
                let path = routes.path(&fabric, ends.0, ends.1, flow).unwrap();
                prop_assert!(leads(&fabric, &path, from, to), "{path:?}");
                prop_assert_eq!(routes.hops(&fabric, ends.0, ends.1), Some(path.len()));
                // What flows into a node flows out of it, but at the ends.
                let mut balance: BTreeMap<NodeId, f64> = BTreeMap::new();
                for (hop, part) in routes.spread(&fabric, ends.0, ends.1) {
                    let (start, end) = hop.ends(&fabric.links()[hop.link]);
                    *balance.entry(start).or_default() -= part;
                    *balance.entry(end).or_default() += part;
                }
                for (node, sum) in balance {
                    let due = f64::from(u8::from(node.0 == to)) - f64::from(u8::from(node.0 == from));
                    prop_assert!((sum - due).abs() < 1e-9, "{node:?}: {sum}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_wrong_with_them(shape in shapes()) {
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let check = check(&fabric);
        prop_assert!(check.findings.iter().all(|f| f.severity != Severity::Error));
        prop_assert!(check.findings.iter().all(|f| !["crossing", "speed", "nics"].contains(&f.check)));
        let hosts = fabric.hosts() as u64;
        prop_assert_eq!(check.lengths.pairs, hosts * (hosts - 1) / 2);
        prop_assert_eq!(check.lengths.unreachable, 0);
        prop_assert!(check.bisection.rate <= check.bisection.full * (1.0 + 1e-9));
    }

    /// Any text is a fabric or an error with a place.
    #[test]
    fn no_text_panics(text in "[ -~\n]{0,200}") {
        if let Err(error) = Fabric::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
