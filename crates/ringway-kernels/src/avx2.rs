//! AVX2 and F16C: blocks of 32 bytes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use crate::{
    simd::{Aligned, Arithmetic, Bitwise, Divisor, Halves, Isa, copy_part, divide_block},
    table::table,
};

/// Proof that the processor has AVX2, F16C and BMI2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2, F16C and BMI2.
    #[inline(always)]
    const unsafe fn assume() -> Self {
        Self(())
    }
}

impl Isa for Avx2 {
    type Block = __m256i;
    const BLOCK: usize = 32;

    #[inline(always)]
    unsafe fn load(self, src: *const u8) -> __m256i {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_loadu_si256(src.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part(self, src: *const u8, bytes: usize) -> __m256i {
        let mut block = Aligned([0; 64]);
        // SAFETY: the caller's promise, and no more than a block.
        unsafe {
            copy_part(block.0.as_mut_ptr(), src, bytes);
            self.load(block.0.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8, block: __m256i) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_storeu_si256(dst.cast(), block) }
    }

    #[inline(always)]
    unsafe fn store_part(self, dst: *mut u8, block: __m256i, bytes: usize) {
        let mut buffer = Aligned([0; 64]);
        // SAFETY: the caller's promise, and no more than a block.
        unsafe {
            self.store(buffer.0.as_mut_ptr(), block);
            copy_part(dst, buffer.0.as_ptr(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8, block: __m256i) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_stream_si256(dst.cast(), block) }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a hint, which does nothing for an address that is not valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

/// Operations on two accumulators.
macro_rules! binary {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $a: Self::Acc, $b: Self::Acc) -> Self::Acc {
            // SAFETY: the token.
            unsafe { $body }
        }
    )*};
}

impl Bitwise for Avx2 {
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token.
        unsafe { _mm256_xor_si256(a, b) }
    }
}

/// `Scalar::lesser` for `f32`.
#[inline(always)]
unsafe fn lesser_ps(a: __m256, b: __m256) -> __m256 {
    // SAFETY: the caller has a token.
    unsafe { _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)) }
}

/// `Scalar::greater` for `f32`.
#[inline(always)]
unsafe fn greater_ps(a: __m256, b: __m256) -> __m256 {
    // SAFETY: the caller has a token.
    unsafe {
        let sign = _mm256_set1_ps(-0.0);
        _mm256_xor_ps(
            lesser_ps(_mm256_xor_ps(a, sign), _mm256_xor_ps(b, sign)),
            sign,
        )
    }
}

#[inline(always)]
unsafe fn divide_ps(a: __m256, by: &Divisor) -> __m256 {
    // SAFETY: the caller has a token.
    unsafe {
        let n = _mm256_set1_ps(by.f32);
        if by.exact {
            _mm256_mul_ps(a, n)
        } else {
            _mm256_div_ps(a, n)
        }
    }
}

impl Arithmetic<f32> for Avx2 {
    type Acc = __m256;
    const INTEGER: bool = false;

    #[inline(always)]
    fn widen(self, block: __m256i) -> __m256 {
        // SAFETY: the token.
        unsafe { _mm256_castsi256_ps(block) }
    }

    #[inline(always)]
    fn narrow(self, acc: __m256) -> __m256i {
        // SAFETY: the token.
        unsafe { _mm256_castps_si256(acc) }
    }

    binary! {
        sum = |a, b| _mm256_add_ps(a, b);
        product = |a, b| _mm256_mul_ps(a, b);
        lesser = |a, b| lesser_ps(a, b);
        greater = |a, b| greater_ps(a, b);
    }

    #[inline(always)]
    fn divide(self, a: __m256, by: &Divisor) -> __m256 {
        // SAFETY: the token.
        unsafe { divide_ps(a, by) }
    }
}

impl Arithmetic<f64> for Avx2 {
    type Acc = __m256d;
    const INTEGER: bool = false;

    #[inline(always)]
    fn widen(self, block: __m256i) -> __m256d {
        // SAFETY: the token.
        unsafe { _mm256_castsi256_pd(block) }
    }

