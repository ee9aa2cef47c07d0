//! Staging that a group's operations share one after the other.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use ringway_sys::Memory;

use super::MappedError;
use crate::shm::{Arena, ArenaBlock};

/// Bytes of single blocks that a group keeps for its next operations.
const SPARE: usize = 8 << 20;
/// What parts of the ring start at multiples of.
const LINE: usize = 64;

/// Staging of a group, lent to its operations. What an operation has got is its own until all members have finished all
/// operations up to it; for ever, if it fails.
///
/// Most operations take parts of a ring, so that much is written before the same again. Others, and those that the
/// ring has no room for, get blocks, the one that was used last first, which is most likely in the cache.
pub(super) struct Staging {
    rotation: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ring: Option<Ring>,
    /// With the operation.
    lent: VecDeque<(u64, ArenaBlock)>,
    spare: Vec<ArenaBlock>,
}

struct Ring {
    block: ArenaBlock,
    /// Bytes ever passed, those left out before the ring's end too.
    head: u64,
    /// Where the parts of operations end that may not be finished yet.
    parts: VecDeque<(u64, u64)>,
    /// Where the first of these starts.
    tail: u64,
}

impl Staging {
    /// With a ring of `rotation` bytes.
    pub(super) fn new(rotation: usize) -> Self {
        Self {
            rotation,
            state: Mutex::default(),
        }
    }

    /// At least `bytes` for the operation `op`, of the ring if it `rotates`, now that every member has finished all up to
    /// `finished`.
    pub(super) fn lend(
        &self,
        arena: &Arena,
        bytes: usize,
        rotates: bool,
        (op, finished): (u64, u64),
    ) -> Result<Memory, MappedError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if rotates {
            if state.ring.is_none() {
                // Without room for it, blocks do, though other caches may still hold them.
                state.ring = arena.allocate(self.rotation).ok().map(Ring::new);
            }
            let ring = state.ring.as_mut();
            if let Some(part) = ring.and_then(|ring| ring.lend(bytes, op, finished)) {
                return Ok(part);
            }
        }
        state.lend_block(arena, bytes, op, finished)
    }

    /// Gives the arena back what nobody uses, now that every member has finished all up to `finished`.
    pub(super) fn trim(&self, finished: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take_back(finished);
        state.spare.clear();
        state.ring.take_if(|ring| ring.is_idle(finished));
    }
}

impl State {
    /// What operations up to `finished` had is spare.
    fn take_back(&mut self, finished: u64) {
        // Those behind one that is still needed are taken back with it: operations end about in order.
        while let Some((_, block)) = self.lent.pop_front_if(|&mut (op, _)| op <= finished) {
            self.spare.push(block);
        }
    }

    fn lend_block(
        &mut self,
        arena: &Arena,
        bytes: usize,
        op: u64,
        finished: u64,
    ) -> Result<Memory, MappedError> {
        self.take_back(finished);
        let fits =
            |block: &ArenaBlock| (bytes..=4 * bytes.max(4096)).contains(&block.memory().len());
        let block = match self.spare.iter().rposition(fits) {
            Some(index) => self.spare.remove(index),
            None => match arena.allocate(bytes) {
                Ok(block) => block,
                Err(_) => {
                    self.spare.clear();
                    arena.allocate(bytes)?
                }
            },
        };
        let memory = block.memory().slice(0..bytes);
        self.lent.push_back((op, block));
        let mut spare: usize = self.spare.iter().map(|block| block.memory().len()).sum();
        while spare > SPARE {
            spare -= self.spare.remove(0).memory().len();
        }
        Ok(memory)
    }
}

impl Ring {
    fn new(block: ArenaBlock) -> Self {
        Self {
            block,
            head: 0,
            parts: VecDeque::new(),
            tail: 0,
        }
    }

    /// The parts of operations up to `finished` are free.
    fn take_back(&mut self, finished: u64) {
        while let Some((_, end)) = self.parts.pop_front_if(|&mut (op, _)| op <= finished) {
            self.tail = end;
        }
    }

    /// Whether no operation beyond `finished` has a part.
    fn is_idle(&mut self, finished: u64) -> bool {
        self.take_back(finished);
        self.parts.is_empty()
    }

