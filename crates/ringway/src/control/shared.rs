//! What the control thread and the callers share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ringway_plan::Rank;

use super::{Activity, Cause, Failure};
use crate::bootstrap::{Member, World};

type Callback = Box<dyn Fn() + Send + Sync>;

pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) members: Arc<[Member]>,
    pub(super) activity: Activity,
    failure: OnceLock<Arc<Failure>>,
    left: Box<[AtomicBool]>,
    callbacks: Mutex<Vec<Callback>>,
}

impl Shared {
    pub(super) fn new(world: &World) -> Arc<Self> {
        Arc::new(Self {
            rank: world.rank,
            members: Arc::clone(&world.members),
            activity: Activity::default(),
            failure: OnceLock::new(),
            left: world
                .members
                .iter()
                .map(|_| AtomicBool::new(false))
                .collect(),
            callbacks: Mutex::new(Vec::new()),
        })
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

    pub(super) fn note_left(&self, rank: Rank) {
        if let Some(left) = self.left.get(rank) {
            left.store(true, Ordering::Release);
            self.wake_all();
        }
    }

    /// Makes this the failure, unless there is one already; returns the one that holds.
    pub(super) fn settle(&self, rank: Rank, cause: Cause) -> Arc<Failure> {
        let me = &self.members[rank];
        let activity = self.activity.snapshot();
        let failure = Failure {
            rank,
            host: me.host.clone(),
            pid: me.pid,
            cause,
            operation: activity.operation_text(),
            step: activity.step_text(),
            since: Duration::ZERO,
        };
        let failure = Arc::clone(self.failure.get_or_init(|| Arc::new(failure)));
        self.wake_all();
        failure
    }

    pub(super) fn on_change(&self, wake: Callback) {
        if self.failure().is_some() {
            wake();
        }
        self.callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(wake);
    }

    fn wake_all(&self) {
        for wake in self
            .callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            wake();
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
