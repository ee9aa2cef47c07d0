//! What codecs promise, for all of them and many numbers of ranks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod convex;
mod foreign;
mod state;
mod sums;
mod unfit;
mod world;

use ringway_codec::{Kind, Tensor, Tensors};

/// All kinds that encode.
const KINDS: [Kind; 11] = [
    Kind::Fp16,
    Kind::Bf16,
    Kind::Int(8),
    Kind::Int(4),
    Kind::Int(2),
    Kind::Dynamic(0.1),
    Kind::TopK(0.01),
    Kind::TopK(0.5),
    Kind::Threshold(1.0),
    Kind::PowerSgd(1),
    Kind::PowerSgd(4),
];

/// Tensors of about `len` elements in all: a matrix, and the rest a vector.
fn tensors(len: usize) -> Tensors {
    let side = (len as f64 * 0.9).sqrt() as usize;
    Tensors::new(vec![
        Tensor::new("layer.weight", [side, side]),
        Tensor::new("layer.bias", [len - side * side]),
    ])
}

/// Between -1 and 1, and now and then larger; another one for each rank and step.
fn gradients(len: usize, rank: usize, step: usize) -> Vec<f32> {
    let mut state = ((rank as u64 + 1) << 32) | (step as u64 + 1);
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    next();
    (0..len)
        .map(|i| next() * if i % 97 == 0 { 8.0 } else { 1.0 })
        .collect()
}

fn exact_sum(len: usize, ranks: usize, step: usize) -> Vec<f64> {
    let mut sum = vec![0.0; len];
    for rank in 0..ranks {
        for (sum, x) in sum.iter_mut().zip(gradients(len, rank, step)) {
            *sum += f64::from(x);
        }
    }
    sum
}

fn length(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}
