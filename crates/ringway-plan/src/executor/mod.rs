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
mod state;

use std::{collections::VecDeque, ops::Range};

pub use action::{Action, ActionId, Pending, Place};

use compile::{Dep, Kind, Program, Queue, Step};
use state::{Cursor, State};

use crate::{
    layout::Layout,
    schedule::Rank,
    verify::{Memory, Verified},
};

/// How many slices of a lane may be under way between two ranks in one direction. Eight slices of 128 KiB cover
/// the bandwidth-delay product of 100 Gbit/s at 80 us, and bound what a transport must hold for
/// views. At most 64, because a queue keeps one bit for each.
pub const WINDOW: u32 = 8;

/// Runs one rank's program. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Executor {
    program: Program,
    queues: Vec<State>,
    /// The state of each queue at the start.
    initial: Vec<State>,
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
        let initial: Vec<State> = program
            .queues
            .iter()
            .enumerate()
            .map(|(q, queue)| State::new(&program, q, queue))
            .collect();
        let mut executor = Self {
            queues: initial.clone(),
            starting: VecDeque::with_capacity(program.senders + program.receivers),
            working: VecDeque::with_capacity(initial.len()),
            left: 0,
            initial,
            program,
        };
        executor.reset();
        executor
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
    pub const fn scratch_bytes(&self) -> usize {
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
                    let (at, op) = self.program.source[step];
                    let compiled = &self.program.steps[step];
                    let slice = position - compiled.first;
                    pending.push(Pending {
                        at,
                        op,
                        peer: queue.peer,
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

    fn step_at(&self, queue: &Queue, position: u32) -> usize {
        let steps = &self.program.steps[queue.steps.start as usize..queue.steps.end as usize];
        queue.steps.start as usize + steps.partition_point(|s| s.first <= position) - 1
    }

    fn queue_start(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        if !std::mem::replace(&mut state.in_starting, true) {
            self.starting.push_back(queue);
        }
    }

    fn queue_work(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        if !std::mem::replace(&mut state.in_working, true) {
            self.working.push_back(queue);
        }
    }

    /// Starts the next message of a queue, if it may.
    fn start(&mut self, index: u32) -> Option<Action> {
        let queue = &self.program.queues[index as usize];
        let State {
            start: mut cursor,
            oldest,
            ..
        } = self.queues[index as usize];
        if cursor.step == queue.steps.end || cursor.position - oldest >= WINDOW {
            return None;
        }
        let step = &self.program.steps[cursor.step as usize];
        let waits = matches!(step.kind, Kind::Send | Kind::Recv);
        if waits && !self.open(&mut cursor) {
            self.queues[index as usize].start = cursor;
            return None;
        }
        let id = ActionId {
            queue: index,
            position: cursor.position,
        };
        let (peer, lane, message) = (queue.peer, queue.lane, step.message);
        let slice = cursor.position - step.first;
        let place = |operand| step.place(operand, slice, self.program.slice_bytes);
        let action = match step.kind {
            Kind::Send => {
                let src = place(step.reads[0]);
                Action::Send {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    src,
                }
            }
            Kind::Recv | Kind::Signal => {
                let dst = place(step.writes);
                Action::Recv {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                }
            }
            Kind::RecvReduce(_) => {
                let view = queue.view(cursor.position);
                Action::View {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    len: place(step.writes).len,
                    view,
                }
            }
            Kind::Copy | Kind::Reduce | Kind::Nothing => {
                unreachable!("local steps are in queues of their own")
            }
        };
        self.advance(&mut cursor);
        self.queues[index as usize].start = cursor;
        Some(action)
    }

    /// Does the next local work of a queue, if there is some to do.
    fn work(&mut self, index: u32) -> Option<Action> {
        loop {
            let queue = &self.program.queues[index as usize];
            let State {
                start,
                work: mut cursor,
                oldest,
                arrived,
                ..
            } = self.queues[index as usize];
            if cursor.position == start.position || cursor.position - oldest >= u64::BITS {
                return None;
            }
            let step = &self.program.steps[cursor.step as usize];
            let local = matches!(step.kind, Kind::Copy | Kind::Reduce | Kind::Nothing);
            if !local && arrived & (1 << (cursor.position - oldest)) == 0 {
                return None;
            }
            if step.kind != Kind::Recv && !self.open(&mut cursor) {
                self.queues[index as usize].work = cursor;
                return None;
            }
            let position = cursor.position;
            let id = ActionId {
                queue: index,
                position,
            };
            let slice = position - step.first;
            let place = |operand| step.place(operand, slice, self.program.slice_bytes);
            let (a, b, dst) = (
                place(step.reads[0]),
                place(step.reads[1]),
                place(step.writes),
            );
            let finish = step.finish;
            let action = match step.kind {
                Kind::Copy => Some(Action::Copy { id, src: a, dst }),
                Kind::Reduce => Some(Action::Reduce {
                    id,
                    a,
                    b,
                    dst,
                    finish,
                }),
                Kind::RecvReduce(order) => {
                    let view = queue.view(position);
                    Some(Action::Combine {
                        id,
                        view,
                        own: a,
                        dst,
                        order,
                        finish,
                    })
                }
                Kind::Recv | Kind::Signal | Kind::Nothing => None,
                Kind::Send => unreachable!("sends are not queued for work"),
            };
            self.advance(&mut cursor);
            self.queues[index as usize].work = cursor;
            if action.is_some() {
                return action;
            }
            self.finish(index, position);
        }
    }

    /// Whether the slice at the cursor waits for nothing.
    fn open(&self, cursor: &mut Cursor) -> bool {
        let step = &self.program.steps[cursor.step as usize];
        let slice = cursor.position - step.first;
        if slice < cursor.open {
            return true;
        }
        let allowed = |dep: &Dep| match self.queues[dep.queue as usize]
            .oldest
            .saturating_sub(dep.first)
        {
            done if done >= dep.slices => u32::MAX,
            done => (i64::from(done) - i64::from(dep.lag)).max(0) as u32,
        };
        let mut open = u32::MAX;
        for index in cursor.dep..step.deps.end {
            let slices = allowed(&self.program.deps[index as usize]);
            if slices == u32::MAX && index == cursor.dep {
                cursor.dep += 1;
            }
            open = open.min(slices);
        }
        cursor.open = open;
        slice < open
    }

    fn advance(&self, cursor: &mut Cursor) {
        cursor.position += 1;
        let step = &self.program.steps[cursor.step as usize];
        if cursor.position - step.first == step.slices {
            *cursor = Cursor::at(&self.program, cursor.step + 1, cursor.position);
        }
    }

    /// Notes that a slice has taken effect, and looks again at what waited for it.
    fn finish(&mut self, index: u32, position: u32) {
        let state = &mut self.queues[index as usize];
        state.done |= 1 << (position - state.oldest);
        while self.queues[index as usize].done & 1 != 0 {
            let state = &mut self.queues[index as usize];
            state.done >>= 1;
            state.arrived >>= 1;
            state.oldest += 1;
            self.left -= 1;
            let step = &self.program.steps[state.oldest_step as usize];
            if state.oldest - step.first == step.slices {
                state.oldest_step += 1;
            }
            for i in step.wakes.clone() {
                self.wake(self.program.wakes[i as usize]);
            }
        }
        if (index as usize) < self.program.senders + self.program.receivers {
            self.queue_start(index);
        }
    }

    /// Looks again at a step that waits, if its queue has come to it.
    fn wake(&mut self, step: u32) {
        let Step { kind, queue, .. } = self.program.steps[step as usize];
        let state = &self.queues[queue as usize];
        if matches!(kind, Kind::Send | Kind::Recv) {
            if state.start.step == step {
                self.queue_start(queue);
            }
        } else if state.work.step == step {
            self.queue_work(queue);
        }
    }
}
