//! 16-bit floats, which are added up as they are.

use half::{bf16, f16};
use ringway_kernels::{bf16_to_f32, codec::largest, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::{Aggregation, Error, Outcome, Values, Wire};

/// A float of 16 bits.
pub trait Half: Copy + Send + 'static {
    /// Zero.
    const ZERO: Self;
    /// No number.
    const NAN: Self;
    /// The largest number, as f32.
    const MAX: f32;

    /// Rounds to nearest even.
    fn narrow(to: &mut [Self], from: &[f32]);
    /// Exact.
    fn widen(to: &mut [f32], from: &[Self]);
    /// As what a wire adds up.
    fn values(values: &mut [Self]) -> Values<'_>;
}

impl Half for f16 {
    const ZERO: Self = Self::ZERO;
    const NAN: Self = Self::NAN;
    const MAX: f32 = 65504.0;

    fn narrow(to: &mut [Self], from: &[f32]) {
        f32_to_f16(to, from);
    }
    fn widen(to: &mut [f32], from: &[Self]) {
        f16_to_f32(to, from);
    }
    fn values(values: &mut [Self]) -> Values<'_> {
        Values::F16(values)
    }
}

impl Half for bf16 {
    const ZERO: Self = Self::ZERO;
    const NAN: Self = Self::NAN;
    const MAX: f32 = Self::MAX.to_f32_const();

    fn narrow(to: &mut [Self], from: &[f32]) {
        f32_to_bf16(to, from);
    }
    fn widen(to: &mut [f32], from: &[Self]) {
        bf16_to_f32(to, from);
    }
    fn values(values: &mut [Self]) -> Values<'_> {
        Values::Bf16(values)
    }
}

/// Elements as 16-bit floats, added up by an all-reduce of that type. What rounding to it takes from a rank's own vector is
/// left in the vector; what rounding of partial sums takes is lost, at most half a unit in the last place for each.
///
/// Elements are sent divided by the least power of two that is not below the number of ranks, so that no sum overflows. That is
/// exact, but for f16 below 6e-5 times that power.
#[derive(Clone, Debug)]
pub struct SumInDomain<T> {
    sent: Vec<T>,
}

impl<T: Half> SumInDomain<T> {
    /// For vectors of `len` elements.
    pub fn new(len: usize) -> Self {
        Self {
            sent: vec![T::ZERO; len],
        }
    }
}

/// Elements that are converted at a time: their copies stay in the first cache.
const RUN: usize = 1024;

impl<T: Half> Aggregation for SumInDomain<T> {
    fn limit(&self) -> f32 {
        T::MAX
    }

    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        _noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        let divisor = wire.ranks().next_power_of_two() as f32;
        let mut room = [0.0; RUN];
        for (vector, sent) in vector.chunks_mut(RUN).zip(self.sent.chunks_mut(RUN)) {
            let small = &mut room[..vector.len()];
            scale(small, vector, 1.0 / divisor);
            T::narrow(sent, small);
            T::widen(small, sent);
            for (left, &sent) in vector.iter_mut().zip(&*small) {
                *left -= sent * divisor;
            }
        }
        if poison && let Some(first) = self.sent.first_mut() {
            *first = T::NAN;
        }
        wire.all_reduce(T::values(&mut self.sent))?;
        // Nothing is written unless all sums are finite. What is small enough for 16 bits is so in 32, but for bf16's largest.
        let looked_at = if (T::MAX * divisor).is_finite() {
            self.sent.len().min(RUN)
        } else {
            self.sent.len()
        };
        for sent in self.sent[..looked_at].chunks(RUN) {
            let small = &mut room[..sent.len()];
            T::widen(small, sent);
            if !(largest(small) * divisor).is_finite() {
                return Ok(Outcome::Poisoned { foreign: None });
            }
        }
        for (at, sent) in self.sent.chunks(RUN).enumerate() {
            let small = &mut room[..sent.len()];
            T::widen(small, sent);
            scale(&mut sum[at * RUN..][..small.len()], small, divisor * factor);
        }
        Ok(Outcome::Summed)
    }
}

/// Numbers times a factor.
pub(crate) fn scale(to: &mut [f32], from: &[f32], factor: f32) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from * factor;
    }
}

/// Elements as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plain {
    sent: Vec<f32>,
}

impl Aggregation for Plain {
    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        _noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        self.sent.clear();
        self.sent.extend_from_slice(vector);
        if poison && let Some(first) = self.sent.first_mut() {
            *first = f32::NAN;
        }
        wire.all_reduce(Values::F32(&mut self.sent))?;
        if !largest(&self.sent).is_finite() {
            return Ok(Outcome::Poisoned { foreign: None });
        }
        vector.fill(0.0);
        scale(sum, &self.sent, factor);
        Ok(Outcome::Summed)
    }
}
