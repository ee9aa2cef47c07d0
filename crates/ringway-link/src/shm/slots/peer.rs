//! One peer: both directions of the traffic with it.

use std::time::Instant;

use ringway_plan::Rank;
use ringway_sys::{Memory, Staging};

use super::{
    descriptor::{Body, Descriptor},
    geometry::{Geometry, REFERENCES},
    inbox::{Agreement, Arrival, Holding, Inbox, Verdict},
    outbox::{Outbox, Pending, reserved_from},
    parking::PeerParking,
    ring::{Consumer, Ticket},
};
use crate::{Event, LinkError, MessageKey, Sink, shm::HostSegment};

/// Bytes of this rank's own buffers.
#[derive(Debug)]
pub(super) struct Budget {
    used: usize,
    limit: usize,
}

impl Budget {
    pub(super) const fn new(limit: usize) -> Self {
        Self { used: 0, limit }
    }

    /// Bytes in use.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    fn take(&mut self, peer: Rank, len: usize) -> Result<Staging, LinkError> {
        let staging = Staging::new(len);
        let wanted = self.used + staging.footprint();
        if wanted > self.limit {
            let detail = "a copy of a message that is not released".to_owned();
            return Err(LinkError::MemoryLimit {
                peer,
                detail,
                wanted,
                limit: self.limit,
            });
        }
        self.used = wanted;
        Ok(staging)
    }

    fn put(&mut self, staging: &Staging) {
        self.used -= staging.footprint();
    }
}

/// What peers share.
pub(super) struct Common<'a> {
    pub(super) host: &'a HostSegment,
    pub(super) inbox: &'a mut Inbox,
    pub(super) budget: &'a mut Budget,
    pub(super) events: &'a mut Vec<Event>,
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    rank: Rank,
    /// Its local rank: its number in the inbox too.
    local: usize,
    outbox: Outbox,
    consumer: Consumer<Memory>,
    incoming: Memory,
    geometry: Geometry,
    parking: PeerParking<Memory>,
    /// Whether it can send some messages only once they are announced.
    announcing: bool,
    /// Whether tickets were given back and it was not looked whether it waits for them.
    gave: bool,
}

impl Peer {
    pub(super) fn new(host: &HostSegment, rank: Rank, local: usize, geometry: Geometry) -> Self {
        let me = host.local_rank();
        let incoming = host.slots(local, me);
        Self {
            rank,
            local,
            outbox: Outbox::new(rank, host.slots(me, local), geometry),
            consumer: Consumer::new(incoming, geometry),
            incoming,
            geometry,
            parking: PeerParking::new(host.slots(local, local)),
            announcing: false,
            gave: false,
        }
    }

    pub(super) const fn rank(&self) -> Rank {
        self.rank
    }

    #[cfg(all(test, not(loom)))]
    pub(super) const fn held_slots(&self) -> u64 {
        self.consumer.held().slots
    }

    pub(super) const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(super) const fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    pub(super) fn send(
        &mut self,
        pending: Pending,
        priority: u8,
        common: &mut Common<'_>,
    ) -> Result<(), LinkError> {
        let sent = self
            .outbox
            .send(pending, priority, common.host, common.events);
        let published = sent.map_err(|detail| self.broken(detail))?;
        self.wake(published, common.host);
        Ok(())
    }

    /// Asks for a message; `Ok` has it if it has come already, for [`Peer::deliver`].
    pub(super) fn recv(
        &mut self,
        key: MessageKey,
        sink: Sink,
        inbox: &mut Inbox,
    ) -> Result<Option<Arrival>, LinkError> {
        let arrival = inbox
            .post(self.local, key, sink)
            .map_err(|detail| LinkError::Misuse {
                peer: self.rank,
                key,
                detail,
            })?;
        if arrival.is_none() && self.announcing {
            let fingerprint = inbox.fingerprint(key).unwrap_or_default();
            self.outbox.tell(key, fingerprint, Body::Announce);
        }
        Ok(arrival)
    }

    /// Gives back a view.
    pub(super) fn release(
        &mut self,
        key: MessageKey,
        common: &mut Common<'_>,
    ) -> Result<(), LinkError> {
        let Some(holding) = common.inbox.release(self.local, key) else {
            return Ok(());
        };
        let revoked = self.is_revoked(&holding);
        self.discard(holding, common.budget);
        self.wake(false, common.host);
        if revoked {
            Err(self.cancelled(key))
        } else {
            Ok(())
        }
    }

