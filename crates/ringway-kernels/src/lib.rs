//! Reduce, combine and cast: the arithmetic of collectives, at the speed of memory.
//!
//! [`reduce`] is the step of a ring or a tree, [`combine`] that of peers which see each other's memory: all operands
//! in, one result out to everyone. Both work on raw memory of any alignment, in the element types of
//! [`DataType`]; [`reduce_slices`] and its siblings are the same for slices.
//!
//! # Which bits
//! The result depends on the operands and their order, never on the alignment, the length or the kind of processor:
//! - Integers wrap around. Sums of `f16` and `bf16` are accumulated in `f32` over all operands of one call and
//!   rounded once, to nearest even; subnormals count.
//! - Min and max order -0 before +0. With a NaN among the operands the result is a NaN, the same bits whichever comes
//!   first.
//! - Sum and product with one NaN give that NaN, made quiet; of two NaNs, one of the two, and which is not
//!   specified. `inf - inf` gives the processor's NaN.
//! - One source without a finish is a copy: not a bit changes.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "kernels are made of pointer arithmetic and instructions; one proof covers a block of them"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod codec;
mod convert;
mod element;
mod fold;
mod level;
mod lines;
mod portable;
pub mod reference;
mod scalar;
mod simd;
mod table;

use std::num::NonZeroU32;

pub use element::{
    Element, bf16_to_f32, combine_slices, f16_to_f32, f32_to_bf16, f32_to_f16, reduce_in_place,
    reduce_slices,
};
pub use level::Level;
pub use lines::copy_lines;
use ringway_plan::{DataType, ReduceOp};

use crate::{fold::Combine, simd::Divisor, table::Table};

/// What is done to a result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Nothing.
    None,
    /// Division by the number, usually that of ranks: floats rounded (`f16` and `bf16` divide as `f32`), integers
    /// towards zero.
    Divide(NonZeroU32),
}

impl Finish {
    /// What completes `op` over `ranks` ranks: [`ReduceOp::Average`] divides, the others need nothing.
    pub const fn of(op: ReduceOp, ranks: u32) -> Self {
        match (op, NonZeroU32::new(ranks)) {
            (ReduceOp::Average, Some(n)) => Self::Divide(n),
            _ => Self::None,
        }
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Into the caches; right for what is read again soon.
    Cached,
    /// Past the caches; right for more than they hold. All writes are visible when the call returns.
    ///
    /// A destination that is not aligned like the first one (modulo 64), or not to its own elements, is written
    /// through the caches all the same.
    Streaming,
}

/// A change of element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// binary32 to binary16, to nearest even.
    F32ToF16,
    /// binary16 to binary32, exact.
    F16ToF32,
    /// binary32 to bfloat16, to nearest even.
    F32ToBf16,
    /// bfloat16 to binary32, exact.
    Bf16ToF32,
}

impl Cast {
    /// The cast between two types, if there is one.
    pub const fn between(from: DataType, to: DataType) -> Option<Self> {
        match (from, to) {
            (DataType::F32, DataType::F16) => Some(Self::F32ToF16),
            (DataType::F16, DataType::F32) => Some(Self::F16ToF32),
            (DataType::F32, DataType::Bf16) => Some(Self::F32ToBf16),
            (DataType::Bf16, DataType::F32) => Some(Self::Bf16ToF32),
            _ => None,
        }
    }

    /// The type of the source's elements.
    pub const fn from(self) -> DataType {
        match self {
            Self::F32ToF16 | Self::F32ToBf16 => DataType::F32,
            Self::F16ToF32 => DataType::F16,
            Self::Bf16ToF32 => DataType::Bf16,
        }
    }

    /// The type of the destination's elements.
    pub const fn to(self) -> DataType {
        match self {
            Self::F32ToF16 => DataType::F16,
            Self::F32ToBf16 => DataType::Bf16,
            Self::F16ToF32 | Self::Bf16ToF32 => DataType::F32,
        }
    }
}

/// `dst[i] = a[i] op b[i]` for `count` elements; [`ReduceOp::Average`] only sums, [`Finish::Divide`] does the rest.
///
/// `dst` may be `a` or `b` or both; otherwise they are to be apart. Any alignment.
///
/// # Safety
/// `a` and `b` must be valid for reads and `dst` for writes of `count` elements. Where `dst` overlaps a source partly the
/// result is unspecified.
///
/// # Panics
/// If the type has no such operation ([`ReduceOp::supports`]).
#[inline]
pub unsafe fn reduce(
    dtype: DataType,
    op: ReduceOp,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    // SAFETY: the caller's promise, in bytes.
    unsafe { Table::best().reduce(dtype, op)(dst, a, b, count * dtype.size()) }
}

