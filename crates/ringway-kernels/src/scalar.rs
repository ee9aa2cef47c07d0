//! What the operations mean for one element: the definition that every vector kernel is held to.

use std::num::NonZeroU32;

use half::{bf16, f16};

use crate::convert;

/// One element: how it is widened for arithmetic, and the arithmetic.
pub(crate) trait Scalar: Copy {
    /// What intermediate results are kept in: `f32` for the 16-bit floats, the type itself for the rest.
    type Acc: Copy;

    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn product(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn lesser(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn greater(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Divides by `n`: floats rounded to nearest, integers towards zero.
    fn divide(a: Self::Acc, n: NonZeroU32) -> Self::Acc;
}

/// One element that has bitwise operations.
pub(crate) trait Bits: Scalar {
    fn and(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn or(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn xor(a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

macro_rules! integer {
    ($($t:ident as $wide:ident),*) => {$(
        impl Scalar for $t {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(acc: Self) -> Self {
                acc
            }
            #[inline(always)]
            fn sum(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn product(a: Self, b: Self) -> Self {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn lesser(a: Self, b: Self) -> Self {
                Ord::min(a, b)
            }
            #[inline(always)]
            fn greater(a: Self, b: Self) -> Self {
                Ord::max(a, b)
            }
            #[inline(always)]
            fn divide(a: Self, n: NonZeroU32) -> Self {
                // A quotient by a positive number is never larger than the dividend.
                ($wide::from(a) / $wide::from(n.get())) as Self
            }
        }

        impl Bits for $t {
            #[inline(always)]
            fn and(a: Self, b: Self) -> Self {
                a & b
            }
            #[inline(always)]
            fn or(a: Self, b: Self) -> Self {
                a | b
            }
            #[inline(always)]
            fn xor(a: Self, b: Self) -> Self {
                a ^ b
            }
        }
    )*};
}

integer!(
    i8 as i64, i16 as i64, i32 as i64, i64 as i64, u8 as u64, u16 as u64, u32 as u64, u64 as u64
);

/// The minimum of two floats as bits, in the shape that the hardware has in one instruction each: "the first if it is
/// smaller, else the second", both ways round, combined with *or*.
///
/// Equal or ordered operands: both ways give the same bits, but for two zeros of different sign, where *or* gives -0. A NaN
/// among them: each way gives one operand, and their *or* has all bits of the exponent and some of the fraction, so
/// it is a NaN, the same for either order of the operands.
macro_rules! float_min_max {
    ($t:ident, $sign:expr) => {
        #[inline(always)]
        fn lesser(a: $t, b: $t) -> $t {
            let ab = if a < b { a } else { b };
            let ba = if b < a { b } else { a };
            $t::from_bits(ab.to_bits() | ba.to_bits())
        }
        #[inline(always)]
        fn greater(a: $t, b: $t) -> $t {
            // Not the *and* of two maxima: that of a NaN and a number need not be a NaN.
            let flip = |x: $t| $t::from_bits(x.to_bits() ^ $sign);
            flip(<Self as Scalar>::lesser(flip(a), flip(b)))
        }
    };
}

macro_rules! float {
    ($t:ident, $sign:expr) => {
        impl Scalar for $t {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(acc: Self) -> Self {
                acc
            }
            #[inline(always)]
            fn sum(a: Self, b: Self) -> Self {
                a + b
            }
            #[inline(always)]
            fn product(a: Self, b: Self) -> Self {
                a * b
            }
            float_min_max!($t, $sign);
            #[inline(always)]
            fn divide(a: Self, n: NonZeroU32) -> Self {
                a / n.get() as Self
            }
        }
    };
}

float!(f32, 1 << 31);
float!(f64, 1 << 63);

macro_rules! half {
    ($t:ident, $to:path, $from:path) => {
        impl Scalar for $t {
            type Acc = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                f32::from_bits($to(self.to_bits()))
            }
            #[inline(always)]
            fn narrow(acc: f32) -> Self {
                Self::from_bits($from(acc.to_bits()))
            }
            #[inline(always)]
            fn sum(a: f32, b: f32) -> f32 {
                a + b
            }
            #[inline(always)]
            fn product(a: f32, b: f32) -> f32 {
                a * b
            }
            float_min_max!(f32, 1 << 31);
            #[inline(always)]
            fn divide(a: f32, n: NonZeroU32) -> f32 {
                <f32 as Scalar>::divide(a, n)
            }
        }
    };
}

half!(f16, convert::f16_to_f32, convert::f32_to_f16);
half!(bf16, convert::bf16_to_f32, convert::f32_to_bf16);
