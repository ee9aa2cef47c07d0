//! Eight bytes to the low bits of each, one after the other, and back.

/// How bits are gathered from eight bytes.
pub(super) trait Pack {
    /// The bits of `bytes` that `mask` has, moved together.
    fn gather(bytes: u64, mask: u64) -> u64;

    /// The low bits of `bits`, spread to where `mask` has ones.
    fn scatter(bits: u64, mask: u64) -> u64;
}

/// The low `bits` (1 to 8) of each of eight bytes.
#[inline(always)]
pub(super) const fn low_bits(bits: u32) -> u64 {
    0x0101_0101_0101_0101 * (0xff >> (8 - bits))
}

/// Shifts and masks. Masks are those of [`low_bits`].
pub(super) struct Plain;

impl Pack for Plain {
    #[inline(always)]
    fn gather(bytes: u64, mask: u64) -> u64 {
        let (bits, low) = ((mask & 0xff).count_ones(), mask & 0xff);
        (0..8).fold(0, |all, i| all | (bytes >> (8 * i) & low) << (bits * i))
    }

    #[inline(always)]
    fn scatter(all: u64, mask: u64) -> u64 {
        let (bits, low) = ((mask & 0xff).count_ones(), mask & 0xff);
        (0..8).fold(0, |bytes, i| bytes | (all >> (bits * i) & low) << (8 * i))
    }
}

/// The instructions that do it.
#[cfg(target_arch = "x86_64")]
pub(super) struct Bmi2;

#[cfg(target_arch = "x86_64")]
impl Pack for Bmi2 {
    #[inline(always)]
    fn gather(bytes: u64, mask: u64) -> u64 {
        // SAFETY: named only in functions that have BMI2 enabled.
        unsafe { std::arch::x86_64::_pext_u64(bytes, mask) }
    }

    #[inline(always)]
    fn scatter(all: u64, mask: u64) -> u64 {
        // SAFETY: as above.
        unsafe { std::arch::x86_64::_pdep_u64(all, mask) }
    }
}
