//! Sleeping without losing a wake-up.
//!
//! Each rank has one word in shared memory that only it writes: a count, odd while it sleeps. The
//! sleeper makes it odd, *then* looks for work once more; a peer makes work visible, *then* looks
//! at the word. With a full fence between the two steps on both sides at least one sees the other:
//! the sleeper finds the work, or the peer rings.
//!
//! The peer remembers for which sleep it has rung and rings once for each, so that a hundred
//! messages to a rank that is not on a core yet are one system call. It does not clear the word for
//! the others: if it is stopped or killed before it rings, they still ring themselves.

use super::cells::Cells;

/// This rank's word.
#[derive(Debug)]
pub(super) struct Parking<C> {
    cells: C,
    count: u64,
}

impl<C: Cells> Parking<C> {
    /// The first of `cells`, which is 0.
    pub(super) const fn new(cells: C) -> Self {
        Self { cells, count: 0 }
    }

    /// Announces sleep. The caller then looks for work once more.
    pub(super) fn park(&mut self) {
        if self.count & 1 == 0 {
            self.count = self.count.wrapping_add(1);
            self.cells.store(0, self.count);
        }
        self.cells.full_fence();
    }

    /// Ends it; says whether there was any. The caller hushes its bell *after* this: a ring for the
    /// next sleep is then never lost.
    pub(super) fn unpark(&mut self) -> bool {
        let parked = self.count & 1 == 1;
        if parked {
            self.count = self.count.wrapping_add(1);
            self.cells.store(0, self.count);
        }
        parked
    }
}

/// A peer's word.
#[derive(Debug)]
pub(super) struct PeerParking<C> {
    cells: C,
    rung: u64,
}

impl<C: Cells> PeerParking<C> {
    /// The first of `cells`, which that peer's [`Parking`] has.
    pub(super) const fn new(cells: C) -> Self {
        Self { cells, rung: 0 }
    }

    /// After work was made visible: whether the caller must ring the peer's bell now.
    pub(super) fn must_ring(&mut self) -> bool {
        self.cells.full_fence();
        let count = self.cells.load(0);
        let must = count & 1 == 1 && count != self.rung;
        if must {
            self.rung = count;
        }
        must
    }
}
