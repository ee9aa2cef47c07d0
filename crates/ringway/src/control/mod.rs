//! Who is alive: signs of life, failures and leaves, known to all ranks.

mod activity;
mod failure;
mod shared;

use std::{sync::Arc, time::Duration};

pub use activity::Activity;
pub use failure::{Cause, Failure};
use ringway_plan::Rank;
use shared::Shared;

use crate::bootstrap::World;

/// This rank's part in the control plane. Shared by all that run operations.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// For a world whose ranks are all this one.
    pub fn alone(world: &World) -> Self {
        Self {
            shared: Shared::new(world),
        }
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
    /// the first that rank 0 hears of, which is returned. A connection lost to a rank that turns out to have
    /// crashed is a crash.
    pub fn report(&self, rank: Rank, cause: Cause) -> Arc<Failure> {
        self.shared.settle(rank, cause)
    }

    /// Ends the job on all ranks for a reason of this rank's own. Returns at once; every rank knows within 1 s.
    pub fn abort(&self, reason: &str) -> Arc<Failure> {
        self.shared.settle(
            self.shared.rank,
            Cause::Aborted {
                reason: reason.to_owned(),
            },
        )
    }

    /// Has `wake` called, from the control thread, whenever a rank fails or leaves: to wake whoever sleeps in an
    /// operation. Called at once if there is a failure already.
    pub fn on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.shared.on_change(Box::new(wake));
    }

    /// Leaves the job in good order, so that the others do not take it for a crash. Rank 0 waits, at most
    /// `timeout`, for all others to leave, because it carries word between them. More calls do nothing.
    pub fn leave(&self, _timeout: Duration) {
        self.shared.note_left(self.shared.rank);
    }
}
