//! The vocabulary that kernels are written in: what one instruction set does with one register of elements.
//!
//! A value of an [`Isa`] type is proof that the processor has the instructions, so the operations on registers are safe
//! to call. All of them are `inline(always)`: they end up in a function that has the instructions enabled, and only there
//! does the compiler turn them into single ones.

use std::num::NonZeroU32;

use crate::scalar::Scalar;

/// An instruction set: how memory is read and written.
///
/// A *block* is what one register holds, the same number of bytes for each element type.
pub(crate) trait Isa: Copy {
    /// The bytes of one register.
    type Block: Copy;
    /// How many there are; at most 64.
    const BLOCK: usize;

    /// Reads a block, of any alignment.
    ///
    /// # Safety
    /// `src` must be valid for reads of a block.
    unsafe fn load(self, src: *const u8) -> Self::Block;

    /// Reads the first `bytes` (1 to a block); the rest is zero.
    ///
    /// # Safety
    /// `src` must be valid for reads of `bytes` bytes.
    unsafe fn load_part(self, src: *const u8, bytes: usize) -> Self::Block;

    /// Writes a block, to any alignment.
    ///
    /// # Safety
    /// `dst` must be valid for writes of a block.
    unsafe fn store(self, dst: *mut u8, block: Self::Block);

    /// Writes the first `bytes` (1 to a block) and touches nothing else.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `bytes` bytes.
    unsafe fn store_part(self, dst: *mut u8, block: Self::Block, bytes: usize);

    /// Writes a block past the caches.
    ///
    /// # Safety
    /// `dst` must be valid for writes of a block and aligned to one. Until [`Isa::fence`], other threads may see the write
    /// later than ones that follow it.
    unsafe fn stream(self, dst: *mut u8, block: Self::Block);

    /// Orders all streamed writes before the writes that follow.
    fn fence(self);

    /// Asks for the cache line of an address, valid or not.
    fn prefetch(self, address: *const u8);
}

/// What an instruction set does with elements of type `T`. [`Scalar`] says what each operation means.
pub(crate) trait Arithmetic<T>: Bitwise {
    /// A block's elements in the type that intermediate results are kept in.
    type Acc: Copy;
    /// Whether they are integers, which have bitwise operations.
    const INTEGER: bool;

