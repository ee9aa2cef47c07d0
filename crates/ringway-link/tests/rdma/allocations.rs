//! Once it runs, moving data takes no memory from the system.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    net::Ipv4Addr,
};

use ringway_link::rdma::{QueuePairOptions, Source, Work};

use crate::end::{End, pair, until};

thread_local! {
    /// How often this thread has asked for memory.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has asked for memory so far.
pub(crate) fn count() -> u64 {
    COUNT.get()
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all memory comes from and goes back to `System`, with the caller's layout.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise about `layout` is what `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` is from `alloc` above, and so from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Some of each operation in both directions.
fn round(ends: &mut [End; 2]) {
    for side in 0..2 {
        let (own, peer) = (side, 1 - side);
        for id in 0..4_u64 {
            ends[peer].post_receive(id, 0, 9000);
            let source = Source::Memory(ends[own].local(10_000, 9000));
            let immediate = None;
            ends[own].post(id, Work::Send { source, immediate });
            let inline = Source::Inline(b"abc");
            let remote = ends[peer].remote(20_000);
            for source in [source, inline] {
                ends[own].post(
                    id,
                    Work::Write {
                        source,
                        remote,
                        immediate,
                    },
                );
            }
            let into = ends[own].local(30_000, 5000);
            ends[own].post(id, Work::Read { into, remote });
            let into = ends[own].local(40_000, 8);
            let add = 1;
            ends[own].post(id, Work::FetchAdd { into, remote, add });
        }
    }
    until(ends, |ends| {
        ends.iter().all(|end| end.completions.len() == 24)
    });
    for end in ends {
        assert!(end.completions.iter().all(|it| it.result.is_ok()));
        end.completions.clear();
    }
}

#[test]
fn the_running_state_allocates_nothing() {
    let mut ends = pair(Ipv4Addr::LOCALHOST.into(), &QueuePairOptions::default());
    for _ in 0..20 {
        round(&mut ends);
    }
    let before = count();
    for _ in 0..50 {
        round(&mut ends);
    }
    assert_eq!(count() - before, 0);
}
