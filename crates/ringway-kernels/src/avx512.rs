//! AVX-512 (F, BW, DQ, VL): blocks of 64 bytes, a cache line each, and masks for parts of them.

use std::arch::x86_64::*;

use half::{bf16, f16};

use crate::{
    simd::{Arithmetic, Bitwise, Divisor, Halves, Isa, divide_block},
    table::table,
};

/// Proof that the processor has AVX-512 F, BW, DQ and VL, and BMI2.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor must have AVX-512 F, BW, DQ and VL, and BMI2.
    #[inline(always)]
    const unsafe fn assume() -> Self {
        Self(())
    }
}

/// The first `bytes` of a block: 1 to 64.
#[inline(always)]
const fn first(bytes: usize) -> __mmask64 {
    u64::MAX >> (64 - bytes)
}

impl Isa for Avx512 {
    type Block = __m512i;
    const BLOCK: usize = 64;

    #[inline(always)]
    unsafe fn load(self, src: *const u8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_loadu_si512(src.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part(self, src: *const u8, bytes: usize) -> __m512i {
        // SAFETY: the token, and the caller's promise; what is masked out is not accessed.
        unsafe { _mm512_maskz_loadu_epi8(first(bytes), src.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8, block: __m512i) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_storeu_si512(dst.cast(), block) }
    }

    #[inline(always)]
    unsafe fn store_part(self, dst: *mut u8, block: __m512i, bytes: usize) {
        // SAFETY: the token, and the caller's promise; what is masked out is not accessed.
        unsafe { _mm512_mask_storeu_epi8(dst.cast(), first(bytes), block) }
    }

    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8, block: __m512i) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_stream_si512(dst.cast(), block) }
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

impl Bitwise for Avx512 {
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_xor_si512(a, b) }
    }
}

/// `Scalar::lesser` for `f32`.
#[inline(always)]
unsafe fn lesser_ps(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller has a token.
    unsafe { _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a)) }
}

/// `Scalar::greater` for `f32`.
#[inline(always)]
unsafe fn greater_ps(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller has a token.
    unsafe {
        let sign = _mm512_set1_ps(-0.0);
        _mm512_xor_ps(
            lesser_ps(_mm512_xor_ps(a, sign), _mm512_xor_ps(b, sign)),
            sign,
        )
    }
}

#[inline(always)]
unsafe fn divide_ps(a: __m512, by: &Divisor) -> __m512 {
    // SAFETY: the caller has a token.
    unsafe {
        let n = _mm512_set1_ps(by.f32);
        if by.exact {
            _mm512_mul_ps(a, n)
        } else {
            _mm512_div_ps(a, n)
        }
    }
}

impl Arithmetic<f32> for Avx512 {
    type Acc = __m512;
    const INTEGER: bool = false;

    #[inline(always)]
    fn widen(self, block: __m512i) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_castsi512_ps(block) }
    }

    #[inline(always)]
    fn narrow(self, acc: __m512) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_castps_si512(acc) }
    }

    binary! {
        sum = |a, b| _mm512_add_ps(a, b);
        product = |a, b| _mm512_mul_ps(a, b);
        lesser = |a, b| lesser_ps(a, b);
        greater = |a, b| greater_ps(a, b);
    }

    #[inline(always)]
    fn divide(self, a: __m512, by: &Divisor) -> __m512 {
        // SAFETY: the token.
        unsafe { divide_ps(a, by) }
    }
}

impl Arithmetic<f64> for Avx512 {
    type Acc = __m512d;
    const INTEGER: bool = false;

    #[inline(always)]
    fn widen(self, block: __m512i) -> __m512d {
        // SAFETY: the token.
        unsafe { _mm512_castsi512_pd(block) }
    }

    #[inline(always)]
    fn narrow(self, acc: __m512d) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_castpd_si512(acc) }
    }

    binary! {
        sum = |a, b| _mm512_add_pd(a, b);
        product = |a, b| _mm512_mul_pd(a, b);
        lesser = |a, b| _mm512_or_pd(_mm512_min_pd(a, b), _mm512_min_pd(b, a));
        greater = |a, b| {
            let sign = _mm512_set1_pd(-0.0);
            let (a, b) = (_mm512_xor_pd(a, sign), _mm512_xor_pd(b, sign));
            _mm512_xor_pd(_mm512_or_pd(_mm512_min_pd(a, b), _mm512_min_pd(b, a)), sign)
        };
    }

    #[inline(always)]
    fn divide(self, a: __m512d, by: &Divisor) -> __m512d {
        // SAFETY: the token.
        unsafe {
            let n = _mm512_set1_pd(by.f64);
            if by.exact {
                _mm512_mul_pd(a, n)
            } else {
                _mm512_div_pd(a, n)
            }
        }
    }
}

/// Arithmetic of 16-bit floats on two registers of `f32`; how elements are spread over the two is the format's affair.
macro_rules! half {
    ($t:ident, $widen:expr, $narrow:expr) => {
        impl Arithmetic<$t> for Avx512 {
            type Acc = [__m512; 2];
            const INTEGER: bool = false;

            #[inline(always)]
            fn widen(self, block: __m512i) -> [__m512; 2] {
                // SAFETY: the token.
                unsafe { $widen(block) }
            }

            #[inline(always)]
            fn narrow(self, acc: [__m512; 2]) -> __m512i {
                // SAFETY: the token.
                unsafe { $narrow(acc) }
            }

            binary! {
                sum = |a, b| [_mm512_add_ps(a[0], b[0]), _mm512_add_ps(a[1], b[1])];
                product = |a, b| [_mm512_mul_ps(a[0], b[0]), _mm512_mul_ps(a[1], b[1])];
                lesser = |a, b| [lesser_ps(a[0], b[0]), lesser_ps(a[1], b[1])];
                greater = |a, b| [greater_ps(a[0], b[0]), greater_ps(a[1], b[1])];
            }

            #[inline(always)]
            fn divide(self, a: [__m512; 2], by: &Divisor) -> [__m512; 2] {
                // SAFETY: the token.
                unsafe { [divide_ps(a[0], by), divide_ps(a[1], by)] }
            }
        }
    };
}

