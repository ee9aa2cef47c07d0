//! Sums: their bits, their errors, and what is not in them yet.

use ringway_codec::Aggregation as _;
use ringway_codec::{
    Chosen, Codec, Compressor as _, Encoded, Feedback, GatherAll, Kind, Load, Memory as _,
    Momentum, Options, Outcome, Quantiser, Sent, Sparse, Wire as _,
};

use crate::{KINDS, exact_sum, gradients, length, tensors, world::world};

/// Results and residuals of all ranks after some steps.
fn run(
    kind: Kind,
    options: Options,
    ranks: usize,
    len: usize,
    steps: usize,
) -> Vec<(Vec<Vec<f32>>, Vec<f32>, usize)> {
    world(ranks, |wire| {
        let mut codec = Codec::new(kind, options, tensors(len));
        let mut results = Vec::new();
        for step in 0..steps {
            let mut x = gradients(len, wire.rank(), step);
            codec.sum(&mut x, wire).unwrap();
            results.push(x);
        }
        (results, codec.residual().to_vec(), wire.sent)
    })
}

#[test]
fn all_ranks_get_the_same_bits_and_nothing_is_lost() {
    const STEPS: usize = 6;
    for kind in KINDS {
        for ranks in 1..=9 {
            for len in [0, 1, 5, 700, 2001] {
                let all = run(kind, Options::default(), ranks, len, STEPS);
                for (results, ..) in &all {
                    let same = results.iter().zip(&all[0].0).all(|(a, b)| {
                        a.iter()
                            .map(|x| x.to_bits())
                            .eq(b.iter().map(|x| x.to_bits()))
                    });
                    assert!(same, "{kind}, {ranks} ranks, {len} elements");
                }
                let mut missing = vec![0.0_f64; len];
                for step in 0..STEPS {
                    let exact = exact_sum(len, ranks, step);
                    for i in 0..len {
                        missing[i] += exact[i] - f64::from(all[0].0[step][i]);
                    }
                }
                for (_, residual, _) in &all {
                    missing
                        .iter_mut()
                        .zip(residual)
                        .for_each(|(m, &r)| *m -= f64::from(r));
                }
                // Partial sums of 16-bit floats are rounded; all else is rounding of f32.
                let unit = match kind {
                    Kind::Fp16 => 1.0 / 2048.0,
                    Kind::Bf16 => 1.0 / 256.0,
                    _ => 3e-6,
                };
                let most = (STEPS * ranks) as f64 * 8.0 * unit;
                let worst = missing.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
                assert!(
                    worst <= most,
                    "{kind}, {ranks} ranks, {len} elements: {worst} is missing"
                );
            }
        }
    }
}

#[test]
fn errors_of_one_sum_are_within_their_bounds() {
    let (ranks, len) = (4, 5000);
    let nothing = Options {
        feedback: Feedback::Nothing,
        seed: 7,
    };
    let exact = exact_sum(len, ranks, 0);
    for (kind, bound) in [
        (Kind::Fp16, 0.001),
        (Kind::Bf16, 0.01),
        (Kind::Int(8), 0.05),
        (Kind::Int(4), 1.0),
        (Kind::Dynamic(0.1), 0.3),
        (Kind::TopK(0.5), 0.7),
    ] {
        let (results, ..) = &run(kind, nothing, ranks, len, 1)[0];
        let error = length(
            results[0]
                .iter()
                .zip(&exact)
                .map(|(&a, b)| f64::from(a) - b),
        );
        let relative = error / length(exact.iter().copied());
        assert!(relative < bound, "{kind}: {relative}");
    }
}

