//! Kernels of gradient codecs: all levels alike, bounds of errors, and what is left out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use proptest::prelude::*;
use ringway_kernels::{
    Level,
    codec::{
        Noise, QUANTISED_BLOCK, Quantised, Rounding, at_least_at, dequantise_add_at, dequantise_at,
        dot_at, largest_at, quantise_at, quantise_rest_at, quantised_bytes, ranges_at, top_k_at,
    },
};

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_supported())
}

/// Elements of very different magnitudes.
fn vector(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    (0..len)
        .map(|_| {
            let sign = if next() < 0.5 { -1.0 } else { 1.0 };
            sign * next() * (10.0 * (next() - 0.5)).exp()
        })
        .collect()
}

fn quantised(level: Level, bits: u32, src: &[f32], rounding: Rounding) -> (Vec<f32>, Vec<u8>) {
    let mut scales = vec![0.0; src.len().div_ceil(QUANTISED_BLOCK)];
    let mut codes = vec![0; quantised_bytes(bits, src.len())];
    quantise_at(level, bits, src, rounding, &mut scales, &mut codes);
    (scales, codes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_number_is_one_of_the_two_next_to_its_element(bits in 2_u32..=8, len in 0_usize..1000, seed: u64, nearest: bool) {
        let src = vector(len, seed);
        let rounding = if nearest { Rounding::Nearest } else { Rounding::Random(Noise::new(seed)) };
        let (scales, codes) = quantised(Level::Portable, bits, &src, rounding);
        for level in levels() {
            prop_assert_eq!(&quantised(level, bits, &src, rounding), &(scales.clone(), codes.clone()));
            let from = Quantised { bits, scales: &scales, codes: &codes };
            let mut values = vec![f32::NAN; len];
            dequantise_at(level, from, &mut values);
            let mut sums = src.clone();
            dequantise_add_at(level, from, &mut sums);
            let range = |block: &[f32]| f64::from(largest_at(level, block)).powi(2) * block.len() as f64;
            prop_assert_eq!(ranges_at(level, &src), src.chunks(QUANTISED_BLOCK).map(range).sum::<f64>());
            let (mut rest, mut again) = (src.clone(), (vec![0.0; scales.len()], vec![0; codes.len()]));
            quantise_rest_at(level, bits, &mut rest, rounding, &mut again.0, &mut again.1);
            prop_assert_eq!(&again, &(scales.clone(), codes.clone()));
            for (i, (&x, &value)) in src.iter().zip(&values).enumerate() {
                prop_assert_eq!(rest[i], x - value);
                let scale = scales[i / QUANTISED_BLOCK];
                prop_assert!((x - value).abs() <= scale * if nearest { 0.5001 } else { 1.0001 }, "{x} became {value}, scale {scale}");
                prop_assert_eq!(sums[i], x + value);
            }
        }
    }

    #[test]
    fn the_largest_are_found(len in 0_usize..3000, share in 0.0..1.1_f64, seed: u64, coarse: bool) {
        let mut src = vector(len, seed);
        if coarse {
            // Many of equal magnitude.
            src.iter_mut().for_each(|x| *x = x.round());
        }
        let k = (len as f64 * share) as usize;
        let mut order: Vec<u32> = (0..len as u32).collect();
        order.sort_by(|&a, &b| src[b as usize].abs().total_cmp(&src[a as usize].abs()).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
        let threshold = order.iter().map(|&i| src[i as usize].abs()).fold(f32::INFINITY, f32::min);
        let above: Vec<u32> = (0..len as u32).filter(|&i| src[i as usize].abs() >= threshold).collect();
        for level in levels() {
            let mut places = vec![7];
            top_k_at(level, &src, k, &mut places);
            prop_assert_eq!(&places, &order);
            at_least_at(level, &src, threshold, &mut places);
            prop_assert_eq!(&places, &above);
        }
    }

    #[test]
    fn measures_are_those_of_the_definition(len in 0_usize..5000, seed: u64, at: prop::sample::Index, odd: bool) {
        let (mut a, b) = (vector(len, seed), vector(len, !seed));
        let largest = a.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        let sizes: f64 = a.iter().zip(&b).map(|(&a, &b)| (f64::from(a) * f64::from(b)).abs()).sum();
        let sums: Vec<u64> = levels().map(|level| dot_at(level, &a, &b).to_bits()).collect();
        for (level, &sum) in levels().zip(&sums) {
            prop_assert_eq!(largest_at(level, &a), largest);
            prop_assert!((f64::from_bits(sum) - exact).abs() <= 1e-5 * sizes);
        }
        prop_assert!(sums.iter().all(|sum| *sum == sums[0]));
        if len > 0 {
            let at = at.index(len);
            a[at] = if odd { f32::NEG_INFINITY } else { -f32::NAN };
            for level in levels() {
                prop_assert!(!largest_at(level, &a).is_finite());
            }
        }
    }
}

/// The mean of many roundings with other keys is the element: what is left is within five standard deviations.
#[test]
fn rounding_is_unbiased() {
    const TRIALS: u64 = 4000;
    let src = vector(256, 3);
    for bits in [2, 4, 8] {
        let mut sums = vec![0.0_f64; src.len()];
        let mut scale = 0.0;
        for key in 0..TRIALS {
            let (scales, codes) =
                quantised(Level::best(), bits, &src, Rounding::Random(Noise::new(key)));
            let mut values = vec![0.0; src.len()];
            let from = Quantised {
                bits,
                scales: &scales,
                codes: &codes,
            };
            dequantise_at(Level::best(), from, &mut values);
            sums.iter_mut()
                .zip(values)
                .for_each(|(sum, x)| *sum += f64::from(x));
            scale = f64::from(scales[0]);
        }
        // A value between two numbers has a variance of a quarter of their distance squared at most.
        let bound = 5.0 * 0.5 * scale / (TRIALS as f64).sqrt();
        for (&x, sum) in src.iter().zip(sums) {
            let mean = sum / TRIALS as f64;
            assert!(
                (mean - f64::from(x)).abs() < bound,
                "{x} has the mean {mean}, {bits} bits"
            );
        }
    }
}

#[test]
fn blocks_without_a_scale_are_zeros() {
    for src in [[0.0; 300], [-1e-36; 300]] {
        let (scales, codes) = quantised(Level::best(), 8, &src, Rounding::Nearest);
        let from = Quantised {
            bits: 8,
            scales: &scales,
            codes: &codes,
        };
        let mut values = [1.0; 300];
        dequantise_at(Level::best(), from, &mut values);
        assert_eq!(values, [0.0; 300]);
    }
}
