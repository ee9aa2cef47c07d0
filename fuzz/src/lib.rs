//! What the targets share: a bound on the memory that reading foreign bytes may take.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

static USED: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Runs `parse`, which ends the process if it holds more than `most` bytes at once: libFuzzer takes that for a crash.
pub fn within<R>(most: usize, parse: impl FnOnce() -> R) -> R {
    LIMIT.store(USED.load(Relaxed).saturating_add(most), Relaxed);
    let result = parse();
    LIMIT.store(usize::MAX, Relaxed);
    result
}

struct Bounded;

#[global_allocator]
static BOUNDED: Bounded = Bounded;

// SAFETY: all memory comes from and goes back to `System`, with the caller's layout. A null pointer says that there
// is none, which the caller has to expect.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        if used > LIMIT.load(Relaxed) {
            LIMIT.store(usize::MAX, Relaxed); // the report of this needs memory, too
            USED.fetch_sub(layout.size(), Relaxed);
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise about `layout` is what `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `memory` is from `alloc` above, and so from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}
