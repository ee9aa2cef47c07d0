//! Floats to numbers of a few bits, by blocks that have a scale each, and back.
//!
//! Of `b` bits there are the numbers from `-l` to `l`, `l = 2^(b-1) - 1`. A block's scale is its largest magnitude over `l`, and
//! an element becomes one of the two numbers next to its quotient, see [`Rounding`].

use super::{
    levels,
    pack::{Pack, low_bits},
};

/// Elements that share a scale. Longer blocks save bytes of scales, shorter ones keep a large element from coarsening
/// others; with 256 the scales are an eighth of a bit for each element.
pub const QUANTISED_BLOCK: usize = 256;

/// Smaller blocks are all zeros: the reciprocal of the scale would be infinite.
const LEAST: f32 = 1e-35;

/// Which of the two numbers next to its quotient an element becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The nearer one: the least error.
    Nearest,
    /// Either, the nearer one the more often: the expectation is the element. (Rounding of the quotient itself moves it by at most
    /// 2^-16 of the scale.)
    Random(Noise),
}

/// A source of random numbers that are a function of its key and of an element's place: the same again for the same key,
/// whatever the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: u32,
}

impl Noise {
    /// The noise of a key. Of keys that differ in any bit the noise has nothing in common.
    pub const fn new(key: u64) -> Self {
        let mut x = key;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self {
            key: (x ^ (x >> 31)) as u32,
        }
    }

    /// A number from 0 up to 1, for the element at a place (modulo 2^32). Bits are mixed as in
    /// <https://github.com/skeeto/hash-prospector>, "lowbias32".
    #[inline(always)]
    pub fn at(self, place: u32) -> f32 {
        let mut x = place.wrapping_mul(0x9e37_79b9) ^ self.key;
        x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
        x = (x ^ (x >> 15)).wrapping_mul(0x735a_2d97);
        x ^= x >> 15;
        // 24 bits: exact as f32.
        (x >> 8).cast_signed() as f32 * (1.0 / 16_777_216.0)
    }
}

/// A quantised vector: a scale for each block of [`QUANTISED_BLOCK`] elements, and the numbers, [`quantised_bytes`] of them.
#[derive(Clone, Copy, Debug)]
pub struct Quantised<'a> {
    /// Bits of a number, 2 to 8.
    pub bits: u32,
    /// Of each block.
    pub scales: &'a [f32],
    /// The numbers plus `l`, eight to `bits` bytes, the first in the lowest bits; blocks begin at whole bytes.
    pub codes: &'a [u8],
}

/// The bytes of `elements` numbers of `bits` bits.
pub const fn quantised_bytes(bits: u32, elements: usize) -> usize {
    (elements * bits as usize).div_ceil(8)
}

levels! {
    /// Quantises `src`, which must be finite, with `bits` (2 to 8) for each element, to `scales` and `codes`.
    ///
    /// # Panics
    /// If `bits` is not 2 to 8, or `scales` or `codes` have another length than [`Quantised`] says.
    quantise, quantise_at = quantise_body(bits: u32, src: &[f32], rounding: Rounding, scales: &mut [f32], codes: &mut [u8])
}

levels! {
    /// [`quantise`], which leaves in `src` what the numbers are short of it: each element less its number's value.
    ///
    /// # Panics
    /// As [`quantise`].
    quantise_rest, quantise_rest_at = quantise_rest_body(bits: u32, src: &mut [f32], rounding: Rounding, scales: &mut [f32], codes: &mut [u8])
}

levels! {
    /// Over the blocks of `src`, the sum of the square of the largest magnitude times the elements: the error of quantisation is
    /// in proportion to it.
    ranges, ranges_at = ranges_body(src: &[f32]) -> f64
}

