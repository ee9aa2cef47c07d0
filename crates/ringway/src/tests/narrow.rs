//! Half precision between hosts: the setting `wire_between_hosts`.

use std::sync::Arc;

use super::{Over, world_on};
use crate::{
    Algorithm, Collective, Communicator, DataType, Element, ReduceOp, Request,
    buffer::{exclusive, shared},
    engine::{Policy, Tried, lock},
};

/// Ranks of a host are neither side by side nor equally many.
const HOSTS: [&str; 7] = ["a", "b", "a", "c", "b", "a", "c"];
const COUNT: usize = 5_003;

fn hierarchical<T: Element>(comm: &Communicator, input: &[T], op: ReduceOp) -> Vec<T> {
    let mut output = input.to_vec();
    let (from, to) = (shared(input), exclusive(&mut output));
    let request = Request::new(Collective::AllReduce, T::DTYPE, from, to);
    comm.run(request.reduce_op(op).algorithm(Algorithm::Hierarchical))
        .unwrap();
    output
}

/// Numbers of both signs, over some orders of magnitude, none of which 16 bits hold.
fn value(rank: usize, i: usize) -> f32 {
    let x = ((rank * 7919 + i * 104_729) % 10_007) as f32 / 5_003.5 - 1.0;
    x * [1e-3, 0.1, 1.0, 30.0][i % 4] + 1e-7
}

fn results(wire: &str, op: ReduceOp, value: fn(usize, usize) -> f32) -> Vec<Vec<f32>> {
    world_on(
        &HOSTS,
        Over::Messages,
        &[("wire_between_hosts", wire)],
        |comm| {
            let input: Vec<f32> = (0..COUNT).map(|i| value(comm.rank(), i)).collect();
            let first = hierarchical(&comm, &input, op);
            let again = hierarchical(&comm, &input, op);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&first), bits(&again), "a second run gives other bits");
            first
        },
    )
}

/// Asserts that all ranks have the same bits, and gives them.
fn common(results: Vec<Vec<f32>>) -> Vec<f32> {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for (rank, result) in results.iter().enumerate() {
        assert_eq!(bits(result), bits(&results[0]), "rank {rank} and rank 0");
    }
    results.into_iter().next().unwrap()
}

#[test]
fn sums_differ_by_the_rounding_of_a_message_for_each_host_and_are_the_same_everywhere() {
    // Half a unit in the last place of a number of 11 and of 8 bits; subnormals of f16 are exact to 2^-25.
    for (wire, unit, least) in [
        ("f16", 2f64.powi(-11), 2f64.powi(-25)),
        ("bf16", 2f64.powi(-8), 0.0),
    ] {
        for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max] {
            let got = common(results(wire, op, value));
            let mut rounded = 0;
            for (i, &got) in got.iter().enumerate() {
                let inputs = HOSTS
                    .iter()
                    .enumerate()
                    .map(|(rank, _)| f64::from(value(rank, i)));
                let (exact, magnitude) = match op {
                    ReduceOp::Max => {
                        let most = inputs.fold(f64::NEG_INFINITY, f64::max);
                        (most, most.abs())
                    }
                    _ => {
                        let parts = if op == ReduceOp::Average { 7.0 } else { 1.0 };
                        let sums = inputs.fold((0.0, 0.0), |(s, m), x| (s + x, m + x.abs()));
                        (sums.0 / parts, sums.1 / parts)
                    }
                };
                // Each of three hosts rounds once, the last the completed sum; f32 adds its own.
                let bound = 3.0 * (unit * magnitude + least) + 7.0 * 2f64.powi(-24) * magnitude;
                let error = (f64::from(got) - exact).abs();
                assert!(
                    error <= bound,
                    "{op} of element {i} as {wire}: {got} for {exact}, off by {error}, allowed {bound}"
                );
                rounded += usize::from(error > 2f64.powi(-20) * magnitude);
            }
            assert!(rounded > COUNT / 2, "{wire} carried {op} without rounding");
        }
    }
}

#[test]
fn what_f16_does_not_hold_becomes_infinite_and_nan_stays() {
    fn special(rank: usize, i: usize) -> f32 {
        match (i % 8, rank) {
            (0, 3) => f32::NAN,
            (1, 4) => f32::INFINITY,
            (2, 0) => f32::NEG_INFINITY,
            // Infinities of both signs.
            (3, 0) => f32::INFINITY,
            (3, 6) => f32::NEG_INFINITY,
            // Sums of 70,000 and more: beyond 65,504.
            (4, _) => 10_000.0,
            (5, _) => -20_000.0,
            (6, _) => -0.0,
            _ => 1.0,
        }
    }
    let got = common(results("f16", ReduceOp::Sum, special));
    for (i, got) in got.into_iter().enumerate() {
        let right = match i % 8 {
            0 | 3 => got.is_nan(),
            1 | 4 => got == f32::INFINITY,
            2 | 5 => got == f32::NEG_INFINITY,
            6 => got == 0.0 && got.is_sign_negative(),
            _ => got == 7.0,
        };
        assert!(right, "element {i}: {got}");
    }
    // The range of bf16 is that of f32.
    let got = common(results("bf16", ReduceOp::Sum, special));
    assert!((got[4] - 70_000.0).abs() < 70_000.0 / 64.0, "{}", got[4]);
    assert!(got[0].is_nan() && got[1] == f32::INFINITY);
}

