//! Operations in memory that all members of a group map.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ringway_link::shm::mapped::{MappedCall, MappedError, MappedGroup, MappedOp, Progress};
use ringway_plan::Rank;

use super::{Engine, Label, Limit, Task, after, failure::LAST_WORDS, lock, try_lock};
use crate::{Descriptor, Error, control::Cause, group::Group};

/// The operation of an asynchronous task: the worker steps it, or whoever waits runs it.
pub(crate) struct MappedTask(Mutex<Option<MappedOp>>);

/// What came of stepping an operation.
pub(super) enum Stepped {
    /// Much was moved, and there may be more.
    Moved,
    /// It can do nothing more, after something was done or not.
    Waits { has_advanced: bool },
    /// Another thread has it in hand, or it has ended before.
    Elsewhere,
    /// Just now. If threads sleep for it, they are still to be [woken](Task::wake).
    Ended { is_slept_for: bool },
}

impl MappedTask {
    /// Steps the operation, unless it has ended or another thread has it in hand.
    pub(super) fn try_step(&self, task: &Task, engine: &Engine) -> Stepped {
        let Some(mut slot) = try_lock(&self.0) else {
            return Stepped::Elsewhere;
        };
        let Some(op) = slot.as_mut() else {
            return Stepped::Elsewhere;
        };
        let before = op.point();
        let result = match op.step() {
            Ok(Progress::Moved) => return Stepped::Moved,
            Ok(Progress::Waiting { .. }) => {
                let has_advanced = op.point() != before;
                return Stepped::Waits { has_advanced };
            }
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        *slot = None;
        drop(slot);
        let result = result.map_err(|error| engine.task_error(task, error));
        let is_slept_for = task.end(result);
        Stepped::Ended { is_slept_for }
    }

    /// Whether it waits for earlier operations of its group to end.
    pub(super) fn is_queued(&self) -> bool {
        try_lock(&self.0).is_some_and(|slot| slot.as_ref().is_some_and(|op| !op.has_begun()))
    }

    /// Asks to be woken when the operation may move, from the next heavy barrier on.
    pub(super) fn arm(&self) {
        if let Some(slot) = try_lock(&self.0)
            && let Some(op) = slot.as_ref()
        {
            op.arm();
        }
    }

    /// Whether a step may find something to do: also if another thread has the operation in hand.
    pub(super) fn may_move(&self) -> bool {
        try_lock(&self.0).is_none_or(|slot| slot.as_ref().is_some_and(MappedOp::may_move))
    }

    /// Gives the operation up.
    pub(super) fn fail(&self, task: &Task, engine: &Engine) {
        if let Some(op) = lock(&self.0).take() {
            let error = op.timeout(task.begun.elapsed());
            drop(op);
            task.finish(Err(engine.task_error(task, error)));
        }
    }
}

impl Engine {
    /// Starts an operation on this thread; one that is small and whose members are all there is carried out: `None`.
    #[inline]
    pub(crate) fn begin_mapped(
        &self,
        group: &Group,
        mapped: &MappedGroup,
        call: &MappedCall,
        descriptor: &Descriptor,
        limit: Limit,
    ) -> Result<Option<MappedOp>, Error> {
        self.usable()?;
        mapped.begin(call).map_err(|error| {
            self.mapped_error(
                &self.label(descriptor, group.id, &group.members),
                &limit,
                error,
            )
        })
    }

