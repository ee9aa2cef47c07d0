//! How the ranks of a fleet tell each other things: by values in the store that they have met at, each with a deadline.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use ringway::{
    Rank,
    bootstrap::{Launch, StoreError, World, join},
    control::Control,
    settings::Settings,
};
use serde::{Serialize, de::DeserializeOwned};

/// How often a rank that waits looks whether the other is still there.
const LOOK: Duration = Duration::from_millis(200);

/// A fleet, as one of its ranks sees it.
pub(super) struct Meeting {
    pub(super) world: World,
    control: Control,
    /// For a store that cannot be reached.
    patience: Duration,
    /// Ranks that are not waited for any more, and why.
    lost: Mutex<BTreeMap<Rank, String>>,
}

impl Meeting {
    /// Meets the other ranks of the launcher's.
    pub(super) fn join() -> Result<Self> {
        let settings = Settings::load()?;
        settings.check()?;
        let launch = Launch::detect().context("--fleet looks at the hosts of a job: start it on all of them, as in `srun ringway doctor --fleet`")?;
        let world = join(&settings, &launch)?;
        let control = Control::start(&world, &settings)?;
        Ok(Self {
            world,
            control,
            patience: settings.values().connect_timeout,
            lost: Mutex::default(),
        })
    }

    /// This rank's number.
    pub(super) fn rank(&self) -> Rank {
        self.world.rank
    }

    /// Leaves a value for others.
    pub(super) fn put(&self, key: &str, value: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(value)?;
        let deadline = Instant::now() + self.patience;
        self.world.store.set(&name(key), &bytes, deadline)?;
        Ok(())
    }

    /// What `rank` leaves; none, and the rank is lost, if it fails or has not left it by the deadline.
    pub(super) fn take<T: DeserializeOwned>(
        &self,
        key: &str,
        rank: Rank,
        deadline: Instant,
    ) -> Option<T> {
        match self.wait(key, rank, deadline) {
            Ok(value) => Some(value),
            Err(error) => {
                self.lose(rank, &format!("{error:#}"));
                None
            }
        }
    }

    /// What `rank` leaves.
    ///
    /// # Errors
    /// If it fails, or has not left it by the deadline.
    pub(super) fn wait<T: DeserializeOwned>(
        &self,
        key: &str,
        rank: Rank,
        deadline: Instant,
    ) -> Result<T> {
        loop {
            let look = deadline.min(Instant::now() + LOOK);
            match self.world.store.get(&name(key), look) {
                Ok(bytes) => {
                    return serde_json::from_slice(&bytes).with_context(|| {
                        format!("rank {rank} left something else than was expected")
                    });
                }
                Err(StoreError::Absent { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(reason) = self.lost(rank) {
                bail!("{reason}");
            }
            if let Some(failure) = self
                .control
                .failure()
                .filter(|failure| failure.rank == rank)
            {
                bail!("{failure}");
            }
            if Instant::now() >= deadline {
                bail!("it did not answer in time");
            }
        }
    }

    /// Waits for this rank no more.
    pub(super) fn lose(&self, rank: Rank, reason: &str) {
        let mut lost = self
            .lost
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        lost.entry(rank).or_insert_with(|| reason.to_owned());
    }

    /// Why a rank is not waited for.
    pub(super) fn lost(&self, rank: Rank) -> Option<String> {
        let lost = self
            .lost
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        lost.get(&rank).cloned()
    }

    /// Goes apart in good order.
    pub(super) fn leave(&self) {
        self.control.leave(Duration::from_secs(2));
    }
}

fn name(key: &str) -> String {
    format!("ringway/doctor/{key}")
}
