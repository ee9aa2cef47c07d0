//! From MSCCL's thread blocks to lanes.
//!
//! A channel becomes a lane, because both sides of a message must name the same lane. So a lane holds the steps of
//! several thread blocks, in an order that respects the blocks and their dependencies. In a lane, steps that
//! conflict keep that order; to another lane a conflict is an `after`. Steps that conflict and that the file does not
//! order are an error.

use std::{collections::HashMap, ops::Range};

use super::{
    MscclError,
    parse::{Algo, Block, Buffer, Gpu, Kind, Place, Step as FileStep},
};
use crate::schedule::{Lane, Op, Order, Program, Rank, Schedule, Space, Span, Step, StepRef};

pub(super) fn translate(algo: &Algo) -> Result<Schedule, MscclError> {
    let channels = algo
        .gpus
        .iter()
        .flat_map(|g| &g.blocks)
        .filter_map(|b| b.channel);
    let lanes = channels.max().map_or(0, |last| last + 1) + 1;
    let mut programs = Vec::with_capacity(algo.gpus.len());
    for (rank, gpu) in algo.gpus.iter().enumerate() {
        programs.push(Translation::new(algo, rank, gpu, lanes).run(gpu)?);
    }
    let mut schedule = Schedule {
        collective: algo.collective,
        algorithm: algo.name.clone(),
        chunks: algo.chunks,
        programs: programs.into(),
    };
    size_scratch(&mut schedule);
    Ok(schedule)
}

/// The translation of one rank's program.
struct Translation {
    rank: Rank,
    program: Program,
    in_place: bool,
    /// The vector's chunks that are its input, and its output.
    input: Range<usize>,
    output: Range<usize>,
    /// Where the vector begins that an in-place schedule works on: in the output if that is all of it, else in scratch.
    work: Span,
    chunks: usize,
    history: History,
    history_in_place: History,
    /// For each block and step in the order taken: how many steps of each block are over before it begins.
    clocks: Vec<Vec<Vec<usize>>>,
}

/// A step that touched a place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Access {
    at: StepRef,
    /// Where it stands in the file; `None` of the copies at the beginning and the end.
    source: Option<Source>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    block: usize,
    step: usize,
    line: u32,
}

impl Translation {
    fn new(algo: &Algo, rank: Rank, gpu: &Gpu, lanes: usize) -> Self {
        let (ranks, chunks) = (algo.gpus.len(), algo.chunks);
        let input = algo.collective.input_chunks(ranks, chunks, rank);
        let output = algo.collective.output_chunks(ranks, chunks, rank);
        let work = match output.len() == chunks {
            true => Span::output(0, chunks),
            false => Span::scratch(gpu.scratch, chunks),
        };
        let mut scratch = gpu.scratch;
        if algo.in_place && work.space == Space::Scratch {
            scratch += chunks;
        }
        Self {
            rank,
            program: Program {
                scratch: vec![0; scratch],
                lanes: vec![Lane::default(); lanes],
            },
            in_place: algo.in_place,
            input,
            output,
            work,
            chunks,
            history: History::default(),
            history_in_place: History::default(),
            clocks: gpu.blocks.iter().map(|_| Vec::new()).collect(),
        }
    }

    fn run(mut self, gpu: &Gpu) -> Result<Program, MscclError> {
        if self.in_place && !self.input.is_empty() {
            let src = Span::input(0, self.input.len());
            let dst = Span {
                chunk: self.work.chunk + self.input.start,
                count: src.count,
                ..self.work
            };
            self.push(0, None, Op::Copy { src, dst })?;
        }
        self.take_steps(gpu)?;
        if self.in_place && self.work.space == Space::Scratch && !self.output.is_empty() {
            let dst = Span::output(0, self.output.len());
            let src = Span {
                chunk: self.work.chunk + self.output.start,
                count: dst.count,
                ..self.work
            };
            self.push(0, None, Op::Copy { src, dst })?;
        }
        Ok(self.program)
    }

    /// Takes the steps of all blocks in turns, each when what it waits for has been taken.
    fn take_steps(&mut self, gpu: &Gpu) -> Result<(), MscclError> {
        let local = self.program.lanes.len() - 1;
        let mut left: usize = gpu.blocks.iter().map(|b| b.steps.len()).sum();
        while left > 0 {
            let before = left;
            for (block, Block { channel, steps }) in gpu.blocks.iter().enumerate() {
                let number = self.clocks[block].len();
                let Some(step) = steps.get(number) else {
                    continue;
                };
                if step.after.is_some_and(|(b, s)| self.clocks[b].len() <= s) {
                    continue;
                }
                self.tick(block, number, step);
                let source = Source {
                    block,
                    step: number,
                    line: step.line,
                };
                self.take(channel.unwrap_or(local), source, step)?;
                left -= 1;
            }
            if left == before {
                let waits = |(b, block): (usize, &Block)| {
                    block.steps.get(self.clocks[b].len()).map(|s| s.line)
                };
                let line = gpu.blocks.iter().enumerate().find_map(waits).unwrap_or(0);
                return Err(MscclError::Circle {
                    gpu: self.rank,
                    line,
                });
            }
        }
        Ok(())
    }

