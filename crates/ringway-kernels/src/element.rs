//! The kernels for slices: types instead of [`DataType`], lengths checked, nothing unsafe to call.

use half::{bf16, f16};
use ringway_plan::{DataType, ReduceOp};

use crate::{Cast, Finish, Stores};

/// A Rust type that buffers consist of.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The data type it is an element of.
    const DTYPE: DataType;
}

mod sealed {
    #[allow(unnameable_types, reason = "not to be named is what seals it")]
    pub trait Sealed {}
}

macro_rules! element {
    ($($t:ident = $dtype:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

element!(
    bf16 = Bf16,
    f16 = F16,
    f32 = F32,
    f64 = F64,
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64
);

fn same_length(what: &str, expected: usize, found: usize) {
    assert!(
        expected == found,
        "{what} has {found} elements where {expected} are needed"
    );
}

/// `dst[i] = a[i] op b[i]`; see [`crate::reduce`].
///
/// # Panics
/// If the lengths differ or the type has no such operation.
pub fn reduce_slices<T: Element>(op: ReduceOp, dst: &mut [T], a: &[T], b: &[T]) {
    same_length("the first source", dst.len(), a.len());
    same_length("the second source", dst.len(), b.len());
    // SAFETY: three slices of one length; the exclusive borrow is apart from the others.
    unsafe {
        crate::reduce(
            T::DTYPE,
            op,
            dst.as_mut_ptr().cast(),
            a.as_ptr().cast(),
            b.as_ptr().cast(),
            dst.len(),
        );
    }
}

/// `dst[i] = dst[i] op b[i]`; see [`crate::reduce`].
///
/// # Panics
/// If the lengths differ or the type has no such operation.
pub fn reduce_in_place<T: Element>(op: ReduceOp, dst: &mut [T], b: &[T]) {
    same_length("the second source", dst.len(), b.len());
    let ptr = dst.as_mut_ptr().cast::<u8>();
    // SAFETY: two slices of one length, apart from each other; the destination may be the first source.
    unsafe { crate::reduce(T::DTYPE, op, ptr, ptr, b.as_ptr().cast(), dst.len()) }
}

/// `dst[i] = finish(src0[i] op src1[i] op ...)` in every destination; see [`crate::combine`].
///
/// # Panics
/// If the lengths differ, there is no source, or the type has no such operation.
pub fn combine_slices<T: Element>(
    op: ReduceOp,
    dsts: &mut [&mut [T]],
    srcs: &[&[T]],
    finish: Finish,
    stores: Stores,
) {
    let count = srcs.first().map_or(0, |src| src.len());
    for src in srcs {
        same_length("a source", count, src.len());
    }
    for dst in dsts.iter() {
        same_length("a destination", count, dst.len());
    }
    let srcs: Vec<*const u8> = srcs.iter().map(|src| src.as_ptr().cast()).collect();
    let dsts: Vec<*mut u8> = dsts.iter_mut().map(|dst| dst.as_mut_ptr().cast()).collect();
    // SAFETY: all have `count` elements; exclusive borrows are apart from all others.
    unsafe { crate::combine(T::DTYPE, op, &dsts, &srcs, count, finish, stores) }
}

macro_rules! cast_slices {
    ($($name:ident: $from:ident -> $to:ident = $cast:ident, $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// # Panics
        /// If the lengths differ.
        pub fn $name(dst: &mut [$to], src: &[$from]) {
            same_length("the source", dst.len(), src.len());
            // SAFETY: two slices of one length, apart from each other, of the types that the cast names.
            unsafe { crate::cast(Cast::$cast, dst.as_mut_ptr().cast(), src.as_ptr().cast(), dst.len()) }
        }
    )*};
}

cast_slices! {
    f32_to_f16: f32 -> f16 = F32ToF16, "Rounds to binary16, to nearest even; NaN stays NaN.";
    f16_to_f32: f16 -> f32 = F16ToF32, "Widens binary16; exact.";
    f32_to_bf16: f32 -> bf16 = F32ToBf16, "Rounds to bfloat16, to nearest even; NaN stays NaN.";
    bf16_to_f32: bf16 -> f32 = Bf16ToF32, "Widens bfloat16; exact.";
}
