//! What the engine does when an operation cannot end: it tells the control plane, and the caller by name.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::LinkError;
use ringway_plan::Rank;

use super::{Driver, Engine, Label, Limit, Task, after, driver::Trouble, lock};
use crate::{
    Descriptor, Error, Form,
    control::{Cause, Failure},
};

/// How long what a rank sent before it left may take to arrive.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(200);

impl Engine {
    /// Ends `task` with the job's failure, or with its own if its deadline has passed. Its memory is not
    /// touched any more when this returns.
    pub(super) fn fail(&self, task: &Task, now: Instant) {
        if now < task.deadline && self.control.failure().is_none() {
            return;
        }
        self.give_up(task, task.limit.time);
    }

    /// Ends `task`, which has not ended in `time`.
    fn give_up(&self, task: &Task, time: Duration) {
        if task.is_done() {
            return;
        }
        let op = lock(&self.driver).cancel(task.group, task.number);
        let waiting = op.as_ref().and_then(|op| op.waiting_for().next());
        let failure = match (self.control.failure(), &waiting) {
            (Some(failure), _) => failure,
            (None, Some((peer, _))) if self.control.has_left(*peer) => {
                self.control.report(*peer, Cause::Left)
            }
            (None, waiting) => {
                let awaited = waiting.as_ref().map(|(peer, _)| *peer);
                let label = task.label(self.world.rank);
                self.report_timeout(&label, &task.limit, time, awaited)
            }
        };
        let mut context = format!(
            " [rank {} was in {}",
            self.world.rank,
            task.label(self.world.rank)
        );
        if let Some((peer, pending)) = waiting {
            let member = &self.world.members[peer];
            context += &format!(
                ", {pending}, which is rank {peer} of the world on host {}",
                member.host
            );
        }
        context += "]";
        task.finish(Err(Error::Failed { failure, context }));
    }

    /// Drives until `task` has ended or `stop` says so; ends it, and the job, when `time` has passed.
    pub(crate) fn wait_within(
        &self,
        task: &Task,
        time: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Option<Result<(), Error>> {
        let limit = after(Instant::now(), time);
        let stopped = Cell::new(false);
        let ends = || {
            stopped.set(stop());
            stopped.get() || Instant::now() >= limit
        };
        match self.drive(task, Some(limit), &ends) {
            Some(result) => Some(result),
            None if stopped.get() => None,
            None => {
                self.give_up(task, time);
                Some(self.wait(task))
            }
        }
    }

    /// Tells all ranks that an operation of this rank's has not ended in `time`.
    pub(super) fn report_timeout(
        &self,
        label: &Label<'_>,
        limit: &Limit,
        time: Duration,
        awaited: Option<Rank>,
    ) -> Arc<Failure> {
        let cause = Cause::Timeout {
            limit: time,
            operation: label.to_string(),
            awaited,
            set_by: limit.set_by(&self.settings),
        };
        self.control.report(self.world.rank, cause)
    }

    /// Tells all ranks of a trouble that concerns this rank and another.
    pub(super) fn report(&self, trouble: Trouble) {
        match trouble {
            Trouble::Lost(error) => {
                let (peer, me, detail) = (error.peer(), self.world.rank, error.to_string());
                let (rank, cause) = match &error {
                    LinkError::Left { .. } => (peer, Cause::Left),
                    LinkError::Length { .. } | LinkError::Protocol { .. } => {
                        (peer, Cause::Misfit { peer: me, detail })
                    }
                    LinkError::MemoryLimit { .. }
                    | LinkError::Misuse { .. }
                    | LinkError::System { .. } => (me, Cause::Unable { detail }),
                    _ => (peer, Cause::LinkLost { peer: me, detail }),
                };
                tracing::warn!(%error, "messages between two ranks have come to an end");
                self.control.report(rank, cause);
            }
            Trouble::Mismatch { peer, task, theirs } => {
                let label = Label {
                    call: None,
                    ..task.label(self.world.rank)
                };
                let (expected, found) = if task.descriptor.form == Form::Pair {
                    let found = Descriptor::of_message(theirs).map_or_else(
                        || "a message of another size or type".to_owned(),
                        |theirs| {
                            let theirs = Label {
                                descriptor: &theirs,
                                ..label.of(peer)
                            };
                            theirs.to_string()
                        },
                    );
                    (label.to_string(), found)
                } else {
                    self.tell_descriptor(&task.descriptor, task.group, task.number);
                    let found = self
                        .ask_descriptor(peer, task.group, task.number)
                        .map_or_else(
                            || "another operation".to_owned(),
                            |theirs| theirs.to_string(),
                        );
                    (task.descriptor.to_string(), found)
                };
                let other = self.world.rank;
                self.control.report(
                    peer,
                    Cause::Mismatch {
                        other,
                        expected,
                        found,
                    },
                );
            }
        }
    }

    /// A rank that has left in good order while an operation here still waits for it. What it sent before it left
    /// may still be on its way: only after a while without progress is it a failure.
    pub(super) fn look_for_leavers(&self, driver: &mut Driver, idle: Duration) {
        if idle < LAST_WORDS {
            return;
        }
        let left = driver
            .ops()
            .filter(|op| !op.task.is_optional())
            .flat_map(|op| op.waiting_for())
            .map(|(peer, _)| peer)
            .find(|&peer| self.control.has_left(peer));
        if let Some(peer) = left {
            driver
                .troubles
                .push(Trouble::Lost(LinkError::Left { peer }));
        }
    }

    fn tell_descriptor(&self, descriptor: &Descriptor, group: u64, number: u32) {
        let key = mismatch_key(self.world.rank, group, number);
        let bytes: Vec<u8> = descriptor
            .encode()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        if let Err(error) = self.world.store.set(&key, &bytes, Instant::now() + TELLING) {
            tracing::debug!(%error, "could not tell what this rank calls");
        }
    }

    /// What a peer calls; it tells when it sees the mismatch, which is at the same time.
    fn ask_descriptor(&self, peer: usize, group: u64, number: u32) -> Option<Descriptor> {
        let key = mismatch_key(peer, group, number);
        let deadline = Instant::now() + TELLING;
        let bytes = self.world.store.get(&key, deadline).ok()?;
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Descriptor::decode([word(0)?, word(8)?])
    }
}

/// How long what ranks call may take to get from one to the other. Whoever keeps it may have ended with an error by then.
const TELLING: Duration = Duration::from_millis(500);

fn mismatch_key(rank: usize, group: u64, number: u32) -> String {
    format!("ringway/mismatch/{group:x}/{number}/{rank}")
}
