//! Messages between the ranks of a host, through rings in shared memory.
//!
//! For each ordered pair of ranks there is an area: a ring of descriptors, one cache line each, and
//! slots. A short message travels in its descriptor. A longer one is copied to a slot by its
//! sender, unless it lies in the arena, where its receiver reads it in place. `Place` copies at the
//! receiver, `View` shows the slot or the sender's memory itself; the bytes are the receiver's
//! until it gives back their ticket, and the sender of a message in the arena sees `Sent` then.
//!
//! # No deadlock, at bounded memory
//! A receiver takes every descriptor that has come, whether it has asked for the message or not, so
//! that none stands in the way of those behind it. What it has not asked for it keeps: the bytes
//! stay in their slot or in the sender's memory. How much that can be is limited by tickets (and
//! for messages in descriptors, by a count), which come back when the message is delivered. A
//! sender that has none left keeps its messages where they are, in its caller's memory.
//!
//! If those that were sent are asked for last, this alone would be a deadlock. So a quarter of the
//! tickets is reserved: a sender that gets no other ticket back says so (*starved*), the receiver
//! from then on *announces* each message that it asks for, and these the sender sends ahead of the
//! others, with reserved tickets. Let every rank whose message is awaited call `poll` until it is
//! sent, and every message that is asked for be sent at some time. Then every message that is asked
//! for is delivered:
//!
//! 1. Descriptors always move: the receiver takes all that there are at each poll, so the sender
//!    finds room again.
//! 2. So *starved* and announcements arrive, whatever else waits. From then on the sender knows of
//!    each message that is awaited: of those asked for before *starved* came, and of those asked
//!    for since.
//! 3. Reserved tickets always come back: they bring only what was asked for. `Place` gives the
//!    ticket back at once. `View` holds it for as long as the caller likes, but never all reserved
//!    ones: the last is given back after a copy.
//! 4. So the announced message that is first by priority gets a ticket, and after it the next.
//!
//! A sleeper is woken for all of this: it says so before it sleeps if it waits for tickets or room,
//! see the module `parking`.
//!
//! # Ranks that disagree
//! A message brings the fingerprint of its operation. Two ranks that only wait for each other would never see one: so
//! who goes to sleep tells each peer that it awaits something of, once for an operation, what it takes it for.
//!
//! # A peer that dies, or lies
//! A peer's process is watched; the messages that it had published are delivered, and then the peer
//! is lost. Nothing here waits for a peer: there are no locks, and what it was writing when it was
//! killed is not published. Whatever it wrote is checked before it is used: a wrong position, kind,
//! length, offset or ticket is a [`LinkError::Protocol`], never an access outside of its areas.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory};

mod cells;
mod descriptor;
mod geometry;
mod hash;
mod inbox;
#[cfg(all(test, loom))]
mod model;
mod outbox;
mod parking;
mod peer;
mod presence;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;

pub use geometry::Geometry;

use self::{
    descriptor::Body,
    inbox::Inbox,
    outbox::Pending,
    parking::Parking,
    peer::{Budget, Common, Peer},
    presence::{PRESENCE_BYTES, Presence, Watch},
};
use super::{HostSegment, ShmError};
use crate::{Event, LinkError, MessageKey, Sink, Transport};

/// How often peers' processes are looked at while there is no sleep, in which they would be
/// noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The bell's token in the epoll; peers' are their local ranks.
const BELL: u64 = u64::MAX;

/// How messages travel between the ranks of a host.
#[derive(Clone, Copy, Debug)]
pub struct SlotOptions {
    /// The sizes of each pair's area. The same on all ranks of the host.
    pub geometry: Geometry,
    /// The most bytes of copies of messages that are not released.
    pub memory_limit: usize,
}

impl Default for SlotOptions {
    fn default() -> Self {
        Self {
            geometry: Geometry::default(),
            memory_limit: 256 << 20,
        }
    }
}

