//! What gradient codecs are made of: magnitudes, quantisation by blocks, the largest elements.
//!
//! Each is one body in plain Rust, compiled once for every [`Level`](crate::Level): the compiler makes vectors of it. No sum is taken in
//! an order that depends on the width of a register, so all levels give the same bits.

mod measure;
mod pack;
mod quantise;
mod select;

pub use measure::{dot, dot_at, largest, largest_at};
pub use quantise::{
    Noise, QUANTISED_BLOCK, Quantised, Rounding, dequantise, dequantise_add, dequantise_add_at,
    dequantise_at, quantise, quantise_at, quantise_rest, quantise_rest_at, quantised_bytes, ranges,
    ranges_at,
};
pub use select::{at_least, at_least_at, top_k, top_k_at};

/// Defines a function that runs `$body::<P>` with the instructions of the best level, and one of a level that is named;
/// `P` says how bits are packed there.
macro_rules! levels {
    ($(#[$doc:meta])* $name:ident, $name_at:ident = $body:ident ($($arg:ident: $t:ty),*) $(-> $result:ty)?) => {
        $(#[$doc])*
        pub fn $name($($arg: $t),*) $(-> $result)? {
            $name_at($crate::Level::best(), $($arg),*)
        }

        #[doc = concat!("[`", stringify!($name), "`] of one level; of [`Level::Portable`](crate::Level::Portable) where the processor does not have it.")]
        pub fn $name_at(level: $crate::Level, $($arg: $t),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi2")]
            fn avx2($($arg: $t),*) $(-> $result)? {
                $body::<$crate::codec::pack::Bmi2>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi2")]
            fn avx512($($arg: $t),*) $(-> $result)? {
                $body::<$crate::codec::pack::Bmi2>($($arg),*)
            }

            match level {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the processor has the level's instructions.
                $crate::Level::Avx512 if level.is_supported() => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::Level::Avx2 if level.is_supported() => unsafe { avx2($($arg),*) },
                _ => $body::<$crate::codec::pack::Plain>($($arg),*),
            }
        }
    };
}

use levels;