    /// Runs an operation on this thread, until it is done or `stop` says so: then it is given back.
    pub(crate) fn drive_mapped(
        &self,
        mut op: MappedOp,
        label: &Label<'_>,
        limit: Limit,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<MappedOp>, Error> {
        let activity = self.control.activity();
        activity.begin(label.descriptor.collective, label.group, op.number() - 1);
        let members = label.members;
        let left_since: Cell<Option<Instant>> = Cell::new(None);
        let stopped = Cell::new(false);
        let interrupt = || {
            if self.control.failure().is_some() {
                return true;
            }
            if stop() {
                stopped.set(true);
                return true;
            }
            // What a rank wrote before it left is there already; so it is waited for no longer.
            if !members.iter().any(|&member| self.control.has_left(member)) {
                return false;
            }
            let now = Instant::now();
            let since = left_since.get().unwrap_or(now);
            left_since.set(Some(since));
            now - since > LAST_WORDS
        };
        let result = op.run(after(Instant::now(), limit.time), &interrupt);
        activity.end();
        match result {
            Ok(()) => Ok(None),
            Err(MappedError::Interrupted { .. }) if stopped.get() => Ok(Some(op)),
            Err(error) => Err(self.mapped_error(label, &limit, error)),
        }
    }

    /// Starts an operation that [`Self::drive_behind`] has driven.
    pub(crate) fn start_mapped(
        &self,
        group: &Group,
        mapped: &MappedGroup,
        call: MappedCall,
        descriptor: &Descriptor,
        limit: Limit,
    ) -> Result<MappedOp, Error> {
        self.usable()?;
        mapped.start(call).map_err(|error| {
            self.mapped_error(
                &self.label(descriptor, group.id, &group.members),
                &limit,
                error,
            )
        })
    }

    /// Has the worker drive an operation until somebody waits for it.
    pub(crate) fn drive_behind(self: &Arc<Self>, op: MappedOp, task: &Arc<Task>) {
        let mapped = task.set_mapped(MappedTask(Mutex::new(Some(op))));
        // What can be done at once is, so that peers need not wait for the worker.
        if let Stepped::Ended { is_slept_for: true } = mapped.try_step(task, self) {
            task.wake();
        }
        if !task.is_done() {
            self.worker.watch(self, task.clone());
        }
    }

    /// Runs an asynchronous operation to its end on the waiting thread, or until `stop` says so. False if the
    /// worker has it in hand.
    pub(super) fn take_over(
        &self,
        task: &Task,
        mapped: &MappedTask,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        let Some(mut slot) = try_lock(&mapped.0) else {
            return false;
        };
        let op = slot.take();
        drop(slot);
        let Some(op) = op else {
            // It has ended, or another waiter runs it.
            task.sleep(Duration::from_micros(50));
            return true;
        };
        let left = task.deadline.saturating_duration_since(Instant::now());
        let limit = Limit {
            time: left,
            ..task.limit
        };
        match self.drive_mapped(op, &task.label(self.world.rank), limit, stop) {
            Ok(None) => task.finish(Ok(())),
            Ok(unfinished) => {
                *lock(&mapped.0) = unfinished;
                self.wake();
            }
            Err(error) => task.finish(Err(error)),
        }
        true
    }

    /// The name of an operation whose number is not known yet.
    pub(crate) fn label<'a>(
        &self,
        descriptor: &'a Descriptor,
        group: u64,
        members: &'a [Rank],
    ) -> Label<'a> {
        Label {
            descriptor,
            group,
            members,
            me: self.world.rank,
            call: None,
        }
    }

    fn task_error(&self, task: &Task, error: MappedError) -> Error {
        self.mapped_error(&task.label(self.world.rank), &task.limit, error)
    }

    /// What an error in mapped memory means for the job; all ranks are told.
    fn mapped_error(&self, label: &Label<'_>, limit: &Limit, error: MappedError) -> Error {
        let (me, members) = (self.world.rank, label.members);
        // The error knows the number of the operation even where its caller does not.
        let label = Label {
            call: match &error {
                MappedError::Interrupted { op, .. } | MappedError::Timeout { op, .. } => {
                    Some(op - 1)
                }
                _ => label.call,
            },
            ..*label
        };
        let told = |text: String| format!(" [rank {me} was in {label}{text}]");
        let waited_for = |member: usize, point: u64| {
            let peer = members[member];
            let what = if point == 0 {
                "call it".to_owned()
            } else {
                format!("reach point {point} of its program")
            };
            let host = &self.world.members[peer].host;
            format!(", waiting for rank {peer} on host {host} to {what}")
        };
        match error {
            MappedError::Interrupted { member, point, .. } => {
                let left = members
                    .iter()
                    .copied()
                    .find(|&peer| self.control.has_left(peer));
                let failure = match (self.control.failure(), left) {
                    (Some(failure), _) => failure,
                    (None, Some(peer)) => self.control.report(peer, Cause::Left),
                    (None, None) => self.control.report(members[member], Cause::Crashed),
                };
                Error::Failed {
                    failure,
                    context: told(waited_for(member, point)),
                }
            }
            MappedError::Timeout {
                member,
                point,
                waited,
                ..
            } => {
                let failure = match self.control.failure() {
                    Some(failure) => failure,
                    None => self.report_timeout(&label, limit, waited, Some(members[member])),
                };
                Error::Failed {
                    failure,
                    context: told(waited_for(member, point)),
                }
            }
            MappedError::Mismatch {
                member,
                theirs,
                mine: _,
            } => {
                let found = Descriptor::decode(theirs.0).map_or_else(
                    || "another operation".to_owned(),
                    |theirs| theirs.to_string(),
                );
                let cause = Cause::Mismatch {
                    other: me,
                    expected: label.descriptor.to_string(),
                    found,
                };
                let failure = self.control.report(members[member], cause);
                Error::Failed {
                    failure,
                    context: told(String::new()),
                }
            }
            MappedError::Corrupt { member, .. } => {
                let cause = Cause::Misfit {
                    peer: me,
                    detail: error.to_string(),
                };
                let failure = self.control.report(members[member], cause);
                Error::Failed {
                    failure,
                    context: told(String::new()),
                }
            }
            MappedError::Arena(error) => Error::Memory(error.to_string()),
            error => Error::Argument(error.to_string()),
        }
    }
}
