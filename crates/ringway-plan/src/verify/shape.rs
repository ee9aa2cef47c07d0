//! What can be checked step by step: ranges, peers, sizes.

use super::error::{Site, VerifyError};
use crate::schedule::{Collective, Op, Rank, Schedule, Space, Span, StepRef};

/// The most inputs that are told apart: chunks of all ranks. Four thousand ranks in a ring have a quarter of it.
const MOST_VALUES: usize = 1 << 26;

/// Whether each rank has a part of the vector.
pub(super) const fn parted(collective: Collective) -> bool {
    !matches!(
        collective,
        Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. }
    )
}

/// The sizes of a schedule's chunks, and what each rank's spaces hold.
#[derive(Clone, Copy)]
pub(super) struct Chunks<'a> {
    schedule: &'a Schedule,
}

impl<'a> Chunks<'a> {
    pub(super) const fn new(schedule: &'a Schedule) -> Self {
        Self { schedule }
    }

    /// The number of chunks of a rank's space.
    pub(super) fn count(self, rank: Rank, space: Space) -> usize {
        let (s, n) = (self.schedule, self.schedule.ranks());
        match space {
            Space::Input => s.collective.input_chunks(n, s.chunks, rank).len(),
            Space::Output => s.collective.output_chunks(n, s.chunks, rank).len(),
            Space::Scratch => s.programs[rank].scratch.len(),
        }
    }

    /// The vector's chunk that a chunk of a space is, or whose size it has.
    pub(super) fn of_vector(self, rank: Rank, space: Space, chunk: usize) -> usize {
        let (s, n) = (self.schedule, self.schedule.ranks());
        match space {
            Space::Input => s.collective.input_chunks(n, s.chunks, rank).start + chunk,
            Space::Output => s.collective.output_chunks(n, s.chunks, rank).start + chunk,
            Space::Scratch => s.programs[rank].scratch[chunk],
        }
    }

    /// The chunk's size, as a number that two chunks share if their sizes are equal for every number of
    /// elements: parts are cut evenly, so their chunks differ by their place in the part.
    pub(super) fn size_class(self, rank: Rank, space: Space, chunk: usize) -> usize {
        let vector = self.of_vector(rank, space, chunk);
        match parted(self.schedule.collective) {
            true => vector % (self.schedule.chunks / self.schedule.ranks()),
            false => vector,
        }
    }

    /// The first place where two spans differ in size, if they do.
    pub(super) fn differ(self, a: (Rank, Span), b: (Rank, Span)) -> Option<usize> {
        let class =
            |(rank, span): (Rank, Span), i| self.size_class(rank, span.space, span.chunk + i);
        let both = a.1.count.min(b.1.count);
        let first = (0..both).find(|&i| class(a, i) != class(b, i));
        first.or_else(|| (a.1.count != b.1.count).then_some(both))
    }
}

/// The span that stands for a step in messages: what it writes, or sends.
pub(super) const fn main_span(op: &Op) -> Span {
    match *op {
        Op::Copy { dst, .. }
        | Op::Recv { dst, .. }
        | Op::RecvReduce { dst, .. }
        | Op::Reduce { dst, .. } => dst,
        Op::Send { src, .. } => src,
    }
}

/// One chunk of a span; the empty span stays empty.
pub(super) fn one(span: Span, i: usize) -> Span {
    let count = span.count.min(1);
    Span {
        chunk: span.chunk + i.min(span.count.saturating_sub(1)),
        count,
        ..span
    }
}

