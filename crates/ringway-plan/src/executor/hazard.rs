//! Which steps of a rank wait for which.
//!
//! Within a lane, two steps keep their order if they conflict: if one writes a chunk that the other reads
//! or writes. Any other two may overlap, because nobody can tell. For each chunk, the last writer and the
//! readers since are all that a new access waits for: they have waited for those before them.

use std::ops::Range;

use crate::{
    schedule::{Op, Rank, Schedule, Space, Span, StepRef},
    verify::Memory,
};

/// One reason for a step to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The step waited for, counted over all lanes.
    pub(crate) on: usize,
    /// The spans in conflict, the other step's first; `None` where all of the other step must be over.
    pub(crate) spans: Option<(Span, Span)>,
}

/// The steps of a rank's program in one row, lane after lane, each with what it waits for.
#[derive(Debug)]
pub(crate) struct Hazards {
    /// Where each step stands.
    pub(crate) at: Vec<StepRef>,
    /// What each step does.
    pub(crate) ops: Vec<Op>,
    /// What each step waits for.
    pub(crate) edges: Vec<Vec<Edge>>,
    chunks: Chunks,
}

impl Hazards {
    /// Of the program of `rank`, with input and output in the same memory or apart.
    pub(crate) fn new(schedule: &Schedule, rank: Rank, memory: Memory) -> Self {
        let program = &schedule.programs[rank];
        let mut firsts = Vec::with_capacity(program.lanes.len());
        let mut first = 0;
        for lane in &program.lanes {
            firsts.push(first);
            first += lane.steps.len();
        }
        let chunks = Chunks::new(schedule, rank, memory);
        let (mut at, mut ops, mut edges) = (Vec::new(), Vec::new(), Vec::new());
        for (lane, steps) in program.lanes.iter().enumerate() {
            let mut history = History::new(&chunks);
            for (step, s) in steps.steps.iter().enumerate() {
                let mut waits = history.visit(firsts[lane] + step, s.op);
                for after in &s.after {
                    let on = firsts[after.lane] + after.step;
                    waits.push(Edge { on, spans: None });
                }
                at.push(StepRef { lane, step });
                ops.push(s.op);
                edges.push(waits);
            }
        }
        Self {
            at,
            ops,
            edges,
            chunks,
        }
    }

    /// The chunks that two spans share, as a span of the one and a span of the other.
    pub(crate) fn common(&self, one: Span, other: Span) -> Option<(Span, Span)> {
        let (a, b) = (self.chunks.of(one), self.chunks.of(other));
        let (start, end) = (a.start.max(b.start), a.end.min(b.end));
        let part = |space| Span {
            space,
            chunk: start - self.chunks.base(space),
            count: end - start,
        };
        (start < end).then(|| (part(one.space), part(other.space)))
    }
}

/// Numbers the chunks of a rank's memory; those that are the same memory have the same number.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    input: usize,
    output: usize,
    scratch: usize,
    total: usize,
}

impl Chunks {
    fn new(schedule: &Schedule, rank: Rank, memory: Memory) -> Self {
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks);
        let apart = if memory == Memory::Shared { 0 } else { chunks };
        let scratch = apart + chunks;
        Self {
            input: schedule.collective.input_chunks(ranks, chunks, rank).start,
            output: apart + schedule.collective.output_chunks(ranks, chunks, rank).start,
            scratch,
            total: scratch + schedule.programs[rank].scratch.len(),
        }
    }

    const fn base(&self, space: Space) -> usize {
        match space {
            Space::Input => self.input,
            Space::Output => self.output,
            Space::Scratch => self.scratch,
        }
    }

    const fn of(&self, span: Span) -> Range<usize> {
        let first = self.base(span.space) + span.chunk;
        first..first + span.count
    }
}

/// Who has touched each chunk so far: a step, and the span through which it did.
struct History<'a> {
    chunks: &'a Chunks,
    writer: Vec<Option<(usize, Span)>>,
    /// Readers since the last writer.
    readers: Vec<Vec<(usize, Span)>>,
}

impl<'a> History<'a> {
    fn new(chunks: &'a Chunks) -> Self {
        Self {
            chunks,
            writer: vec![None; chunks.total],
            readers: vec![Vec::new(); chunks.total],
        }
    }

    /// Adds the next step, and says what it waits for.
    fn visit(&mut self, step: usize, op: Op) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut wait = |&(on, theirs): &(usize, Span), ours| {
            let edge = Edge {
                on,
                spans: Some((theirs, ours)),
            };
            if !edges.contains(&edge) {
                edges.push(edge);
            }
        };
        for span in op.reads() {
            for chunk in self.chunks.of(span) {
                self.writer[chunk]
                    .iter()
                    .for_each(|other| wait(other, span));
            }
        }
        if let Some(span) = op.writes() {
            for chunk in self.chunks.of(span) {
                self.writer[chunk]
                    .iter()
                    .for_each(|other| wait(other, span));
                self.readers[chunk]
                    .iter()
                    .for_each(|other| wait(other, span));
            }
        }
        for span in op.reads() {
            for chunk in self.chunks.of(span) {
                self.readers[chunk].push((step, span));
            }
        }
        if let Some(span) = op.writes() {
            for chunk in self.chunks.of(span) {
                self.writer[chunk] = Some((step, span));
                self.readers[chunk].clear();
            }
        }
        edges
    }
}