levels! {
    /// The values of quantised numbers.
    ///
    /// # Panics
    /// As [`quantise`].
    dequantise, dequantise_at = dequantise_body(from: Quantised<'_>, dst: &mut [f32])
}

levels! {
    /// Adds the values of quantised numbers to `dst`.
    ///
    /// # Panics
    /// As [`quantise`].
    dequantise_add, dequantise_add_at = dequantise_add_body(from: Quantised<'_>, dst: &mut [f32])
}

fn check(bits: u32, elements: usize, scales: usize, codes: usize) {
    assert!((2..=8).contains(&bits), "{bits} bits; expected 2 to 8");
    let (blocks, bytes) = (
        elements.div_ceil(QUANTISED_BLOCK),
        quantised_bytes(bits, elements),
    );
    assert!(
        scales == blocks && codes == bytes,
        "{scales} scales and {codes} bytes; expected {blocks} and {bytes} for {elements} elements of {bits} bits"
    );
}

#[inline(always)]
fn quantise_body<P: Pack>(
    bits: u32,
    src: &[f32],
    rounding: Rounding,
    scales: &mut [f32],
    codes: &mut [u8],
) {
    check(bits, src.len(), scales.len(), codes.len());
    let blocks = src.chunks(QUANTISED_BLOCK).zip(scales);
    let bytes = quantised_bytes(bits, QUANTISED_BLOCK);
    for (at, ((block, scale), codes)) in blocks.zip(codes.chunks_mut(bytes)).enumerate() {
        let mut room = [0; QUANTISED_BLOCK];
        let first = (at * QUANTISED_BLOCK) as u32;
        *scale = quantise_block::<P>(bits, block, rounding, first, &mut room, codes);
    }
}

#[inline(always)]
fn quantise_rest_body<P: Pack>(
    bits: u32,
    src: &mut [f32],
    rounding: Rounding,
    scales: &mut [f32],
    codes: &mut [u8],
) {
    check(bits, src.len(), scales.len(), codes.len());
    let most = (1 << (bits - 1)) - 1;
    let blocks = src.chunks_mut(QUANTISED_BLOCK).zip(scales);
    let bytes = quantised_bytes(bits, QUANTISED_BLOCK);
    for (at, ((block, scale), codes)) in blocks.zip(codes.chunks_mut(bytes)).enumerate() {
        let mut room = [0; QUANTISED_BLOCK];
        let first = (at * QUANTISED_BLOCK) as u32;
        *scale = quantise_block::<P>(bits, block, rounding, first, &mut room, codes);
        let numbers = if bits == 8 { codes } else { &room[..] };
        for (x, &number) in block.iter_mut().zip(numbers) {
            *x -= (i32::from(number) - most) as f32 * *scale;
        }
    }
}

/// Quantises a block that begins at place `first`; its scale. With less than 8 bits `room` has the numbers before they are packed.
#[inline(always)]
fn quantise_block<P: Pack>(
    bits: u32,
    block: &[f32],
    rounding: Rounding,
    first: u32,
    room: &mut [u8; QUANTISED_BLOCK],
    codes: &mut [u8],
) -> f32 {
    let most = ((1 << (bits - 1)) - 1) as f32;
    let largest = largest(block);
    let (unit, inverse) = if largest < LEAST {
        (0.0, 0.0)
    } else {
        (largest / most, most / largest)
    };
    let numbers = if bits == 8 {
        &mut *codes
    } else {
        &mut room[..block.len()]
    };
    match rounding {
        Rounding::Nearest => round(block, inverse, most, |_| 0.5, numbers),
        Rounding::Random(noise) => {
            let offset = |i: usize| noise.at(first.wrapping_add(i as u32));
            round(block, inverse, most, offset, numbers);
        }
    }
    if bits < 8 {
        pack::<P>(bits, &room[..block.len()], codes);
    }
    unit
}

#[inline(always)]
fn ranges_body<P: Pack>(src: &[f32]) -> f64 {
    let range = |block: &[f32]| f64::from(largest(block)).powi(2) * block.len() as f64;
    src.chunks(QUANTISED_BLOCK).map(range).sum()
}

#[inline(always)]
fn largest(block: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (parts, rest) = block.as_chunks::<16>();
    for part in parts {
        for i in 0..16 {
            let x = part[i].abs();
            lanes[i] = if x > lanes[i] { x } else { lanes[i] };
        }
    }
    lanes
        .iter()
        .copied()
        .chain(rest.iter().map(|x| x.abs()))
        .fold(0.0, |most, x| if x > most { x } else { most })
}

/// Elements to numbers, plus `most`: the whole part after something from 0 up to 1 is added.
#[inline(always)]
fn round(
    block: &[f32],
    inverse: f32,
    most: f32,
    offset: impl Fn(usize) -> f32,
    numbers: &mut [u8],
) {
    let top = 2.0 * most;
    for (i, (&x, number)) in block.iter().zip(numbers).enumerate() {
        let y = x * inverse + most + offset(i);
        // In this form a NaN becomes 0.
        let y = if y > 0.0 { y } else { 0.0 };
        let y = if y < top { y } else { top };
        // SAFETY: from 0 to 254.
        *number = unsafe { y.to_int_unchecked::<i32>() } as u8;
    }
}

#[inline(always)]
fn pack<P: Pack>(bits: u32, numbers: &[u8], codes: &mut [u8]) {
    if bits == 4 {
        return pack_halves(numbers, codes);
    }
    let (mask, width) = (low_bits(bits), bits as usize);
    let (groups, rest) = numbers.as_chunks::<8>();
    for (group, codes) in groups.iter().zip(codes.chunks_mut(width)) {
        let all = P::gather(u64::from_le_bytes(*group), mask).to_le_bytes();
        codes.copy_from_slice(&all[..width]);
    }
    if !rest.is_empty() {
        let mut group = [0; 8];
        group[..rest.len()].copy_from_slice(rest);
        let all = P::gather(u64::from_le_bytes(group), mask).to_le_bytes();
        let codes = &mut codes[groups.len() * width..];
        let len = codes.len();
        codes.copy_from_slice(&all[..len]);
    }
}

#[inline(always)]
fn unpack<P: Pack>(bits: u32, codes: &[u8], numbers: &mut [u8]) {
    if bits == 4 {
        return unpack_halves(codes, numbers);
    }
    let (mask, width) = (low_bits(bits), bits as usize);
    for (numbers, codes) in numbers.chunks_mut(8).zip(codes.chunks(width)) {
        let mut all = [0; 8];
        all[..codes.len()].copy_from_slice(codes);
        let group = P::scatter(u64::from_le_bytes(all), mask).to_le_bytes();
        let len = numbers.len();
        numbers.copy_from_slice(&group[..len]);
    }
}

/// [`pack`] for 4 bits: the compiler makes vectors of shifts.
#[inline(always)]
fn pack_halves(numbers: &[u8], codes: &mut [u8]) {
    let (pairs, rest) = numbers.as_chunks::<2>();
    for (code, &[low, high]) in codes.iter_mut().zip(pairs) {
        *code = low | high << 4;
    }
    if let ([last], Some(code)) = (rest, codes.get_mut(pairs.len())) {
        *code = *last;
    }
}

/// [`unpack`] for 4 bits.
#[inline(always)]
fn unpack_halves(codes: &[u8], numbers: &mut [u8]) {
    let (pairs, rest) = numbers.as_chunks_mut::<2>();
    for (pair, &code) in pairs.iter_mut().zip(codes) {
        *pair = [code & 0xf, code >> 4];
    }
    if let ([last], Some(code)) = (rest, codes.last()) {
        *last = code & 0xf;
    }
}

#[inline(always)]
fn dequantise_body<P: Pack>(from: Quantised<'_>, dst: &mut [f32]) {
    values::<P, false>(from, dst);
}

#[inline(always)]
fn dequantise_add_body<P: Pack>(from: Quantised<'_>, dst: &mut [f32]) {
    values::<P, true>(from, dst);
}

#[inline(always)]
fn values<P: Pack, const ADD: bool>(from: Quantised<'_>, dst: &mut [f32]) {
    let Quantised {
        bits,
        scales,
        codes,
    } = from;
    check(bits, dst.len(), scales.len(), codes.len());
    let most = (1 << (bits - 1)) - 1;
    let bytes = quantised_bytes(bits, QUANTISED_BLOCK);
    let blocks = dst.chunks_mut(QUANTISED_BLOCK).zip(codes.chunks(bytes));
    for ((block, codes), &scale) in blocks.zip(scales) {
        let mut room = [0; QUANTISED_BLOCK];
        let numbers = if bits == 8 {
            codes
        } else {
            unpack::<P>(bits, codes, &mut room[..block.len()]);
            &room[..block.len()]
        };
        for (x, &number) in block.iter_mut().zip(numbers) {
            let value = (i32::from(number) - most) as f32 * scale;
            *x = if ADD { *x + value } else { value };
        }
    }
}
