//! A memory barrier that only the rare side pays for.
//!
//! Two processes each write one word and then read the other's: "I have progressed" against "I am about to
//! sleep". One of them must see the other, which takes a full barrier between write and read on both sides;
//! on the fast side it would cost more than the rest of a small operation. [`heavy`] makes the kernel run a
//! barrier on every processor where a registered process runs, so that the fast side needs none.

use std::sync::{
    LazyLock,
    atomic::{Ordering, compiler_fence, fence},
};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

static REGISTERED: LazyLock<bool> = LazyLock::new(|| {
    membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
        && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
});

/// Takes part in other processes' [`heavy`] barriers. Call before the first [`light`]. Returns whether the
/// kernel supports it; where it does not, a sleeper may miss a change, and must look again after a short
/// time: bounded sleeps are the backstop.
pub fn register() -> bool {
    *REGISTERED
}

/// The fast side's barrier: orders for the compiler, costs nothing.
#[inline]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The rare side's barrier, some microseconds: as if every registered process executed a full barrier.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if *REGISTERED {
        // Registration succeeded, so this does too; if ever not, sleeps are bounded.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
}
