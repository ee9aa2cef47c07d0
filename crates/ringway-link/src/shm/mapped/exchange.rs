//! Staging that two members hand each other.

use std::sync::{Mutex, PoisonError};

use ringway_sys::Memory;

use super::MappedError;
use crate::shm::{Arena, ArenaBlock};

/// Blocks are powers of two from here on, each in pages of its own.
const SMALLEST: usize = 4 << 10;

/// Blocks of staging that change hands between two members: who has read one writes its next data there. Its own cache holds the
/// lines then, where those that the other member has read last would have to come from there.
///
/// Both members show as many bytes in each operation, so each gives a block away and gets one alike when it has finished; neither
/// asks the other whether a block is free. As many blocks of a size are about as operations that were ever in flight, in each
/// member's area.
#[derive(Default)]
pub(super) struct Exchange(Mutex<State>);

#[derive(Default)]
struct State {
    /// Keeps what this member has brought, wherever it is now.
    brought: Vec<ArenaBlock>,
    /// What this member may write to; the last read is at the end.
    free: Vec<Block>,
}

/// A block in the area of either member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Whose area it lies in.
    pub(super) member: usize,
    pub(super) memory: Memory,
}

impl Exchange {
    /// The length of the blocks that `bytes` are shown in.
    pub(super) fn block_len(bytes: usize) -> usize {
        bytes.max(SMALLEST).next_power_of_two()
    }

    /// A block to show `bytes` in; the other member has it from then on. It is taken from the arena of this member, `me`, if
    /// there is none.
    pub(super) fn take(
        &self,
        arena: &Arena,
        me: usize,
        bytes: usize,
    ) -> Result<Block, MappedError> {
        let len = Self::block_len(bytes);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = state
            .free
            .iter()
            .rposition(|block| block.memory.len() == len)
        {
            return Ok(state.free.remove(index));
        }
        let block = arena.allocate(len)?;
        let memory = block.memory().slice(0..len);
        state.brought.push(block);
        Ok(Block { member: me, memory })
    }

    /// What the other member has shown is read: the block is this member's now.
    pub(super) fn keep(&self, block: Block) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.push(block);
    }
}
