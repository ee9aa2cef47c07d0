//! Staging that a group's operations share one after the other.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::MappedError;
use crate::shm::{Arena, ArenaBlock};

/// Bytes of blocks that a group keeps for its next operations.
const SPARE: usize = 8 << 20;

/// Blocks of staging in use and spare.
#[derive(Default)]
pub(super) struct Staging(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    /// What members may still read, with the operation.
    lent: VecDeque<(u64, ArenaBlock)>,
    /// The one that has lain longest first.
    spare: VecDeque<Spare>,
    spare_bytes: usize,
    /// Bytes of all blocks that were ever lent.
    written: u64,
}

struct Spare {
    block: ArenaBlock,
    /// [`Blocks::written`] when it came back.
    since: u64,
}

impl Staging {
    /// A block of at least `bytes`, now that every member has finished all operations up to `finished`. If it was lent
    /// before, operations have taken at least `rotation` bytes since.
    pub(super) fn borrow(
        &self,
        arena: &Arena,
        bytes: usize,
        rotation: usize,
        finished: u64,
    ) -> Result<ArenaBlock, MappedError> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.reclaim(finished);
        blocks.written += bytes as u64;
        if let Some(block) = blocks.take(bytes, rotation) {
            return Ok(block);
        }
        if let Ok(block) = arena.allocate(bytes) {
            return Ok(block);
        }
        // Without room for more, one that other caches may still hold is only slower.
        if let Some(block) = blocks.take(bytes, 0) {
            return Ok(block);
        }
        blocks.spare.clear();
        blocks.spare_bytes = 0;
        Ok(arena.allocate(bytes)?)
    }

    /// Takes back the block of an operation, which members may read until all have finished it: never, if it
    /// failed.
    pub(super) fn give_back(&self, op: u64, block: ArenaBlock) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.lent.push_back((op, block));
    }
}

impl Blocks {
    /// The spare block of at least `bytes`, and not much more, that is to be used again: the one that has lain longest if
    /// it has lain long enough, and without a rotation the last, which is most likely in the cache.
    fn take(&mut self, bytes: usize, rotation: usize) -> Option<ArenaBlock> {
        let fits =
            |spare: &Spare| (bytes..=4 * bytes.max(4096)).contains(&spare.block.memory().len());
        let index = match rotation {
            0 => self.spare.iter().rposition(fits)?,
            _ => self.spare.iter().position(fits)?,
        };
        if self.written - self.spare[index].since < rotation as u64 {
            return None;
        }
        let Spare { block, .. } = self.spare.remove(index)?;
        self.spare_bytes -= block.memory().len();
        Some(block)
    }

    fn reclaim(&mut self, finished: u64) {
        // Those behind one that is still needed are taken back with it: operations end about in order.
        while let Some((_, block)) = self.lent.pop_front_if(|&mut (op, _)| op <= finished) {
            self.spare_bytes += block.memory().len();
            let since = self.written;
            self.spare.push_back(Spare { block, since });
        }
        while self.spare_bytes > SPARE
            && let Some(Spare { block, .. }) = self.spare.pop_front()
        {
            self.spare_bytes -= block.memory().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Arc};

    use ringway_sys::Segment;

    use super::*;

    const BLOCK: usize = 256 << 10;

    fn arena() -> Arena {
        let segment = Arc::new(Segment::create("test", 1 << 20).unwrap());
        Arena::new(segment, 0..1 << 20, "test memory", "raise THE_SETTING")
    }

    /// Lends a block to the operation `op`, when all before it are finished; where it lies.
    fn lend(staging: &Staging, arena: &Arena, op: u64, rotation: usize) -> *const u8 {
        let block = staging.borrow(arena, BLOCK, rotation, op - 1).unwrap();
        let at = block.memory().as_ptr();
        staging.give_back(op, block);
        at
    }

    #[test]
    fn blocks_rotate_where_they_shall() {
        let (staging, arena) = (Staging::default(), arena());
        let at: Vec<_> = (1..=8)
            .map(|op| lend(&staging, &arena, op, 2 * BLOCK))
            .collect();
        for (earlier, later) in at.iter().zip(&at[1..]) {
            assert!(!ptr::eq(*earlier, *later));
        }
        assert!(ptr::eq(at[4], at[6]));
        let last = lend(&staging, &arena, 9, 0);
        assert!(ptr::eq(last, lend(&staging, &arena, 10, 0)));
    }

    #[test]
    fn a_full_arena_ends_the_rotation_and_not_the_operation() {
        let (staging, arena) = (Staging::default(), arena());
        for op in 1..=20 {
            lend(&staging, &arena, op, 64 * BLOCK);
        }
        // Spare blocks that do not fit give way.
        let large = staging.borrow(&arena, 4 * BLOCK, 0, 20).unwrap();
        assert!(staging.borrow(&arena, BLOCK, 0, 20).is_err());
        drop(large);
    }
}