    #[inline(always)]
    fn narrow(self, acc: __m256d) -> __m256i {
        // SAFETY: the token.
        unsafe { _mm256_castpd_si256(acc) }
    }

    binary! {
        sum = |a, b| _mm256_add_pd(a, b);
        product = |a, b| _mm256_mul_pd(a, b);
        lesser = |a, b| _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a));
        greater = |a, b| {
            let sign = _mm256_set1_pd(-0.0);
            let (a, b) = (_mm256_xor_pd(a, sign), _mm256_xor_pd(b, sign));
            _mm256_xor_pd(_mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a)), sign)
        };
    }

    #[inline(always)]
    fn divide(self, a: __m256d, by: &Divisor) -> __m256d {
        // SAFETY: the token.
        unsafe {
            let n = _mm256_set1_pd(by.f64);
            if by.exact {
                _mm256_mul_pd(a, n)
            } else {
                _mm256_div_pd(a, n)
            }
        }
    }
}

/// Arithmetic of 16-bit floats on two registers of `f32`; how elements are spread over the two is the format's affair.
macro_rules! half {
    ($t:ident, $widen:expr, $narrow:expr) => {
        impl Arithmetic<$t> for Avx2 {
            type Acc = [__m256; 2];
            const INTEGER: bool = false;

            #[inline(always)]
            fn widen(self, block: __m256i) -> [__m256; 2] {
                // SAFETY: the token.
                unsafe { $widen(block) }
            }

            #[inline(always)]
            fn narrow(self, acc: [__m256; 2]) -> __m256i {
                // SAFETY: the token.
                unsafe { $narrow(acc) }
            }

            binary! {
                sum = |a, b| [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
                product = |a, b| [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
                lesser = |a, b| [lesser_ps(a[0], b[0]), lesser_ps(a[1], b[1])];
                greater = |a, b| [greater_ps(a[0], b[0]), greater_ps(a[1], b[1])];
            }

            #[inline(always)]
            fn divide(self, a: [__m256; 2], by: &Divisor) -> [__m256; 2] {
                // SAFETY: the token.
                unsafe { [divide_ps(a[0], by), divide_ps(a[1], by)] }
            }
        }
    };
}

half!(f16, f16_widen, f16_narrow);
half!(bf16, bf16_widen, bf16_narrow);

#[inline(always)]
unsafe fn f16_widen(block: __m256i) -> [__m256; 2] {
    // SAFETY: the caller has a token.
    unsafe {
        [
            _mm256_cvtph_ps(_mm256_castsi256_si128(block)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(block)),
        ]
    }
}

#[inline(always)]
unsafe fn f16_narrow(acc: [__m256; 2]) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(acc[0]);
        let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(acc[1]);
        _mm256_set_m128i(high, low)
    }
}

/// Elements at even places and those at odd ones: no element changes its place within 32 bits.
#[inline(always)]
unsafe fn bf16_widen(block: __m256i) -> [__m256; 2] {
    // SAFETY: the caller has a token.
    unsafe {
        let even = _mm256_slli_epi32::<16>(block);
        let odd = _mm256_and_si256(block, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
        [_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd)]
    }
}

#[inline(always)]
unsafe fn bf16_narrow(acc: [__m256; 2]) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let [even, odd] = [bf16_round(acc[0]), bf16_round(acc[1])];
        _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd)
    }
}

/// bfloat16 in the upper halves; the lower are not cleared.
#[inline(always)]
unsafe fn bf16_round(x: __m256) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_blendv_epi8(rounded, quiet, nan)
    }
}

impl Halves<f16> for Avx2 {
    #[inline(always)]
    fn unpack(self, block: __m256i) -> [__m256i; 2] {
        // SAFETY: the token.
        unsafe { f16_widen(block).map(|half| _mm256_castps_si256(half)) }
    }

    #[inline(always)]
    fn pack(self, halves: [__m256i; 2]) -> __m256i {
        // SAFETY: the token.
        unsafe { f16_narrow(halves.map(|half| _mm256_castsi256_ps(half))) }
    }
}