    /// Computes what is over before a step begins.
    fn tick(&mut self, block: usize, number: usize, step: &FileStep) {
        let mut clock = match number.checked_sub(1) {
            Some(previous) => self.clocks[block][previous].clone(),
            None => vec![0; self.clocks.len()],
        };
        clock[block] = number;
        if let Some((b, s)) = step.after {
            for (mine, theirs) in clock.iter_mut().zip(&self.clocks[b][s]) {
                *mine = (*mine).max(*theirs);
            }
            clock[b] = clock[b].max(s + 1);
        }
        self.clocks[block].push(clock);
    }

    fn take(&mut self, lane: usize, source: Source, step: &FileStep) -> Result<(), MscclError> {
        let count = step.count;
        let rank = self.rank;
        let order = |other| {
            if rank < other {
                Order::LocalFirst
            } else {
                Order::RemoteFirst
            }
        };
        let source = Some(source);
        match step.kind {
            _ if count == 0 => {}
            Kind::Nothing => {}
            Kind::Copy { src, dst } => {
                let (src, dst) = (self.span(src, count), self.span(dst, count));
                self.push(lane, source, Op::Copy { src, dst })?;
            }
            Kind::Reduce { src, dst } => {
                let (a, b) = (self.span(dst, count), self.span(src, count));
                self.push(lane, source, Op::Reduce { a, b, dst: a })?;
            }
            Kind::Send { to, src } => {
                let src = self.span(src, count);
                self.push(lane, source, Op::Send { peer: to, src })?;
            }
            Kind::Receive { from, dst, then } => {
                let dst = self.span(dst, count);
                self.push(lane, source, Op::Recv { peer: from, dst })?;
                self.send_on(lane, source, then, dst)?;
            }
            Kind::ReceiveReduce {
                from,
                src,
                dst,
                then,
            } => {
                let own = self.span(src, count);
                let dst = match dst {
                    Some(dst) => self.span(dst, count),
                    None => self.more_scratch(count),
                };
                let order = order(from);
                self.push(
                    lane,
                    source,
                    Op::RecvReduce {
                        peer: from,
                        own,
                        dst,
                        order,
                    },
                )?;
                self.send_on(lane, source, then, dst)?;
            }
        }
        Ok(())
    }

    fn send_on(
        &mut self,
        lane: usize,
        source: Option<Source>,
        to: Option<Rank>,
        src: Span,
    ) -> Result<(), MscclError> {
        match to {
            Some(peer) => self.push(lane, source, Op::Send { peer, src }),
            None => Ok(()),
        }
    }

    fn more_scratch(&mut self, count: usize) -> Span {
        let first = self.program.scratch.len();
        self.program.scratch.resize(first + count, 0);
        Span::scratch(first, count)
    }

    fn span(&self, place: Place, count: usize) -> Span {
        let Place { buffer, offset } = place;
        let vector = |first: usize| Span {
            chunk: self.work.chunk + first + offset,
            count,
            ..self.work
        };
        match (buffer, self.in_place) {
            (Buffer::Scratch, _) => Span::scratch(offset, count),
            (Buffer::Input, false) => Span::input(offset, count),
            (Buffer::Output, false) => Span::output(offset, count),
            (Buffer::Input, true) => vector(self.input.start),
            (Buffer::Output, true) => vector(self.output.start),
        }
    }

    /// Adds a step to a lane, `after` the steps of other lanes that it conflicts with.
    fn push(&mut self, lane: usize, source: Option<Source>, op: Op) -> Result<(), MscclError> {
        let at = StepRef {
            lane,
            step: self.program.lanes[lane].steps.len(),
        };
        let access = Access { at, source };
        let places = |of: &dyn Fn(Span) -> Range<usize>| {
            let reads: Vec<usize> = op.reads().flat_map(of).collect();
            (
                reads,
                op.writes().into_iter().flat_map(of).collect::<Vec<usize>>(),
            )
        };
        let (reads, writes) = places(&|span| self.apart(span));
        let mut before = self.history.add(access, &reads, &writes);
        for &other in &before {
            self.ordered(other, access)?;
        }
        // In place there are more conflicts. Those that the file does not order are the verifier's business, because
        // not every collective runs in place.
        let (reads, writes) = places(&|span| self.shared(span));
        let more = self
            .history_in_place
            .add(access, &reads, &writes)
            .into_iter();
        before.extend(more.filter(|&other| self.ordered(other, access).is_ok()));
        let mut after = Vec::new();
        for other in before {
            if other.at.lane != lane && !after.contains(&other.at) {
                after.push(other.at);
            }
        }
        self.program.lanes[lane].steps.push(Step { op, after });
        Ok(())
    }

    /// Numbers of a span's places, with input and output apart.
    fn apart(&self, span: Span) -> Range<usize> {
        let first = match span.space {
            Space::Input => 0,
            Space::Output => self.chunks,
            Space::Scratch => 2 * self.chunks,
        };
        first + span.chunk..first + span.chunk + span.count
    }

