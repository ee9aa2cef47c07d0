//! The instruction sets that there are kernels for.

use crate::{portable, table::Table};

/// An instruction set that kernels are made for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every processor of the architecture has: SSE2, NEON.
    Portable,
    /// AVX2 with F16C and BMI2: x86 since 2013.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: x86 servers since 2017.
    Avx512,
}

impl Level {
    /// Every level, the slowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor has it.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|level| level.is_supported())
            .unwrap_or(Self::Portable)
    }

    /// The functions of this level; those of [`Level::Portable`] where the processor does not have it.
    pub(crate) fn table(self) -> &'static Table {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if self.is_supported() => &crate::avx512::TABLE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if self.is_supported() => &crate::avx2::TABLE,
            _ => &portable::TABLE,
        }
    }
}