/// Over steps with one gradient, what error feedback sends comes to the gradient; without it the same is missing each time.
#[test]
fn feedback_brings_what_was_left_out() {
    let (ranks, len, steps) = (3, 1000, 60);
    for kind in [Kind::TopK(0.1), Kind::Int(2), Kind::PowerSgd(2)] {
        let mean_error = |feedback| {
            let results = world(ranks, |wire| {
                let mut codec = Codec::new(kind, Options { feedback, seed: 0 }, tensors(len));
                let mut mean = vec![0.0; len];
                for _ in 0..steps {
                    let mut x = gradients(len, wire.rank(), 0);
                    codec.average(&mut x, wire).unwrap();
                    mean.iter_mut()
                        .zip(x)
                        .for_each(|(m, x)| *m += f64::from(x) / steps as f64);
                }
                mean
            });
            let exact = exact_sum(len, ranks, 0);
            let error = results[0]
                .iter()
                .zip(&exact)
                .map(|(m, x)| m - x / ranks as f64);
            length(error) / length(exact.iter().map(|x| x / ranks as f64))
        };
        let (with, without) = (
            mean_error(Feedback::Residual),
            mean_error(Feedback::Nothing),
        );
        assert!(with < 0.35, "{kind}: {with}");
        assert!(
            kind == Kind::Int(2) || without > 1.5 * with,
            "{kind}: {without} without, {with} with"
        );
    }
}

#[test]
fn sums_repeat_bit_by_bit_and_another_seed_rounds_otherwise() {
    let seed = |seed| Options {
        feedback: Feedback::Nothing,
        seed,
    };
    let once = run(Kind::Int(4), seed(1), 3, 999, 3);
    assert!(once == run(Kind::Int(4), seed(1), 3, 999, 3));
    assert!(once != run(Kind::Int(4), seed(2), 3, 999, 3));
}

#[test]
fn fewer_bytes_are_sent() {
    let (ranks, len) = (4, 100_000);
    let dense = 8.0 * len as f64;
    for (kind, share) in [
        (Kind::Fp16, 0.501),
        (Kind::Int(8), 0.26),
        (Kind::Int(4), 0.135),
        (Kind::TopK(0.01), 0.015),
        (Kind::PowerSgd(2), 0.12),
    ] {
        let sent = run(kind, Options::default(), ranks, len, 1)[0].2 as f64 / dense;
        assert!(sent < share, "{kind} sends {sent} of the bytes");
    }
}

#[test]
fn places_take_far_fewer_bits_than_32() {
    let len = 1_000_000;
    let vector = gradients(len, 0, 0);
    for (share, most) in [(0.001, 14.0), (0.01, 10.0), (0.1, 7.0), (0.5, 4.0)] {
        let mut sparse = Sparse::new(Chosen::Share(share));
        let mut encoded = Encoded::default();
        let whole = 0..len;
        sparse.encode(
            &mut vector.clone(),
            std::slice::from_ref(&whole),
            0,
            &mut encoded,
        );
        let entries = len as f64 * share;
        let bits = 8.0 * encoded.bytes.len() as f64 / entries - 16.0;
        assert!(
            bits < most,
            "{share} of the elements: {bits} bits for a place"
        );
        let mut decoded = vec![1.0; len];
        sparse
            .decode(&encoded.bytes, &mut decoded, Load::Replace(1.0))
            .unwrap();
        assert_eq!(
            decoded.iter().filter(|x| **x != 0.0).count() as f64,
            entries
        );
        let close = |(&x, &d): (&f32, &f32)| d == 0.0 || (x - d).abs() <= x.abs() / 256.0;
        assert!(vector.iter().zip(&decoded).all(close));
    }
}

#[test]
fn the_width_follows_the_vector() {
    let widths: Vec<u8> = [0.5, 0.2, 0.1, 0.001]
        .map(|error| {
            let (vector, mut encoded) = (gradients(4096, 0, 0), Encoded::default());
            let whole = 0..vector.len();
            let mut quantiser = Quantiser::within(error);
            quantiser.encode(
                &mut vector.clone(),
                std::slice::from_ref(&whole),
                0,
                &mut encoded,
            );
            let mut decoded = vec![0.0; vector.len()];
            quantiser
                .decode(&encoded.bytes, &mut decoded, Load::Replace(1.0))
                .unwrap();
            let left = length(vector.iter().zip(&decoded).map(|(a, b)| f64::from(a - b)));
            let relative = left / length(vector.iter().map(|&x| f64::from(x)));
            assert!(
                encoded.bytes[0] == 8 || relative <= error * 1.1,
                "{relative} within {error}"
            );
            encoded.bytes[0]
        })
        .to_vec();
    assert!(
        widths.windows(2).all(|pair| pair[0] < pair[1]),
        "{widths:?}"
    );
    assert_eq!(widths[3], 8);
}

