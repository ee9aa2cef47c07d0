//! Numbers for all memory that a schedule touches, chunk by chunk.

use super::action::{Loc, Place};
use crate::schedule::{Rank, Schedule};

/// Gives chunks numbers, *cells*, that two chunks share if they may be the same memory.
///
/// Input and output of a rank may be one vector (in place). Taking them for the same memory is right for ranks that
/// call out of place too: it only orders more.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    in_place: bool,
    ranks: Vec<Spaces>,
    total: usize,
}

/// A rank's cells: input's, then output's, then scratch, from `base`; slots have theirs.
#[derive(Clone, Debug)]
struct Spaces {
    base: usize,
    chunks: usize,
    /// The vector's chunks that input is.
    input: std::ops::Range<usize>,
    output: std::ops::Range<usize>,
    /// The vector's chunk whose size each has.
    scratch: Vec<usize>,
    /// Likewise, and the cell.
    slots: Vec<(usize, usize)>,
}

impl Cells {
    pub(super) fn new(schedule: &Schedule, in_place: bool) -> Self {
        let (n, chunks) = (schedule.ranks(), schedule.chunks);
        let mut total = 0;
        let ranks = (0..n)
            .map(|rank| {
                let base = total;
                let scratch = schedule.programs[rank].scratch.clone();
                total += 2 * chunks + scratch.len();
                Spaces {
                    base,
                    chunks,
                    input: schedule.collective.input_chunks(n, chunks, rank),
                    output: schedule.collective.output_chunks(n, chunks, rank),
                    scratch,
                    slots: Vec::new(),
                }
            })
            .collect();
        Self {
            in_place,
            ranks,
            total,
        }
    }

    /// The number of cells.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// The number of ranks.
    pub(super) const fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// A new slot of a rank's staging, of the size of a chunk of the vector.
    pub(super) fn add_slot(&mut self, rank: Rank, vector: usize) -> Loc {
        let slots = &mut self.ranks[rank].slots;
        slots.push((vector, self.total));
        self.total += 1;
        Loc {
            rank,
            place: Place::Slot(slots.len() - 1),
        }
    }

    /// The cell of a place.
    pub(super) fn of(&self, loc: Loc) -> usize {
        let rank = &self.ranks[loc.rank];
        match loc.place {
            Place::Input(chunk) => rank.base + rank.input.start + chunk,
            Place::Output(chunk) if self.in_place => rank.base + rank.output.start + chunk,
            Place::Output(chunk) => rank.base + rank.chunks + rank.output.start + chunk,
            Place::Scratch(chunk) => rank.base + 2 * rank.chunks + chunk,
            Place::Slot(slot) => rank.slots[slot].1,
        }
    }

    /// The other place that may be the same memory.
    pub(super) fn twin(&self, loc: Loc) -> Option<Loc> {
        let rank = &self.ranks[loc.rank];
        let place = match loc.place {
            Place::Input(chunk) if self.in_place => {
                let vector = rank.input.start + chunk;
                rank.output
                    .contains(&vector)
                    .then(|| Place::Output(vector - rank.output.start))
            }
            Place::Output(chunk) if self.in_place => {
                let vector = rank.output.start + chunk;
                rank.input
                    .contains(&vector)
                    .then(|| Place::Input(vector - rank.input.start))
            }
            _ => None,
        };
        place.map(|place| Loc {
            rank: loc.rank,
            place,
        })
    }

    /// The vector's chunk that a place is, or whose size it has.
    pub(super) fn vector(&self, loc: Loc) -> usize {
        let rank = &self.ranks[loc.rank];
        match loc.place {
            Place::Input(chunk) => rank.input.start + chunk,
            Place::Output(chunk) => rank.output.start + chunk,
            Place::Scratch(chunk) => rank.scratch[chunk],
            Place::Slot(slot) => rank.slots[slot].0,
        }
    }
}
