//! Who is alive: signs of life, failures and leaves, known to all ranks.
//!
//! Every rank keeps one connection to rank 0, driven by one small thread. Rank 0 pings, each rank answers with what
//! it is doing. A connection that ends without a goodbye, or a silence longer than the setting `failure_after`,
//! is a failure; rank 0 tells it to all. If rank 0 fails, every rank sees that for itself. So all ranks name the same
//! rank, within 2 s with the default settings, and know what it was doing.
//!
//! The state machines (`Machine`) know neither sockets nor clocks; the thread brings them both.

mod activity;
mod error;
mod failure;
mod hub;
mod machine;
mod message;
mod process;
mod run;
mod shared;
mod spoke;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

pub use activity::{Activity, Direction};
pub use error::ControlError;
pub use failure::{Cause, Failure};
use hub::Hub;
use machine::{Machine, Timing};
use ringway_link::Purpose;
use ringway_plan::Rank;
use run::Thread;
use shared::{Command, Shared};
use spoke::Spoke;

use crate::{bootstrap::World, settings::Settings};

/// How long a caller waits for the failure that all agree on.
const AGREEMENT: Duration = Duration::from_millis(500);

/// How long a control that is dropped may take to leave.
const FAREWELL: Duration = Duration::from_millis(200);

/// This rank's part in the control plane. Shared by all that run operations.
///
/// Dropping it leaves the job, or, while the thread panics, aborts it.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// How long all may take to connect, and to join.
    connect: Duration,
}

impl Control {
    /// Connects this rank to the control plane. Returns when all ranks are connected: from then on no failure goes
    /// unseen.
    ///
    /// # Errors
    /// Rank 0 cannot be reached, or a rank failed or did not connect within the setting `connect_timeout`.
    pub fn start(world: &World, settings: &Settings) -> Result<Self, ControlError> {
        let values = settings.values();
        let timing = Timing {
            heartbeat: values.heartbeat,
            failure_after: values.failure_after,
            connect: values.connect_timeout,
        };
        let system = |what| {
            move |error: std::io::Error| ControlError::System {
                what,
                detail: error.to_string(),
            }
        };
        let shared = Shared::new(world.rank, Arc::clone(&world.members))
            .map_err(system("making an eventfd"))?;
        if world.size() == 1 {
            return Ok(Self {
                shared,
                thread: None,
                connect: timing.connect,
            });
        }

        let deadline = Instant::now() + timing.connect;
        let for_machine = Arc::clone(&shared);
        let (machine, inbox, session): (Box<dyn Machine>, _, _) = if world.rank == 0 {
            let hub = Hub::new(for_machine, timing, Instant::now());
            (
                Box::new(hub),
                Some(world.listener.inbox(Purpose::Control)),
                None,
            )
        } else {
            let hub = world.members[0].address.clone();
            let session = world.listener.connect(hub, Purpose::Control, 0, deadline);
            let session = session.map_err(ControlError::Connect)?;
            (
                Box::new(Spoke::new(for_machine, timing, Instant::now())),
                None,
                Some(session),
            )
        };
        let thread = Thread::new(Arc::clone(&shared), machine, inbox, session)
            .map_err(system("making an epoll"))?;
        let builder = std::thread::Builder::new().name("ringway-control".to_owned());
        let thread = builder
            .spawn(move || thread.run())
            .map_err(system("starting a thread"))?;
        let control = Self {
            shared,
            thread: Some(thread),
            connect: timing.connect,
        };

        // Rank 0's thread keeps the deadline and names who is missing, the others' wait a little longer for its word,
        // this one for theirs.
        if control.shared.wait_ready(deadline + 2 * AGREEMENT) {
            return Ok(control);
        }
        let failure = control.failure().unwrap_or_else(|| {
            let cause = Cause::Unconnected {
                limit: timing.connect,
            };
            Arc::new(control.shared.describe_alone(0, cause))
        });
        Err(ControlError::Failed(failure))
    }

    /// Says that this rank has joined the job in full. On rank 0 it returns when all ranks have said so: others may
    /// need what rank 0's process serves, a store say, until then.
    ///
    /// # Errors
    /// A rank failed, left, or did not say so within the setting `connect_timeout`.
    pub fn joined(&self) -> Result<(), ControlError> {
        if self.thread.is_none() {
            return Ok(());
        }
        self.shared.command(Command::Joined);
        let deadline = Instant::now() + self.connect + 2 * AGREEMENT;
        if self.shared.wait_complete(deadline) {
            return Ok(());
        }
        let failure = self.failure().unwrap_or_else(|| {
            let limit = self.connect;
            self.report(self.shared.rank, Cause::Unconnected { limit })
        });
        Err(ControlError::Failed(failure))
    }

    /// The failure that ends the job, if there is one: the same on all ranks. One load when there is none.
    #[inline]
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.shared.failure().cloned()
    }

    /// Whether a rank has left in good order. An operation that still needs it cannot end: look again for what it
    /// did before it left, then report [`Cause::Left`].
    #[inline]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.shared.has_left(rank)
    }

    /// What this rank is doing, to be kept up to date by whoever runs operations.
    #[inline]
    pub fn activity(&self) -> &Activity {
        &self.shared.activity
    }

    /// Tells all ranks that `rank` has failed, and waits, at most half a second, for the failure that all agree on:
    /// the first that rank 0 decides on, which is returned. A connection lost to a rank that turns out to have
    /// crashed, or to have left, is a crash, or a leave.
    pub fn report(&self, rank: Rank, cause: Cause) -> Arc<Failure> {
        if let Some(failure) = self.failure() {
            return failure;
        }
        let rank = if rank < self.shared.members.len() {
            rank
        } else {
            self.shared.rank
        };
        let command = Command::Report {
            rank,
            cause: cause.clone(),
        };
        if self.thread.is_some() && self.shared.command(command) {
            self.shared.wait_failure(Instant::now() + AGREEMENT);
        }
        // Nobody to agree with, or no word from it: this rank's own view holds.
        self.failure()
            .unwrap_or_else(|| self.shared.settle(self.shared.describe_alone(rank, cause)))
    }

    /// Ends the job on all ranks for a reason of this rank's own. Every rank knows within 1 s; this call returns as
    /// soon as rank 0 has it.
    pub fn abort(&self, reason: &str) -> Arc<Failure> {
        self.report(
            self.shared.rank,
            Cause::Aborted {
                reason: reason.to_owned(),
            },
        )
    }

    /// Has `wake` called, from the control thread, whenever a rank fails or leaves: to wake whoever sleeps in an
    /// operation. It must return at once, and must not call this. Called at once if there is a failure already.
    pub fn on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.shared.on_change(Box::new(wake));
    }

    /// Leaves the job in good order, so that the others do not take it for a crash. Rank 0 waits, at most
    /// `timeout`, for all others to leave, because it carries word between them; another rank waits for rank 0 to
    /// have heard it. More calls do nothing.
    pub fn leave(&self, timeout: Duration) {
        if self.thread.is_some() && self.shared.command(Command::Leave { patience: timeout }) {
            self.shared.wait_end(Instant::now() + timeout + AGREEMENT);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if std::thread::panicking() {
            let cause = Cause::Aborted {
                reason: "its program panicked".to_owned(),
            };
            self.shared.command(Command::Report {
                rank: self.shared.rank,
                cause,
            });
        }
        self.shared.command(Command::Leave { patience: FAREWELL });
        // A callback may own the last reference: the control thread cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Reads bytes as a control thread reads those of another.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    message::check(bytes);
}
