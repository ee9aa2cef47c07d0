//! What the two kinds of control thread have in common, without their sockets.

use std::time::{Duration, Instant};

use ringway_plan::Rank;

use super::{Cause, Failure, message::Message};

/// A rank's part in the control plane as a state machine: what happens goes in (`handle_*`), messages and news come
/// out (`poll_*`). Time is an argument, and never runs backwards.
pub(super) trait Machine: Send {
    /// A connection to this rank is there.
    fn handle_connected(&mut self, rank: Rank, now: Instant);
    /// This message has come.
    fn handle_message(&mut self, from: Rank, message: Message, now: Instant);
    /// The connection to this rank is gone.
    fn handle_closed(&mut self, rank: Rank, now: Instant);
    /// This process says that a rank has failed.
    fn handle_report(&mut self, rank: Rank, cause: Cause, now: Instant);
    /// This process has joined the job in full: it needs nothing more of the others for that.
    fn handle_joined(&mut self, now: Instant);
    /// This process leaves, within `patience`.
    fn handle_leave(&mut self, now: Instant, patience: Duration);
    /// It is now so late. Everything that has come before must have been handled.
    fn handle_time(&mut self, now: Instant);
    /// When [`Machine::handle_time`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;
    /// The next message to send.
    fn poll_message(&mut self) -> Option<(Rank, Message)>;
    /// The next thing that this process is to know.
    fn poll_news(&mut self) -> Option<News>;
    /// Whether this rank has left, and nothing is to be done any more.
    fn is_finished(&self) -> bool;
}

/// What the process is to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// All ranks have joined the job in full.
    Complete,
    /// The job has failed, and so.
    Failed(Failure),
    /// This rank has left in good order.
    Left(Rank),
    /// All ranks are connected.
    Ready,
}

/// The times that signs of life go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Between two pings.
    pub(super) heartbeat: Duration,
    /// Silence that counts as failure.
    pub(super) failure_after: Duration,
    /// For all ranks to connect.
    pub(super) connect: Duration,
}

/// How late the other side's answers have been of late.
///
/// On a machine with more busy threads than cores, a control thread gets its turn late although nothing is wrong.
/// It was late before it is very late: a rank gets twice its worst recent lateness on top of the silence that is
/// allowed, up to that silence again. The worst is forgotten by an eighth with each sign of life.
#[derive(Debug, Default)]
pub(super) struct Lateness(Duration);

impl Lateness {
    pub(super) fn note(&mut self, late: Duration) {
        self.0 = late.max(self.0 / 8 * 7);
    }

    pub(super) fn allowance(&self, timing: &Timing) -> Duration {
        (self.0 * 2).min(timing.failure_after)
    }
}

/// How much later than it wanted its turn a thread may come without having been starved.
const TURN: Duration = Duration::from_millis(50);

/// The excuse for a silence that should have been judged at `due`: a judge that comes late itself has most likely run
/// on a machine that had no turn for the other side either. It gives the other side the time that it has missed
/// itself, up to the silence that is allowed; then it looks again.
pub(super) fn excuse(due: Instant, now: Instant, timing: &Timing) -> Duration {
    let late = now.saturating_duration_since(due);
    if late > TURN {
        late.min(timing.failure_after)
    } else {
        Duration::ZERO
    }
}
