//! Moves of chunks, and the programs that they make.
//!
//! Most algorithms are one pattern: the *moves* by which each chunk spreads from a rank that has it to all
//! others. Forwards, the moves make an all_gather or a broadcast. Backwards, with a reduction at each
//! arrival, the same moves make a reduce_scatter or a reduce; and backwards then forwards an all_reduce.

use std::ops::Range;

use super::Algorithm;
use crate::schedule::{Collective, Lane, Op, Order, Program, Rank, Schedule, Space, Span};

/// Chunks of the vector, on their way from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) chunks: Range<usize>,
    pub(super) lane: usize,
}

impl Move {
    /// A move in lane 0.
    pub(super) const fn new(from: Rank, to: Rank, chunks: Range<usize>) -> Self {
        Self {
            from,
            to,
            chunks,
            lane: 0,
        }
    }

    /// Moves of all `chunks`, which are sorted: one for each row of consecutive ones.
    pub(super) fn of(from: Rank, to: Rank, chunks: &[usize]) -> impl Iterator<Item = Self> {
        let rows = chunks.chunk_by(|a, b| a + 1 == *b);
        rows.map(move |row| Self::new(from, to, row[0]..row[0] + row.len()))
    }

    fn reversed(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self.clone()
        }
    }
}

/// Leaves out what the receiver has already, given who has what at first. What is left leads each chunk to
/// each rank once.
pub(super) fn trim(
    moves: &[Move],
    ranks: usize,
    chunks: usize,
    first: &[(Rank, Range<usize>)],
) -> Vec<Move> {
    let mut has = vec![vec![false; chunks]; ranks];
    for (rank, range) in first {
        has[*rank][range.clone()].fill(true);
    }
    let mut left = Vec::new();
    for m in moves {
        let missing: Vec<_> = m.chunks.clone().filter(|&c| !has[m.to][c]).collect();
        has[m.to][m.chunks.clone()].fill(true);
        left.extend(Move::of(m.from, m.to, &missing).map(|part| Move {
            lane: m.lane,
            ..part
        }));
    }
    left
}

/// Where a rank holds its value of a chunk, and the lane that touched it last.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    space: Space,
    chunk: usize,
    lane: usize,
}

/// Which way around a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    On,
    Back,
}

/// A schedule in the making.
pub(super) struct Flow {
    schedule: Schedule,
    /// By rank and chunk of the vector.
    held: Vec<Vec<Option<Held>>>,
    /// The scratch chunk that is for a chunk of the vector, by rank.
    scratch: Vec<Vec<Option<usize>>>,
    /// How many scratch chunks a lane takes in turn, where they are not one for each chunk.
    turns: Option<usize>,
}

impl Flow {
    pub(super) fn new(
        collective: Collective,
        algorithm: Algorithm,
        ranks: usize,
        chunks: usize,
    ) -> Self {
        let mut held = vec![vec![None; chunks]; ranks];
        for (rank, held) in held.iter_mut().enumerate() {
            for (i, c) in collective.input_chunks(ranks, chunks, rank).enumerate() {
                held[c] = Some(Held {
                    space: Space::Input,
                    chunk: i,
                    lane: 0,
                });
            }
        }
        let schedule = Schedule {
            collective,
            algorithm: algorithm.to_string(),
            chunks,
            programs: vec![Program::default(); ranks].into(),
        };
        Self {
            schedule,
            held,
            scratch: vec![vec![None; chunks]; ranks],
            turns: None,
        }
    }

    /// Lets partial results of each lane share `turns` chunks of scratch in turn. For moves of single chunks
    /// that are sent on before the scratch chunk's turn comes again, and have the same size in a lane.
    pub(super) const fn in_turns(mut self, turns: usize) -> Self {
        self.turns = Some(turns);
        self
    }

    /// Carries out the collective whose data flows along `moves`: forwards, backwards, or both.
    pub(super) fn run(self, moves: &[Move]) -> Schedule {
        self.run_both(moves, moves)
    }

    /// As [`Self::run`], with moves of its own for the way backwards.
    pub(super) fn run_both(mut self, backwards: &[Move], moves: &[Move]) -> Schedule {
        if self.schedule.collective.reduces() {
            let back: Vec<_> = backwards.iter().rev().map(Move::reversed).collect();
            self.collect(&back);
        }
        match self.schedule.collective {
            Collective::Reduce { .. } | Collective::ReduceScatter => {}
            _ => self.spread(moves),
        }
        self.finish()
    }

    /// Carries out a gather, whose data flows against `moves` without reduction.
    pub(super) fn run_back(mut self, moves: &[Move]) -> Schedule {
        let back: Vec<_> = moves.iter().rev().map(Move::reversed).collect();
        self.spread(&back);
        self.finish()
    }