impl Halves<bf16> for Avx2 {
    #[inline(always)]
    fn unpack(self, block: __m256i) -> [__m256i; 2] {
        // SAFETY: the token.
        unsafe {
            let wide = |half| _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half));
            [
                wide(_mm256_castsi256_si128(block)),
                wide(_mm256_extracti128_si256::<1>(block)),
            ]
        }
    }

    #[inline(always)]
    fn pack(self, halves: [__m256i; 2]) -> __m256i {
        // SAFETY: the token.
        unsafe {
            let upper = |half| _mm256_srli_epi32::<16>(bf16_round(_mm256_castsi256_ps(half)));
            // Packing interleaves the two operands' 128-bit halves; the permutation puts them in order.
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(
                upper(halves[0]),
                upper(halves[1]),
            ))
        }
    }
}

macro_rules! integer {
    ($($t:ident: $sum:path, $product:path, $lesser:path, $greater:path;)*) => {$(
        impl Arithmetic<$t> for Avx2 {
            type Acc = __m256i;
            const INTEGER: bool = true;

            #[inline(always)]
            fn widen(self, block: __m256i) -> __m256i {
                block
            }

            #[inline(always)]
            fn narrow(self, acc: __m256i) -> __m256i {
                acc
            }

            binary! {
                sum = |a, b| $sum(a, b);
                product = |a, b| $product(a, b);
                lesser = |a, b| $lesser(a, b);
                greater = |a, b| $greater(a, b);
            }

            #[inline(always)]
            fn divide(self, a: __m256i, by: &Divisor) -> __m256i {
                // SAFETY: 32 bytes are a whole number of elements.
                unsafe { divide_block::<$t, Self>(self, a, by) }
            }
        }
    )*};
}

integer! {
    i8: _mm256_add_epi8, product_8, _mm256_min_epi8, _mm256_max_epi8;
    u8: _mm256_add_epi8, product_8, _mm256_min_epu8, _mm256_max_epu8;
    i16: _mm256_add_epi16, _mm256_mullo_epi16, _mm256_min_epi16, _mm256_max_epi16;
    u16: _mm256_add_epi16, _mm256_mullo_epi16, _mm256_min_epu16, _mm256_max_epu16;
    i32: _mm256_add_epi32, _mm256_mullo_epi32, _mm256_min_epi32, _mm256_max_epi32;
    u32: _mm256_add_epi32, _mm256_mullo_epi32, _mm256_min_epu32, _mm256_max_epu32;
    i64: _mm256_add_epi64, product_64, lesser_i64, greater_i64;
    u64: _mm256_add_epi64, product_64, lesser_u64, greater_u64;
}

/// There is no product of bytes: those at even and odd places as 16-bit numbers, of which the low bytes count.
#[inline(always)]
unsafe fn product_8(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let even = _mm256_mullo_epi16(a, b);
        let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
        let low = _mm256_and_si256(even, _mm256_set1_epi16(0xff));
        _mm256_or_si256(low, _mm256_slli_epi16::<8>(odd))
    }
}

/// By halves: `a b = a0 b0 + 2^32 (a1 b0 + a0 b1)`, modulo 2^64.
#[inline(always)]
unsafe fn product_64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let cross = _mm256_add_epi64(
            _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), b),
            _mm256_mul_epu32(a, _mm256_srli_epi64::<32>(b)),
        );
        _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64::<32>(cross))
    }
}

#[inline(always)]
unsafe fn lesser_i64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe { _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b)) }
}

#[inline(always)]
unsafe fn greater_i64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe { _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b)) }
}

/// Where `a > b` as unsigned numbers: as signed ones after the top bit is turned over.
#[inline(always)]
unsafe fn above(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe {
        let top = _mm256_set1_epi64x(i64::MIN);
        _mm256_cmpgt_epi64(_mm256_xor_si256(a, top), _mm256_xor_si256(b, top))
    }
}

#[inline(always)]
unsafe fn lesser_u64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe { _mm256_blendv_epi8(a, b, above(a, b)) }
}

#[inline(always)]
unsafe fn greater_u64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has a token.
    unsafe { _mm256_blendv_epi8(b, a, above(a, b)) }
}

table!(Avx2, 4, 4, "avx2,f16c,bmi2");
