//! Kernels of gradient codecs, one core: bytes of `f32` a second, beside a copy.

use std::hint::black_box;

use ringway_kernels::{
    Cast, Level, cast_at,
    codec::{
        Noise, QUANTISED_BLOCK, Quantised, Rounding, dequantise_add_at, largest_at, quantise_at,
        quantised_bytes, top_k_at,
    },
};

use crate::{Variant, compare, memory};

/// All of them, in the last cache and beyond it.
pub(crate) fn all(filter: &str) {
    for (mib, rounds) in [(1_usize, 41), (64, 9)] {
        casts(filter, mib << 20, rounds);
        for level in Level::ALL.into_iter().filter(|level| level.is_supported()) {
            quantisation(filter, level, mib << 20, rounds);
            selection(filter, level, mib << 20, rounds);
        }
    }
}

/// Between 0 and 1 in an order without a pattern.
fn gradients(bytes: usize) -> &'static mut [f32] {
    // SAFETY: the memory is this function's, aligned, written, and lives until the process ends.
    let elements =
        unsafe { std::slice::from_raw_parts_mut(memory(bytes).cast::<f32>(), bytes / 4) };
    let mut state = 1_u32;
    for x in elements.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let uniform = f64::from(state >> 8) / f64::from(1 << 24);
        *x = ((uniform - 0.5) * 4.0).powi(3) as f32;
    }
    elements
}

/// Bytes that move are those of both sides: 6 for each element, as many as a copy of 3 moves.
fn casts(filter: &str, bytes: usize, rounds: usize) {
    let (src, dst) = (memory(bytes), memory(bytes));
    let mut variants: Vec<Variant<'_>> = vec![(
        "memcpy of as much traffic",
        // SAFETY: within the memory.
        Box::new(move || unsafe {
            std::ptr::copy_nonoverlapping(src, black_box(dst), bytes / 4 * 3);
        }),
    )];
    for (name, cast) in [
        ("f32 to f16", Cast::F32ToF16),
        ("f32 to bf16", Cast::F32ToBf16),
        ("f16 to f32", Cast::F16ToF32),
        ("bf16 to f32", Cast::Bf16ToF32),
    ] {
        // SAFETY: within the memory.
        let run = move || unsafe { cast_at(Level::best(), cast, black_box(dst), src, bytes / 4) };
        variants.push((name, Box::new(run)));
    }
    compare(
        filter,
        &format!("codec: casts, {} MiB", bytes >> 20),
        bytes,
        1,
        rounds,
        variants,
    );
}

fn quantisation(filter: &str, level: Level, bytes: usize, rounds: usize) {
    let src = gradients(bytes);
    let len = src.len();
    let mut copy = vec![0.0_f32; len];
    let mut variants: Vec<Variant<'_>> = Vec::new();
    let src = &*src;
    variants.push((
        "memcpy",
        Box::new(move || black_box(&mut copy[..]).copy_from_slice(src)),
    ));
    variants.push((
        "largest",
        Box::new(move || {
            black_box(largest_at(level, src));
        }),
    ));
    for (bits, encode, decode) in [
        (8, "quantise, 8 bits", "dequantise and add, 8 bits"),
        (4, "quantise, 4 bits", "dequantise and add, 4 bits"),
        (3, "quantise, 3 bits", "dequantise and add, 3 bits"),
    ] {
        let mut scales = vec![1.0; len.div_ceil(QUANTISED_BLOCK)];
        let mut codes = vec![0; quantised_bytes(bits, len)];
        let (ready, steady) = (codes.clone(), scales.clone());
        variants.push((
            encode,
            Box::new(move || {
                quantise_at(
                    level,
                    bits,
                    src,
                    Rounding::Random(Noise::new(1)),
                    &mut scales,
                    black_box(&mut codes),
                );
            }),
        ));
        let mut sum = vec![0.0; len];
        variants.push((
            decode,
            Box::new(move || {
                let from = Quantised {
                    bits,
                    scales: &steady,
                    codes: &ready,
                };
                dequantise_add_at(level, from, black_box(&mut sum));
            }),
        ));
    }
    let case = format!("codec: quantisation, {level:?}, {} MiB", bytes >> 20);
    compare(filter, &case, bytes, 1, rounds, variants);
}

fn selection(filter: &str, level: Level, bytes: usize, rounds: usize) {
    let src = &*gradients(bytes);
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for (name, share) in [
        ("top 0.1 %", 0.001),
        ("top 1 %", 0.01),
        ("top 10 %", 0.1),
        ("top 50 %", 0.5),
    ] {
        let k = (src.len() as f64 * share) as usize;
        let mut places = Vec::new();
        variants.push((
            name,
            Box::new(move || top_k_at(level, src, k, black_box(&mut places))),
        ));
    }
    let case = format!("codec: selection, {level:?}, {} MiB", bytes >> 20);
    compare(filter, &case, bytes, 1, rounds, variants);
}
