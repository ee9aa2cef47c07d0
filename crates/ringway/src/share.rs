//! Whether the ranks of a host share memory: all of them do, or none, and then the log says why.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::shm::{self, HostIdentity, HostSegment, Offer, SegmentSizes, ShmError};
use ringway_plan::Rank;

use crate::{
    Error,
    bootstrap::{StoreError, World},
    settings::{Settings, TransportKind},
};

/// How long ranks of a host wait for each other's shared memory before they do without.
const SHARING: Duration = Duration::from_secs(10);

/// The memory that this host's ranks share; `None` if they do not: there is one only, the settings forbid it, or the
/// system does, which is logged. All ranks of the host come to the same.
pub(crate) fn share_host(
    world: &World,
    settings: &Settings,
) -> Result<Option<Arc<HostSegment>>, Error> {
    let ranks = world.local_ranks();
    let values = settings.values();
    if ranks.len() < 2 || !values.transports.allow(TransportKind::Shm) {
        return Ok(None);
    }
    let leader = ranks[0];
    let (first, head) = (
        world.members[0].instance(),
        world.members[leader].instance(),
    );
    let mut job = [0; 16];
    job[..8].copy_from_slice(&first.to_le_bytes());
    job[8..].copy_from_slice(&head.to_le_bytes());
    let name = format!("ringway-{first:016x}-{head:016x}");
    let identity = HostIdentity {
        job,
        world: world.size(),
        ranks: ranks.clone(),
    };
    let deadline = Instant::now() + SHARING.min(values.connect_timeout);
    let notes = Notes { world, leader };
    let (segment, reason) = if world.rank == leader {
        notes.lead(offer(&name, identity, settings, deadline, &notes), deadline)?
    } else {
        let me = ranks.iter().position(|&rank| rank == world.rank);
        let joined = shm::fetch(&name, &identity, world.rank, deadline, &mut || {
            notes.outcome(Instant::now()).ok()
        })
        .and_then(|descriptors| HostSegment::join(descriptors, identity, me.unwrap_or(0)));
        notes.follow(joined, deadline)?
    };
    if !reason.is_empty() {
        tracing::warn!(reason, "ranks of this host do not share memory and use TCP");
    }
    Ok(segment)
}

/// What the ranks of a host tell each other about their shared memory, in the world's store: each that follows how it
/// went, and then the leader, which makes the memory, how it went for all. Nothing, or the reason why not.
struct Notes<'a> {
    world: &'a World,
    leader: Rank,
}

/// How long a note takes at most that is sure to be written.
const NOTE: Duration = Duration::from_secs(5);

/// The memory that is shared, or why none is.
type Shared = (Option<Arc<HostSegment>>, String);

impl Notes<'_> {
    fn own(&self, rank: Rank) -> String {
        format!("ringway/shm/{}/{rank}", self.leader)
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<String, StoreError> {
        let bytes = self.world.store.get(key, deadline)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// How it went for all.
    fn outcome(&self, deadline: Instant) -> Result<String, StoreError> {
        self.get(&format!("ringway/shm/{}", self.leader), deadline)
    }

    /// Why one of these cannot, as far as they have said.
    fn withdrawn(&self, ranks: &[Rank], deadline: Instant) -> Option<String> {
        let reason = |&rank: &Rank| self.get(&self.own(rank), deadline).ok();
        ranks
            .iter()
            .filter_map(reason)
            .find(|reason| !reason.is_empty())
    }

    /// Decides for all.
    fn lead(
        &self,
        offered: Result<Arc<HostSegment>, ShmError>,
        deadline: Instant,
    ) -> Result<Shared, Error> {
        let reason = match &offered {
            // All have come for it, and say at once how it went.
            Ok(segment) => {
                let mut others = segment.identity().ranks.clone();
                others.retain(|&rank| rank != self.leader);
                self.withdrawn(&others, deadline + NOTE).unwrap_or_default()
            }
            Err(error) => self.sign(error),
        };
        let outcome = format!("ringway/shm/{}", self.leader);
        let store = &self.world.store;
        store.set(&outcome, reason.as_bytes(), deadline + 2 * NOTE)?;
        Ok((offered.ok().filter(|_| reason.is_empty()), reason))
    }

    /// Says how it went here, and hears how it went for all.
    fn follow(
        &self,
        joined: Result<Arc<HostSegment>, ShmError>,
        deadline: Instant,
    ) -> Result<Shared, Error> {
        let own = joined
            .as_ref()
            .err()
            .map_or_else(String::new, |e| self.sign(e));
        self.world
            .store
            .set(&self.own(self.world.rank), own.as_bytes(), deadline + NOTE)?;
        let reason = self.outcome(deadline + 2 * NOTE)?;
        match joined {
            Err(_) if reason.is_empty() => Err(Error::Memory(format!(
                "{own}; the other ranks of this host share memory: to do without on all, set RINGWAY_TRANSPORTS=tcp"
            ))),
            joined => Ok((joined.ok().filter(|_| reason.is_empty()), reason)),
        }
    }

    /// A reason, with whose it is.
    fn sign(&self, error: &ShmError) -> String {
        match error {
            // Signed by whoever has withdrawn.
            ShmError::Withdrawn { reason } => reason.clone(),
            error => format!("rank {}: {error}", self.world.rank),
        }
    }
}

fn offer(
    name: &str,
    identity: HostIdentity,
    settings: &Settings,
    deadline: Instant,
    notes: &Notes<'_>,
) -> Result<Arc<HostSegment>, ShmError> {
    let arena = usize::try_from(settings.values().arena_size).unwrap_or(usize::MAX);
    let offer = Offer::bind(name)?;
    let segment = HostSegment::create(
        identity,
        SegmentSizes {
            arena,
            ..SegmentSizes::default()
        },
    )?;
    offer.serve(&segment, deadline, &mut |missing| {
        notes.withdrawn(missing, Instant::now())
    })?;
    Ok(segment)
}
