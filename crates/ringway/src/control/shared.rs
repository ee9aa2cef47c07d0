//! What the control thread and the callers share.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::Signal;

use super::{Activity, Cause, Failure, activity::Watch, machine::News};
use crate::bootstrap::Member;

type Callback = Box<dyn Fn() + Send + Sync>;

pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) members: Arc<[Member]>,
    pub(super) activity: Activity,
    /// Raised when there is a command.
    pub(super) wake: Signal,
    failure: OnceLock<Arc<Failure>>,
    left: Box<[AtomicBool]>,
    callbacks: Mutex<Vec<Callback>>,
    desk: Mutex<Desk>,
    /// The desk, or the failure, has changed.
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    commands: Vec<Command>,
    ready: bool,
    /// All ranks have joined in full, as far as this one waits for that.
    complete: bool,
    ended: bool,
}

/// From a caller to the control thread.
pub(super) enum Command {
    Joined,
    Leave { patience: Duration },
    Report { rank: Rank, cause: Cause },
}

impl Shared {
    pub(super) fn new(rank: Rank, members: Arc<[Member]>) -> std::io::Result<Arc<Self>> {
        let left = members.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Arc::new(Self {
            rank,
            members,
            activity: Activity::default(),
            wake: Signal::new()?,
            failure: OnceLock::new(),
            left,
            callbacks: Mutex::default(),
            desk: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn failure(&self) -> Option<&Arc<Failure>> {
        self.failure.get()
    }

    #[inline]
    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.left
            .get(rank)
            .is_some_and(|left| left.load(Ordering::Acquire))
    }

    /// A failure with all that is known of the rank, and what was seen of the one that [`Cause::heard`] names.
    pub(super) fn describe(&self, rank: Rank, cause: Cause, watch: Option<&Watch>) -> Failure {
        let member = &self.members[rank];
        let mut operation = watch.map_or_else(String::new, |w| w.snapshot.operation_text());
        let mut step = String::new();
        match watch {
            Some(watch) if !operation.is_empty() => step = watch.snapshot.step_text(),
            // Of a rank that others wait for, that it is in none says most.
            Some(_) if cause.heard(rank) != Some(rank) => operation += "no operation",
            _ => {}
        }
        Failure {
            rank,
            host: member.host.clone(),
            pid: member.pid,
            cause,
            operation,
            step,
            since: watch.map_or(Duration::ZERO, |watch| watch.since),
        }
    }

    /// As [`Shared::describe`], for a failure that this process decides alone.
    pub(super) fn describe_alone(&self, rank: Rank, cause: Cause) -> Failure {
        let now = Instant::now();
        let mut watch = Watch::new(now);
        watch.look(self.activity.snapshot(), now);
        let is_own = cause.heard(rank) == Some(self.rank);
        self.describe(rank, cause, is_own.then_some(&watch))
    }

    /// Makes this the failure, unless there is one already; returns the one that holds.
    pub(super) fn settle(&self, failure: Failure) -> Arc<Failure> {
        let holds = Arc::clone(self.failure.get_or_init(|| Arc::new(failure)));
        self.announce();
        holds
    }

    pub(super) fn note(&self, news: News) {
        match news {
            News::Failed(failure) => {
                let holds = self.settle(failure);
                tracing::error!("{holds}");
            }
            News::Left(rank) => {
                if let Some(left) = self.left.get(rank) {
                    left.store(true, Ordering::Release);
                }
                self.announce();
            }
            News::Complete => {
                self.desk().complete = true;
                self.changed.notify_all();
            }
            News::Ready => {
                self.desk().ready = true;
                self.changed.notify_all();
            }
        }
    }

    /// Wakes whoever waits here, and whoever sleeps in an operation.
    fn announce(&self) {
        // With the lock held a waiter either has not looked yet, or waits already.
        drop(self.desk());
        self.changed.notify_all();
        for wake in self
            .callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            wake();
        }
    }

    pub(super) fn on_change(&self, wake: Callback) {
        let mut callbacks = self
            .callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.failure().is_some() {
            wake();
        }
        callbacks.push(wake);
    }

    /// Tells the control thread; false if it has ended.
    pub(super) fn command(&self, command: Command) -> bool {
        let mut desk = self.desk();
        if desk.ended {
            return false;
        }
        desk.commands.push(command);
        self.wake.raise();
        true
    }

    pub(super) fn take_commands(&self) -> Vec<Command> {
        self.wake.clear();
        std::mem::take(&mut self.desk().commands)
    }

    /// The control thread has ended.
    pub(super) fn note_end(&self) {
        self.desk().ended = true;
        self.changed.notify_all();
    }

    /// Waits, until `deadline`, for all ranks to be connected, or a failure.
    pub(super) fn wait_ready(&self, deadline: Instant) -> bool {
        self.wait(deadline, |desk| desk.ready)
    }

    /// Waits, until `deadline`, for all ranks to have joined in full, or a failure.
    pub(super) fn wait_complete(&self, deadline: Instant) -> bool {
        self.wait(deadline, |desk| desk.complete)
    }

    /// Waits, until `deadline`, for a failure.
    pub(super) fn wait_failure(&self, deadline: Instant) {
        self.wait(deadline, |desk| desk.ended);
    }

    /// Waits, until `deadline`, for the end of the control thread.
    pub(super) fn wait_end(&self, deadline: Instant) {
        let mut desk = self.desk();
        while !desk.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            desk = self
                .changed
                .wait_timeout(desk, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn wait(&self, deadline: Instant, done: impl Fn(&Desk) -> bool) -> bool {
        let mut desk = self.desk();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if done(&desk) {
                return true;
            }
            if self.failure().is_some() || left.is_zero() {
                return false;
            }
            desk = self
                .changed
                .wait_timeout(desk, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rank", &self.rank)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
