//! Allocates ranges of a shared segment.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ringway_sys::{Memory, Segment};

/// Every block starts at a multiple of this, a cache line.
const LINE: usize = 64;
/// Blocks from this size start at a page.
const PAGE: usize = 4096;
/// Free bytes that keep their pages for the next allocation; above, the largest free ranges lose theirs.
const KEEP: usize = 256 << 20;
/// Free ranges smaller than this always keep their pages.
const DISCARD_FROM: usize = 1 << 20;

/// An allocator of one range of a segment: best fit, safe to use from any thread.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    segment: Arc<Segment>,
    range: Range<usize>,
    what: &'static str,
    remedy: &'static str,
    free: Mutex<Free>,
}

/// The arena is full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {wanted} bytes of {what}: {in_use} of {capacity} bytes are in use, the longest free range has {longest}; {remedy}"
)]
pub struct ArenaError {
    /// What the memory is for.
    pub what: &'static str,
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes in use.
    pub in_use: usize,
    /// Bytes in all.
    pub capacity: usize,
    /// Bytes of the longest free range.
    pub longest: usize,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Free ranges, never adjacent to each other. Offsets count in the segment.
#[derive(Debug, Default)]
struct Free {
    /// Start to (length, whether pages may be behind it).
    by_start: BTreeMap<usize, (usize, bool)>,
    by_length: BTreeSet<(usize, usize)>,
    bytes: usize,
    warm: usize,
}

impl Free {
    fn insert(&mut self, start: usize, length: usize, warm: bool) {
        if length > 0 {
            self.by_start.insert(start, (length, warm));
            self.by_length.insert((length, start));
            self.bytes += length;
            self.warm += if warm { length } else { 0 };
        }
    }

    fn remove(&mut self, start: usize) -> (usize, bool) {
        let Some((length, warm)) = self.by_start.remove(&start) else {
            unreachable!("a free range starts at {start}")
        };
        self.by_length.remove(&(length, start));
        self.bytes -= length;
        self.warm -= if warm { length } else { 0 };
        (length, warm)
    }

    /// The shortest free range that has room for `length` bytes at a multiple of `align`.
    fn take(&mut self, length: usize, align: usize) -> Option<usize> {
        let (found, start) = self
            .by_length
            .range((length, 0)..)
            .copied()
            .find(|&(found, start)| start.next_multiple_of(align) + length <= start + found)?;
        let (_, warm) = self.remove(start);
        let block = start.next_multiple_of(align);
        self.insert(start, block - start, warm);
        self.insert(block + length, start + found - block - length, warm);
        Some(block)
    }

    /// Adds a range and joins it with its neighbours; returns the joined range's start.
    fn give(&mut self, mut start: usize, mut length: usize) -> usize {
        if let Some((&before, &(its, _))) = self.by_start.range(..start).next_back()
            && before + its == start
        {
            self.remove(before);
            (start, length) = (before, its + length);
        }
        if self.by_start.contains_key(&(start + length)) {
            length += self.remove(start + length).0;
        }
        self.insert(start, length, true);
        start
    }

    /// The longest range that has pages worth giving back.
    fn longest_warm(&self) -> Option<Range<usize>> {
        self.by_length
            .iter()
            .rev()
            .take_while(|&&(length, _)| length >= DISCARD_FROM)
            .find(|&(_, start)| self.by_start.get(start).is_some_and(|&(_, warm)| warm))
            .map(|&(length, start)| start..start + length)
    }
}

impl Arena {
    /// Allocates within `range` of the segment. `what` and `remedy` are for the error when it is full.
    pub(super) fn new(
        segment: Arc<Segment>,
        range: Range<usize>,
        what: &'static str,
        remedy: &'static str,
    ) -> Self {
        let mut free = Free::default();
        free.insert(range.start, range.len(), false);
        Self(Arc::new(Inner {
            segment,
            range,
            what,
            remedy,
            free: Mutex::new(free),
        }))
    }

