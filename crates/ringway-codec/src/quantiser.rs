//! Numbers of a few bits with a scale for each block of elements.
//!
//! An encoded vector is a byte, the bits of a number; the scales, as f32; and the numbers, packed. [`ringway_kernels::codec`] says how elements
//! are rounded.

use std::ops::Range;

use ringway_kernels::codec::{
    Noise, QUANTISED_BLOCK, Quantised, Rounding, dequantise, dequantise_add, quantise_rest,
    quantised_bytes, ranges,
};

use crate::{Compressor, DecodeError, Encoded, Load, compressor::Reader, tensors::product};

/// Block-scaled numbers.
///
/// Whoever sends what was left out with the next vector rounds to nearest: what is left out is then always less than what there was,
/// which feedback needs. Whoever does not rounds at random: the expectation of what is sent is the vector.
#[derive(Clone, Debug)]
pub struct Quantiser {
    width: Width,
    random: bool,
}

#[derive(Clone, Copy, Debug)]
enum Width {
    Fixed(u32),
    /// The least whose relative error is not above this.
    Within(f64),
}

/// Bits that a number may have.
const WIDTHS: Range<u32> = 2..9;

impl Quantiser {
    /// Numbers of `bits` bits, rounded to nearest.
    ///
    /// # Panics
    /// If there are not 2 to 8.
    pub fn of_width(bits: u32) -> Self {
        assert!(WIDTHS.contains(&bits), "{bits} bits; expected 2 to 8");
        Self {
            width: Width::Fixed(bits),
            random: false,
        }
    }

    /// For each vector the fewest bits, 2 to 8, with which the expected error, as a vector, is at most `error` times the length
    /// of the vector: by the magnitudes of its blocks and by its length. With 8 it may be more. Rounded to nearest.
    pub const fn within(error: f64) -> Self {
        Self {
            width: Width::Within(error),
            random: false,
        }
    }

    /// Rounds at random.
    pub const fn random(self) -> Self {
        Self {
            random: true,
            ..self
        }
    }

    fn bits(&self, vector: &[f32]) -> u32 {
        match self.width {
            Width::Fixed(bits) => bits,
            Width::Within(error) => {
                // On the mean the square of the error is this part of the square of the distance of numbers.
                let part = if self.random { 1.0 / 6.0 } else { 1.0 / 12.0 };
                let ranges = ranges(vector);
                let allowed = error * error * product(vector, vector);
                let fits = |bits: &u32| {
                    let most = f64::from((1_u32 << (bits - 1)) - 1);
                    part * ranges / (most * most) <= allowed
                };
                WIDTHS.clone().find(fits).unwrap_or(WIDTHS.end - 1)
            }
        }
    }
}

const fn encoded_len(bits: u32, elements: usize) -> usize {
    1 + 4 * elements.div_ceil(QUANTISED_BLOCK) + quantised_bytes(bits, elements)
}

/// The bits of a number, the bytes of the scales, and the numbers.
fn split(bytes: &[u8], elements: usize) -> Result<(u32, &[u8], &[u8]), DecodeError> {
    let mut reader = Reader::new(bytes);
    let bits = u32::from(reader.u8()?);
    if !WIDTHS.contains(&bits) {
        return Err(DecodeError::Field {
            field: "the number of bits",
            value: bits.into(),
            expected: "2 to 8",
        });
    }
    let scales = reader.bytes(4 * elements.div_ceil(QUANTISED_BLOCK))?;
    let codes = reader.bytes(quantised_bytes(bits, elements))?;
    reader.end()?;
    Ok((bits, scales, codes))
}

impl Compressor for Quantiser {
    fn fixed_len(&self, elements: usize) -> Option<usize> {
        match self.width {
            Width::Fixed(bits) => Some(encoded_len(bits, elements)),
            Width::Within(_) => None,
        }
    }

    fn most_len(&self, elements: usize) -> usize {
        match self.width {
            Width::Fixed(bits) => encoded_len(bits, elements),
            Width::Within(_) => encoded_len(WIDTHS.end - 1, elements),
        }
    }

    fn encode(
        &mut self,
        vector: &mut [f32],
        parts: &[Range<usize>],
        noise: u64,
        out: &mut Encoded,
    ) {
        let bits = self.bits(vector);
        let mut scales = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let part = &mut vector[part.clone()];
            scales.resize(part.len().div_ceil(QUANTISED_BLOCK), 0.0_f32);
            let start = out.bytes.len();
            out.bytes.resize(start + encoded_len(bits, part.len()), 0);
            let (head, body) = out.bytes[start..].split_at_mut(1);
            let (encoded_scales, codes) = body.split_at_mut(4 * scales.len());
            head[0] = bits as u8;
            let rounding = if self.random {
                Rounding::Random(Noise::new(noise.wrapping_add(i as u64)))
            } else {
                Rounding::Nearest
            };
            quantise_rest(bits, part, rounding, &mut scales, codes);
            for (bytes, scale) in encoded_scales.chunks_exact_mut(4).zip(&scales) {
                bytes.copy_from_slice(&scale.to_le_bytes());
            }
            out.end();
        }
    }

    fn check(&self, bytes: &[u8], elements: usize) -> Result<(), DecodeError> {
        split(bytes, elements).map(|_| ())
    }

    fn decode(&self, bytes: &[u8], vector: &mut [f32], load: Load) -> Result<(), DecodeError> {
        let (bits, scales, codes) = split(bytes, vector.len())?;
        let factor = match load {
            Load::Replace(factor) => factor,
            Load::Add => 1.0,
        };
        let (scales, _) = scales.as_chunks::<4>();
        let scales: Vec<f32> = scales
            .iter()
            .map(|scale| factor * f32::from_le_bytes(*scale))
            .collect();
        let from = Quantised {
            bits,
            scales: &scales,
            codes,
        };
        match load {
            Load::Replace(_) => dequantise(from, vector),
            Load::Add => dequantise_add(from, vector),
        }
        Ok(())
    }
}
