//! What one rank does: the result of compiling.

use std::fmt;

use super::{
    action::{self, Loc, Place},
    cells::Cells,
    flow::Flow,
    fuse, order, stage, staging,
};
use crate::{
    schedule::{Rank, Space},
    verify::Verified,
};

/// Which memory of the ranks is mapped by all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Input, output and staging.
    Arena,
    /// Staging only: what ranks read of each other goes through it.
    Staged,
}

/// Which memory of a rank an operand lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// A chunk of the input.
    Input(usize),
    /// A chunk of the output.
    Output(usize),
    /// A slot of staging.
    Staging(usize),
}

/// A chunk of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Whose memory.
    pub rank: Rank,
    /// Which part of it.
    pub slot: Slot,
}

/// Waiting until a rank has come to a point of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Whose progress.
    pub rank: Rank,
    /// The stage of the step waited for.
    pub stage: u32,
    /// The step's point.
    pub point: u32,
    /// Points in each of that rank's rounds.
    pub points: u32,
}

impl Wait {
    /// The count that the rank's progress has reached once the step is done for `segment`.
    pub const fn target(&self, segment: u64) -> u64 {
        (segment + self.stage as u64) * self.points as u64 + self.point as u64
    }
}

/// One pass over a chunk: every source is loaded, reduced in order, and stored to every destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedStep {
    /// The step works on segment s in round s + stage.
    pub stage: u32,
    /// What has to be done for the same segment.
    pub waits: Vec<Wait>,
    /// What has to be done for the segment [`MappedProgram::ring`] before this one, whose slots are written anew.
    pub reuse: Vec<Wait>,
    /// Read.
    pub sources: Vec<Operand>,
    /// Written.
    pub destinations: Vec<Operand>,
    /// Whether the result holds every rank's contribution: an average divides.
    pub completes: bool,
    /// To which point of the round the step brings the rank's progress, where others wait for that.
    pub point: Option<u32>,
    /// Whether others wait for it only before they write a slot anew: for nothing, while slots hold all segments.
    pub only_reuse: bool,
}

impl MappedStep {
    /// Whether it only shows private memory to others.
    pub fn publishes(&self) -> bool {
        self.sources
            .iter()
            .all(|s| matches!(s.slot, Slot::Input(_)))
            && self.sources.len() == 1
            && self
                .destinations
                .iter()
                .all(|d| matches!(d.slot, Slot::Staging(_)))
    }
}

/// One rank's program of a schedule among ranks that share memory. See the [module documentation](super).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedProgram {
    /// Whose it is.
    pub rank: Rank,
    /// Which memory it reaches.
    pub mode: Mode,
    /// The steps of a round, in order: those of later stages come first.
    pub steps: Vec<MappedStep>,
    /// Points in each round.
    pub points: u32,
    /// The number of stages; at least 1.
    pub stages: u32,
    /// Slots of staging that each rank has, counted over all ranks' needs; for each of this rank's, the vector's chunk
    /// whose size it has.
    pub slots: usize,
    /// The vector's chunk whose size each slot has, of each rank.
    pub slot_chunks: Vec<Vec<usize>>,
    /// How many segments a slot must hold at once: segment s uses copy s % ring.
    pub ring: u32,
    /// What has to be done, for the last segment, before the rank may leave: others still use its memory.
    pub last: Vec<Wait>,
    /// Whether staging holds nothing but chunks of input, on every rank, so that all of it can be shown before
    /// anything is waited for.
    pub shows_input_only: bool,
    /// Whether other ranks read each slot of staging, and its own rank none: of two ranks, the one that has read all slots of
    /// the other is then the last to use them. The same on every rank.
    pub read_by_others: bool,
}

impl MappedProgram {
    /// The program of `rank`.
    ///
    /// Takes time in proportion to the number of steps of all ranks.
    ///
    /// # Panics
    /// If the schedule has no such rank.
    pub fn compile(schedule: &Verified, rank: Rank, mode: Mode) -> Self {
        assert!(
            rank < schedule.ranks(),
            "no rank {rank} among {}",
            schedule.ranks()
        );
        let flow = fused(schedule, mode);
        let cells = Cells::new(schedule, schedule.in_place());
        stage::program(&staging::number(&flow), &cells, rank, mode)
    }
}

fn fused(schedule: &Verified, mode: Mode) -> Flow {
    let cells = Cells::new(schedule, schedule.in_place());
    let order = order::order(schedule, &cells);
    fuse::fuse(
        cells,
        action::lower(schedule, &order),
        schedule.collective,
        mode,
    )
}

impl From<Loc> for Operand {
    fn from(loc: Loc) -> Self {
        let slot = match loc.place {
            Place::Input(chunk) => Slot::Input(chunk),
            Place::Output(chunk) => Slot::Output(chunk),
            Place::Slot(slot) => Slot::Staging(slot),
            Place::Scratch(chunk) => unreachable!("scratch chunk {chunk} has been put in a slot"),
        };
        Self {
            rank: loc.rank,
            slot,
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            Slot::Input(chunk) => write!(f, "in[{chunk}]@{}", self.rank),
            Slot::Output(chunk) => write!(f, "out[{chunk}]@{}", self.rank),
            Slot::Staging(slot) => write!(f, "stage[{slot}]@{}", self.rank),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} stage {} point {}",
            self.rank, self.stage, self.point
        )
    }
}

impl fmt::Display for MappedProgram {
    /// One line for each step, as in: `stage 1: wait rank 0 stage 0 point 1; in[0]@1 + stage[0]@0 -> out[0]@1; point 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |operands: &[Operand], between: &str| {
            operands
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(between)
        };
        for step in self.steps.iter().rev() {
            write!(f, "stage {}: ", step.stage)?;
            for wait in &step.waits {
                write!(f, "wait {wait}; ")?;
            }
            write!(
                f,
                "{} -> {}",
                list(&step.sources, " + "),
                list(&step.destinations, ", ")
            )?;
            if let Some(point) = step.point {
                write!(f, "; point {point}")?;
            }
            writeln!(f)?;
        }
        for wait in &self.last {
            writeln!(f, "at last: wait {wait}")?;
        }
        Ok(())
    }
}

/// Which space a slot is of, where it is the user's.
impl Slot {
    /// The schedule's space; `None` for staging.
    pub const fn space(self) -> Option<Space> {
        match self {
            Self::Input(_) => Some(Space::Input),
            Self::Output(_) => Some(Space::Output),
            Self::Staging(_) => None,
        }
    }
}
