//! Kernels for every architecture: blocks of 16 bytes as arrays, which the compiler turns into the vectors that all of its
//! processors have (SSE2, NEON).

use std::ops::{BitAnd, BitOr, BitXor};

use half::{bf16, f16};

use crate::{
    scalar::Scalar,
    simd::{
        And, Arithmetic, Average, Bitwise, Divisor, Halves, Isa, Max, Min, Or, Product, Quotient,
        Sum, Xor, copy_part,
    },
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
        // SAFETY: the caller's promise, and fewer than a block.
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
        // SAFETY: the caller's promise, and fewer than a block.
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

#[inline(always)]
fn lanes<const N: usize, B: Copy>(a: [B; N], b: [B; N], f: impl Fn(B, B) -> B) -> [B; N] {
    let mut result = a;
    for i in 0..N {
        result[i] = f(a[i], b[i]);
    }
    result
}

/// Elements of a block, and back.
macro_rules! array {
    ($t:ident) => {
        type Acc = [<$t as Scalar>::Acc; BLOCK / size_of::<$t>()];

        #[allow(clippy::useless_transmute, reason = "only for u8")]
        #[inline(always)]
        fn widen(self, block: Block) -> Self::Acc {
            // SAFETY: an array of elements has the size of a block, and any bits are elements.
            let elements: [$t; BLOCK / size_of::<$t>()] = unsafe { std::mem::transmute(block.0) };
            elements.map(Scalar::widen)
        }

        #[allow(clippy::useless_transmute, reason = "only for u8")]
        #[inline(always)]
        fn narrow(self, acc: Self::Acc) -> Block {
            let elements: [$t; BLOCK / size_of::<$t>()] = acc.map(Scalar::narrow);
            // SAFETY: as above, and elements are bytes without padding.
            Block(unsafe {
                std::mem::transmute::<[$t; BLOCK / size_of::<$t>()], [u8; BLOCK]>(elements)
            })
        }

        #[inline(always)]
        fn sum(self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
            lanes(a, b, <$t>::sum)
        }

        #[inline(always)]
        fn product(self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
            lanes(a, b, <$t>::product)
        }

        #[inline(always)]
        fn lesser(self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
            lanes(a, b, <$t>::lesser)
        }

        #[inline(always)]
        fn greater(self, a: Self::Acc, b: Self::Acc) -> Self::Acc {
            lanes(a, b, <$t>::greater)
        }
    };
}

macro_rules! float {
    ($($t:ident / $form:ident),*) => {$(
        impl Arithmetic<$t> for Portable {
            array!($t);

            #[inline(always)]
            fn divide(self, a: Self::Acc, by: &Divisor) -> Self::Acc {
                if by.exact { a.map(|x| x * by.$form) } else { a.map(|x| x / by.$form) }
            }
        }
    )*};
}

float!(bf16 / f32, f16 / f32, f32 / f32, f64 / f64);

macro_rules! integer {
    ($($t:ident),*) => {$(
        impl Arithmetic<$t> for Portable {
            array!($t);

            #[inline(always)]
            fn divide(self, a: Self::Acc, by: &Divisor) -> Self::Acc {
                a.map(|x| x.quotient(by))
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
            Block(lanes(a.0, b.0, u8::$method))
        }
    )*};
}

impl Bitwise for Portable {
    bitwise!(and = bitand, or = bitor, xor = bitxor);
}

table!(Portable);
