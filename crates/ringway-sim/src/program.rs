//! What ranks do: operations, one after the other or several at once, and computation in between.

use ringway_plan::{Executor, Layout, Memory, Rank, Verified};

use crate::{error::SimError, time::Time};

/// A vector is cut in no more slices than this divided by the ranks, or 32 if that is more; each then stands for several. A
/// pipeline over h ranks that is cut in s slices takes longer by h / s, as in [`ringway_plan::predict`].
const SLICES: usize = 4096;

/// Where so many ranks or more do the same, each from its place, vectors of at least `LONG` bytes a chunk are rounded up to a
/// multiple of the chunks, by less than 1 %: with chunks of one length all ranks share what is compiled.
const MANY: usize = 256;
const LONG: usize = 128;

/// A collective on a vector, out of place. Where ranks have parts, the bytes are rounded up to a multiple of the ranks; those of
/// a long vector that hundreds of ranks reduce in a ring or a torus to one of the chunks.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    schedule: &'a Verified,
    bytes: usize,
    is_narrow: bool,
}

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Something that takes so long and needs neither the network nor what reduces: operations go on meanwhile.
    Compute(Time),
    /// Starts an operation, by number, and goes on.
    Start(usize),
    /// Waits until the rank's part in an operation is over.
    Wait(usize),
}

impl<'a> Operation<'a> {
    /// `schedule` on a vector of `bytes`.
    pub fn new(schedule: &'a Verified, bytes: usize) -> Self {
        let is_shared = schedule.programs.as_turned().is_some() && schedule.ranks() >= MANY;
        let bytes = if schedule.collective.has_parts() {
            bytes.next_multiple_of(schedule.ranks())
        } else if is_shared && bytes >= LONG * schedule.chunks {
            bytes.next_multiple_of(schedule.chunks)
        } else {
            bytes
        };
        Self {
            schedule,
            bytes,
            is_narrow: false,
        }
    }

    /// With elements that go from host to host in half their width: half the bytes, and two casts, each as quick as a reduction,
    /// by the sender before a message leaves and by the receiver when it is there.
    #[must_use]
    pub const fn with_half_between_hosts(mut self) -> Self {
        self.is_narrow = true;
        self
    }

    pub(crate) const fn is_narrow(&self) -> bool {
        self.is_narrow
    }

    pub(crate) const fn schedule(&self) -> &'a Verified {
        self.schedule
    }

    /// Of the vector.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A rank's part in it, in slices of so many bytes, or larger where the vector would have too many.
    pub(crate) fn executor(&self, rank: Rank, slice_bytes: usize) -> Executor {
        let (schedule, ranks) = (self.schedule, self.schedule.ranks());
        let slice_bytes = slice_bytes
            .max(self.bytes.div_ceil((SLICES / ranks).max(32)))
            .next_multiple_of(8);
        let (collective, chunks) = (schedule.collective, schedule.chunks);
        let program = &schedule.programs[rank];
        let layout = Layout::even(collective, program, ranks, chunks, rank, self.bytes, 1);
        Executor::new(schedule, rank, &layout, slice_bytes, Memory::Apart)
    }
}

/// Every operation is there, started once, and waited for after that.
pub(crate) fn check(operations: usize, acts: &[Act]) -> Result<(), SimError> {
    let mut started = vec![false; operations];
    for (at, act) in acts.iter().enumerate() {
        let is_right = match *act {
            Act::Compute(_) => true,
            Act::Start(number) => started
                .get_mut(number)
                .is_some_and(|started| !std::mem::replace(started, true)),
            Act::Wait(number) => started.get(number) == Some(&true),
        };
        if !is_right {
            return Err(SimError::Program { at, operations });
        }
    }
    Ok(())
}
