//! Operations in memory that all members of a group map.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ringway_link::shm::mapped::{MappedCall, MappedError, MappedGroup, MappedOp, Progress};
use ringway_plan::Rank;

use super::{Engine, Task, after, failure::LAST_WORDS, lock, try_lock};
use crate::{Descriptor, Error, control::Cause, group::Group};

/// The operation of an asynchronous task: the worker steps it, or whoever waits runs it.
pub(crate) struct MappedTask {
    members: Arc<[Rank]>,
    op: Mutex<Option<MappedOp>>,
}

impl MappedTask {
    /// Steps the operation, unless it has ended or another thread has it in hand.
    pub(super) fn try_step(&self, task: &Task, engine: &Engine) -> Progress {
        let Some(mut slot) = try_lock(&self.op) else {
            return Progress::Done;
        };
        let Some(op) = slot.as_mut() else {
            return Progress::Done;
        };
        match op.step() {
            Ok(Progress::Done) => {
                *slot = None;
                drop(slot);
                task.finish(Ok(()));
                Progress::Done
            }
            Ok(progress) => progress,
            Err(error) => {
                *slot = None;
                drop(slot);
                task.finish(Err(engine.mapped_error(
                    &task.descriptor,
                    &self.members,
                    error,
                )));
                Progress::Done
            }
        }
    }

    /// Asks to be woken when the operation may move; false if it may already.
    pub(super) fn arm(&self) -> bool {
        try_lock(&self.op).is_some_and(|slot| slot.as_ref().is_none_or(MappedOp::arm))
    }

    /// Gives the operation up.
    pub(super) fn fail(&self, task: &Task, engine: &Engine) {
        if let Some(op) = lock(&self.op).take() {
            let error = op.timeout(task.begun.elapsed());
            drop(op);
            task.finish(Err(engine.mapped_error(
                &task.descriptor,
                &self.members,
                error,
            )));
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
    ) -> Result<Option<MappedOp>, Error> {
        self.usable()?;
        mapped
            .begin(call)
            .map_err(|error| self.mapped_error(descriptor, &group.members, error))
    }

    /// Runs an operation on this thread, until it is done or `stop` says so: then it is given back.
    pub(crate) fn drive_mapped(
        &self,
        mut op: MappedOp,
        descriptor: &Descriptor,
        group: u64,
        members: &[Rank],
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<MappedOp>, Error> {
        let activity = self.control.activity();
        activity.begin(descriptor.collective, group, op.number() as u32);
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
        let result = op.run(after(Instant::now(), timeout), &interrupt);
        activity.end();
        match result {
            Ok(()) => Ok(None),
            Err(MappedError::Interrupted { .. }) if stopped.get() => Ok(Some(op)),
            Err(error) => Err(self.mapped_error(descriptor, members, error)),
        }
    }

    /// Starts an operation that [`Self::drive_behind`] has driven.
    pub(crate) fn start_mapped(
        &self,
        group: &Group,
        mapped: &MappedGroup,
        call: MappedCall,
        descriptor: &Descriptor,
    ) -> Result<MappedOp, Error> {
        self.usable()?;
        mapped
            .start(call)
            .map_err(|e| self.mapped_error(descriptor, &group.members, e))
    }

    /// Has the worker drive an operation until somebody waits for it.
    pub(crate) fn drive_behind(self: &Arc<Self>, group: &Group, op: MappedOp, task: &Arc<Task>) {
        let mapped = task.set_mapped(MappedTask {
            members: group.members.clone(),
            op: Mutex::new(Some(op)),
        });
        // What can be done at once is, so that peers need not wait for the worker.
        mapped.try_step(task, self);
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
        let Some(mut slot) = try_lock(&mapped.op) else {
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
        match self.drive_mapped(
            op,
            &task.descriptor,
            task.group,
            &mapped.members,
            left,
            stop,
        ) {
            Ok(None) => task.finish(Ok(())),
            Ok(unfinished) => {
                *lock(&mapped.op) = unfinished;
                self.wake();
            }
            Err(error) => task.finish(Err(error)),
        }
        true
    }

    /// What an error in mapped memory means for the job; all ranks are told.
    fn mapped_error(&self, descriptor: &Descriptor, members: &[Rank], error: MappedError) -> Error {
        let me = self.world.rank;
        let told = |text: String| format!(" [rank {me} was in {descriptor}{text}]");
        let waited_for = |member: usize, op: u64, point: u64| {
            let peer = members[member];
            let what = if point == 0 {
                "call it".to_owned()
            } else {
                format!("reach point {point} of its program")
            };
            let host = &self.world.members[peer].host;
            format!(
                " (operation {}), waiting for rank {peer} on host {host} to {what}",
                op - 1
            )
        };
        match error {
            MappedError::Interrupted { member, op, point } => {
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
                    context: told(waited_for(member, op, point)),
                }
            }
            MappedError::Timeout {
                member,
                op,
                point,
                waited,
            } => {
                let failure = match self.control.failure() {
                    Some(failure) => failure,
                    None => self.control.report(me, Cause::Timeout { limit: waited }),
                };
                Error::Failed {
                    failure,
                    context: told(waited_for(member, op, point)),
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
                    expected: descriptor.to_string(),
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
