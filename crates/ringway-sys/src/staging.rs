//! Buffers of Ringway's own, for bytes that are on their way.

use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    sync::{Mutex, PoisonError},
};

use crate::Memory;

/// Buffers are aligned to a pair of cache lines, which the hardware fetches together.
const ALIGN: usize = 128;

/// Those of a page and more are aligned to pages: if one is registered with a NIC, kernels before 5.12 withhold its pages from
/// forked children, in which nothing of others' may lie.
const PAGE: usize = 4096;

/// Free buffers, by the power of two of their size.
static FREE: Mutex<[Vec<Memory>; usize::BITS as usize]> =
    Mutex::new([const { Vec::new() }; usize::BITS as usize]);

/// A buffer with a [`Memory`] handle, aligned to 128 bytes, or to a page of 4 KiB if it is as long. Its bytes are what the last user left.
///
/// A handle has no lifetime, so the memory must outlive every copy of it: it is never given back to
/// the system, but kept for the next buffer of that size class. What a handle kept too long shows
/// is thus another buffer's bytes, never an invalid address. A process holds as much as it had in
/// use at its peak, rounded up to powers of two.
#[derive(Debug)]
pub struct Staging {
    memory: Memory,
    len: usize,
}

impl Staging {
    /// A buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        let size = len.max(ALIGN).next_power_of_two();
        let reused = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free[size.trailing_zeros() as usize].pop()
        };
        Self {
            memory: reused.unwrap_or_else(|| allocate(size)),
            len,
        }
    }

    /// The handle, of exactly the length asked for.
    pub fn memory(&self) -> Memory {
        self.memory.slice(0..self.len)
    }

    /// The bytes that it takes, which may be more than were asked for.
    pub const fn footprint(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free[self.memory.len().trailing_zeros() as usize].push(self.memory);
    }
}

/// Asked for with the alignment that malloc has by itself, as `calloc` then knows which pages are zero, and touches none of them: with a
/// greater one they would all be there, and written, before they are needed.
fn allocate(size: usize) -> Memory {
    let align = if size < PAGE { ALIGN } else { PAGE };
    let Ok(layout) = Layout::from_size_align(size + align, align_of::<u128>()) else {
        panic!("a buffer of {size} bytes, which is more than an address space has")
    };
    // SAFETY: the size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        handle_alloc_error(layout);
    }
    let skipped = start.addr().next_multiple_of(align) - start.addr();
    // SAFETY: what is skipped is less than the alignment, by which the allocation is longer than the buffer.
    let ptr = unsafe { start.add(skipped) };
    // SAFETY: just allocated, with `size` bytes after what was skipped, and never freed.
    unsafe { Memory::new(ptr, size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_what_was_dropped() {
        // A size that no other test uses: the free list is the process's.
        let first = Staging::new(5_000_000);
        assert_eq!(first.memory().len(), 5_000_000);
        assert_eq!(first.footprint(), 8_388_608);
        assert!(first.memory().as_ptr().addr().is_multiple_of(PAGE));
        let short = Staging::new(100);
        assert!(short.memory().as_ptr().addr().is_multiple_of(ALIGN));
        let address = first.memory().as_ptr();
        drop(first);
        assert_eq!(Staging::new(7_000_000).memory().as_ptr(), address);
    }

    #[test]
    fn empty_is_allowed() {
        assert!(Staging::new(0).memory().is_empty());
    }
}