/// Two ranks gather; for many it pays to have owners add up. Both rules give one sum on all ranks.
#[test]
fn sparse_sums_take_the_cheaper_rule() {
    let len = 20_000;
    for ranks in [2, 9] {
        let sent = world(ranks, |wire| {
            let mut rule = GatherAll::new(Chosen::Share(0.01));
            (0..3)
                .map(|step| {
                    let before = wire.sent;
                    let mut x = gradients(len, wire.rank(), step);
                    let mut sum = vec![0.0; len];
                    let outcome = rule
                        .sum(&mut x, &mut sum, 1.0, false, step as u64, wire)
                        .unwrap();
                    assert_eq!(outcome, Outcome::Summed);
                    wire.sent - before
                })
                .collect::<Vec<_>>()
        });
        let [first, second, third] = sent[0][..] else {
            unreachable!()
        };
        if ranks == 2 {
            assert!(
                second.abs_diff(first) < first / 4 && third.abs_diff(first) < first / 4,
                "{sent:?}"
            );
        } else {
            assert!(third < first / 3, "{sent:?}");
        }
    }
}

#[test]
fn momentum_ends_where_something_was_sent() {
    let mut memory = Momentum::new(2, 0.5);
    let (sent, largest) = memory.recall(&[4.0, 1.0]);
    assert_eq!((&*sent, largest), (&[4.0, 1.0][..], 4.0));
    sent[0] = 0.0;
    let chosen = |absent| Sent {
        absent,
        chosen: true,
    };
    memory.commit(&chosen(&[]));
    // The second has a velocity of 1 and waits; the first starts anew.
    let (sent, _) = memory.recall(&[1.0, 0.0]);
    assert_eq!(sent, [1.0, 1.0 + 0.5]);
    // Without a gradient of it, in this step, it is as it was.
    sent[1] = 0.0;
    let second = 1..2;
    memory.commit(&chosen(std::slice::from_ref(&second)));
    assert_eq!(memory.recall(&[1.0, 1.0]).0[1], 1.0 + (0.5 + 1.0));
}

/// With codecs that send something of each element sums are those of gradients with momentum.
#[test]
fn momentum_is_the_optimizer_s_where_all_is_sent() {
    let feedback = Feedback::Momentum(0.5);
    for kind in [Kind::None, Kind::Bf16, Kind::Int(8), Kind::Dynamic(0.1)] {
        world(2, |wire| {
            let options = Options { feedback, seed: 0 };
            let mut codec = Codec::new(kind, options, tensors(100));
            for expected in [2.0, 3.0, 3.5] {
                let mut x = vec![1.0; 100];
                codec.sum(&mut x, wire).unwrap();
                assert!(
                    x.iter().all(|x| (x - expected).abs() < 0.01),
                    "{kind}: {x:?}"
                );
            }
        });
    }
}

/// Squares of such elements are no 32-bit numbers.
#[test]
fn the_width_is_that_of_the_vector_whatever_its_magnitude() {
    let width = |factor: f32| {
        let mut vector = gradients(4096, 0, 0);
        vector.iter_mut().for_each(|x| *x *= factor);
        let (mut encoded, whole) = (Encoded::default(), 0..vector.len());
        let mut quantiser = Quantiser::within(0.1);
        quantiser.encode(&mut vector, std::slice::from_ref(&whole), 0, &mut encoded);
        encoded.bytes[0]
    };
    let usual = width(1.0);
    assert!((3..8).contains(&usual), "{usual}");
    assert_eq!([width(1e25), width(1e-25)], [usual; 2]);
}

