//! Which operations of a group have begun and finished, here and elsewhere.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use ringway_sys::Shared64;

/// Numbers operations from 1 and says when what an operation has in the blocks is free again: once every member has
/// finished it. Any thread may use it; the common case takes no lock.
pub(super) struct Sequence {
    started: AtomicU64,
    /// In this member's block: all up to this one are finished here.
    finished: Shared64,
    /// Finished ones beyond that.
    beyond: Mutex<BTreeSet<u64>>,
    beyond_count: AtomicUsize,
    /// All up to this one are finished at that member, as far as known. Another thread than the one that learned it may go
    /// by it, to write what the member has read.
    known: Vec<AtomicU64>,
}

impl Sequence {
    pub(super) fn new(finished: Shared64, members: usize) -> Self {
        Self {
            started: AtomicU64::new(0),
            finished,
            beyond: Mutex::default(),
            beyond_count: AtomicUsize::new(0),
            known: (0..members).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The number of the next operation.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.started.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// All operations up to this one are finished here.
    #[inline]
    pub(super) fn finished(&self) -> u64 {
        self.finished.load()
    }

    /// The first member, if any, of which it is not known that it has finished all operations up to `op`.
    #[inline]
    pub(super) fn behind(&self, op: u64) -> Option<usize> {
        self.known
            .iter()
            .position(|known| known.load(Ordering::Acquire) < op)
    }

    /// All operations up to `finished` are finished at `member`.
    #[inline]
    pub(super) fn learn(&self, member: usize, finished: u64) {
        let known = &self.known[member];
        // Two threads may cross; then less is known than could be, and learned again.
        if known.load(Ordering::Relaxed) < finished {
            known.store(finished, Ordering::Release);
        }
    }

    /// All operations up to this one are finished at every member.
    pub(super) fn finished_everywhere(&self) -> u64 {
        self.known
            .iter()
            .map(|known| known.load(Ordering::Acquire))
            .min()
            .unwrap_or(0)
    }

    /// An operation is finished at this member, `me`.
    #[inline]
    pub(super) fn finish(&self, op: u64, me: usize) {
        let in_order = self.finished.replace(op - 1, op);
        if !in_order || self.beyond_count.load(Ordering::SeqCst) > 0 {
            self.finish_slowly(op, in_order);
        }
        self.learn(me, self.finished.load());
    }

    #[cold]
    fn finish_slowly(&self, op: u64, in_order: bool) {
        let mut beyond = self.lock();
        if !in_order {
            beyond.insert(op);
            // Before looking again: whoever finishes the one below either is seen here or sees this.
            self.beyond_count.store(beyond.len(), Ordering::SeqCst);
        }
        while let Some(&first) = beyond.first()
            && self.finished.replace(first - 1, first)
        {
            beyond.remove(&first);
        }
        self.beyond_count.store(beyond.len(), Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // Every change is complete before anything can panic.
        self.beyond.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
