//! A handle to memory that an operation works on.
//!
//! Transports, the executor and the engine pass places in memory around: tensors, shared-memory
//! segments, staging buffers. [`Memory`] is that: a raw range without a lifetime. One `unsafe` act, making it,
//! promises that the range stays valid; everything after is bounds-checked and safe to call.

use std::ops::Range;

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
    pub const EMPTY: Self = Self { ptr: std::ptr::dangling_mut(), len: 0 };

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
        Self { ptr, len: range.end - range.start }
    }

    /// Copies the bytes of `from` here. The two may be the same range, or apart.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(self, from: Self) {
        assert_eq!(self.len, from.len, "copy between memory of different length");
        // SAFETY: both ranges are valid by the contract of `new`; `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr, self.ptr, self.len) }
    }

    /// Copies out `into.len()` bytes from the start.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(self, into: &mut [u8]) {
        assert!(into.len() <= self.len, "read of {} bytes from {}", into.len(), self.len);
        // SAFETY: the source is valid by the contract of `new` and long enough; a `&mut` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, into.as_mut_ptr(), into.len()) }
    }

    /// Copies `from` to the start.
    ///
    /// # Panics
    /// If there is less room.
    pub fn write(self, from: &[u8]) {
        assert!(from.len() <= self.len, "write of {} bytes to {}", from.len(), self.len);
        // SAFETY: the target is valid by the contract of `new` and long enough; `from` is a shared borrow of
        // other memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.ptr, from.len()) }
    }
}