half!(f16, f16_widen, f16_narrow);
half!(bf16, bf16_widen, bf16_narrow);

#[inline(always)]
unsafe fn f16_widen(block: __m512i) -> [__m512; 2] {
    // SAFETY: the caller has a token.
    unsafe {
        [
            _mm512_cvtph_ps(_mm512_castsi512_si256(block)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(block)),
        ]
    }
}

#[inline(always)]
unsafe fn f16_narrow(acc: [__m512; 2]) -> __m512i {
    // SAFETY: the caller has a token.
    unsafe {
        let low = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(acc[0]);
        let high = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(acc[1]);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

/// Elements at even places and those at odd ones: no element changes its place within 32 bits.
#[inline(always)]
unsafe fn bf16_widen(block: __m512i) -> [__m512; 2] {
    // SAFETY: the caller has a token.
    unsafe {
        let even = _mm512_slli_epi32::<16>(block);
        let odd = _mm512_and_si512(block, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
    }
}

#[inline(always)]
unsafe fn bf16_narrow(acc: [__m512; 2]) -> __m512i {
    // SAFETY: the caller has a token.
    unsafe {
        let [even, odd] = [bf16_round(acc[0]), bf16_round(acc[1])];
        _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd)
    }
}

/// bfloat16 in the upper halves; the lower are not cleared.
#[inline(always)]
unsafe fn bf16_round(x: __m512) -> __m512i {
    // SAFETY: the caller has a token.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
    }
}

impl Halves<f16> for Avx512 {
    #[inline(always)]
    fn unpack(self, block: __m512i) -> [__m512i; 2] {
        // SAFETY: the token.
        unsafe {
            let [low, high] = f16_widen(block);
            [_mm512_castps_si512(low), _mm512_castps_si512(high)]
        }
    }

    #[inline(always)]
    fn pack(self, [low, high]: [__m512i; 2]) -> __m512i {
        // SAFETY: the token.
        unsafe { f16_narrow([_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]) }
    }
}

impl Halves<bf16> for Avx512 {
    #[inline(always)]
    fn unpack(self, block: __m512i) -> [__m512i; 2] {
        // SAFETY: the token.
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(block));
            let high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(block));
            [_mm512_slli_epi32::<16>(low), _mm512_slli_epi32::<16>(high)]
        }
    }

    #[inline(always)]
    fn pack(self, [low, high]: [__m512i; 2]) -> __m512i {
        // SAFETY: the token.
        unsafe {
            let low = _mm512_srli_epi32::<16>(bf16_round(_mm512_castsi512_ps(low)));
            let high = _mm512_srli_epi32::<16>(bf16_round(_mm512_castsi512_ps(high)));
            let [low, high] = [_mm512_cvtepi32_epi16(low), _mm512_cvtepi32_epi16(high)];
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
}

macro_rules! integer {
    ($($t:ident: $sum:path, $product:path, $lesser:path, $greater:path;)*) => {$(
        impl Arithmetic<$t> for Avx512 {
            type Acc = __m512i;
            const INTEGER: bool = true;

            #[inline(always)]
            fn widen(self, block: __m512i) -> __m512i {
                block
            }

            #[inline(always)]
            fn narrow(self, acc: __m512i) -> __m512i {
                acc
            }

            binary! {
                sum = |a, b| $sum(a, b);
                product = |a, b| $product(a, b);
                lesser = |a, b| $lesser(a, b);
                greater = |a, b| $greater(a, b);
            }

            #[inline(always)]
            fn divide(self, a: __m512i, by: &Divisor) -> __m512i {
                // SAFETY: 64 bytes are a whole number of elements.
                unsafe { divide_block::<$t, Self>(self, a, by) }
            }
        }
    )*};
}

integer! {
    i8: _mm512_add_epi8, product_8, _mm512_min_epi8, _mm512_max_epi8;
    u8: _mm512_add_epi8, product_8, _mm512_min_epu8, _mm512_max_epu8;
    i16: _mm512_add_epi16, _mm512_mullo_epi16, _mm512_min_epi16, _mm512_max_epi16;
    u16: _mm512_add_epi16, _mm512_mullo_epi16, _mm512_min_epu16, _mm512_max_epu16;
    i32: _mm512_add_epi32, _mm512_mullo_epi32, _mm512_min_epi32, _mm512_max_epi32;
    u32: _mm512_add_epi32, _mm512_mullo_epi32, _mm512_min_epu32, _mm512_max_epu32;
    i64: _mm512_add_epi64, _mm512_mullo_epi64, _mm512_min_epi64, _mm512_max_epi64;
    u64: _mm512_add_epi64, _mm512_mullo_epi64, _mm512_min_epu64, _mm512_max_epu64;
}

/// There is no product of bytes: those at even and odd places as 16-bit numbers, of which the low bytes count.
#[inline(always)]
unsafe fn product_8(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has a token.
    unsafe {
        let even = _mm512_mullo_epi16(a, b);
        let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
        _mm512_mask_blend_epi8(0xaaaa_aaaa_aaaa_aaaa, even, _mm512_slli_epi16::<8>(odd))
    }
}

table!(Avx512, 8, 4, "avx512f,avx512bw,avx512dq,avx512vl,bmi2");
