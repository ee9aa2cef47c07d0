//! The executor: runs one rank's program of a verified schedule. It does no IO and knows no clock; it says
//! what may start now, and is told what has completed.
//!
//! ```text
//!                    poll() -> Action                    transport, memory
//!   +----------+  ----------------------->  send, receive, view       +-----------+
//!   | Executor |                            combine, copy, reduce     | engine or |
//!   +----------+  <-----------------------                            | simulator |
//!                    handle_done(ActionId)                            +-----------+
//! ```
//!
//! The driver calls [`Executor::poll`] until it returns `None`, does what it was told, reports each completion
//! with [`Executor::handle_done`], and polls again; until [`Executor::is_done`]. [`Executor::reset`] makes the
//! executor ready for the next operation of the same plan.
//!
//! # Slices
//! A step's bytes are worked through in slices of `slice_bytes`, the last one shorter. Sender and receiver cut
//! a message alike, because its spans have equal length on both sides. A message without bytes is neither
//! sent nor received; a signal (a span of no chunks) is one empty message.
//!
//! # Order
//! - In a lane, a step whose chunks conflict with those of an earlier one (one writes what the other reads or
//!   writes) waits for it, slice by slice: its slice waits for those slices of the earlier step that cover
//!   the same bytes. So a ring or a tree is a pipeline without the generator knowing. Steps without
//!   conflict overlap. A step that another names in `after` is waited for as a whole: that is what
//!   the verifier's proof rests on.
//! - The messages of a lane between two ranks start in order, and their slices in order. At most [`WINDOW`]
//!   slices, counted from the oldest that is not done, are under way in each direction.
//! - A `Recv` starts when its place is free. A `RecvReduce` starts at once: the transport holds the
//!   message ([`Action::View`]) until the operand is there ([`Action::Combine`]).
//! - A step is done when it has taken effect; a `Send`, when its memory may be reused.
//!
//! Nothing is allocated after [`Executor::new`], and each slice costs a constant number of steps.

mod action;
mod compile;
mod hazard;
mod run;
mod state;

use std::{collections::VecDeque, ops::Range, sync::Arc};

pub use action::{Action, ActionId, Pending, Place};

use compile::{Kind, Program, Queue};
use state::State;

use crate::{
    layout::Layout,
    schedule::{Op, Rank, StepRef},
    verify::{Memory, Verified},
};

/// How many slices of a lane may be under way between two ranks in one direction. Eight slices of 128 KiB cover
/// the bandwidth-delay product of 100 Gbit/s at 80 us, and bound what a transport must hold for
/// views. At most 64, because a queue keeps one bit for each.
pub const WINDOW: u32 = 8;

/// Runs one rank's program. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Executor {
    schedule: Verified,
    rank: Rank,
    /// The rank whose program was compiled: another's where that is turned.
    compiled: Rank,
    program: Arc<Program>,
    queues: Vec<State>,
    /// The state of each queue at the start.
    initial: Arc<[State]>,
    /// Queues that may have a message to start.
    starting: VecDeque<u32>,
    /// Queues that may have local work.
    working: VecDeque<u32>,
    /// Slices that are not done.
    left: u64,
}

impl Executor {
    /// For `rank`, with chunks in memory as `layout` says, and input and output `memory` the same or
    /// apart. `slice_bytes` is rounded down to a multiple of 8, the size of the largest element.
    ///
    /// # Panics
    /// If there is no such rank, if `slice_bytes` is below 8, if a lane has more than 2^32 slices, or a
    /// program more than 2^16 lanes.
    pub fn new(
        schedule: &Verified,
        rank: Rank,
        layout: &Layout,
        slice_bytes: usize,
        memory: Memory,
    ) -> Self {
        assert!(
            slice_bytes >= 8,
            "slices of {slice_bytes} bytes; expected at least 8"
        );
        let program = Program::new(schedule, rank, layout, slice_bytes & !7, memory);
        let initial: Arc<[State]> = program
            .queues
            .iter()
            .enumerate()
            .map(|(q, queue)| State::new(&program, q, queue))
            .collect();
        let mut executor = Self {
            queues: initial.to_vec(),
            starting: VecDeque::with_capacity(program.senders + program.receivers),
            working: VecDeque::with_capacity(initial.len()),
            left: 0,
            initial,
            program: program.into(),
            schedule: schedule.clone(),
            rank,
            compiled: rank,
        };
        executor.reset();
        executor
    }

    /// That of another rank, with the same compiled program: where the schedule's is one that is turned, and all chunks have the
    /// same length. For drivers that move no bytes, because offsets are those of the first rank. By these, too, slices of a span of
    /// several chunks wait for steps on one of them, as in a torus: another rank's chunk may be at the end where the first one's is
    /// at the beginning, so that where a row is several slices, times are near those of programs compiled by rank, not the same.
    pub fn turned(&self, rank: Rank) -> Option<Self> {
        self.schedule.programs.as_turned()?;
        let mut other = self.program.is_even.then(|| self.clone())?;
        other.rank = rank;
        other.reset();
        Some(other)
    }

    /// The rank that a queue of the compiled program is to or from.
    fn peer(&self, peer: Rank) -> Rank {
        match self.schedule.programs.as_turned() {
            Some(turned) if self.rank != self.compiled => {
                turned.peer(self.rank, self.compiled, peer)
            }
            _ => peer,
        }
    }