#[test]
fn nothing_else_is_rounded() {
    let settings = [("wire_between_hosts", "bf16")];
    let exact = |i: usize| 7.0 + 28.0 * (i % 1000) as f64 / 4096.0;
    let each = |rank: usize, i: usize| 1.0 + (rank + 1) as f64 * (i % 1000) as f64 / 4096.0;
    world_on(&HOSTS, Over::Messages, &settings, |comm| {
        let input: Vec<f64> = (0..999).map(|i| each(comm.rank(), i)).collect();
        let wide = hierarchical(&comm, &input, ReduceOp::Sum);
        assert!(wide.iter().enumerate().all(|(i, &x)| x == exact(i)));
        let mut narrow: Vec<f32> = input.iter().map(|&x| x as f32).collect();
        let memory = exclusive(&mut narrow);
        let request = Request::new(Collective::AllReduce, DataType::F32, memory, memory);
        let request = request.reduce_op(ReduceOp::Sum);
        comm.run(request.algorithm(Algorithm::Ring)).unwrap();
        let right = |(i, &x): (usize, &f32)| f64::from(x) == exact(i);
        assert!(narrow.iter().enumerate().all(right));
    });
    // Nor what codecs add up.
    world_on(&HOSTS, Over::Messages, &settings, |comm| {
        let mut values: Vec<f32> = (0..999).map(|i| each(comm.rank(), i) as f32).collect();
        let memory = exclusive(&mut values);
        let request = Request::new(Collective::AllReduce, DataType::F32, memory, memory);
        let request = request.reduce_op(ReduceOp::Sum).wide();
        comm.run(request.algorithm(Algorithm::Hierarchical))
            .unwrap();
        let right = |(i, &x): (usize, &f32)| f64::from(x) == exact(i);
        assert!(values.iter().enumerate().all(right));
    });
    // On one host no message goes to another.
    let one = ["a"; 4];
    world_on(&one, Over::Messages, &settings, |comm| {
        let sum = hierarchical(&comm, &[1.0_f32 + 2f32.powi(-12)], ReduceOp::Sum);
        assert_eq!(sum, [4.0 + 2f32.powi(-10)]);
    });
}

#[test]
fn the_cost_model_knows_that_half_of_the_bytes_cross() {
    let time = |wire| {
        let times = world_on(
            &HOSTS,
            Over::Messages,
            &[("wire_between_hosts", wire)],
            |comm| {
                let candidates = comm.candidates(Collective::AllReduce, 64 << 20);
                let by = |a| candidates.iter().find(|c| c.algorithm == a).copied();
                let hierarchical = by(Algorithm::Hierarchical).unwrap();
                (
                    hierarchical.wire,
                    hierarchical.total(),
                    by(Algorithm::Ring).unwrap().total(),
                )
            },
        );
        times[0]
    };
    let ((no, wide, ring), (half, narrow, same)) = (time("off"), time("f16"));
    assert_eq!((no, half), (None, Some(DataType::F16)));
    assert_eq!(ring, same);
    assert!(narrow < wide && narrow * 2 > wide, "{narrow:?}, {wide:?}");
}

#[test]
fn ranks_that_do_not_agree_are_told() {
    // The descriptor tells it: what goes over the wire is part of what ranks must agree on.
    let settings = [("wire_between_hosts", "off"), ("timeout", "20s")];
    let errors = super::world_with(
        &["a", "b"],
        Over::Messages,
        &settings,
        |rank| (rank == 1).then_some(("wire_between_hosts", "bf16")),
        |comm| {
            let mut values = vec![1.0_f32; 100];
            let memory = exclusive(&mut values);
            let request = Request::new(Collective::AllReduce, DataType::F32, memory, memory);
            let request = request.reduce_op(ReduceOp::Sum);
            comm.run(request.algorithm(Algorithm::Hierarchical))
                .unwrap_err()
                .to_string()
        },
    );
    assert!(
        errors.iter().any(|e| e.contains("bf16 between hosts")),
        "{errors:?}"
    );
}

/// All-reduces are tried with `f32`: what those took whose messages were halved says nothing of others.
#[test]
fn what_was_tried_counts_where_elements_go_between_hosts_alike() {
    const BYTES: usize = 1 << 20;
    let settings = [("wire_between_hosts", "bf16")];
    world_on(&HOSTS, Over::Messages, &settings, |comm| {
        let mut tried = Tried::new(BYTES);
        tried.set(Algorithm::Hierarchical, 3000);
        tried.set(Algorithm::Ring, 2000);
        let before = lock(&comm.group.plans).policy();
        let policy = Policy {
            tried: vec![tried],
            ..(*before).clone()
        };
        comm.engine().adopt_in(Arc::new(policy), &comm.group);
        let factors = |dtype| {
            let mut plans = lock(&comm.group.plans);
            let candidates = plans.candidates(Collective::AllReduce, dtype, BYTES);
            [Algorithm::Hierarchical, Algorithm::Ring].map(|algorithm| {
                let mut of_it = candidates.iter().filter(|c| c.algorithm == algorithm);
                of_it.next().unwrap().thousandths
            })
        };
        assert_eq!(factors(DataType::F32), [3000, 2000]);
        assert_eq!(factors(DataType::F64), [1000, 2000]);
    });
}
