//! Casts of every level: all 65536 values of the 16-bit formats, every boundary where rounding turns, and odd lengths.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call and the arithmetic of its pointers share one proof"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use half::{bf16, f16};
use ringway_kernels::{Cast, Level, cast_at, reference};

fn levels() -> Vec<Level> {
    Level::ALL
        .into_iter()
        .filter(|level| level.is_supported())
        .collect()
}

fn narrow(level: Option<Level>, cast: Cast, src: &[f32]) -> Vec<u16> {
    let mut dst = vec![0u16; src.len()];
    let (d, s) = (dst.as_mut_ptr().cast(), src.as_ptr().cast());
    // SAFETY: both have `src.len()` elements of the cast's types.
    unsafe {
        match level {
            Some(level) => cast_at(level, cast, d, s, src.len()),
            None => reference::cast(cast, d, s, src.len()),
        }
    }
    dst
}

fn widen(level: Option<Level>, cast: Cast, src: &[u16]) -> Vec<f32> {
    let mut dst = vec![0f32; src.len()];
    let (d, s) = (dst.as_mut_ptr().cast(), src.as_ptr().cast());
    // SAFETY: both have `src.len()` elements of the cast's types.
    unsafe {
        match level {
            Some(level) => cast_at(level, cast, d, s, src.len()),
            None => reference::cast(cast, d, s, src.len()),
        }
    }
    dst
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn widening_is_exact_for_all_values() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let [from_f16, from_bf16] =
        [Cast::F16ToF32, Cast::Bf16ToF32].map(|cast| widen(None, cast, &all));
    for &h in &all {
        let (found, expected) = (from_f16[usize::from(h)], f16::from_bits(h).to_f32_const());
        assert!(
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
            "{h:#x}: {found}"
        );
        let (found, expected) = (from_bf16[usize::from(h)], bf16::from_bits(h).to_f32_const());
        assert!(
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
            "{h:#x}: {found}"
        );
    }
    for level in levels() {
        assert_eq!(
            bits(&widen(Some(level), Cast::F16ToF32, &all)),
            bits(&from_f16),
            "{level:?}"
        );
        assert_eq!(
            bits(&widen(Some(level), Cast::Bf16ToF32, &all)),
            bits(&from_bf16),
            "{level:?}"
        );
    }
}

/// All values that the format has, the middle between each two neighbours, and the numbers next to that.
fn boundaries(value: impl Fn(u16) -> f32) -> Vec<f32> {
    let mut all = Vec::new();
    for h in 0..=u16::MAX {
        let x = value(h);
        all.push(x);
        let next = value(h.wrapping_add(1));
        if x.is_finite() && next.is_finite() {
            // f32 holds the sum of two neighbours of a 16-bit format, but not above its own largest number.
            let middle = (f64::from(x) + f64::from(next)) / 2.0;
            let middle = middle as f32;
            all.extend([middle, middle.next_up(), middle.next_down()]);
        }
        if x.is_nan() {
            all.push(f32::from_bits(x.to_bits() | 1));
        }
    }
    // Around the largest finite numbers of both formats, the smallest subnormals, and NaNs whose payload is lost.
    for edge in [
        65504.0f32,
        65520.0,
        65536.0,
        f32::MAX,
        2.0f32.powi(-24),
        2.0f32.powi(-25),
        f32::MIN_POSITIVE,
    ] {
        all.extend([
            edge,
            edge.next_up(),
            edge.next_down(),
            -edge,
            -edge.next_up(),
            -edge.next_down(),
        ]);
    }
    all.extend(
        [
            0x7f80_0001,
            0xff80_0001,
            0x7f80_2000,
            0x7fff_ffff,
            1,
            0x8000_0001,
            0x007f_ffff,
        ]
        .map(f32::from_bits),
    );
    all
}

#[test]
fn narrowing_rounds_to_nearest_even() {
    let values = boundaries(|h| f16::from_bits(h).to_f32_const());
    let expected = narrow(None, Cast::F32ToF16, &values);
    for (&x, &found) in values.iter().zip(&expected) {
        let (found, correct) = (f16::from_bits(found), f16::from_f32_const(x));
        assert!(
            found.to_bits() == correct.to_bits() || (found.is_nan() && correct.is_nan()),
            "{x:e} gives {found}"
        );
    }
    for level in levels() {
        assert!(
            narrow(Some(level), Cast::F32ToF16, &values) == expected,
            "{level:?}"
        );
    }

    let values = boundaries(|h| bf16::from_bits(h).to_f32_const());
    let expected = narrow(None, Cast::F32ToBf16, &values);
    for (&x, &found) in values.iter().zip(&expected) {
        let (found, correct) = (bf16::from_bits(found), bf16::from_f32_const(x));
        assert!(
            found.to_bits() == correct.to_bits() || (found.is_nan() && correct.is_nan()),
            "{x:e} gives {found}"
        );
    }
    for level in levels() {
        assert!(
            narrow(Some(level), Cast::F32ToBf16, &values) == expected,
            "{level:?}"
        );
    }
}

/// Every length up to a few blocks, unaligned, and nothing written beyond the end.
#[test]
fn lengths_and_alignment() {
    let floats: Vec<f32> = (0..200).map(|i| (i as f32 - 77.0) * 1.37).collect();
    for level in levels() {
        for cast in [
            Cast::F32ToF16,
            Cast::F32ToBf16,
            Cast::F16ToF32,
            Cast::Bf16ToF32,
        ] {
            let (from, to) = (cast.from().size(), cast.to().size());
            let src: Vec<u8> = match from {
                4 => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => floats
                    .iter()
                    .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                    .collect(),
            };
            for count in 0..150 {
                for skip in [0, 1] {
                    let [mut found, mut expected] = [(); 2].map(|()| vec![0xa5; 200 * to]);
                    // SAFETY: both have room for `count` elements after `skip` bytes.
                    unsafe {
                        let src = src.as_ptr().add(skip);
                        cast_at(level, cast, found.as_mut_ptr().add(skip), src, count);
                        reference::cast(cast, expected.as_mut_ptr().add(skip), src, count);
                    }
                    assert_eq!(found, expected, "{level:?} {cast:?} {count} {skip}");
                }
            }
        }
    }
}

#[test]
fn slices() {
    let x = [1.0f32, -2.5, 65505.0];
    let (mut h, mut b, mut y) = ([f16::ZERO; 3], [bf16::ZERO; 3], [0.0f32; 3]);
    ringway_kernels::f32_to_f16(&mut h, &x);
    ringway_kernels::f16_to_f32(&mut y, &h);
    assert_eq!(y, [1.0, -2.5, 65504.0]);
    ringway_kernels::f32_to_bf16(&mut b, &x);
    ringway_kernels::bf16_to_f32(&mut y, &b);
    assert_eq!(y, [1.0, -2.5, 65536.0]);
    assert_eq!(
        Cast::between(Cast::F32ToBf16.from(), Cast::F32ToBf16.to()),
        Some(Cast::F32ToBf16)
    );
}
