//! Buffers for bytes that have no place of the user's, counted and capped.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ringway_sys::{Memory, Staging};

/// Gives out buffers, and knows how much is out.
#[derive(Debug)]
pub(super) struct Buffers {
    in_use: Arc<AtomicUsize>,
    limit: usize,
}

/// The limit would be passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverLimit {
    pub(super) wanted: usize,
    pub(super) limit: usize,
}

impl Buffers {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            in_use: Arc::default(),
            limit,
        }
    }

    pub(super) fn take(&self, len: usize) -> Result<Buffer, OverLimit> {
        // Checked before it is allocated: the length may be a peer's.
        let wanted = self.in_use().saturating_add(len);
        if wanted > self.limit {
            return Err(OverLimit {
                wanted,
                limit: self.limit,
            });
        }
        let staging = Staging::new(len);
        self.in_use
            .fetch_add(staging.footprint(), Ordering::Relaxed);
        Ok(Buffer {
            staging,
            in_use: Arc::clone(&self.in_use),
        })
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

/// A buffer, given back when dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    staging: Staging,
    in_use: Arc<AtomicUsize>,
}

impl Buffer {
    pub(super) fn memory(&self) -> Memory {
        self.staging.memory()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.in_use
            .fetch_sub(self.staging.footprint(), Ordering::Relaxed);
    }
}