    /// The next `bytes` in a row, if they are free.
    fn lend(&mut self, bytes: usize, op: u64, finished: u64) -> Option<Memory> {
        self.take_back(finished);
        let memory = self.block.memory();
        let bytes = bytes.next_multiple_of(LINE);
        let start = (self.head % memory.len() as u64) as usize;
        let left_out = match memory.len() - start {
            rest if rest < bytes => rest,
            _ => 0,
        };
        let end = self.head + (left_out + bytes) as u64;
        if end - self.tail > memory.len() as u64 {
            return None;
        }
        self.head = end;
        self.parts.push_back((op, end));
        let start = (start + left_out) % memory.len();
        Some(memory.slice(start..start + bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Arc};

    use proptest::prelude::*;
    use ringway_sys::Segment;

    use super::*;

    const ROTATION: usize = 64 << 10;

    fn arena(bytes: usize) -> Arena {
        let segment = Arc::new(Segment::create("test", bytes).unwrap());
        Arena::new(segment, 0..bytes, "test memory", "raise THE_SETTING")
    }

    #[test]
    fn nothing_is_written_again_before_a_rotation() {
        let (staging, arena) = (Staging::new(ROTATION), arena(1 << 20));
        let mut last = HashSet::new();
        for op in 1..=100 {
            let part = staging.lend(&arena, 4096, true, (op, op - 1)).unwrap();
            assert!(last.insert(part.as_ptr()));
            if last.len() == ROTATION / 4096 {
                last.clear();
            }
        }
    }

    #[test]
    fn what_does_not_rotate_stays_in_the_cache() {
        let (staging, arena) = (Staging::new(ROTATION), arena(1 << 20));
        let first = staging.lend(&arena, 4096, false, (1, 0)).unwrap();
        let second = staging.lend(&arena, 4096, false, (2, 1)).unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr());
        // As long as somebody may read it, it isn't lent again.
        let third = staging.lend(&arena, 4096, false, (3, 1)).unwrap();
        assert_ne!(second.as_ptr(), third.as_ptr());
    }

    #[test]
    fn a_full_arena_ends_the_rotation_and_not_the_operation() {
        // There is no room for the ring.
        let (staging, arena) = (Staging::new(ROTATION), arena(ROTATION));
        for op in 1..=20 {
            staging
                .lend(&arena, ROTATION / 4, true, (op, op - 1))
                .unwrap();
        }
        // Spare blocks that do not fit give way.
        staging.lend(&arena, ROTATION, true, (21, 20)).unwrap();
        assert!(staging.lend(&arena, ROTATION, true, (22, 20)).is_err());
    }

    #[test]
    fn what_is_finished_makes_room_and_what_is_not_stays() {
        let (staging, arena) = (Staging::new(ROTATION), arena(2 * ROTATION));
        staging.lend(&arena, 4096, true, (1, 0)).unwrap();
        staging.lend(&arena, ROTATION, false, (2, 0)).unwrap();
        let in_use = |finished| {
            staging.trim(finished);
            arena.in_use()
        };
        assert_eq!(in_use(0), 2 * ROTATION);
        assert_eq!(in_use(1), ROTATION);
        assert_eq!(in_use(2), 0);
        // There is a ring again once one is needed.
        staging.lend(&arena, 4096, true, (3, 2)).unwrap();
        assert_eq!(arena.in_use(), ROTATION);
    }

    proptest! {
        #[test]
        fn what_is_lent_never_overlaps(
            calls in prop::collection::vec((1_usize..3 * ROTATION, any::<bool>(), 0_u64..20), 1..200),
        ) {
            let (staging, arena) = (Staging::new(ROTATION), arena(16 << 20));
            let mut lent: Vec<(u64, Memory)> = Vec::new();
            let mut finished = 0;
            for (op, (bytes, rotates, ends)) in (1..).zip(calls) {
                finished = (finished + ends).min(op - 1);
                lent.retain(|&(op, _)| op > finished);
                let Ok(memory) = staging.lend(&arena, bytes, rotates, (op, finished)) else {
                    continue;
                };
                prop_assert!(memory.len() >= bytes);
                prop_assert!(lent.iter().all(|(_, other)| !other.overlaps(memory)));
                lent.push((op, memory));
            }
        }
    }
}