    /// Moves what can be moved in both directions.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        common: &mut Common<'_>,
    ) -> Result<bool, LinkError> {
        let received = self.receive(common)?;
        let (sent, published) = self
            .outbox
            .poll(now, common.host, common.events)
            .map_err(|detail| self.broken(detail))?;
        self.wake(published, common.host);
        Ok(received || sent)
    }

    /// Takes what has come, at most one round of the ring.
    pub(super) fn receive(&mut self, common: &mut Common<'_>) -> Result<bool, LinkError> {
        let mut received = false;
        for _ in 0..self.geometry.descriptors() {
            let taken = self.consumer.take().map_err(|detail| self.broken(detail))?;
            let Some(descriptor) = taken else { break };
            received = true;
            self.handle(&descriptor, common)?;
        }
        self.gave |= received;
        Ok(received)
    }

    /// Before sleeping.
    pub(super) fn arm(&mut self, host: &HostSegment) -> Result<(), LinkError> {
        let published = self.outbox.arm().map_err(|detail| self.broken(detail))?;
        self.wake(published, host);
        Ok(())
    }

    /// Whether [`Peer::poll`] would find something.
    pub(super) fn has_news(&self) -> bool {
        self.consumer.ready() || self.outbox.has_news()
    }

    /// Gives back what is held for a message.
    pub(super) fn discard(&mut self, holding: Holding, budget: &mut Budget) {
        match holding {
            Holding::Inline(_) => self.consumer.count_delivered(),
            Holding::Reference { ticket, .. } => self.consumer.give_back(Ticket::Reference(ticket)),
            Holding::Slot(ticket) => self.consumer.give_back(Ticket::Slot(ticket)),
            Holding::Spilled(staging) => return budget.put(&staging),
        }
        self.gave = true;
    }

    /// Wakes the peer, if it sleeps and something was published, or was given back that it waits
    /// for.
    pub(super) fn wake(&mut self, published: bool, host: &HostSegment) {
        let mut must = published;
        if std::mem::take(&mut self.gave) {
            self.consumer.settle();
            must = must || self.consumer.sender_waits();
        }
        if must && self.parking.must_ring() {
            host.ring_messages(self.local);
        }
    }

    /// Brings a message to where it was asked for.
    pub(super) fn deliver(
        &mut self,
        key: MessageKey,
        len: usize,
        holding: Holding,
        sink: Sink,
        common: &mut Common<'_>,
    ) -> Result<(), LinkError> {
        let peer = self.rank;
        if sink.len() != len {
            self.discard(holding, common.budget);
            return Err(LinkError::Length {
                peer,
                key,
                expected: sink.len(),
                got: len,
            });
        }
        let view = match sink {
            Sink::Place(place) => {
                self.copy(&holding, place, common.host)?;
                self.finish(key, holding, common.budget)?;
                Memory::EMPTY
            }
            Sink::View(_) if self.is_revoked(&holding) => {
                return self.finish(key, holding, common.budget);
            }
            Sink::View(_) if self.must_copy(&holding) => {
                let staging = common.budget.take(peer, len)?;
                let view = staging.memory();
                self.copy(&holding, view, common.host)?;
                self.finish(key, holding, common.budget)?;
                common
                    .inbox
                    .view(self.local, key, Holding::Spilled(staging));
                view
            }
            Sink::View(_) => {
                let view = self.bytes(&holding, len, common.host)?;
                common.inbox.view(self.local, key, holding);
                view
            }
        };
        common.events.push(Event::Received { peer, key, view });
        Ok(())
    }

    fn handle(
        &mut self,
        descriptor: &Descriptor,
        common: &mut Common<'_>,
    ) -> Result<(), LinkError> {
        let &Descriptor {
            key,
            fingerprint,
            len,
            body,
        } = descriptor;
        let holding = match body {
            Body::Announce => {
                match common.inbox.compare(self.local, key, fingerprint) {
                    Agreement::Agreed | Agreement::Unknown => self.outbox.ask_for(key),
                    Agreement::NewMismatch => self.report_mismatch(key, fingerprint, common.events),
                    Agreement::Ended | Agreement::KnownMismatch => {}
                }
                return Ok(());
            }
            Body::Relieved => {
                self.announcing = false;
                return Ok(());
            }
            Body::Waits => {
                if common.inbox.hear(self.local, key, fingerprint) == Agreement::NewMismatch {
                    self.report_mismatch(key, fingerprint, common.events);
                }
                if common.inbox.is_flooded() {
                    return Err(
                        self.broken("it waits in more operations than there are".to_owned())
                    );
                }
                return Ok(());
            }
            Body::Starved => {
                self.announcing = true;
                for (key, fingerprint) in common.inbox.awaited(self.local) {
                    self.outbox.tell(key, fingerprint, Body::Announce);
                }
                return Ok(());
            }
            Body::Inline(bytes) => Holding::Inline(bytes),
            Body::Reference { ticket, offset } => Holding::Reference { ticket, offset },
            Body::Slot(ticket) => Holding::Slot(ticket),
        };
        match common.inbox.arrive(self.local, key, fingerprint) {
            Verdict::Deliver(sink) => self.deliver(key, len, holding, sink, common)?,
            Verdict::Drop => self.discard(holding, common.budget),
            Verdict::Duplicate => {
                return Err(self.broken(format!("message {key} came twice")));
            }
            Verdict::Hold => {
                common.inbox.hold(
                    self.local,
                    key,
                    Arrival {
                        fingerprint,
                        len,
                        holding,
                    },
                );
            }
            Verdict::Mismatch => {
                self.report_mismatch(key, fingerprint, common.events);
                self.discard(holding, common.budget);
            }
        }
        Ok(())
    }

    pub(super) fn report_mismatch(&self, key: MessageKey, theirs: u32, events: &mut Vec<Event>) {
        let MessageKey { group, op, .. } = key;
        events.push(Event::Mismatch {
            peer: self.rank,
            group,
            op,
            theirs,
        });
    }

    /// Whether a view cannot be of the bytes where they lie: they are in a line that will be
    /// written over, or have the last ticket that moves.
    const fn must_copy(&self, holding: &Holding) -> bool {
        let (held, tickets) = match holding {
            Holding::Inline(_) => return true,
            Holding::Spilled(_) => return false,
            Holding::Reference { .. } => (self.consumer.held().references, REFERENCES),
            Holding::Slot(_) => (self.consumer.held().slots, self.geometry.slots()),
        };
        let tickets = tickets as u8;
        let reserved = (u64::MAX >> (64 - tickets)) & (u64::MAX << reserved_from(tickets));
        held & reserved == reserved
    }

    /// Where the bytes lie of a message that is not in its descriptor.
    fn bytes(
        &self,
        holding: &Holding,
        len: usize,
        host: &HostSegment,
    ) -> Result<Memory, LinkError> {
        match *holding {
            Holding::Inline(_) => Ok(Memory::EMPTY),
            Holding::Reference { offset, .. } => {
                host.resolve(self.local, offset, len).ok_or_else(|| {
                    self.broken(format!(
                        "{len} bytes at {offset} of its arena, which ends before"
                    ))
                })
            }
            Holding::Slot(slot) => {
                let start = self.geometry.slot_start(slot);
                Ok(self.incoming.slice(start..start + len))
            }
            Holding::Spilled(ref staging) => Ok(staging.memory()),
        }
    }

    fn copy(&self, holding: &Holding, to: Memory, host: &HostSegment) -> Result<(), LinkError> {
        match holding {
            Holding::Inline(bytes) => to.write(&bytes[..to.len()]),
            _ => to.copy_from(self.bytes(holding, to.len(), host)?),
        }
        Ok(())
    }

    /// After the bytes were copied.
    fn finish(
        &mut self,
        key: MessageKey,
        holding: Holding,
        budget: &mut Budget,
    ) -> Result<(), LinkError> {
        let revoked = self.is_revoked(&holding);
        self.discard(holding, budget);
        if revoked {
            Err(self.cancelled(key))
        } else {
            Ok(())
        }
    }

    fn is_revoked(&self, holding: &Holding) -> bool {
        matches!(*holding, Holding::Reference { ticket, .. } if self.consumer.is_revoked(ticket))
    }

    fn cancelled(&self, key: MessageKey) -> LinkError {
        LinkError::Cancelled {
            peer: self.rank,
            key,
        }
    }

    fn broken(&self, detail: String) -> LinkError {
        LinkError::Protocol {
            peer: self.rank,
            detail,
        }
    }
}
