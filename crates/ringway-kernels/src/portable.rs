//! Kernels for every architecture: blocks of 16 bytes as arrays, which the compiler turns into the vectors that all of its
//! processors have (SSE2, NEON).

use std::{
    convert::identity,
    ops::{BitAnd, BitOr, BitXor},
};

use half::{bf16, f16};

use crate::{
    scalar::Scalar,
    simd::{Arithmetic, Bitwise, Divisor, Halves, Isa, copy_part, divide_block},
    table::table,
};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const BLOCK: usize = 16;

/// Aligned like a register, so that moves from and to one are single ones.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Block([u8; BLOCK]);

impl Portable {
    /// For symmetry with the others: there is nothing to assume.
    ///
    /// # Safety
    /// None needed.
    #[inline(always)]
    const unsafe fn assume() -> Self {
        Self
    }
}

impl Isa for Portable {
    type Block = Block;
    const BLOCK: usize = BLOCK;

    #[inline(always)]
    unsafe fn load(self, src: *const u8) -> Block {
        // SAFETY: the caller's promise; bytes have no alignment.
        Block(unsafe { src.cast::<[u8; BLOCK]>().read() })
    }

    #[inline(always)]
    unsafe fn load_part(self, src: *const u8, bytes: usize) -> Block {
        let mut block = Block([0; BLOCK]);
        // SAFETY: the caller's promise, and no more than a block.
        unsafe { copy_part(block.0.as_mut_ptr(), src, bytes) };
        block
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8, block: Block) {
        // SAFETY: the caller's promise; bytes have no alignment.
        unsafe { dst.cast::<[u8; BLOCK]>().write(block.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, dst: *mut u8, block: Block, bytes: usize) {
        // SAFETY: the caller's promise, and no more than a block.
        unsafe { copy_part(dst, block.0.as_ptr(), bytes) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8, block: Block) {
        use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};
        // SAFETY: blocks are aligned to their size, `dst` by the caller's promise; x86-64 includes SSE2.
        unsafe {
            _mm_stream_si128(
                dst.cast::<__m128i>(),
                _mm_load_si128(block.0.as_ptr().cast()),
            )
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { self.store(dst, block) }
    }

    #[inline(always)]
    fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which does nothing for an address that is not valid.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

/// `f` of each element. (The standard library's `map` of arrays does not become vectors.)
#[inline(always)]
fn each<const N: usize, A: Copy, B: Copy + Default>(a: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    let mut result = [B::default(); N];
    for i in 0..N {
        result[i] = f(a[i]);
    }
    result
}

/// `f` of each two elements.
#[inline(always)]
fn pairs<const N: usize, B: Copy>(a: [B; N], b: [B; N], f: impl Fn(B, B) -> B) -> [B; N] {
    let mut result = a;
    for i in 0..N {
        result[i] = f(a[i], b[i]);
    }
    result
}

/// A conversion of 16-bit floats takes many instructions: one copy of them, not one in every kernel.
#[inline(never)]
fn widen_halves<T: Scalar<Acc = f32>>(halves: [T; 8]) -> [f32; 8] {
    each(halves, |x| x.widen())
}

#[inline(never)]
fn narrow_halves<T: Scalar<Acc = f32> + Default>(wide: [f32; 8]) -> [T; 8] {
    each(wide, |x| T::narrow(x))
}

/// Elements of a block, and back, and what is done the same way for all types.
macro_rules! array {
    ($t:ident, $widen:expr, $narrow:expr) => {
        type Acc = [<$t as Scalar>::Acc; BLOCK / size_of::<$t>()];

        #[allow(clippy::useless_transmute, reason = "only for u8")]
        #[inline(always)]
        fn widen(self, block: Block) -> Self::Acc {
            // SAFETY: an array of elements has the size of a block, and any bits are elements.
            let elements: [$t; BLOCK / size_of::<$t>()] = unsafe { std::mem::transmute(block.0) };
            $widen(elements)
        }

        #[allow(clippy::useless_transmute, reason = "only for u8")]
        #[inline(always)]
        fn narrow(self, acc: Self::Acc) -> Block {
            let elements: [$t; BLOCK / size_of::<$t>()] = $narrow(acc);
            // SAFETY: as above, and elements are bytes without padding.
            Block(unsafe { std::mem::transmute::<[$t; BLOCK / size_of::<$t>()], [u8; BLOCK]>(elements) })
        }

        array!($t: sum, product, lesser, greater);
    };
    ($t:ident: $($name:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
            pairs(a, b, |x, y| <$t as Scalar>::$name(x, y))
        }
    )*};
}

macro_rules! float {
    ($($t:ident / $form:ident, $widen:expr, $narrow:expr;)*) => {$(
        impl Arithmetic<$t> for Portable {
            array!($t, $widen, $narrow);
            const INTEGER: bool = false;

            #[inline(always)]
            fn divide(self, a: Self::Acc, by: &Divisor) -> Self::Acc {
                if by.exact { each(a, |x| x * by.$form) } else { each(a, |x| x / by.$form) }
            }
        }
    )*};
}

float! {
    bf16 / f32, widen_halves, narrow_halves;
    f16 / f32, widen_halves, narrow_halves;
    f32 / f32, identity, identity;
    f64 / f64, identity, identity;
}

macro_rules! integer {
    ($($t:ident),*) => {$(
        impl Arithmetic<$t> for Portable {
            array!($t, identity, identity);
            const INTEGER: bool = true;

            #[inline(always)]
            fn divide(self, a: Self::Acc, by: &Divisor) -> Self::Acc {
                let block = <Self as Arithmetic<$t>>::narrow(self, a);
                // SAFETY: 16 bytes are a whole number of elements.
                let block = unsafe { divide_block::<$t, Self>(self, block, by) };
                <Self as Arithmetic<$t>>::widen(self, block)
            }
        }
    )*};
}

integer!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! halves {
    ($($t:ident),*) => {$(
        impl Halves<$t> for Portable {
            #[inline(always)]
            fn unpack(self, block: Block) -> [Block; 2] {
                let wide: [f32; 8] = <Self as Arithmetic<$t>>::widen(self, block);
                // SAFETY: both are 32 bytes without padding.
                unsafe { std::mem::transmute::<[f32; 8], [[u8; BLOCK]; 2]>(wide) }.map(Block)
            }

            #[inline(always)]
            fn pack(self, halves: [Block; 2]) -> Block {
                // SAFETY: both are 32 bytes without padding, and any bits are elements.
                let wide = unsafe { std::mem::transmute::<[[u8; BLOCK]; 2], [f32; 8]>(halves.map(|half| half.0)) };
                <Self as Arithmetic<$t>>::narrow(self, wide)
            }
        }
    )*};
}

halves!(bf16, f16);

macro_rules! bitwise {
    ($($name:ident = $method:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Block, b: Block) -> Block {
            Block(pairs(a.0, b.0, |x, y| x.$method(y)))
        }
    )*};
}

impl Bitwise for Portable {
    bitwise!(and = bitand, or = bitor, xor = bitxor);
}

table!(Portable, 1, 1);
