//! Which function does what: one table for each instruction set, and the one in use.

use std::sync::atomic::{AtomicPtr, Ordering};

use ringway_plan::{DataType, ReduceOp};

use crate::{Cast, Level, fold::Combine};

/// Destination, two sources, bytes.
pub(crate) type ReduceKernel = unsafe fn(*mut u8, *const u8, *const u8, usize);

/// All operands.
pub(crate) type CombineKernel = unsafe fn(&Combine<'_>);

/// Destination, source, elements.
pub(crate) type CastKernel = unsafe fn(*mut u8, *const u8, usize);

/// All functions of one instruction set.
pub(crate) struct Table {
    /// In the order of [`DataType`] and [`ReduceOp`].
    pub(crate) reduce: [[ReduceKernel; ReduceOp::ALL.len()]; DataType::ALL.len()],
    /// In the order of [`DataType`].
    pub(crate) combine: [CombineKernel; DataType::ALL.len()],
    /// In the order of [`Cast`].
    pub(crate) casts: [CastKernel; 4],
}

impl Table {
    #[inline]
    pub(crate) const fn reduce(&self, dtype: DataType, op: ReduceOp) -> ReduceKernel {
        self.reduce[dtype as usize][op as usize]
    }

    #[inline]
    pub(crate) const fn combine(&self, dtype: DataType) -> CombineKernel {
        self.combine[dtype as usize]
    }

    #[inline]
    pub(crate) const fn cast(&self, cast: Cast) -> CastKernel {
        self.casts[cast as usize]
    }

    /// The table of the best instruction set that this processor has.
    #[inline]
    pub(crate) fn best() -> &'static Self {
        static BEST: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
        // Relaxed: the table is a constant, there is nothing else to see.
        let best = BEST.load(Ordering::Relaxed);
        if best.is_null() {
            let table = Level::best().table();
            BEST.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
            table
        } else {
            // SAFETY: only ever set from a `&'static Table`.
            unsafe { &*best }
        }
    }
}

/// What stands for an operation that a type does not have.
pub(crate) unsafe fn unsupported(_: *mut u8, _: *const u8, _: *const u8, _: usize) {
    panic!("bitwise operations are not defined for floating-point elements; use an integer type")
}

/// Operations as numbers, as constant parameters have to be: their places in [`ReduceOp::ALL`].
pub(crate) const AND: usize = ReduceOp::And as usize;
pub(crate) const MAX: usize = ReduceOp::Max as usize;
pub(crate) const MIN: usize = ReduceOp::Min as usize;
pub(crate) const OR: usize = ReduceOp::Or as usize;
pub(crate) const PRODUCT: usize = ReduceOp::Product as usize;
pub(crate) const XOR: usize = ReduceOp::Xor as usize;

/// Defines `pub(crate) static TABLE` for an instruction set, in functions that have its instructions enabled.
///
/// There are functions for what is reduced most, sums of everything and all operations of floats, which take `$reduce` blocks
/// at a time. The rest is combined, at a few nanoseconds more for each call, `$combine` blocks at a time.
macro_rules! table {
    ($isa:ty, $reduce:literal, $combine:literal $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn reduce<T, O: $crate::simd::Op<T, $isa>>(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize)
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            // SAFETY: tables are only given out where the instructions exist; the rest is the caller's promise.
            unsafe { $crate::fold::reduce::<T, O, $isa, $reduce>(<$isa>::assume(), dst, a, b, bytes) }
        }

        $(#[target_feature(enable = $features)])?
        #[inline(never)]
        unsafe fn combine<T>(c: &$crate::fold::Combine<'_>)
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            // SAFETY: as for `reduce`.
            unsafe { $crate::fold::combine::<T, $isa, $combine>(<$isa>::assume(), c) }
        }

        unsafe fn any<T, const OP: usize>(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize)
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            let (dsts, rest) = ([dst], [b]);
            let c = $crate::fold::Combine {
                dsts: &dsts,
                first: a,
                rest: &rest,
                bytes,
                op: ringway_plan::ReduceOp::ALL[OP],
                divisor: None,
                streaming: 0,
                head: $crate::fold::head(dst, size_of::<T>(), bytes),
            };
            // SAFETY: as for `reduce`.
            unsafe { combine::<T>(&c) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn widen<T>(dst: *mut u8, src: *const u8, count: usize)
        where
            $isa: $crate::simd::Halves<T>,
        {
            // SAFETY: as for `reduce`.
            unsafe { $crate::fold::widen::<T, $isa>(<$isa>::assume(), dst, src, count) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn narrow<T>(dst: *mut u8, src: *const u8, count: usize)
        where
            $isa: $crate::simd::Halves<T>,
        {
            // SAFETY: as for `reduce`.
            unsafe { $crate::fold::narrow::<T, $isa>(<$isa>::assume(), dst, src, count) }
        }

        const fn float<T>() -> [$crate::table::ReduceKernel; 8]
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            use $crate::{simd::{Max, Min, Product, Sum}, table::unsupported};
            [
                unsupported,
                reduce::<T, Sum>,
                reduce::<T, Max>,
                reduce::<T, Min>,
                unsupported,
                reduce::<T, Product>,
                reduce::<T, Sum>,
                unsupported,
            ]
        }

        /// `U` is the unsigned type of the same width, which has the same sums.
        const fn integer<T, U>() -> [$crate::table::ReduceKernel; 8]
        where
            $isa: $crate::simd::Arithmetic<T> + $crate::simd::Arithmetic<U>,
        {
            use $crate::{simd::Sum, table::{AND, MAX, MIN, OR, PRODUCT, XOR}};
            [
                any::<T, AND>,
                reduce::<U, Sum>,
                any::<T, MAX>,
                any::<T, MIN>,
                any::<T, OR>,
                any::<T, PRODUCT>,
                reduce::<U, Sum>,
                any::<T, XOR>,
            ]
        }

        pub(crate) static TABLE: $crate::table::Table = $crate::table::Table {
            reduce: [
                float::<bf16>(),
                float::<f16>(),
                float::<f32>(),
                float::<f64>(),
                integer::<i8, u8>(),
                integer::<i16, u16>(),
                integer::<i32, u32>(),
                integer::<i64, u64>(),
                integer::<u8, u8>(),
                integer::<u16, u16>(),
                integer::<u32, u32>(),
                integer::<u64, u64>(),
            ],
            combine: [
                combine::<bf16>,
                combine::<f16>,
                combine::<f32>,
                combine::<f64>,
                combine::<i8>,
                combine::<i16>,
                combine::<i32>,
                combine::<i64>,
                combine::<u8>,
                combine::<u16>,
                combine::<u32>,
                combine::<u64>,
            ],
            casts: [narrow::<f16>, widen::<f16>, narrow::<bf16>, widen::<bf16>],
        };
    };
}

pub(crate) use table;