    fn widen(self, block: Self::Block) -> Self::Acc;
    fn narrow(self, acc: Self::Acc) -> Self::Block;
    fn sum(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn product(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn lesser(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn greater(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn divide(self, a: Self::Acc, by: &Divisor) -> Self::Acc;
}

/// Operations on blocks without regard to elements.
pub(crate) trait Bitwise: Isa {
    fn and(self, a: Self::Block, b: Self::Block) -> Self::Block;
    fn or(self, a: Self::Block, b: Self::Block) -> Self::Block;
    fn xor(self, a: Self::Block, b: Self::Block) -> Self::Block;
}

/// Conversion between a 16-bit float type `T` and `f32`, elements in order.
pub(crate) trait Halves<T>: Isa {
    /// The first and the second half of the elements, as `f32`.
    fn unpack(self, block: Self::Block) -> [Self::Block; 2];
    /// Two blocks of `f32`, rounded.
    fn pack(self, halves: [Self::Block; 2]) -> Self::Block;
}

/// An operation that a kernel is made for.
pub(crate) trait Op<T, I: Arithmetic<T>> {
    fn apply(isa: I, a: I::Acc, b: I::Acc) -> I::Acc;
}

pub(crate) struct Sum;
pub(crate) struct Product;
pub(crate) struct Min;
pub(crate) struct Max;

macro_rules! op {
    ($($name:ident = $method:ident),*) => {$(
        impl<T, I: Arithmetic<T>> Op<T, I> for $name {
            #[inline(always)]
            fn apply(isa: I, a: I::Acc, b: I::Acc) -> I::Acc {
                isa.$method(a, b)
            }
        }
    )*};
}

op!(Sum = sum, Product = product, Min = lesser, Max = greater);

/// A number to divide by, in the forms that the kernels need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    pub(crate) n: NonZeroU32,
    /// For a power of two: multiplying by the reciprocal gives the quotient's very bits, and many times faster.
    pub(crate) exact: bool,
    /// The factor if `exact`, else the divisor.
    pub(crate) f32: f32,
    /// The same.
    pub(crate) f64: f64,
}

impl Divisor {
    pub(crate) fn new(n: NonZeroU32) -> Self {
        let exact = n.is_power_of_two();
        let (f32, f64) = (n.get() as f32, f64::from(n.get()));
        Self {
            n,
            exact,
            f32: if exact { 1.0 / f32 } else { f32 },
            f64: if exact { 1.0 / f64 } else { f64 },
        }
    }
}

/// An integer that knows a fast way to be divided, in a form that the compiler makes vectors of.
pub(crate) trait Quotient: Scalar {
    /// The quotient, rounded towards zero.
    fn quotient(self, by: &Divisor) -> Self;
}

/// With `|x| < 2^b` the quotient by `n` is at least `1/n` below the next integer, and its rounding error in a float type of
/// `p` bits less than `2^(b-p)/n`: truncation gives the integer quotient. (An `n` that the float type does not hold is far
/// above all `x`: the quotient is zero with or without its rounding.)
macro_rules! quotient {
    ($($t:ident through $float:ident as $wide:ident),*) => {$(
        impl Quotient for $t {
            #[inline(always)]
            fn quotient(self, by: &Divisor) -> Self {
                let x = $float::from(self);
                let q = if by.exact { x * by.$float } else { x / by.$float };
                // SAFETY: the quotient is not larger than the dividend.
                let whole: $wide = unsafe { q.to_int_unchecked() };
                whole as Self
            }
        }
    )*};
}

quotient!(i8 through f32 as i32, u8 through f32 as i32, i16 through f32 as i32, u16 through f32 as i32);
quotient!(i32 through f64 as i32, u32 through f64 as u32);

macro_rules! quotient_scalar {
    ($($t:ident),*) => {$(
        impl Quotient for $t {
            #[inline(always)]
            fn quotient(self, by: &Divisor) -> Self {
                // The accumulator of an integer is the integer.
                <Self as Scalar>::divide(self, by.n)
            }
        }
    )*};
}

quotient_scalar!(i64, u64);

/// Divides a block of integers, in a loop of its own: rarely needed, and large.
///
/// # Safety
/// A block must consist of elements of `T`.
#[inline(always)]
pub(crate) unsafe fn divide_block<T: Quotient, I: Isa>(
    isa: I,
    block: I::Block,
    by: &Divisor,
) -> I::Block {
    let mut buffer = Aligned([0; 64]);
    let bytes = buffer.0.as_mut_ptr();
    // SAFETY: the buffer has room for the largest block, is aligned for all types, and any bits are an integer.
    unsafe {
        isa.store(bytes, block);
        divide_all(
            std::slice::from_raw_parts_mut(bytes.cast::<T>(), I::BLOCK / size_of::<T>()),
            by,
        );
        isa.load(bytes)
    }
}

#[inline(never)]
fn divide_all<T: Quotient>(elements: &mut [T], by: &Divisor) {
    for x in elements {
        *x = x.quotient(by);
    }
}

/// Room for one block.
#[repr(align(64))]
pub(crate) struct Aligned(pub(crate) [u8; 64]);

/// Copies at most 63 bytes, in at most six moves instead of a call.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `bytes` bytes, apart from each other.
#[inline(never)]
pub(crate) unsafe fn copy_part(mut dst: *mut u8, mut src: *const u8, bytes: usize) {
    macro_rules! moves {
        ($($size:literal as $t:ty),*) => {$(
            if bytes & $size != 0 {
                // SAFETY: the sizes of the moves made add up to `bytes`.
                unsafe {
                    dst.cast::<$t>().write_unaligned(src.cast::<$t>().read_unaligned());
                    dst = dst.add($size);
                    src = src.add($size);
                }
            }
        )*};
    }
    moves!(32 as [u64; 4], 16 as [u64; 2], 8 as u64, 4 as u32, 2 as u16);
    if bytes & 1 != 0 {
        // SAFETY: the last of `bytes` bytes.
        unsafe { dst.write(src.read()) }
    }
}
