//! How large vectors are.

use super::{levels, pack::Pack};

/// Partial results, so that the order of a sum is the same for registers of all widths.
const LANES: usize = 16;

/// Products that are summed as `f32` before they are added to an `f64`.
const RUN: usize = 64 * LANES;

levels! {
    /// The largest magnitude of `src`; 0 if it is empty. Infinite or NaN if, and only if, some element is.
    largest, largest_at = largest_body(src: &[f32]) -> f32
}

levels! {
    /// The sum of `a[i] * b[i]`; of the shorter's length. Runs of 1,024 products are summed as `f32`, in 16 parts.
    dot, dot_at = dot_body(a: &[f32], b: &[f32]) -> f64
}

/// As numbers, magnitudes order like their bits, and infinity and NaN come last.
#[inline(always)]
fn largest_body<P: Pack>(src: &[f32]) -> f32 {
    let magnitude = |x: f32| x.to_bits() & 0x7fff_ffff;
    let (blocks, rest) = src.as_chunks::<{ 4 * LANES }>();
    let mut lanes = [0; 4 * LANES];
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = magnitude(x).max(*lane);
        }
    }
    let rest = rest.iter().map(|&x| magnitude(x));
    f32::from_bits(lanes.into_iter().chain(rest).max().unwrap_or(0))
}

#[inline(always)]
fn dot_body<P: Pack>(a: &[f32], b: &[f32]) -> f64 {
    a.chunks(RUN)
        .zip(b.chunks(RUN))
        .map(|(a, b)| {
            let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            let mut lanes = [0.0_f32; LANES];
            for (a, b) in a.iter().zip(b) {
                for i in 0..LANES {
                    lanes[i] += a[i] * b[i];
                }
            }
            let rest = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(a * b));
            lanes.into_iter().map(f64::from).chain(rest).sum::<f64>()
        })
        .sum()
}
