//! The codecs by name.

use std::{fmt, str::FromStr};

use half::{bf16, f16};
use ringway_kernels::codec::QUANTISED_BLOCK;

use crate::{
    Aggregation, Chosen, GatherAll, LowRank, Memory, Momentum, Nothing, Quantiser, Residual,
    ScatterGather, SumInDomain, Tensors, sum::Plain,
};

/// A codec, as settings and logs name it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `none`: 32-bit floats.
    None,
    /// `fp16`: binary16, added up as such.
    Fp16,
    /// `bf16`: bfloat16, added up as such.
    Bf16,
    /// `int:BITS`, `int8` and `int4`: numbers of 2 to 8 bits with a scale for each 256; see [`Quantiser`] for how they are rounded.
    Int(u32),
    /// `dynamic:ERROR`: the fewest bits of 2 to 8 whose expected error is within this share of the gradient's length.
    Dynamic(f64),
    /// `topk:SHARE`: this share of the elements, those of largest magnitude.
    TopK(f64),
    /// `threshold:MAGNITUDE`: elements whose magnitude is not below.
    Threshold(f32),
    /// `powersgd:RANK`: matrices as products of matrices with so many columns.
    PowerSgd(usize),
}

impl Kind {
    /// The codec with the best fidelity that sends at most this share of the bytes of 32-bit floats: `bf16` from a half on, below it
    /// numbers of 8 to 3 bits, which with their scales are 0.254 to 0.098; and of 2 bits below.
    pub fn within(ratio: f64) -> Self {
        if ratio >= 0.5 {
            return Self::Bf16;
        }
        let bits = (3..=8).rev().find(|&bits| int_ratio(bits) <= ratio + 1e-9);
        Self::Int(bits.unwrap_or(2))
    }

    /// The share of the bytes of 32-bit floats that are sent; none where that depends on gradients or shapes.
    pub fn ratio(self) -> Option<f64> {
        match self {
            Self::None => Some(1.0),
            Self::Fp16 | Self::Bf16 => Some(0.5),
            Self::Int(bits) => Some(int_ratio(bits)),
            Self::Dynamic(_) | Self::TopK(_) | Self::Threshold(_) | Self::PowerSgd(_) => None,
        }
    }

    pub(crate) fn aggregation(self, tensors: &Tensors, options: Options) -> Box<dyn Aggregation> {
        let (len, seed) = (tensors.len(), options.seed);
        let quantised = |quantiser: Quantiser| match options.feedback {
            Feedback::Nothing => Box::new(ScatterGather::new(quantiser.random())),
            _ => Box::new(ScatterGather::new(quantiser)),
        };
        match self {
            Self::None => Box::new(Plain::default()),
            Self::Fp16 => Box::new(SumInDomain::<f16>::new(len)),
            Self::Bf16 => Box::new(SumInDomain::<bf16>::new(len)),
            Self::Int(bits) => quantised(Quantiser::of_width(bits)),
            Self::Dynamic(error) => quantised(Quantiser::within(error)),
            Self::TopK(share) => Box::new(GatherAll::new(Chosen::Share(share))),
            Self::Threshold(least) => Box::new(GatherAll::new(Chosen::Above(least))),
            Self::PowerSgd(rank) => Box::new(LowRank::new(rank, tensors, seed)),
        }
    }
}

/// Numbers, and a scale for each block.
fn int_ratio(bits: u32) -> f64 {
    f64::from(bits) / 32.0 + 1.0 / QUANTISED_BLOCK as f64
}

/// What is done about gradients that were not sent, and where noise comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// What is kept for the next time.
    pub feedback: Feedback,
    /// Of all that is random. The same on all ranks.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            feedback: Feedback::Residual,
            seed: 0,
        }
    }
}

/// What a codec's memory keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feedback {
    /// [`Nothing`].
    Nothing,
    /// [`Residual`].
    Residual,
    /// [`Momentum`], with its factor.
    Momentum(f32),
}

impl Feedback {
    pub(crate) fn memory(self, len: usize) -> Box<dyn Memory> {
        match self {
            Self::Nothing => Box::new(Nothing::new(len)),
            Self::Residual => Box::new(Residual::new(len)),
            Self::Momentum(factor) => Box::new(Momentum::new(len, factor)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fp16 => f.write_str("fp16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Int(bits @ (4 | 8)) => write!(f, "int{bits}"),
            Self::Int(bits) => write!(f, "int:{bits}"),
            Self::Dynamic(error) => write!(f, "dynamic:{error}"),
            Self::TopK(share) => write!(f, "topk:{share}"),
            Self::Threshold(least) => write!(f, "threshold:{least}"),
            Self::PowerSgd(rank) => write!(f, "powersgd:{rank}"),
        }
    }
}

/// The name is none of a codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no codec; expected none, fp16, bf16, int8, int4, int:BITS (2 to 8), dynamic:ERROR (above 0, below 1), topk:SHARE \
     (0.001 to 0.5), threshold:MAGNITUDE (above 0) or powersgd:RANK (1 to 256)"
)]
pub struct UnknownKind {
    /// What was given.
    pub name: String,
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let kind = match name.split_once(':') {
            None => match name {
                "none" => Some(Self::None),
                "fp16" => Some(Self::Fp16),
                "bf16" => Some(Self::Bf16),
                "int8" => Some(Self::Int(8)),
                "int4" => Some(Self::Int(4)),
                _ => None,
            },
            Some(("int", bits)) => number(bits, |bits| (2..=8).contains(bits)).map(Self::Int),
            Some(("dynamic", error)) => number(error, |&e| 0.0 < e && e < 1.0).map(Self::Dynamic),
            Some(("topk", share)) => number(share, |s| (0.001..=0.5).contains(s)).map(Self::TopK),
            Some(("threshold", least)) => {
                number(least, |&least: &f32| least > 0.0 && least.is_finite()).map(Self::Threshold)
            }
            Some(("powersgd", rank)) => number(rank, |r| (1..=256).contains(r)).map(Self::PowerSgd),
            Some(_) => None,
        };
        kind.ok_or_else(|| UnknownKind {
            name: name.to_owned(),
        })
    }
}

fn number<T: FromStr>(text: &str, allowed: impl Fn(&T) -> bool) -> Option<T> {
    text.parse().ok().filter(allowed)
}
