//! Staging that a group's operations share one after the other.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::MappedError;
use crate::shm::{Arena, ArenaBlock};

/// Blocks that a group keeps for its next operations.
const SPARE: usize = 4;

/// Blocks of staging in use and spare.
#[derive(Default)]
pub(super) struct Staging(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    /// What members may still read, with the operation.
    lent: VecDeque<(u64, ArenaBlock)>,
    spare: Vec<ArenaBlock>,
}

impl Staging {
    /// A block of at least `bytes`, now that every member has finished all operations up to `finished`.
    pub(super) fn borrow(
        &self,
        arena: &Arena,
        bytes: usize,
        finished: u64,
    ) -> Result<ArenaBlock, MappedError> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.reclaim(finished);
        // The one given back last is the most likely to be in the cache.
        let fits =
            |block: &ArenaBlock| (bytes..=4 * bytes.max(4096)).contains(&block.memory().len());
        match blocks.spare.iter().rposition(fits) {
            Some(index) => Ok(blocks.spare.remove(index)),
            None => Ok(arena.allocate(bytes)?),
        }
    }

    /// Takes back the block of an operation, which members may read until all have finished it: never, if it
    /// failed.
    pub(super) fn give_back(&self, op: u64, block: ArenaBlock) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.lent.push_back((op, block));
    }
}

impl Blocks {
    fn reclaim(&mut self, finished: u64) {
        // Those behind one that is still needed are taken back with it: operations end about in order.
        while let Some((_, block)) = self.lent.pop_front_if(|&mut (op, _)| op <= finished) {
            self.spare.push(block);
        }
        let excess = self.spare.len().saturating_sub(SPARE);
        self.spare.drain(..excess);
    }
}
