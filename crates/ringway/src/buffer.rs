//! The one place where borrowed Rust memory becomes a [`Memory`] handle.
//!
//! A handle has no lifetime, so whoever makes one must see to it that no transport touches it after the borrow
//! ends. The blocking calls do so by not returning before the operation has ended or been cancelled, scopes by waiting at
//! their end, owned operations by keeping the buffer inside the operation.
#![allow(
    unsafe_code,
    reason = "the only module of this crate that turns borrows into handles"
)]

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use ringway_kernels::Element;
use ringway_link::shm::ArenaBlock;
use ringway_sys::Memory;

use crate::Registration;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A buffer that an operation may read and write.
pub trait Buffer: sealed::Sealed + Send {
    /// The type of its elements.
    type Element: Element;

    /// The handle, valid while `self` is neither moved out of its allocation, changed in length, nor dropped.
    #[doc(hidden)]
    fn memory(&mut self) -> Memory;
}

mod sealed {
    #[allow(unnameable_types, reason = "not to be named is what seals it")]
    pub trait Sealed {}
}

impl<T: Element> sealed::Sealed for &mut [T] {}
impl<T: Element> Buffer for &mut [T] {
    type Element = T;

    fn memory(&mut self) -> Memory {
        exclusive(self)
    }
}

impl<T: Element> sealed::Sealed for &mut Vec<T> {}
impl<T: Element> Buffer for &mut Vec<T> {
    type Element = T;

    fn memory(&mut self) -> Memory {
        exclusive(self)
    }
}

impl<T: Element> sealed::Sealed for Vec<T> {}
impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn memory(&mut self) -> Memory {
        exclusive(self)
    }
}

/// Elements in memory that the ranks of this host (and, with RDMA, the network) reach without a copy. Where
/// there is no such memory it is ordinary memory. Zeros at first; made by
/// [`Communicator::allocate`](crate::Communicator::allocate).
#[derive(Debug)]
pub struct ArenaBuffer<T> {
    /// With RDMA devices; before the storage, so that it ends first.
    registration: Option<Registration>,
    memory: Memory,
    len: usize,
    /// What `memory` points into.
    _storage: Storage,
    elements: PhantomData<T>,
}

#[derive(Debug)]
enum Storage {
    Arena(#[allow(dead_code, reason = "frees the memory when dropped")] ArenaBlock),
    Heap(#[allow(dead_code, reason = "frees the memory when dropped")] Vec<u64>),
}

impl<T: Element> ArenaBuffer<T> {
    pub(crate) fn in_arena(block: ArenaBlock, len: usize) -> Self {
        let memory = block.memory().slice(0..len * size_of::<T>());
        // A block that was used before still has what was in it.
        // SAFETY: the block is this buffer's alone, and at least as long as `memory`.
        unsafe { std::ptr::write_bytes(memory.as_ptr(), 0, memory.len()) };
        Self {
            registration: None,
            memory,
            len,
            _storage: Storage::Arena(block),
            elements: PhantomData,
        }
    }

    /// Ordinary memory, for comparison; zeros. It starts with a cache line, as tensors of PyTorch do.
    pub fn private(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        let mut storage = vec![0_u64; (bytes + LINE).div_ceil(8)];
        let whole = exclusive(&mut storage);
        let start = whole.as_ptr().addr().next_multiple_of(LINE) - whole.as_ptr().addr();
        let memory = whole.slice(start..start + bytes);
        Self {
            registration: None,
            memory,
            len,
            _storage: Storage::Heap(storage),
            elements: PhantomData,
        }
    }

    /// Keeps it registered while it lives.
    pub(crate) fn hold(&mut self, registration: Registration) {
        self.registration = Some(registration);
    }

    /// Whether peers on this host reach it without a copy.
    pub const fn is_shared(&self) -> bool {
        matches!(self._storage, Storage::Arena(_))
    }

    /// The handle of the whole buffer.
    pub const fn handle(&self) -> Memory {
        self.memory
    }
}

impl<T: Element> Deref for ArenaBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the storage has `len` initialised elements (any bits are a value of T), is aligned to 8 or
        // more, and lives as long as `self`. Others write to it only during operations that `self` is lent to.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for ArenaBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> sealed::Sealed for ArenaBuffer<T> {}
impl<T: Element> Buffer for ArenaBuffer<T> {
    type Element = T;

    fn memory(&mut self) -> Memory {
        self.memory
    }
}

impl<T: Element> sealed::Sealed for &mut ArenaBuffer<T> {}
impl<T: Element> Buffer for &mut ArenaBuffer<T> {
    type Element = T;

    fn memory(&mut self) -> Memory {
        self.memory
    }
}

/// The elements of a buffer whose handle is `memory`.
pub(crate) fn elements<B: Buffer>(_buffer: &B, memory: Memory) -> &[B::Element] {
    let len = memory.len() / size_of::<B::Element>();
    // SAFETY: the handle is of the buffer's elements, which stay where they are while it lives, and are borrowed as it is.
    // Others write to them only during operations that the buffer is lent to.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), len) }
}

/// The same, to be changed.
pub(crate) fn elements_mut<B: Buffer>(_buffer: &mut B, memory: Memory) -> &mut [B::Element] {
    let len = memory.len() / size_of::<B::Element>();
    // SAFETY: as for `elements`, and the buffer is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), len) }
}

/// The floats of a handle that a caller of an untyped operation has given.
pub(crate) fn floats(memory: &mut Memory) -> &mut [f32] {
    let len = memory.len() / size_of::<f32>();
    // SAFETY: whoever made the handle promised that the bytes are valid, and nobody else's, until the operation has ended; the
    // caller has checked that they are aligned. The borrow is of an operation's own handle.
    unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), len) }
}

/// A handle to borrowed elements that will be read and written.
pub(crate) fn exclusive<T: Element>(elements: &mut [T]) -> Memory {
    // SAFETY: the range is valid now; this module's contract (above) keeps it so until the last use.
    unsafe { Memory::new(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// A handle to borrowed elements that will be read only: the schedules that run on it are verified never to
/// write to input.
pub(crate) fn shared<T: Element>(elements: &[T]) -> Memory {
    // SAFETY: as above, for reads.
    unsafe { Memory::new(elements.as_ptr().cast_mut().cast(), size_of_val(elements)) }
}

/// A handle for tests that look at lengths and never at bytes.
#[cfg(test)]
pub(crate) fn untouched(len: usize) -> Memory {
    // SAFETY: never read or written.
    unsafe { Memory::new(std::ptr::dangling_mut(), len) }
}