    /// The same, with input and output in one vector.
    fn shared(&self, span: Span) -> Range<usize> {
        let first = match span.space {
            Space::Input => self.input.start,
            Space::Output => self.output.start,
            Space::Scratch => 2 * self.chunks,
        };
        first + span.chunk..first + span.chunk + span.count
    }

    /// Sees that the file has `one` over before `other` begins.
    fn ordered(&self, one: Access, other: Access) -> Result<(), MscclError> {
        match (one.source, other.source) {
            (Some(one), Some(other))
                if one != other && self.clocks[other.block][other.step][one.block] <= one.step =>
            {
                Err(MscclError::Race {
                    gpu: self.rank,
                    line: other.line,
                    other: one.line,
                })
            }
            _ => Ok(()),
        }
    }
}

/// For each place, who wrote it last, and who has read it since.
#[derive(Default)]
struct History(HashMap<usize, (Option<Access>, Vec<Access>)>);

impl History {
    /// Adds an access, and says with which before it conflicts.
    fn add(&mut self, access: Access, reads: &[usize], writes: &[usize]) -> Vec<Access> {
        let mut before = Vec::new();
        before.extend(reads.iter().filter_map(|place| self.0.get(place)?.0));
        for (writer, readers) in writes.iter().filter_map(|place| self.0.get(place)) {
            before.extend(writer.iter().chain(readers));
        }
        for &place in reads {
            self.0.entry(place).or_default().1.push(access);
        }
        for &place in writes {
            self.0.insert(place, (Some(access), Vec::new()));
        }
        before
    }
}

/// Gives each scratch chunk the size of the chunks that move into it and out of it. MSCCL's chunks are all of one
/// size; ours differ by an element if the vector cannot be cut evenly.
fn size_scratch(schedule: &mut Schedule) {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks);
    // All ranks' scratch chunks in a row behind the vector's, in sets of chunks of one size.
    let mut first = Vec::with_capacity(ranks);
    let mut count = chunks;
    for program in schedule.programs.iter() {
        first.push(count);
        count += program.scratch.len();
    }
    let mut sets = Sets {
        parent: (0..count).collect(),
    };
    let number = |rank: Rank, span: Span, i: usize| match span.space {
        Space::Input => {
            schedule.collective.input_chunks(ranks, chunks, rank).start + span.chunk + i
        }
        Space::Output => {
            schedule.collective.output_chunks(ranks, chunks, rank).start + span.chunk + i
        }
        Space::Scratch => first[rank] + span.chunk + i,
    };
    for ((one, a), (other, b)) in pairs(schedule) {
        for i in 0..a.count.min(b.count) {
            sets.join(number(one, a, i), number(other, b, i));
        }
    }
    for (rank, program) in schedule.programs.iter_mut().enumerate() {
        for (i, size) in program.scratch.iter_mut().enumerate() {
            // Scratch that nothing moves through has any size.
            *size = Some(sets.find(first[rank] + i))
                .filter(|&set| set < chunks)
                .unwrap_or(0);
        }
    }
}

/// Disjoint sets of numbers, each known by its smallest.
struct Sets {
    parent: Vec<usize>,
}

impl Sets {
    fn find(&mut self, mut number: usize) -> usize {
        while self.parent[number] != number {
            self.parent[number] = self.parent[self.parent[number]];
            number = self.parent[number];
        }
        number
    }

    /// Numbers that are out of range are left to the verifier.
    fn join(&mut self, one: usize, other: usize) {
        if one.max(other) < self.parent.len() {
            let (one, other) = (self.find(one), self.find(other));
            self.parent[one.max(other)] = one.min(other);
        }
    }
}

/// Spans whose chunks have the same sizes: those of a step, and the two of a message.
fn pairs(schedule: &Schedule) -> Vec<((Rank, Span), (Rank, Span))> {
    let mut pairs = Vec::new();
    let mut sent = HashMap::new();
    let mut counts: HashMap<(bool, Rank, Rank, usize), usize> = HashMap::new();
    for sends in [true, false] {
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (lane, steps) in program.lanes.iter().enumerate() {
                for Step { op, .. } in &steps.steps {
                    let (from, to, span) = match *op {
                        Op::Send { peer, src } => (rank, peer, src),
                        Op::Recv { peer, dst } | Op::RecvReduce { peer, dst, .. } => {
                            (peer, rank, dst)
                        }
                        Op::Copy { .. } | Op::Reduce { .. } => continue,
                    };
                    if matches!(op, Op::Send { .. }) != sends {
                        continue;
                    }
                    let count = counts.entry((sends, from, to, lane)).or_default();
                    let key = (from, to, lane, *count);
                    *count += 1;
                    match sends {
                        true => drop(sent.insert(key, span)),
                        false => pairs.extend(sent.get(&key).map(|&src| ((from, src), (to, span)))),
                    }
                }
            }
        }
    }
    for (rank, program) in schedule.programs.iter().enumerate() {
        for Step { op, .. } in program.lanes.iter().flat_map(|l| &l.steps) {
            let dst = op.writes();
            pairs.extend(
                op.reads()
                    .filter_map(|src| Some(((rank, src), (rank, dst?)))),
            );
        }
    }
    pairs
}
