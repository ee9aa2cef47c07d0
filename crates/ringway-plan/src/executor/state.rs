//! How far a program has come.

use super::compile::{Program, Queue};

/// How far a queue has come. Positions count slices through all steps of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Of messages: the next to start. Of local steps: at the end from the start.
    pub(super) start: Cursor,
    /// Of receives and local steps: the next to work on.
    pub(super) work: Cursor,
    /// The oldest that is not done, and its step.
    pub(super) oldest: u32,
    pub(super) oldest_step: u32,
    /// Of receives: which have arrived, counted from the oldest.
    pub(super) arrived: u64,
    /// Which are done, counted from the oldest.
    pub(super) done: u64,
    /// Whether the queue is in `Executor::starting`, and in `Executor::working`.
    pub(super) in_starting: bool,
    pub(super) in_working: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) position: u32,
    pub(super) step: u32,
    /// How many of the step's slices are known to wait for nothing.
    pub(super) open: u32,
    /// The first of the step's dependencies that is not fulfilled for good.
    pub(super) dep: u32,
}

impl State {
    pub(super) fn new(program: &Program, index: usize, queue: &Queue) -> Self {
        let first = Cursor::at(program, queue.steps.start, 0);
        let messages = index < program.senders + program.receivers;
        let last = &program.steps[queue.steps.end as usize - 1];
        let end = Cursor::at(program, queue.steps.end, last.first + last.slices);
        Self {
            start: if messages { first } else { end },
            work: first,
            oldest: 0,
            oldest_step: queue.steps.start,
            arrived: 0,
            done: 0,
            in_starting: messages,
            in_working: !messages,
        }
    }
}

impl Cursor {
    /// At the first slice of a step.
    pub(super) fn at(program: &Program, step: u32, position: u32) -> Self {
        let dep = program.steps.get(step as usize).map_or(0, |s| s.deps.start);
        Self {
            position,
            step,
            open: 0,
            dep,
        }
    }
}
