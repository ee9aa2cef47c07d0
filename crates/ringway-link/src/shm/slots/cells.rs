//! The shared words that the ring's algorithm runs on: those of a segment, or loom's.

use std::sync::atomic::{Ordering, fence};

use ringway_sys::{Memory, Shared64};

/// A row of 64-bit words that two processes share, all 0 at first.
pub(super) trait Cells {
    /// Reads; what the writer wrote before this value is visible after.
    fn load(&self, index: usize) -> u64;

    /// Writes, after everything written before.
    fn store(&self, index: usize, value: u64);

    /// Sets bits, after everything written before.
    fn set_bits(&self, index: usize, bits: u64);

    /// Clears all bits and returns them; what their setters wrote before is visible after.
    fn take_bits(&self, index: usize) -> u64;

    /// Orders this thread's stores before its later loads, of any words.
    fn full_fence(&self);

    /// Orders this thread's loads, of anything, before its later loads.
    fn load_fence(&self);
}

impl Cells for Memory {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        Shared64::at(*self, 8 * index).load()
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        Shared64::at(*self, 8 * index).store(value);
    }

    #[inline]
    fn set_bits(&self, index: usize, bits: u64) {
        Shared64::at(*self, 8 * index).fetch_or(bits);
    }

    #[inline]
    fn take_bits(&self, index: usize) -> u64 {
        Shared64::at(*self, 8 * index).swap(0)
    }

    #[inline]
    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn load_fence(&self) {
        fence(Ordering::Acquire);
    }
}

#[cfg(all(test, loom))]
impl Cells for std::sync::Arc<[loom::sync::atomic::AtomicU64]> {
    fn load(&self, index: usize) -> u64 {
        self[index].load(Ordering::Acquire)
    }

    fn store(&self, index: usize, value: u64) {
        self[index].store(value, Ordering::Release);
    }

    fn set_bits(&self, index: usize, bits: u64) {
        self[index].fetch_or(bits, Ordering::Release);
    }

    fn take_bits(&self, index: usize) -> u64 {
        self[index].swap(0, Ordering::Acquire)
    }

    fn full_fence(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    fn load_fence(&self) {
        loom::sync::atomic::fence(Ordering::Acquire);
    }
}