    fn output(&self, rank: Rank) -> Range<usize> {
        let s = &self.schedule;
        s.collective.output_chunks(s.ranks(), s.chunks, rank)
    }

    fn input(&self, rank: Rank) -> Range<usize> {
        let s = &self.schedule;
        s.collective.input_chunks(s.ranks(), s.chunks, rank)
    }

    fn push(&mut self, rank: Rank, lane: usize, op: Op) {
        let lanes = &mut self.schedule.programs[rank].lanes;
        if lanes.len() <= lane {
            lanes.resize_with(lane + 1, Lane::default);
        }
        lanes[lane].push(op);
    }

    /// Moves with a reduction at each arrival.
    fn collect(&mut self, moves: &[Move]) {
        if self.turns.is_none() {
            let partial = |m: &Move| {
                let output = self.output(m.to);
                (
                    m.to,
                    m.chunks.clone().filter(|c| !output.contains(c)).collect(),
                )
            };
            let needs: Vec<(Rank, Vec<usize>)> = moves.iter().map(partial).collect();
            self.reserve(needs);
        }
        let mut taken = vec![Vec::new(); self.held.len()];
        for m in moves {
            self.take_turn(m, &mut taken[m.to]);
            let mut at = m.chunks.clone();
            while !at.is_empty() {
                let (source, own) = (&self.held[m.from], &self.held[m.to]);
                let end = row(at.clone(), |c| source[c])
                    .min(row(at.clone(), |c| own[c]))
                    .min(row(at.clone(), |c| Some(self.home(m.to, c, m.lane))));
                self.combine(m, at.start..end);
                at.start = end;
            }
        }
    }

    fn combine(&mut self, m: &Move, chunks: Range<usize>) {
        let home = self.home(m.to, chunks.start, m.lane);
        let (Some(source), Some(own)) = (
            self.held[m.from][chunks.start],
            self.held[m.to][chunks.start],
        ) else {
            unreachable!("every rank has a contribution to every chunk that is reduced")
        };
        let span = |held: Held| Span {
            space: held.space,
            chunk: held.chunk,
            count: chunks.len(),
        };
        // The lower rank's input first; what has been reduced before what arrives.
        let order = match own.space == Space::Input && m.from < m.to {
            true => Order::RemoteFirst,
            false => Order::LocalFirst,
        };
        self.push(
            m.from,
            m.lane,
            Op::Send {
                peer: m.to,
                src: span(source),
            },
        );
        let (own, dst) = (span(own), span(home));
        self.push(
            m.to,
            m.lane,
            Op::RecvReduce {
                peer: m.from,
                own,
                dst,
                order,
            },
        );
        for (i, c) in chunks.enumerate() {
            self.touched(m.from, c, m.lane);
            self.held[m.to][c] = Some(Held {
                chunk: home.chunk + i,
                ..home
            });
        }
    }

    fn touched(&mut self, rank: Rank, c: usize, lane: usize) {
        if let Some(held) = &mut self.held[rank][c] {
            held.lane = lane;
        }
    }

    /// Where scratch is shared in turns, finds the chunk whose turn it is.
    fn take_turn(&mut self, m: &Move, taken: &mut Vec<usize>) {
        let Some(turns) = self.turns else { return };
        let output = self.output(m.to);
        let scratch = &mut self.schedule.programs[m.to].scratch;
        for c in m.chunks.clone().filter(|c| !output.contains(c)) {
            if taken.len() <= m.lane {
                taken.resize(m.lane + 1, 0);
            }
            let slot = m.lane * turns + taken[m.lane] % turns;
            taken[m.lane] += 1;
            if scratch.len() <= slot {
                scratch.resize(slot + 1, c);
            }
            scratch[slot] = c;
            self.scratch[m.to][c] = Some(slot);
        }
    }

    /// Where a rank's result of a chunk goes: its output, or the scratch that was reserved.
    fn home(&self, rank: Rank, c: usize, lane: usize) -> Held {
        match self.scratch[rank][c] {
            Some(chunk) => Held {
                space: Space::Scratch,
                chunk,
                lane,
            },
            None => Held {
                space: Space::Output,
                chunk: c - self.output(rank).start,
                lane,
            },
        }
    }

