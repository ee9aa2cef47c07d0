//! A program with bytes in place of chunks.

use std::ops::Range;

use super::program::{MappedProgram, Operand, Slot, Wait};
use crate::{
    layout::Layout,
    schedule::{Program, Rank, Schedule, Space, Span},
};

/// Which memory an operand's offset counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// The rank's input.
    Input,
    /// The rank's output.
    Output,
    /// The rank's staging; the offset is the number of the slot.
    Staging,
}

/// Where an operand lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundOperand {
    /// Whose memory.
    pub rank: Rank,
    /// Which part of it.
    pub base: Base,
    /// Bytes from its start; of staging, the number of the slot.
    pub offset: usize,
}

/// A [`super::MappedStep`] with bytes. Ranges index the lists of the program.
#[derive(Clone, Debug)]
pub struct BoundStep {
    /// Bytes of the chunk; all operands have as many.
    pub len: usize,
    /// See [`super::MappedStep::waits`].
    pub waits: Range<usize>,
    /// See [`super::MappedStep::reuse`].
    pub reuse: Range<usize>,
    /// Read.
    pub sources: Range<usize>,
    /// Written.
    pub destinations: Range<usize>,
    /// See [`super::MappedStep::completes`].
    pub completes: bool,
    /// See [`super::MappedStep::point`].
    pub point: Option<u32>,
    /// See [`super::MappedStep::only_reuse`].
    pub only_reuse: bool,
}

/// A [`MappedProgram`] for vectors of a certain size, in flat lists for the hot path.
#[derive(Clone, Debug)]
pub struct BoundProgram {
    steps: Vec<BoundStep>,
    operands: Vec<BoundOperand>,
    waits: Vec<Wait>,
    /// By stage, where its steps are.
    groups: Vec<Range<usize>>,
    last: Range<usize>,
    longest: usize,
    points: u32,
    ring: u32,
    slots: usize,
    one_way: bool,
    read_by_others: bool,
    /// Of each rank, where each slot lies if all are shown at once, and where the last ends. Empty if they are not
    /// to be shown at once.
    shown: Vec<Vec<usize>>,
}

/// Slots that are shown at once start at multiples of this many bytes.
const SHOWN_ALIGN: usize = 8;

impl BoundProgram {
    /// For vectors of `count` elements of `size` bytes, cut as [`Layout::even`] does.
    pub fn even(program: &MappedProgram, schedule: &Schedule, count: usize, size: usize) -> Self {
        let (n, chunks) = (schedule.ranks(), schedule.chunks);
        let layout = |p: &Program, rank: Rank| {
            Layout::even(schedule.collective, p, n, chunks, rank, count, size)
        };
        let layouts: Vec<Layout> = schedule
            .programs
            .iter()
            .enumerate()
            .map(|(rank, p)| layout(p, rank))
            .collect();
        // A program whose scratch is every chunk of the vector, to learn their sizes.
        let every = Program {
            scratch: (0..chunks).collect(),
            ..Program::default()
        };
        let every = layout(&every, program.rank);
        let chunk_len = |chunk: usize| every.range(Span::scratch(chunk, 1)).len();
        let longest = (0..chunks).map(chunk_len).max().unwrap_or(0);
        let mut bound = Self::build(program, longest, |operand| {
            let len = |slot: usize| chunk_len(program.slot_chunks[operand.rank][slot]);
            place(operand, &layouts[operand.rank], len)
        });
        if program.shows_input_only {
            let shown = |slots: &Vec<usize>| {
                let mut end = 0;
                let mut starts = vec![0];
                for &chunk in slots {
                    end += chunk_len(chunk).next_multiple_of(SHOWN_ALIGN);
                    starts.push(end);
                }
                starts
            };
            bound.shown = program.slot_chunks.iter().map(shown).collect();
        }
        bound
    }

    /// For a `v` form, of which a rank knows only its own `layout`. `longest` is the longest chunk of all ranks. For
    /// [`super::Mode::Staged`] programs of schedules that are [`crate::Verified::uneven`].
    pub fn uneven(program: &MappedProgram, layout: &Layout, longest: usize) -> Self {
        Self::build(program, longest, |operand| {
            let (base, offset, len) = place(operand, layout, |_| usize::MAX);
            // The length of what lies in a slot is known from the step's own operand.
            (base, offset, len)
        })
    }

    fn build(
        program: &MappedProgram,
        longest: usize,
        place: impl Fn(Operand) -> (Base, usize, usize),
    ) -> Self {
        let mut bound = Self {
            steps: Vec::with_capacity(program.steps.len()),
            operands: Vec::new(),
            waits: Vec::new(),
            groups: vec![0..0; program.stages as usize],
            last: 0..0,
            longest,
            points: program.points,
            ring: program.ring,
            slots: program.slots,
            one_way: program.slot_chunks.iter().any(Vec::is_empty),
            read_by_others: program.read_by_others,
            shown: Vec::new(),
        };
        for (i, step) in program.steps.iter().enumerate() {
            let mut len = usize::MAX;
            let sources = bound.add(&step.sources, &place, &mut len);
            let destinations = bound.add(&step.destinations, &place, &mut len);
            let waits = extend(&mut bound.waits, &step.waits);
            let reuse = extend(&mut bound.waits, &step.reuse);
            let group = &mut bound.groups[step.stage as usize];
            if group.start == group.end {
                *group = i..i;
            }
            group.end = i + 1;
            bound.steps.push(BoundStep {
                len,
                waits,
                reuse,
                sources,
                destinations,
                completes: step.completes,
                point: step.point,
                only_reuse: step.only_reuse,
            });
        }
        bound.last = extend(&mut bound.waits, &program.last);
        bound
    }

