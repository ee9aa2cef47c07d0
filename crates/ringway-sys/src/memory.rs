//! A handle to memory that an operation works on.
//!
//! Transports, the executor and the engine pass places in memory around: tensors, shared-memory
//! segments, staging buffers. [`Memory`] is that: a raw range without a lifetime. One `unsafe` act, making it,
//! promises that the range stays valid; everything after is bounds-checked and safe to call.

use std::{array, ops::Range};

use ringway_kernels::{Cast, Finish, Stores};
use ringway_plan::{DataType, ReduceOp};

/// The size of pages; larger ones are multiples of it.
const PAGE: usize = 4096;

/// From this many bytes on the C library may copy with the string instruction of x86, which [`ringway_kernels::copy_lines`] takes
/// only where it is fast.
const LONG: usize = 2048;

/// Up to this many operands [`Memory::combine`] allocates nothing.
const FEW: usize = 16;

/// A range of bytes, valid for reads and writes for as long as the handle or a copy of it is used.
///
/// Several handles may overlap, and other processes may read and write the range: its bytes are only ever
/// touched through raw pointers, never through a Rust reference. The schedule's verifier and the flags of the
/// transports order the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a handle is an address; the contract of `Memory::new` covers use from any thread.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// No bytes.
    pub const EMPTY: Self = Self {
        ptr: std::ptr::dangling_mut(),
        len: 0,
    };

    /// The `len` bytes from `ptr`.
    ///
    /// # Safety
    /// The range must stay valid for reads (and for writes, if any user of the handle writes) from any
    /// thread until the last use of this handle and of all made from it, and no Rust reference to it may be
    /// used meanwhile in a way that conflicts.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The first byte's address.
    pub const fn as_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// The number of bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes of `range`, counted from the start of this one.
    ///
    /// # Panics
    /// If the range is not within this one.
    #[inline]
    pub fn slice(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} outside of memory of {} bytes",
            self.len
        );
        // SAFETY: start is within the range, so the address stays inside the same allocation.
        let ptr = unsafe { self.ptr.add(range.start) };
        Self {
            ptr,
            len: range.end - range.start,
        }
    }

    /// The whole pages that it lies in, of the size that all systems' pages are multiples of. They are mapped with it, and stay
    /// mapped as long. The bytes around it are others': to be registered with a device, never to be read or written.
    pub fn pages(self) -> Self {
        let (start, end) = (self.ptr.addr(), self.ptr.addr() + self.len);
        let before = start % PAGE;
        Self {
            ptr: self.ptr.wrapping_sub(before),
            len: end.next_multiple_of(PAGE) - (start - before),
        }
    }

    /// Whether any byte is of both.
    #[inline]
    pub fn overlaps(self, other: Self) -> bool {
        let (start, others) = (self.ptr.addr(), other.ptr.addr());
        !self.is_empty()
            && !other.is_empty()
            && start < others + other.len
            && others < start + self.len
    }

    /// Copies the bytes of `from` here. The two may be the same range, or apart.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(self, from: Self) {
        assert_eq!(
            self.len, from.len,
            "copy between memory of different length"
        );
        if self.len >= LONG {
            return self.copy_lines(from);
        }
        // SAFETY: both ranges are valid by the contract of `new`; `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr, self.ptr, self.len) }
    }

    /// Copies out `into.len()` bytes from the start.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "read of {} bytes from {}",
            into.len(),
            self.len
        );
        // SAFETY: the source is valid by the contract of `new` and long enough; a `&mut` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, into.as_mut_ptr(), into.len()) }
    }

    /// Copies `from` to the start.
    ///
    /// # Panics
    /// If there is less room.
    pub fn write(self, from: &[u8]) {
        assert!(
            from.len() <= self.len,
            "write of {} bytes to {}",
            from.len(),
            self.len
        );
        // SAFETY: the target is valid by the contract of `new` and long enough; `from` is a shared borrow of
        // other memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.ptr, from.len()) }
    }

    /// Copies the bytes of `from` here past the caches: for more than they hold. The two may be the same range, or
    /// apart.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_streaming(self, from: Self) {
        assert_eq!(
            self.len, from.len,
            "copy between memory of different length"
        );
        // SAFETY: both ranges are valid by the contract of `new` and of the same length.
        unsafe { ringway_kernels::copy_streaming(self.ptr, from.ptr, self.len) }
    }

    /// Copies the bytes of `from` here by whole cache lines, see [`ringway_kernels::copy_lines`]. Where the two overlap
    /// the result is unspecified.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_lines(self, from: Self) {
        assert_eq!(
            self.len, from.len,
            "copy between memory of different length"
        );
        // SAFETY: both ranges are valid by the contract of `new` and of the same length.
        unsafe { ringway_kernels::copy_lines(self.ptr, from.ptr, self.len) }
    }

    /// `dst[i] = a[i] op b[i]` for the elements of type `dtype` that `dst` holds; see [`ringway_kernels::reduce`].
    ///
    /// `dst` may be `a` or `b`. Where it overlaps one of them partly the result is unspecified.
    ///
    /// # Panics
    /// If the lengths differ or are not of whole elements, or the type has no such operation.
    #[inline]
    pub fn reduce(dtype: DataType, op: ReduceOp, dst: Self, a: Self, b: Self) {
        let count = dst.count_of(dtype);
        assert!(
            a.len == dst.len && b.len == dst.len,
            "reduce of {} and {} bytes into {}: the lengths must be the same",
            a.len,
            b.len,
            dst.len
        );
        // SAFETY: all ranges are valid by the contract of `new` and hold `count` elements.
        unsafe { ringway_kernels::reduce(dtype, op, dst.ptr, a.ptr, b.ptr, count) }
    }

    /// Combines all of `srcs`, in their order, and stores the result to each of `dsts`; see
    /// [`ringway_kernels::combine`].
    ///
    /// A destination may be one of the sources. Where it overlaps one partly the result is unspecified.
    ///
    /// # Panics
    /// If there is no source, the lengths differ or are not of whole elements, or the type has no such operation.
    pub fn combine(
        dtype: DataType,
        op: ReduceOp,
        dsts: &[Self],
        srcs: &[Self],
        finish: Finish,
        stores: Stores,
    ) {
        let Some(first) = srcs.first() else {
            panic!("combine needs at least one source")
        };
        let count = first.count_of(dtype);
        for other in srcs.iter().chain(dsts) {
            assert_eq!(
                other.len, first.len,
                "combine of memory of different length"
            );
        }
        with_addresses(srcs, |srcs| {
            with_addresses(dsts, |dsts| {
                // SAFETY: a pointer to constant has the layout of one to mutable; the slice stays borrowed.
                let srcs = unsafe { &*(std::ptr::from_ref(srcs) as *const [*const u8]) };
                // SAFETY: all ranges are valid by the contract of `new` and hold `count` elements.
                unsafe { ringway_kernels::combine(dtype, op, dsts, srcs, count, finish, stores) }
            });
        });
    }

    /// Converts the elements of `from`, of type [`Cast::from`], to [`Cast::to`] and stores them here.
    ///
    /// # Panics
    /// If the two do not hold the same number of whole elements.
    pub fn cast(self, cast: Cast, from: Self) {
        let count = self.count_of(cast.to());
        assert_eq!(
            from.count_of(cast.from()),
            count,
            "cast between memory of different numbers of elements"
        );
        // SAFETY: both ranges are valid by the contract of `new` and hold `count` elements.
        unsafe { ringway_kernels::cast(cast, self.ptr, from.ptr, count) }
    }

    /// The number of elements of type `dtype` that there is room for.
    #[inline]
    fn count_of(self, dtype: DataType) -> usize {
        // A power of two: a shift in place of a division.
        let shift = dtype.size().trailing_zeros();
        assert!(
            self.len.trailing_zeros() >= shift,
            "{} bytes are not a whole number of {dtype} elements",
            self.len
        );
        self.len >> shift
    }
}