/// The transport between the ranks of a host.
#[derive(Debug)]
pub struct SlotTransport {
    host: Arc<HostSegment>,
    /// By local rank; none for this rank.
    links: Vec<Option<Link>>,
    slot_bytes: usize,
    inbox: Inbox,
    budget: Budget,
    /// For the next poll.
    events: Vec<Event>,
    parking: Parking<Memory>,
    presence: Presence,
    epoll: Epoll,
    /// When peers were last looked at; none: at the next poll.
    looked: Option<Instant>,
}

/// A peer, and what became of it.
#[derive(Debug)]
struct Link {
    peer: Peer,
    presence: Presence,
    watch: Watch,
    fate: Option<LinkError>,
}

impl Link {
    const fn is_up(&self) -> bool {
        self.fate.is_none()
    }

    /// No message to or from the peer completes any more.
    fn lose(&mut self, error: LinkError, events: &mut Vec<Event>) {
        tracing::debug!(%error, "lost a peer on this host");
        self.peer.outbox_mut().clear();
        self.fate = Some(error.clone());
        events.push(Event::Lost {
            peer: self.peer.rank(),
            error,
        });
    }
}

impl SlotTransport {
    /// The transport of this rank of the host. Each rank makes one, at any time; one that is not
    /// made yet is sent to all the same.
    pub fn new(host: Arc<HostSegment>, options: SlotOptions) -> Result<Self, ShmError> {
        let me = host.local_rank();
        let own = host.slots(me, me);
        let (needed, found) = (
            options.geometry.area_bytes().max(2 * PRESENCE_BYTES),
            own.len(),
        );
        if needed > found {
            return Err(ShmError::Header {
                field: "bytes of slots for a pair of ranks",
                expected: format!("{needed} or more"),
                found: found.to_string(),
            });
        }
        let system = |source| ShmError::System {
            what: "epoll",
            source,
            remedy: "raise the limit on open files (ulimit -n)",
        };
        let epoll = Epoll::new().map_err(system)?;
        epoll
            .add(host.message_bell(me), BELL, Interest::Read)
            .map_err(system)?;
        let presence = presence_of(&host, me);
        presence.enter();
        let link = |(local, &rank): (usize, &Rank)| {
            (local != me).then(|| Link {
                peer: Peer::new(&host, rank, local, options.geometry),
                presence: presence_of(&host, local),
                watch: Watch::NotYet,
                fate: None,
            })
        };
        Ok(Self {
            links: host.identity().ranks.iter().enumerate().map(link).collect(),
            slot_bytes: options.geometry.slot_bytes(),
            inbox: Inbox::default(),
            budget: Budget::new(options.memory_limit),
            events: Vec::new(),
            parking: Parking::new(own),
            presence,
            epoll,
            looked: None,
            host,
        })
    }

    /// The local rank of a peer.
    fn local(&self, peer: Rank, key: MessageKey) -> Result<usize, LinkError> {
        match self.host.local_of(peer) {
            Some(local) if local != self.host.local_rank() => Ok(local),
            _ => Err(LinkError::Misuse {
                peer,
                key,
                detail: "it is not another rank of this host",
            }),
        }
    }