    /// Starts again from the beginning, for the next operation.
    pub fn reset(&mut self) {
        self.queues.copy_from_slice(&self.initial);
        self.left = self.program.slices;
        self.starting.clear();
        self.working.clear();
        let messages = self.program.senders + self.program.receivers;
        self.starting.extend(&self.program.begin);
        self.working
            .extend(messages as u32..self.initial.len() as u32);
    }

    /// The next action that may start now; `None` until [`Executor::handle_done`] changes that.
    pub fn poll(&mut self) -> Option<Action> {
        // Messages first: they are under way while the rank works.
        loop {
            if let Some(queue) = self.starting.pop_front() {
                self.queues[queue as usize].in_starting = false;
                if let Some(action) = self.start(queue) {
                    self.queue_start(queue);
                    return Some(action);
                }
            } else if let Some(queue) = self.working.pop_front() {
                self.queues[queue as usize].in_working = false;
                if let Some(action) = self.work(queue) {
                    self.queue_work(queue);
                    return Some(action);
                }
            } else {
                return None;
            }
        }
    }

    /// Says that an action has completed. Ids of actions that are not under way are ignored.
    pub fn handle_done(&mut self, id: ActionId) {
        let Some(state) = self.queues.get_mut(id.queue as usize) else {
            return;
        };
        let (senders, receivers) = (self.program.senders, self.program.receivers);
        let messages = (id.queue as usize) < senders + receivers;
        let begun = if messages { state.start } else { state.work };
        if !(state.oldest..begun.position).contains(&id.position) {
            return;
        }
        let bit = 1 << (id.position - state.oldest);
        let receives = messages && id.queue as usize >= senders;
        if receives && state.arrived & bit == 0 {
            state.arrived |= bit;
            self.queue_work(id.queue);
        } else if !receives || id.position < state.work.position {
            self.finish(id.queue, id.position);
        }
    }

    /// The action that sends a message, by the message's name.
    pub fn sending(&self, peer: Rank, lane: u16, message: u32, slice: u32) -> Option<ActionId> {
        self.find(0..self.program.senders, peer, lane, message, slice)
    }

    /// The action that receives a message, by the message's name.
    pub fn receiving(&self, peer: Rank, lane: u16, message: u32, slice: u32) -> Option<ActionId> {
        let first = self.program.senders;
        self.find(
            first..first + self.program.receivers,
            peer,
            lane,
            message,
            slice,
        )
    }

    /// The number of the view that a receiving action has, if it is an [`Action::View`].
    pub fn view(&self, id: ActionId) -> Option<usize> {
        let queue = self.program.queues.get(id.queue as usize)?;
        let step = self.program.steps.get(self.step_at(queue, id.position))?;
        matches!(step.kind, Kind::RecvReduce(_)).then(|| queue.view(id.position))
    }

    /// Whether all is done.
    pub const fn is_done(&self) -> bool {
        self.left == 0
    }

    /// How many views can be held at once: the numbers of [`Action::View`] are below.
    pub fn views(&self) -> usize {
        self.program.receivers * WINDOW as usize
    }

    /// Bytes of scratch memory that the program needs.
    pub fn scratch_bytes(&self) -> usize {
        self.program.scratch_bytes
    }

    /// The messages that have been started and are not over.
    pub fn pending(&self) -> Vec<Pending> {
        let mut pending = Vec::new();
        let messages = self.program.senders + self.program.receivers;
        for (queue, state) in self.program.queues.iter().zip(&self.queues).take(messages) {
            let mut last = None;
            for position in state.oldest..state.start.position {
                let bit = 1 << (position - state.oldest);
                let step = self.step_at(queue, position);
                if (state.arrived | state.done) & bit == 0 && last != Some(step) {
                    last = Some(step);
                    let (at, op) = self.source(self.program.source[step]);
                    let compiled = &self.program.steps[step];
                    let slice = position - compiled.first;
                    pending.push(Pending {
                        at,
                        op,
                        peer: self.peer(queue.peer),
                        slice,
                        slices: compiled.slices,
                    });
                }
            }
        }
        pending
    }

    fn find(
        &self,
        queues: Range<usize>,
        peer: Rank,
        lane: u16,
        message: u32,
        slice: u32,
    ) -> Option<ActionId> {
        let first = queues.start;
        let queues = &self.program.queues[queues];
        let queue = queues
            .binary_search_by_key(&(lane, peer), |q| (q.lane, q.peer))
            .ok()?;
        let steps = queues[queue].steps.clone();
        let steps = &self.program.steps[steps.start as usize..steps.end as usize];
        // Where no message is empty, the number of a message is its place.
        let step = match steps.get(message as usize) {
            Some(step) if step.message == message => step,
            _ => &steps[steps.binary_search_by_key(&message, |s| s.message).ok()?],
        };
        let position = step.first + slice;
        (slice < step.slices).then_some(ActionId {
            queue: (first + queue) as u32,
            position,
        })
    }

    /// Where a step of the rank's program stands, and what it does.
    fn source(&self, number: usize) -> (StepRef, Op) {
        let lanes = &self.schedule.programs[self.rank].lanes;
        let mut step = number;
        for (lane, steps) in lanes.iter().enumerate() {
            match steps.steps.get(step) {
                Some(found) => return (StepRef { lane, step }, found.op),
                None => step -= steps.steps.len(),
            }
        }
        unreachable!("steps are compiled from the schedule, which does not change")
    }

    fn step_at(&self, queue: &Queue, position: u32) -> usize {
        let steps = &self.program.steps[queue.steps.start as usize..queue.steps.end as usize];
        queue.steps.start as usize + steps.partition_point(|s| s.first <= position) - 1
    }
}