/// Calls `f` with the addresses of `all`.
fn with_addresses<R>(all: &[Memory], f: impl FnOnce(&[*mut u8]) -> R) -> R {
    if all.len() <= FEW {
        let few: [*mut u8; FEW] =
            array::from_fn(|i| all.get(i).map_or(std::ptr::null_mut(), |m| m.ptr));
        f(&few[..all.len()])
    } else {
        f(&all.iter().map(|m| m.ptr).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T>(values: &mut [T]) -> Memory {
        // SAFETY: the tests use handles while the values are alive and borrow them for nothing else meanwhile.
        unsafe { Memory::new(values.as_mut_ptr().cast(), size_of_val(values)) }
    }

    #[test]
    fn reduces_and_casts() {
        let (mut a, mut b, mut sum) = ([1.0f32, 2.0, -3.0], [0.5f32, 0.25, 3.0], [0u16; 3]);
        Memory::reduce(
            DataType::F32,
            ReduceOp::Sum,
            of(&mut a),
            of(&mut a),
            of(&mut b),
        );
        assert_eq!(a, [1.5, 2.25, 0.0]);
        of(&mut sum).cast(Cast::F32ToBf16, of(&mut a));
        assert_eq!(sum, [0x3fc0, 0x4010, 0]);
    }

    #[test]
    fn pages_are_whole_and_hold_the_range() {
        let mut bytes = vec![0u8; 5 * PAGE];
        let all = of(&mut bytes);
        let aligned = all.as_ptr().addr().next_multiple_of(PAGE) - all.as_ptr().addr();
        for (range, pages) in [(0..1, 1), (PAGE - 1..PAGE + 1, 2), (PAGE..3 * PAGE, 2)] {
            let part = all.slice(aligned + range.start..aligned + range.end);
            let whole = part.pages();
            assert!(whole.as_ptr().addr().is_multiple_of(PAGE));
            assert_eq!(whole.len(), pages * PAGE);
            let skip = part.as_ptr().addr() - whole.as_ptr().addr();
            assert!(skip < PAGE && skip + part.len() <= whole.len());
        }
    }

    #[test]
    fn combines_few_and_many() {
        for n in [1, 2, FEW, FEW + 1, 3 * FEW] {
            let mut srcs: Vec<[i32; 5]> = (0..n as i32).map(|i| [i, 1, 2 * i, -i, 7]).collect();
            let mut dsts = vec![[0; 5]; n];
            let s: Vec<Memory> = srcs.iter_mut().map(|x| of(x)).collect();
            let d: Vec<Memory> = dsts.iter_mut().map(|x| of(x)).collect();
            let ranks = n as u32;
            Memory::combine(
                DataType::I32,
                ReduceOp::Average,
                &d,
                &s,
                Finish::of(ReduceOp::Average, ranks),
                Stores::Streaming,
            );
            let half = (n as i32 - 1) / 2;
            assert!(
                dsts.iter().all(|d| *d == [half, 1, n as i32 - 1, -half, 7]),
                "{n}: {dsts:?}"
            );
        }
    }

    #[test]
    fn copies_past_the_caches() {
        let mut from: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        for skip in [0, 1, 63] {
            to.fill(0);
            let range = skip..to.len() - 7;
            of(&mut to)
                .slice(range.clone())
                .copy_streaming(of(&mut from).slice(range.clone()));
            assert_eq!(to[range.clone()], from[range]);
            assert!(
                to[..skip]
                    .iter()
                    .chain(&to[from.len() - 7..])
                    .all(|&x| x == 0)
            );
        }
    }

    #[test]
    #[should_panic(expected = "the lengths must be the same")]
    fn refuses_different_lengths() {
        let (mut a, mut b) = ([0u8; 8], [0u8; 9]);
        Memory::reduce(
            DataType::U8,
            ReduceOp::Max,
            of(&mut a),
            of(&mut a),
            of(&mut b),
        );
    }

    #[test]
    #[should_panic(expected = "not a whole number of f32 elements")]
    fn refuses_parts_of_elements() {
        let mut a = [0u8; 9];
        Memory::reduce(
            DataType::F32,
            ReduceOp::Max,
            of(&mut a),
            of(&mut a),
            of(&mut a),
        );
    }
}