    /// Does something with a peer that is not lost. It is lost if that fails, and then there is no
    /// result.
    fn with<T>(
        &mut self,
        local: usize,
        act: impl FnOnce(&mut Peer, &mut Common<'_>) -> Result<T, LinkError>,
    ) -> Option<T> {
        let link = self.links[local].as_mut().filter(|link| link.is_up())?;
        let mut common = Common {
            host: &self.host,
            inbox: &mut self.inbox,
            budget: &mut self.budget,
            events: &mut self.events,
        };
        match act(&mut link.peer, &mut common) {
            Ok(result) => Some(result),
            Err(error) => {
                link.lose(error, &mut self.events);
                None
            }
        }
    }

    fn up(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().flatten().filter(|link| link.is_up())
    }

    /// Looks whether peers have left or died.
    fn look(&mut self, now: Instant) {
        self.looked = Some(now);
        let mut ready = Vec::new();
        // Fails only if the descriptor is not what this transport made; then nothing would work.
        let _ = self.epoll.wait(&mut ready, Some(Duration::ZERO));
        for local in 0..self.links.len() {
            let Some(link) = self.links[local].as_mut().filter(|link| link.is_up()) else {
                continue;
            };
            if matches!(link.watch, Watch::NotYet) {
                link.watch = link.presence.watch();
                if let Watch::Process(fd) = &link.watch
                    && self.epoll.add(fd, local as u64, Interest::Read).is_err()
                {
                    link.watch = Watch::Unwatchable;
                }
            }
            let ended = matches!(link.watch, Watch::Ended) || ready.contains(&(local as u64));
            if ended || link.presence.has_left() || link.presence.has_fallen() {
                self.part(local, now);
            }
        }
    }

    /// The last of a peer: what it had published still counts.
    fn part(&mut self, local: usize, now: Instant) {
        let gone = self.with(local, |peer, common| {
            peer.poll(now, common)?;
            let needed =
                common.inbox.awaited(local).next().is_some() || peer.outbox().has_messages();
            Ok((peer.rank(), needed))
        });
        let Some(link) = self.links[local].as_mut() else {
            return;
        };
        if let Watch::Process(fd) = std::mem::replace(&mut link.watch, Watch::Unwatchable) {
            // It leaves the set when it is closed in any case.
            let _ = self.epoll.remove(&fd);
        }
        match gone {
            Some((peer, false)) if link.presence.has_left() => {
                link.fate = Some(LinkError::Left { peer });
            }
            Some((peer, true)) if link.presence.has_left() => {
                link.lose(LinkError::Left { peer }, &mut self.events);
            }
            Some((peer, _)) => {
                let fell = link.presence.has_fallen();
                let detail = if fell {
                    "it dropped its end"
                } else {
                    "its process has ended"
                };
                let detail = detail.to_owned();
                link.lose(LinkError::Closed { peer, detail }, &mut self.events);
            }
            None => {}
        }
    }

    /// Has the peers look at what this rank says of itself.
    fn wake_all(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.peer.wake(true, &self.host);
        }
    }
}

impl Drop for SlotTransport {
    fn drop(&mut self) {
        if !self.presence.has_left() {
            self.presence.fall();
            self.wake_all();
        }
    }
}