/// [`reduce`] with the kernels of one level; of [`Level::Portable`] where the processor does not have it.
///
/// # Safety
/// As for [`reduce`].
///
/// # Panics
/// As for [`reduce`].
pub unsafe fn reduce_at(
    level: Level,
    dtype: DataType,
    op: ReduceOp,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    // SAFETY: the caller's promise, in bytes.
    unsafe { level.table().reduce(dtype, op)(dst, a, b, count * dtype.size()) }
}

/// `dst[i] = finish(srcs[0][i] op srcs[1][i] op ...)` for `count` elements, stored to every destination, in one pass.
///
/// Operands are combined in their order. A destination may be one of the sources; otherwise they are to be apart. Any
/// alignment, any number of sources (at least one) and destinations.
///
/// # Safety
/// Sources must be valid for reads and destinations for writes of `count` elements. Where a destination overlaps a source
/// or another destination partly the result is unspecified.
///
/// # Panics
/// If the type has no such operation ([`ReduceOp::supports`]), or there is no source.
#[inline]
pub unsafe fn combine(
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    finish: Finish,
    stores: Stores,
) {
    // SAFETY: the caller's promise, handed on.
    unsafe { combine_with(Table::best(), dtype, op, dsts, srcs, count, finish, stores) }
}

/// [`combine`] with the kernels of one level; of [`Level::Portable`] where the processor does not have it.
///
/// # Safety
/// As for [`combine`].
///
/// # Panics
/// As for [`combine`].
#[expect(
    clippy::too_many_arguments,
    reason = "those of `combine`, and the level"
)]
pub unsafe fn combine_at(
    level: Level,
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    finish: Finish,
    stores: Stores,
) {
    // SAFETY: the caller's promise, handed on.
    unsafe { combine_with(level.table(), dtype, op, dsts, srcs, count, finish, stores) }
}

/// # Safety
/// As for [`combine`].
#[expect(
    clippy::too_many_arguments,
    reason = "those of `combine`, and the table"
)]
unsafe fn combine_with(
    table: &Table,
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    finish: Finish,
    stores: Stores,
) {
    let [first, rest @ ..] = srcs else {
        panic!("combine needs at least one source")
    };
    assert!(
        op.supports(dtype),
        "{op} is not defined for elements of {dtype}"
    );
    let Some(&leading) = dsts.first() else { return };
    let (kernel, divisor) = match finish {
        Finish::Divide(n) => (table.combine(dtype), Some(Divisor::new(n))),
        // A copy: not even a NaN may be made quiet.
        Finish::None if rest.is_empty() => (table.combine(DataType::U64), None),
        Finish::None => (table.combine(dtype), None),
    };
    let size = dtype.size();
    let bytes = count * size;
    let (streaming, leading) = match stores {
        Stores::Streaming => fold::streaming(dsts, srcs, size, bytes).unwrap_or((0, leading)),
        Stores::Cached => (0, leading),
    };
    let head = fold::head(leading, size, bytes);
    let combine = Combine {
        dsts,
        first: *first,
        rest,
        bytes,
        op,
        divisor,
        streaming,
        head,
    };
    // SAFETY: the caller's promise, in bytes.
    unsafe { kernel(&combine) }
}

/// Converts `count` elements of `src` to the other type in `dst`.
///
/// # Safety
/// `src` must be valid for reads of `count` elements of [`Cast::from`], `dst` for writes of as many of [`Cast::to`].
/// Where they overlap the result is unspecified.
pub unsafe fn cast(cast: Cast, dst: *mut u8, src: *const u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { Table::best().cast(cast)(dst, src, count) }
}

/// [`cast`] with the kernels of one level; of [`Level::Portable`] where the processor does not have it.
///
/// # Safety
/// As for [`cast`].
pub unsafe fn cast_at(level: Level, cast: Cast, dst: *mut u8, src: *const u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { level.table().cast(cast)(dst, src, count) }
}

/// Copies `bytes` bytes past the caches: for more than they hold.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `bytes` bytes. They may be the same; where they overlap
/// partly the result is unspecified.
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        combine(
            DataType::U8,
            ReduceOp::Or,
            &[dst],
            &[src],
            bytes,
            Finish::None,
            Stores::Streaming,
        )
    }
}