    /// A block of `bytes`, aligned to a page, or if it is smaller than one to a cache line. Its content is
    /// arbitrary.
    pub fn allocate(&self, bytes: usize) -> Result<ArenaBlock, ArenaError> {
        let align = if bytes >= PAGE { PAGE } else { LINE };
        let mut free = self.0.lock();
        let full = |free: &Free| ArenaError {
            what: self.0.what,
            wanted: bytes,
            in_use: self.0.range.len() - free.bytes,
            capacity: self.0.range.len(),
            longest: free.by_length.last().map_or(0, |&(length, _)| length),
            remedy: self.0.remedy,
        };
        let room = bytes
            .max(1)
            .checked_next_multiple_of(align)
            .ok_or_else(|| full(&free))?;
        let start = free.take(room, align).ok_or_else(|| full(&free))?;
        drop(free);
        Ok(ArenaBlock {
            arena: self.clone(),
            start,
            bytes,
            room,
        })
    }

    /// Bytes allocated at present.
    pub fn in_use(&self) -> usize {
        self.0.range.len() - self.0.lock().bytes
    }

    /// Bytes that can be allocated in all.
    pub fn capacity(&self) -> usize {
        self.0.range.len()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Free> {
        // Every change of the lists is complete before anything can panic.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, start: usize, length: usize) {
        let mut free = self.lock();
        free.give(start, length);
        while free.warm > KEEP
            && let Some(range) = free.longest_warm()
        {
            free.remove(range.start);
            // If the system refuses, the pages stay: counted as given back, reused all the same.
            let _ = self.segment.discard(range.clone());
            free.insert(range.start, range.len(), false);
        }
    }
}

/// Allocated memory, freed when dropped.
#[derive(Debug)]
pub struct ArenaBlock {
    arena: Arena,
    start: usize,
    bytes: usize,
    room: usize,
}

impl ArenaBlock {
    /// The memory; valid while the block lives.
    pub fn memory(&self) -> Memory {
        self.arena
            .0
            .segment
            .memory()
            .slice(self.start..self.start + self.bytes)
    }
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        self.arena.0.release(self.start, self.room);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arena(bytes: usize) -> Arena {
        let segment = Arc::new(Segment::create("test", bytes + 8192).unwrap());
        Arena::new(
            segment,
            8192..bytes + 8192,
            "test memory",
            "raise THE_SETTING",
        )
    }

    #[test]
    fn a_full_arena_names_the_setting() {
        let arena = arena(16384);
        let block = arena.allocate(10_000).unwrap();
        assert_eq!(arena.in_use(), 12288);
        let error = arena.allocate(8192).unwrap_err();
        assert_eq!((error.in_use, error.longest), (12288, 4096));
        assert!(error.to_string().contains("raise THE_SETTING"), "{error}");
        drop(block);
        assert!(arena.allocate(16384).is_ok());
        assert!(arena.allocate(usize::MAX).is_err());
    }

    #[test]
    fn large_free_ranges_give_their_pages_back() {
        let arena = arena(KEEP + (8 << 20));
        let block = arena.allocate(KEEP + (4 << 20)).unwrap();
        let memory = block.memory();
        memory.write(&[9]);
        drop(block);
        let mut byte = [1];
        memory.read(&mut byte);
        assert_eq!(byte, [0]);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 0..20_000usize, any::<usize>()), 1..200)
        ) {
            let arena = arena(1 << 18);
            let mut blocks: Vec<ArenaBlock> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if !allocate && !blocks.is_empty() {
                    blocks.swap_remove(pick % blocks.len());
                } else if let Ok(block) = arena.allocate(bytes) {
                    let align = if bytes >= PAGE { PAGE } else { LINE };
                    prop_assert!(block.start.is_multiple_of(align));
                    prop_assert!(block.start >= 8192 && block.start + block.room <= 8192 + (1 << 18));
                    for other in &blocks {
                        prop_assert!(
                            block.start + block.room <= other.start
                                || other.start + other.room <= block.start
                        );
                    }
                    blocks.push(block);
                }
                prop_assert_eq!(arena.in_use(), blocks.iter().map(|b| b.room).sum::<usize>());
            }
            blocks.clear();
            prop_assert_eq!(arena.0.lock().by_start.len(), 1);
        }
    }
}