impl Transport for SlotTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        let Self {
            inbox,
            links,
            budget,
            events,
            ..
        } = self;
        inbox.begin(group, op, fingerprint, |local, holding, theirs| {
            let Some(link) = &mut links[local] else {
                return;
            };
            if let Some(holding) = holding {
                link.peer.discard(holding, budget);
            }
            if let Some(theirs) = theirs {
                events.push(Event::Mismatch {
                    peer: link.peer.rank(),
                    group,
                    op,
                    theirs,
                });
            }
        });
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        let local = self.local(peer, key)?;
        if let Some(error) = self.links[local]
            .as_ref()
            .and_then(|link| link.fate.as_ref())
        {
            return Err(error.clone());
        }
        let Some(fingerprint) = self.inbox.fingerprint(key) else {
            return Err(LinkError::Misuse {
                peer,
                key,
                detail: "its operation has not begun",
            });
        };
        if src.len() > self.slot_bytes && self.host.locate(src).is_none() {
            let detail = "it is longer than slice_bytes() and not in the arena";
            return Err(LinkError::Misuse { peer, key, detail });
        }
        let pending = Pending {
            key,
            fingerprint,
            src,
        };
        self.with(local, |peer, common| peer.send(pending, priority, common));
        Ok(())
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        let local = self.local(peer, key)?;
        let Some(link) = self.links[local].as_mut() else {
            return Ok(());
        };
        if let Some(error) = &link.fate {
            // What a peer sent before it left in good order is still there.
            let left = matches!(error, LinkError::Left { .. });
            if !left || !self.inbox.has_arrived(local, key) {
                return Err(error.clone());
            }
        }
        let Some(arrival) = link.peer.recv(key, sink, &mut self.inbox)? else {
            return Ok(());
        };
        let mut common = Common {
            host: &self.host,
            inbox: &mut self.inbox,
            budget: &mut self.budget,
            events: &mut self.events,
        };
        let delivered = link
            .peer
            .deliver(key, arrival.len, arrival.holding, sink, &mut common);
        link.peer.wake(false, &self.host);
        if let Err(error) = delivered {
            link.lose(error, &mut self.events);
        }
        Ok(())
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        let Some(link) = self
            .host
            .local_of(peer)
            .and_then(|local| self.links[local].as_mut())
        else {
            return;
        };
        let mut common = Common {
            host: &self.host,
            inbox: &mut self.inbox,
            budget: &mut self.budget,
            events: &mut self.events,
        };
        let released = link.peer.release(key, &mut common);
        if let Err(error) = released
            && link.is_up()
        {
            link.lose(error, &mut self.events);
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        if self.looked.is_none_or(|looked| looked + LOOK_EVERY <= now) {
            self.look(now);
        }
        let mut moved = false;
        for local in 0..self.links.len() {
            moved |= self
                .with(local, |peer, common| peer.poll(now, common))
                .unwrap_or(false);
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn arm(&mut self) -> bool {
        for (local, key, fingerprint) in self.inbox.untold() {
            if let Some(link) = self.links[local].as_mut().filter(|link| link.is_up()) {
                link.peer.outbox_mut().tell(key, fingerprint, Body::Waits);
            }
        }
        for local in 0..self.links.len() {
            self.with(local, |peer, common| peer.arm(common.host));
        }
        self.parking.park();
        self.events.is_empty() && !self.up().any(|link| link.peer.has_news())
    }

    fn disarm(&mut self) {
        if self.parking.unpark() {
            self.host.hush_messages();
        }
        for link in self.links.iter_mut().flatten() {
            link.peer.outbox_mut().disarm();
        }
        self.looked = None;
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        let Self {
            inbox,
            links,
            budget,
            ..
        } = self;
        inbox.end(group, op, |local, holding| {
            if let Some(link) = &mut links[local] {
                link.peer.discard(holding, budget);
            }
        });
        for link in self.links.iter_mut().flatten() {
            link.peer.outbox_mut().end(group, op);
            link.peer.wake(false, &self.host);
        }
        self.events.retain(|event| match event {
            Event::Sent { key, .. } | Event::Received { key, .. } => {
                (key.group, key.op) != (group, op)
            }
            Event::Mismatch {
                group: g, op: o, ..
            } => (*g, *o) != (group, op),
            Event::Lost { .. } => true,
        });
    }

    fn slice_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn memory_in_use(&self) -> usize {
        let sending = |link: &Link| link.peer.outbox().memory_in_use();
        self.links.iter().flatten().map(sending).sum::<usize>() + self.budget.used()
    }

    fn close(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut events = Vec::new();
        while self.up().any(|link| !link.peer.outbox().is_done()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !self.poll(Instant::now(), &mut events) {
                if self.arm() {
                    // The same error as in `look`: none.
                    let _ = self.epoll.wait(&mut Vec::new(), Some(left));
                }
                self.disarm();
            }
            events.clear();
        }
        self.presence.leave();
        self.wake_all();
    }
}

/// What a rank says of itself lies in the area for messages to itself, of which there are none,
/// behind its parking word.
fn presence_of(host: &HostSegment, local: usize) -> Presence {
    Presence::new(
        host.slots(local, local)
            .slice(PRESENCE_BYTES..2 * PRESENCE_BYTES),
    )
}

/// Reads a ring's line as a rank reads those that its peers write.
#[cfg(fuzzing)]
pub fn fuzz(words: &[u64; 8]) {
    descriptor::check(words);
}