#[test]
fn another_kind_goes_on_with_what_is_left() {
    let (ranks, len) = (3, 500);
    let results = world(ranks, |wire| {
        let mut codec = Codec::new(Kind::TopK(0.01), Options::default(), tensors(len));
        let mut total = vec![0.0_f64; len];
        for step in 0..4 {
            if step == 2 {
                codec.change(Kind::None);
            }
            let mut x = gradients(len, wire.rank(), step);
            codec.measure_next();
            codec.sum(&mut x, wire).unwrap();
            total
                .iter_mut()
                .zip(x)
                .for_each(|(t, x)| *t += f64::from(x));
        }
        assert!(codec.residual().iter().all(|x| *x == 0.0));
        total
    });
    let mut exact = vec![0.0; len];
    for step in 0..4 {
        exact
            .iter_mut()
            .zip(exact_sum(len, ranks, step))
            .for_each(|(e, x)| *e += x);
    }
    for total in results {
        assert!(total.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

#[test]
fn fidelity_is_that_of_the_definition() {
    let len = 1000;
    world(1, |wire| {
        let mut codec = Codec::new(Kind::TopK(0.5), Options::default(), tensors(len));
        let x = gradients(len, 0, 0);
        codec.measure_next();
        codec.sum(&mut x.clone(), wire).unwrap();
        let measured = codec.fidelity().unwrap();
        let (x, left) = (
            x.iter().map(|&x| f64::from(x)),
            codec.residual().iter().map(|&x| f64::from(x)),
        );
        let residual = length(left.clone()) / length(x.clone());
        let sent: Vec<f64> = x.clone().zip(left).map(|(x, left)| x - left).collect();
        let along: f64 = x.clone().zip(&sent).map(|(x, s)| x * s).sum();
        let cosine = along / length(x) / length(sent.iter().copied());
        assert!(
            (measured.cosine - cosine).abs() < 1e-4,
            "{measured:?}, {cosine}"
        );
        assert!(
            (measured.residual - residual).abs() < 1e-4,
            "{measured:?}, {residual}"
        );
    });
}

/// What is kept of a tensor is not sent in a step in which the tensor has no gradient: nobody would take it.
#[test]
fn tensors_without_a_gradient_lose_nothing() {
    let (ranks, len) = (3, 700);
    let bias = tensors(len).iter().last().unwrap().len();
    for kind in KINDS {
        let all = world(ranks, |wire| {
            let mut codec = Codec::new(kind, Options::default(), tensors(len));
            let mut total = vec![0.0_f64; bias];
            for step in 0..6 {
                let mut x = gradients(len, wire.rank(), step);
                if step % 2 == 1 {
                    x[len - bias..].fill(0.0);
                    codec.leave_out(&[1]);
                }
                codec.sum(&mut x, wire).unwrap();
                if step % 2 == 0 {
                    let sums = total.iter_mut().zip(&x[len - bias..]);
                    sums.for_each(|(total, &x)| *total += f64::from(x));
                }
            }
            (total, codec.residual()[len - bias..].to_vec())
        });
        let mut missing = vec![0.0; bias];
        for step in [0, 2, 4] {
            let exact = exact_sum(len, ranks, step);
            let sums = missing.iter_mut().zip(&exact[len - bias..]);
            sums.for_each(|(m, x)| *m += x);
        }
        let taken = missing.iter_mut().zip(&all[0].0);
        taken.for_each(|(m, x)| *m -= x);
        for (_, residual) in &all {
            let left = missing.iter_mut().zip(residual);
            left.for_each(|(m, &x)| *m -= f64::from(x));
        }
        let unit = match kind {
            Kind::Fp16 => 1.0 / 2048.0,
            Kind::Bf16 => 1.0 / 256.0,
            _ => 3e-6,
        };
        let worst = missing.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        assert!(
            worst <= 144.0 * unit,
            "{kind}: {worst} of the bias is missing"
        );
    }
}