    fn add(
        &mut self,
        operands: &[Operand],
        place: impl Fn(Operand) -> (Base, usize, usize),
        len: &mut usize,
    ) -> Range<usize> {
        let start = self.operands.len();
        for &operand in operands {
            let (base, offset, its) = place(operand);
            *len = its.min(*len);
            self.operands.push(BoundOperand {
                rank: operand.rank,
                base,
                offset,
            });
        }
        start..self.operands.len()
    }

    /// A step.
    pub fn step(&self, step: usize) -> &BoundStep {
        &self.steps[step]
    }

    /// Operands of a step.
    pub fn operands(&self, range: &Range<usize>) -> &[BoundOperand] {
        &self.operands[range.clone()]
    }

    /// Waits of a step.
    pub fn waits(&self, range: &Range<usize>) -> &[Wait] {
        &self.waits[range.clone()]
    }

    /// See [`MappedProgram::last`].
    pub fn last(&self) -> &[Wait] {
        &self.waits[self.last.clone()]
    }

    /// Bytes of the longest chunk.
    pub const fn longest(&self) -> usize {
        self.longest
    }

    /// Points in each round.
    pub const fn points(&self) -> u64 {
        self.points as u64
    }

    /// The number of stages.
    pub const fn stages(&self) -> usize {
        self.groups.len()
    }

    /// See [`MappedProgram::ring`].
    pub const fn ring(&self) -> u64 {
        self.ring as u64
    }

    /// See [`MappedProgram::slots`].
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Whether some ranks show nothing to others, as all but the root of a broadcast. Then those that show and those
    /// that read work at the same time, if the first segment comes early.
    pub const fn one_way(&self) -> bool {
        self.one_way
    }

    /// See [`MappedProgram::read_by_others`].
    pub const fn read_by_others(&self) -> bool {
        self.read_by_others
    }

    /// Where each slot of a rank lies if all are shown at once, with the end of the last; `None` if they cannot be.
    pub fn shown(&self, rank: Rank) -> Option<&[usize]> {
        self.shown.get(rank).map(Vec::as_slice)
    }

    /// Bytes of staging that the rank with the most needs to show all slots at once.
    pub fn shown_bytes(&self) -> Option<usize> {
        self.shown
            .iter()
            .filter_map(|starts| starts.last().copied())
            .max()
    }
}

fn extend(waits: &mut Vec<Wait>, more: &[Wait]) -> Range<usize> {
    let start = waits.len();
    waits.extend_from_slice(more);
    start..waits.len()
}

/// An operand's base, offset and length.
fn place(
    operand: Operand,
    layout: &Layout,
    slot_len: impl Fn(usize) -> usize,
) -> (Base, usize, usize) {
    let user = |base, space, chunk| {
        let range = layout.range(Span {
            space,
            chunk,
            count: 1,
        });
        (base, range.start, range.len())
    };
    match operand.slot {
        Slot::Input(chunk) => user(Base::Input, Space::Input, chunk),
        Slot::Output(chunk) => user(Base::Output, Space::Output, chunk),
        Slot::Staging(slot) => (Base::Staging, slot, slot_len(slot)),
    }
}

/// Goes through the steps of all rounds in order.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    segments: u64,
    round: u64,
    stage: usize,
    step: usize,
}

impl Walk {
    /// From the start, with each chunk cut in `segments`.
    pub fn new(program: &BoundProgram, segments: u64) -> Self {
        let mut walk = Self {
            segments,
            round: 0,
            stage: 0,
            step: 0,
        };
        if segments > 0 {
            walk.settle(program);
        } else {
            walk.round = walk.rounds(program);
        }
        walk
    }

    /// The step to do, and the segment to do it for; `None` at the end.
    #[inline]
    pub fn at(&self, program: &BoundProgram) -> Option<(usize, u64)> {
        (self.round < self.rounds(program)).then(|| (self.step, self.round - self.stage as u64))
    }

    /// The round that the step is done in.
    pub const fn round(&self) -> u64 {
        self.round
    }

    /// Goes to the next step.
    #[inline]
    pub fn advance(&mut self, program: &BoundProgram) {
        self.step += 1;
        if self.step >= program.groups[self.stage].end {
            self.next_stage(program);
        }
    }

    fn rounds(&self, program: &BoundProgram) -> u64 {
        self.segments + program.groups.len() as u64 - 1
    }

    fn next_stage(&mut self, program: &BoundProgram) {
        if self.skip_stage(program) {
            self.settle(program);
        }
    }

    /// To the next stage of this round or the next round; false at the end.
    fn skip_stage(&mut self, program: &BoundProgram) -> bool {
        // Stages below this one would work on segments past the last.
        let lowest = (self.round + 1).saturating_sub(self.segments) as usize;
        if self.stage > lowest {
            self.stage -= 1;
            return true;
        }
        self.round += 1;
        self.stage = (program.groups.len() - 1).min(self.round as usize);
        self.round < self.rounds(program)
    }

    /// To the first step of the stage, or of the next one that has any.
    fn settle(&mut self, program: &BoundProgram) {
        while program.groups[self.stage].is_empty() {
            if !self.skip_stage(program) {
                return;
            }
        }
        self.step = program.groups[self.stage].start;
    }
}
