//! The kernels again, one element at a time: what the fast ones are tested against, and slow.
//!
//! Results are the same bits as the fast kernels', except that the sum or product of two NaNs may be either of
//! them (made quiet).

use std::num::NonZeroU32;

use half::{bf16, f16};
use ringway_plan::{DataType, ReduceOp};

use crate::{
    Cast, Finish, convert,
    scalar::{Bits, Scalar},
};

/// See [`crate::reduce`].
///
/// # Safety
/// As for [`crate::reduce`].
///
/// # Panics
/// If the type has no such operation.
pub unsafe fn reduce(
    dtype: DataType,
    op: ReduceOp,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    // SAFETY: the caller's promise for `reduce` is the one `combine` asks for.
    unsafe { combine(dtype, op, &[dst], &[a, b], count, Finish::None) }
}

/// See [`crate::combine`]; there are only cached stores here.
///
/// # Safety
/// As for [`crate::combine`].
///
/// # Panics
/// If the type has no such operation, or there is no source.
pub unsafe fn combine(
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    finish: Finish,
) {
    assert!(!srcs.is_empty(), "combine needs at least one source");
    assert!(
        op.supports(dtype),
        "{op} is not defined for elements of {dtype}"
    );
    let divisor = match finish {
        Finish::None => None,
        Finish::Divide(n) => Some(n),
    };
    // SAFETY: handed on unchanged, with the type that `dtype` names.
    unsafe {
        match dtype {
            DataType::Bf16 => fold::<bf16>(arithmetic::<bf16>(op), dsts, srcs, count, divisor),
            DataType::F16 => fold::<f16>(arithmetic::<f16>(op), dsts, srcs, count, divisor),
            DataType::F32 => fold::<f32>(arithmetic::<f32>(op), dsts, srcs, count, divisor),
            DataType::F64 => fold::<f64>(arithmetic::<f64>(op), dsts, srcs, count, divisor),
            DataType::I8 => fold::<i8>(any::<i8>(op), dsts, srcs, count, divisor),
            DataType::I16 => fold::<i16>(any::<i16>(op), dsts, srcs, count, divisor),
            DataType::I32 => fold::<i32>(any::<i32>(op), dsts, srcs, count, divisor),
            DataType::I64 => fold::<i64>(any::<i64>(op), dsts, srcs, count, divisor),
            DataType::U8 => fold::<u8>(any::<u8>(op), dsts, srcs, count, divisor),
            DataType::U16 => fold::<u16>(any::<u16>(op), dsts, srcs, count, divisor),
            DataType::U32 => fold::<u32>(any::<u32>(op), dsts, srcs, count, divisor),
            DataType::U64 => fold::<u64>(any::<u64>(op), dsts, srcs, count, divisor),
        }
    }
}

/// See [`crate::cast`].
///
/// # Safety
/// As for [`crate::cast`].
pub unsafe fn cast(cast: Cast, dst: *mut u8, src: *const u8, count: usize) {
    // SAFETY: handed on unchanged, with the types that `cast` names.
    unsafe {
        match cast {
            Cast::F32ToF16 => map(dst, src, count, convert::f32_to_f16),
            Cast::F16ToF32 => map(dst, src, count, convert::f16_to_f32),
            Cast::F32ToBf16 => map(dst, src, count, convert::f32_to_bf16),
            Cast::Bf16ToF32 => map(dst, src, count, convert::bf16_to_f32),
        }
    }
}

type Step<T> = fn(<T as Scalar>::Acc, <T as Scalar>::Acc) -> <T as Scalar>::Acc;

fn arithmetic<T: Scalar>(op: ReduceOp) -> Step<T> {
    match op {
        ReduceOp::Sum | ReduceOp::Average => T::sum,
        ReduceOp::Product => T::product,
        ReduceOp::Min => T::lesser,
        ReduceOp::Max => T::greater,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            unreachable!("{op} was checked to be defined for the type")
        }
    }
}

fn any<T: Bits>(op: ReduceOp) -> Step<T> {
    match op {
        ReduceOp::And => T::and,
        ReduceOp::Or => T::or,
        ReduceOp::Xor => T::xor,
        _ => arithmetic::<T>(op),
    }
}

/// # Safety
/// As for [`crate::combine`], with elements of `T`.
unsafe fn fold<T: Scalar>(
    step: Step<T>,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    count: usize,
    divisor: Option<NonZeroU32>,
) {
    for i in 0..count {
        // SAFETY: every source holds `count` elements, of any alignment.
        let load = |src: &*const u8| unsafe { src.cast::<T>().add(i).read_unaligned() };
        let result = match (srcs, divisor) {
            ([only], None) => load(only),
            _ => {
                let (first, rest) = srcs.split_at(1);
                let sum = rest.iter().fold(load(&first[0]).widen(), |acc, src| {
                    step(acc, load(src).widen())
                });
                T::narrow(divisor.map_or(sum, |n| T::divide(sum, n)))
            }
        };
        for dst in dsts {
            // SAFETY: every destination has room for `count` elements, of any alignment.
            unsafe { dst.cast::<T>().add(i).write_unaligned(result) }
        }
    }
}

/// # Safety
/// `src` must hold `count` elements and `dst` have room for as many, apart from each other.
unsafe fn map<A, B>(dst: *mut u8, src: *const u8, count: usize, f: impl Fn(A) -> B) {
    for i in 0..count {
        // SAFETY: `i` is below `count`.
        let x = unsafe { src.cast::<A>().add(i).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.cast::<B>().add(i).write_unaligned(f(x)) }
    }
}