pub(super) fn check(schedule: &Schedule) -> Result<(), VerifyError> {
    whole(schedule).map_err(|reason| VerifyError::Shape {
        collective: schedule.collective,
        ranks: schedule.ranks(),
        chunks: schedule.chunks,
        reason,
    })?;
    let chunks = Chunks::new(schedule);
    for (rank, program) in schedule.programs.iter().enumerate() {
        for (lane, steps) in program.lanes.iter().enumerate() {
            for (step, s) in steps.steps.iter().enumerate() {
                let here = Here {
                    rank,
                    step: StepRef { lane, step },
                    op: s.op,
                };
                here.spans(chunks)?;
                here.peer(schedule.ranks())?;
                if let Some(&target) = s.after.iter().find(|t| {
                    t.lane == lane
                        || program
                            .lanes
                            .get(t.lane)
                            .is_none_or(|l| t.step >= l.steps.len())
                }) {
                    return Err(VerifyError::After {
                        at: here.site(main_span(&s.op), 0),
                        target,
                    });
                }
                if matches!(s.op, Op::Reduce { .. } | Op::RecvReduce { .. })
                    && !schedule.collective.reduces()
                {
                    let at = here.site(main_span(&s.op), 0);
                    return Err(VerifyError::NotReducing {
                        at,
                        collective: schedule.collective,
                    });
                }
            }
        }
    }
    Ok(())
}

fn whole(schedule: &Schedule) -> Result<(), String> {
    let (n, chunks) = (schedule.ranks(), schedule.chunks);
    if n == 0 {
        return Err("expected at least one rank".to_owned());
    }
    if chunks == 0 || (parted(schedule.collective) && !chunks.is_multiple_of(n)) {
        return Err("expected at least one chunk, and a multiple of the number of ranks where ranks have parts".to_owned());
    }
    if n.saturating_mul(chunks) > MOST_VALUES {
        return Err(format!(
            "expected at most {MOST_VALUES} chunks of all ranks together"
        ));
    }
    if let Some(root) = schedule.collective.root().filter(|&root| root >= n) {
        return Err(format!(
            "its root is rank {root}; expected a rank below {n}"
        ));
    }
    for (rank, program) in schedule.programs.iter().enumerate() {
        if let Some(at) = program.scratch.iter().position(|&c| c >= chunks) {
            let named = program.scratch[at];
            return Err(format!(
                "scratch chunk tmp[{at}] of rank {rank} has the size of chunk {named}; expected a chunk below {chunks}"
            ));
        }
    }
    Ok(())
}

/// A step under examination.
struct Here {
    rank: Rank,
    step: StepRef,
    op: Op,
}

impl Here {
    fn site(&self, span: Span, i: usize) -> Box<Site> {
        Box::new(Site {
            rank: self.rank,
            step: self.step,
            chunk: one(span, i),
            op: self.op,
        })
    }

    fn spans(&self, chunks: Chunks<'_>) -> Result<(), VerifyError> {
        let main = main_span(&self.op);
        for span in self.op.reads().chain(self.op.writes()) {
            let have = chunks.count(self.rank, span.space);
            if span.count > 0
                && span
                    .chunk
                    .checked_add(span.count)
                    .is_none_or(|end| end > have)
            {
                let chunk = span.chunk.max(have);
                let at = self.site(
                    Span {
                        chunk,
                        count: 1,
                        ..span
                    },
                    0,
                );
                return Err(VerifyError::OutOfRange { at, chunks: have });
            }
        }
        if let Some(span) = self
            .op
            .writes()
            .filter(|s| s.space == Space::Input && s.count > 0)
        {
            return Err(VerifyError::WritesInput {
                at: self.site(span, 0),
            });
        }
        for span in self.op.reads() {
            if let Some(i) = chunks.differ((self.rank, main), (self.rank, span)) {
                return Err(VerifyError::StepSize {
                    at: self.site(main, i),
                });
            }
        }
        Ok(())
    }

    fn peer(&self, ranks: usize) -> Result<(), VerifyError> {
        match self.op {
            Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } | Op::Send { peer, .. }
                if peer == self.rank || peer >= ranks =>
            {
                Err(VerifyError::Peer {
                    at: self.site(main_span(&self.op), 0),
                    peer,
                    ranks,
                })
            }
            _ => Ok(()),
        }
    }
}
