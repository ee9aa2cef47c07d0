//! A member's control block: what it tells the others of its group, through memory that only it writes.
//!
//! ```text
//! finished  64 bytes       all operations up to this number are finished here
//! contexts  64 bytes each  operation n has context n % CONTEXTS:
//!     0  progress    n << POINT_BITS | point; stored last, so that it publishes the rest
//!     8  descriptor  what the member calls
//!    24  finished    as above, when the operation began
//!    32  payload     of tiny operations; of others where their memory is:
//!    32  input       offset in the member's arena, or NOWHERE
//!    40  output      likewise
//!    48  staging     offset in the member's staging + 1; 0 while there is none
//!    56  costs       what such operations take it, see `stores`
//! parcels   4 KiB each     of small operations, n has parcel n % PARCELS
//! ```
//!
//! So a tiny operation is one cache line from each member to each other: call, counter and data at once.

use std::sync::Arc;

use ringway_sys::{Memory, Shared64};

use super::{Descriptor, MappedError};
use crate::shm::{ArenaBlock, HostSegment};

/// How many operations of a group may be in flight.
pub(super) const CONTEXTS: usize = 16;
/// How many of them may be small but not tiny. Few: the lines of a parcel that comes again soon are still near.
pub(super) const PARCELS: usize = 4;
/// Bytes of a context, a cache line.
const CONTEXT: usize = 64;
/// Bytes of a parcel. What is longer goes through staging, which rotates: 8 KiB from each of two ranks to the other takes 1.25 us by
/// parcels and 0.75 by 2 MiB in turn, 4 KiB 0.52 and 0.65 (measured between two cores of a Zen 5 that share a cache).
pub(super) const PARCEL: usize = 4 << 10;
/// Where the contexts start.
const HEAD: usize = 64;
/// Where the parcels start.
const PARCELS_AT: usize = HEAD + CONTEXTS * CONTEXT;
/// Bytes of a block.
const BLOCK: usize = PARCELS_AT + PARCELS * PARCEL;

/// Bits of a progress counter that count points; the rest number the operation.
pub(super) const POINT_BITS: u32 = 20;
/// An offset of memory that is not in the arena.
pub(super) const NOWHERE: u64 = u64::MAX;
/// Bytes of tiny operations, that fit a context.
pub(super) const PAYLOAD: usize = CONTEXT - context::PAYLOAD;

/// A place in the staging of a member, as contexts tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Whose area.
    pub(super) member: usize,
    /// From its start.
    pub(super) offset: usize,
}

impl Place {
    /// The word of a member that needs no staging.
    pub(super) const NONE_NEEDED: u64 = 1;
    const OFFSET_BITS: u32 = 48;

    pub(super) const fn new(member: usize, offset: usize) -> Self {
        Self { member, offset }
    }

    /// Not 0.
    pub(super) const fn word(self) -> u64 {
        (self.member as u64) << Self::OFFSET_BITS | (self.offset as u64 + 1)
    }

    /// What a word says; none of a word that says nothing.
    pub(super) fn of(word: u64) -> Option<Self> {
        let offset = (word & ((1 << Self::OFFSET_BITS) - 1)).checked_sub(1)?;
        Some(Self {
            member: (word >> Self::OFFSET_BITS) as usize,
            offset: usize::try_from(offset).ok()?,
        })
    }
}

mod context {
    pub(super) const PROGRESS: usize = 0;
    pub(super) const DESCRIPTOR: usize = 8;
    pub(super) const FINISHED: usize = 24;
    pub(super) const PAYLOAD: usize = 32;
    pub(super) const INPUT: usize = 32;
    pub(super) const OUTPUT: usize = 40;
    pub(super) const STAGING: usize = 48;
    pub(super) const COSTS: usize = 56;
}

/// A control block of this rank's, for one group. Its offset is told to the other members, who see it through
/// [`super::MappedGroup`]. Freed when dropped: first make sure that no member still uses the group, as after a
/// barrier.
#[derive(Debug)]
pub struct GroupBlock {
    block: ArenaBlock,
    offset: u64,
}

impl GroupBlock {
    /// A new block, all zeros.
    pub fn allocate(segment: &Arc<HostSegment>) -> Result<Self, MappedError> {
        let block = segment.control_arena().allocate(BLOCK)?;
        let memory = block.memory();
        for word in (0..BLOCK).step_by(8) {
            Shared64::at(memory, word).store(0);
        }
        let own = segment.control(segment.local_rank());
        let offset = (memory.as_ptr().addr() - own.as_ptr().addr()) as u64;
        Ok(Self { block, offset })
    }

    /// Where the block lies, for the other members.
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

/// A member's block, as any member sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    block: Memory,
}

/// One operation's context in a member's block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    memory: Memory,
    progress: Shared64,
}

impl View {
    /// The block of the rank `local` at `offset` of its control area; `None` if it is not within that.
    pub(super) fn new(segment: &HostSegment, local: usize, offset: u64) -> Option<Self> {
        let control = segment.control(local);
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(BLOCK)?;
        let fits = end <= control.len() && start.is_multiple_of(HEAD);
        fits.then(|| Self {
            block: control.slice(start..end),
        })
    }

    /// Of this rank's own block.
    pub(super) fn own(block: &GroupBlock) -> Self {
        Self {
            block: block.block.memory(),
        }
    }

    pub(super) fn finished(&self) -> Shared64 {
        Shared64::at(self.block, 0)
    }

    pub(super) fn context(&self, index: usize) -> Context {
        let start = HEAD + index * CONTEXT;
        let memory = self.block.slice(start..start + CONTEXT);
        Context {
            memory,
            progress: Shared64::at(memory, context::PROGRESS),
        }
    }

    pub(super) fn parcel(&self, index: usize) -> Memory {
        let start = PARCELS_AT + index * PARCEL;
        self.block.slice(start..start + PARCEL)
    }
}

impl Context {
    #[inline]
    pub(super) const fn progress(&self) -> Shared64 {
        self.progress
    }

    #[inline]
    pub(super) fn descriptor(&self) -> Descriptor {
        Descriptor([0, 8].map(|i| Shared64::at(self.memory, context::DESCRIPTOR + i).load()))
    }

    #[inline]
    pub(super) fn finished(&self) -> u64 {
        Shared64::at(self.memory, context::FINISHED).load()
    }

    #[inline]
    pub(super) fn payload(&self) -> Memory {
        self.memory.slice(context::PAYLOAD..CONTEXT)
    }

    #[inline]
    pub(super) fn input(&self) -> u64 {
        Shared64::at(self.memory, context::INPUT).load()
    }

    #[inline]
    pub(super) fn output(&self) -> u64 {
        Shared64::at(self.memory, context::OUTPUT).load()
    }

    pub(super) fn staging(&self) -> Shared64 {
        Shared64::at(self.memory, context::STAGING)
    }

    pub(super) fn costs(&self) -> Shared64 {
        Shared64::at(self.memory, context::COSTS)
    }

    /// Of one's own context: everything but the progress, which publishes it.
    #[inline]
    pub(super) fn describe(&self, descriptor: Descriptor, finished: u64) {
        for (i, word) in descriptor.0.into_iter().enumerate() {
            Shared64::at(self.memory, context::DESCRIPTOR + 8 * i).store(word);
        }
        Shared64::at(self.memory, context::FINISHED).store(finished);
    }

    /// Of one's own context: where the memory lies.
    pub(super) fn locate(&self, input: u64, output: u64, staging: u64) {
        Shared64::at(self.memory, context::INPUT).store(input);
        Shared64::at(self.memory, context::OUTPUT).store(output);
        self.staging().store(staging);
    }
}
