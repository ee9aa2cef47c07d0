//! Which function does what: one table for each instruction set, and the one in use.

use std::sync::atomic::{AtomicPtr, Ordering};

use ringway_plan::{DataType, ReduceOp};

use crate::{Cast, Level, fold::Combine};

/// The functions for one element type and operation.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// Destination, two sources, bytes.
    pub(crate) reduce: unsafe fn(*mut u8, *const u8, *const u8, usize),
    /// For [`ReduceOp::Average`] the one that divides.
    pub(crate) combine: unsafe fn(&Combine<'_>),
}

/// Destination, source, elements.
pub(crate) type CastKernel = unsafe fn(*mut u8, *const u8, usize);

/// All functions of one instruction set.
pub(crate) struct Table {
    /// In the order of [`DataType`] and [`ReduceOp`].
    pub(crate) kernels: [[Kernels; ReduceOp::ALL.len()]; DataType::ALL.len()],
    /// In the order of [`Cast`].
    pub(crate) casts: [CastKernel; 4],
}

impl Table {
    #[inline]
    pub(crate) const fn kernels(&self, dtype: DataType, op: ReduceOp) -> &Kernels {
        &self.kernels[dtype as usize][op as usize]
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

unsafe fn no_reduce(_: *mut u8, _: *const u8, _: *const u8, _: usize) {
    panic!("bitwise operations are not defined for floating-point elements; use an integer type")
}

unsafe fn no_combine(_: &Combine<'_>) {
    panic!("bitwise operations are not defined for floating-point elements; use an integer type")
}

/// What stands for an operation that a type does not have.
pub(crate) const UNSUPPORTED: Kernels = Kernels {
    reduce: no_reduce,
    combine: no_combine,
};

/// Defines `pub(crate) static TABLE` for an instruction set, in functions that have its instructions enabled.
///
/// Signed and unsigned integers share what does not tell them apart.
macro_rules! table {
    ($isa:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn reduce<T, O: $crate::simd::Op<T, $isa>>(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize)
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            // SAFETY: tables are only given out where the instructions exist; the rest is the caller's promise.
            unsafe { $crate::fold::reduce::<T, O, $isa>(<$isa>::assume(), dst, a, b, bytes) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn combine<T, O: $crate::simd::Op<T, $isa>>(c: &$crate::fold::Combine<'_>)
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            // SAFETY: as for `reduce`.
            unsafe { $crate::fold::combine::<T, O, $isa>(<$isa>::assume(), c) }
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

        const fn kernels<T, O: $crate::simd::Op<T, $isa>>() -> $crate::table::Kernels
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            $crate::table::Kernels { reduce: reduce::<T, O>, combine: combine::<T, O> }
        }

        const fn averages<T>() -> $crate::table::Kernels
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            $crate::table::Kernels { reduce: reduce::<T, Sum>, combine: combine::<T, Average> }
        }

        const fn float<T>() -> [$crate::table::Kernels; 8]
        where
            $isa: $crate::simd::Arithmetic<T>,
        {
            let none = $crate::table::UNSUPPORTED;
            [
                none,
                averages::<T>(),
                kernels::<T, Max>(),
                kernels::<T, Min>(),
                none,
                kernels::<T, Product>(),
                kernels::<T, Sum>(),
                none,
            ]
        }

        /// `S` is the type of the same width that stands for both.
        const fn integer<T, S>() -> [$crate::table::Kernels; 8]
        where
            $isa: $crate::simd::Arithmetic<T> + $crate::simd::Arithmetic<S>,
        {
            [
                kernels::<u64, And>(),
                $crate::table::Kernels { reduce: reduce::<S, Sum>, combine: combine::<T, Average> },
                kernels::<T, Max>(),
                kernels::<T, Min>(),
                kernels::<u64, Or>(),
                kernels::<S, Product>(),
                kernels::<S, Sum>(),
                kernels::<u64, Xor>(),
            ]
        }

        pub(crate) static TABLE: $crate::table::Table = $crate::table::Table {
            kernels: [
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
            casts: [narrow::<f16>, widen::<f16>, narrow::<bf16>, widen::<bf16>],
        };
    };
}

pub(crate) use table;
