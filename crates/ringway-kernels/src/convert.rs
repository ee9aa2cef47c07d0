//! Conversions between half-precision formats and `f32`, one element at a time, in bits.
//!
//! They give what the hardware's conversions give: round to nearest even, subnormals exact in both directions, NaN
//! stays NaN, is made quiet, and keeps its sign and the upper bits of its payload.

/// binary16 to binary32. Exact.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> u32 {
    let sign = u32::from(h & 0x8000) << 16;
    let rest = u32::from(h & 0x7fff);
    let magnitude = if rest > 0x7c00 {
        0x7fc0_0000 | (rest << 13)
    } else if rest == 0x7c00 {
        0x7f80_0000
    } else {
        // With the exponent field read as f32's, the number is 2^-112 of what it should be; a multiplication by a power
        // of two corrects that and makes subnormals normal in one go.
        (f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000)).to_bits()
    };
    sign | magnitude
}

/// binary32 to binary16, to nearest even.
#[inline(always)]
pub(crate) fn f32_to_f16(x: u32) -> u16 {
    let sign = (x >> 16) & 0x8000;
    let rest = x & 0x7fff_ffff;
    let magnitude = if rest > 0x7f80_0000 {
        0x7e00 | ((rest >> 13) & 0x03ff)
    } else if rest >= 0x4780_0000 {
        // 65536 and more; what lies between the largest finite number and that is rounded up to infinity below.
        0x7c00
    } else if rest < 0x3880_0000 {
        // Subnormal in binary16: adding 0.5 puts the last place that counts at the last place of the f32, and the
        // addition itself rounds.
        (f32::from_bits(rest) + 0.5).to_bits() - 0x3f00_0000
    } else {
        let odd = (rest >> 13) & 1;
        (rest - 0x3800_0000 + 0x0fff + odd) >> 13
    };
    // Both parts fit in 16 bits.
    (sign | magnitude) as u16
}

/// bfloat16 to binary32. Exact; a signalling NaN stays one, as the format is a prefix of the other.
#[inline(always)]
pub(crate) fn bf16_to_f32(b: u16) -> u32 {
    u32::from(b) << 16
}

/// binary32 to bfloat16, to nearest even.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: u32) -> u16 {
    let upper = x >> 16;
    let rounded = if x & 0x7fff_ffff > 0x7f80_0000 {
        upper | 0x40
    } else {
        (x + 0x7fff + (upper & 1)) >> 16
    };
    // The upper half of 32 bits.
    rounded as u16
}