    /// Moves that leave what they bring as it is.
    fn spread(&mut self, moves: &[Move]) {
        // What passes through a rank stays together: where a part of a move needs scratch, all of it does.
        let pass = |rank, chunks: &Range<usize>, from: Range<usize>| {
            let inside = |r: Range<usize>| r.start <= chunks.start && chunks.end <= r.end;
            let whole = inside(self.output(rank)) || inside(from);
            (
                rank,
                if whole {
                    Vec::new()
                } else {
                    chunks.clone().collect()
                },
            )
        };
        let arrivals = moves.iter().map(|m| pass(m.to, &m.chunks, 0..0));
        let departures = moves
            .iter()
            .map(|m| pass(m.from, &m.chunks, self.input(m.from)));
        let needs: Vec<_> = arrivals.chain(departures).collect();
        self.reserve(needs);
        for m in moves {
            self.settle(m);
            let mut at = m.chunks.clone();
            while !at.is_empty() {
                let source = &self.held[m.from];
                let end = row(at.clone(), |c| source[c])
                    .min(row(at.clone(), |c| Some(self.home(m.to, c, m.lane))));
                self.forward(m, at.start..end);
                at.start = end;
            }
        }
    }

    /// Copies the sender's own input next to the rest of what it sends, if there is a rest.
    fn settle(&mut self, m: &Move) {
        let source = &self.held[m.from];
        if row(m.chunks.clone(), |c| source[c]) == m.chunks.end {
            return;
        }
        for c in m.chunks.clone() {
            if self.held[m.from][c].is_some_and(|held| held.space == Space::Input) {
                self.bring_home(m.from, c..c + 1, m.lane);
            }
        }
    }

    fn bring_home(&mut self, rank: Rank, chunks: Range<usize>, lane: usize) {
        let home = self.home(rank, chunks.start, lane);
        if let Some(held) = self.held[rank][chunks.start] {
            let span = |held: Held| Span {
                space: held.space,
                chunk: held.chunk,
                count: chunks.len(),
            };
            self.push(
                rank,
                lane,
                Op::Copy {
                    src: span(held),
                    dst: span(home),
                },
            );
        }
        for (i, c) in chunks.enumerate() {
            self.held[rank][c] = Some(Held {
                chunk: home.chunk + i,
                ..home
            });
        }
    }

    fn forward(&mut self, m: &Move, chunks: Range<usize>) {
        let home = self.home(m.to, chunks.start, m.lane);
        let Some(source) = self.held[m.from][chunks.start] else {
            unreachable!("patterns send what the sender has")
        };
        let span = |held: Held| Span {
            space: held.space,
            chunk: held.chunk,
            count: chunks.len(),
        };
        self.push(
            m.from,
            m.lane,
            Op::Send {
                peer: m.to,
                src: span(source),
            },
        );
        self.push(
            m.to,
            m.lane,
            Op::Recv {
                peer: m.from,
                dst: span(home),
            },
        );
        for (i, c) in chunks.enumerate() {
            self.touched(m.from, c, m.lane);
            self.held[m.to][c] = Some(Held {
                chunk: home.chunk + i,
                ..home
            });
        }
    }

    /// Gives ranks scratch for chunks, those of a rank in their order, so that neighbours lie side by side.
    fn reserve(&mut self, needs: Vec<(Rank, Vec<usize>)>) {
        let mut sorted = vec![std::collections::BTreeSet::new(); self.held.len()];
        for (rank, chunks) in needs {
            sorted[rank].extend(chunks);
        }
        for (rank, chunks) in sorted.into_iter().enumerate() {
            let scratch = &mut self.schedule.programs[rank].scratch;
            for c in chunks {
                self.scratch[rank][c] = Some(scratch.len());
                scratch.push(c);
            }
        }
    }

    /// Copies to the output what is not there yet, and hands out the schedule.
    fn finish(mut self) -> Schedule {
        for rank in 0..self.schedule.ranks() {
            self.scratch[rank].fill(None);
            let mut at = self.output(rank);
            while !at.is_empty() {
                let held = &self.held[rank];
                let end = row(at.clone(), |c| held[c]);
                if let Some(held) = held[at.start].filter(|h| h.space != Space::Output) {
                    self.bring_home(rank, at.start..end, held.lane);
                }
                at.start = end;
            }
        }
        self.schedule
    }
}

/// The end of the chunks, from the first of `chunks`, that are held side by side.
fn row(chunks: Range<usize>, at: impl Fn(usize) -> Option<Held>) -> usize {
    let (start, end) = (chunks.start, chunks.end);
    let first = at(start);
    let beside = |c: usize| match (first, at(c)) {
        (Some(first), Some(held)) => {
            held.space == first.space
                && held.lane == first.lane
                && held.chunk == first.chunk + (c - start)
        }
        (None, None) => true,
        _ => false,
    };
    (start + 1..end).find(|&c| !beside(c)).unwrap_or(end)
}
