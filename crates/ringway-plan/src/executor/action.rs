//! What the executor tells its driver to do.

use std::{fmt, ops::Range};

use crate::schedule::{Op, Order, Rank, Space, StepRef};

/// Names an action, from [`Executor::poll`](super::Executor::poll) to [`Executor::handle_done`](super::Executor::handle_done).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId {
    pub(super) queue: u32,
    pub(super) position: u32,
}

/// A byte range of one of the rank's memory spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which space.
    pub space: Space,
    /// The first byte, from the start of the space.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
}

impl Place {
    /// The bytes, from the start of the space.
    pub const fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// What may start now. Messages are named by lane, number in the lane between the two ranks, and slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `dst = src`.
    Copy {
        /// For [`Executor::handle_done`](super::Executor::handle_done).
        id: ActionId,
        /// Read.
        src: Place,
        /// Written.
        dst: Place,
    },
    /// `dst = own (op) view`, in `order`; then give the view back. Same `id` as the [`Action::View`].
    Combine {
        /// For [`Executor::handle_done`](super::Executor::handle_done).
        id: ActionId,
        /// The number of the view.
        view: usize,
        /// The rank's own operand.
        own: Place,
        /// Written.
        dst: Place,
        /// Which operand stands first.
        order: Order,
        /// Whether the result is complete: an average divides now.
        finish: bool,
    },
    /// Receive a message into place.
    Recv {
        /// For [`Executor::handle_done`](super::Executor::handle_done), when it is there.
        id: ActionId,
        /// The sender.
        peer: Rank,
        /// The schedule's lane.
        lane: u16,
        /// Which message.
        message: u32,
        /// Which slice of it.
        slice: u32,
        /// Written. Empty for a signal.
        dst: Place,
    },
    /// `dst = a (op) b`.
    Reduce {
        /// For [`Executor::handle_done`](super::Executor::handle_done).
        id: ActionId,
        /// The first operand.
        a: Place,
        /// The second operand.
        b: Place,
        /// Written.
        dst: Place,
        /// Whether the result is complete: an average divides now.
        finish: bool,
    },
    /// Send a message.
    Send {
        /// For [`Executor::handle_done`](super::Executor::handle_done), when `src` may be reused.
        id: ActionId,
        /// The receiver.
        peer: Rank,
        /// The schedule's lane.
        lane: u16,
        /// Which message.
        message: u32,
        /// Which slice of it.
        slice: u32,
        /// Read. Empty for a signal.
        src: Place,
    },
    /// Receive a message anywhere, and hold it for an [`Action::Combine`] that follows when the other operand is
    /// there.
    View {
        /// For [`Executor::handle_done`](super::Executor::handle_done), when it is there; the `Combine` has the same.
        id: ActionId,
        /// The sender.
        peer: Rank,
        /// The schedule's lane.
        lane: u16,
        /// Which message.
        message: u32,
        /// Which slice of it.
        slice: u32,
        /// Bytes.
        len: usize,
        /// A number below [`Executor::views`](super::Executor::views) that no other view has until its `Combine` is done.
        view: usize,
    },
}

/// A message that the executor waits for, for people: see its `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The step.
    pub at: StepRef,
    /// What it does.
    pub op: Op,
    /// The other rank.
    pub peer: Rank,
    /// The oldest slice that is not done.
    pub slice: u32,
    /// How many slices the message has.
    pub slices: u32,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "waiting for rank {} at {}: {}",
            self.peer, self.at, self.op
        )?;
        match self.slices {
            1 => Ok(()),
            slices => write!(f, " (slice {} of {slices})", self.slice + 1),
        }
    }
}
