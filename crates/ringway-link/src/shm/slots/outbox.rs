//! The sending half of a pair: what waits to be sent, and what may be sent next.
//!
//! Of the tickets of each kind, the first three quarters are for any message. A message that finds
//! none left waits in this rank's queue. The last quarter is for messages that the receiver has
//! asked for: those it delivers at once, so that these tickets always come back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::Memory;

use super::{
    descriptor::{Body, Descriptor, INLINE_BYTES},
    geometry::{Geometry, REFERENCES},
    hash::Map,
    ring::{Producer, Tickets},
};
use crate::{Event, MessageKey, shm::HostSegment};

/// From this length on, a message from the arena is read where it lies: the copy to a slot would
/// take longer than the ticket's way back.
const REFERENCE_FROM: usize = 4096;

/// How long a message waits for a ticket before the receiver is told that this rank has nothing but
/// such messages.
const PATIENCE: Duration = Duration::from_micros(200);

/// A message that waits. `src` stays the caller's until its event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) key: MessageKey,
    pub(super) fingerprint: u32,
    pub(super) src: Memory,
}

/// The order of messages that wait: by priority, then as they came.
type Turn = (Reverse<u8>, u64);

/// The tickets of one kind, the last used first: its memory is warm.
#[derive(Debug)]
struct Pool {
    /// From which number on they are for messages that were asked for.
    reserved_from: u8,
    common: Vec<u8>,
    reserved: Vec<u8>,
    /// A bit for each that is out.
    out: u64,
    /// A bit for each that was ever out.
    used: u64,
}

impl Pool {
    fn new(tickets: usize) -> Self {
        let tickets = tickets as u8;
        let reserved_from = reserved_from(tickets);
        Self {
            reserved_from,
            common: (0..reserved_from).rev().collect(),
            reserved: (reserved_from..tickets).rev().collect(),
            out: 0,
            used: 0,
        }
    }

    fn take(&mut self, asked_for: bool) -> Option<u8> {
        let common = self.common.pop();
        let ticket = common.or_else(|| if asked_for { self.reserved.pop() } else { None })?;
        self.out |= 1 << ticket;
        self.used |= 1 << ticket;
        Some(ticket)
    }

    fn put(&mut self, mut returned: u64) {
        self.out &= !returned;
        while returned != 0 {
            let ticket = returned.trailing_zeros() as u8;
            returned &= returned - 1;
            let free = if ticket < self.reserved_from {
                &mut self.common
            } else {
                &mut self.reserved
            };
            free.push(ticket);
        }
    }
}

/// The number of the first ticket that is kept for messages that were asked for.
pub(super) const fn reserved_from(tickets: u8) -> u8 {
    let reserved = tickets / 4;
    tickets - if reserved == 0 { 1 } else { reserved }
}

/// The sending half of a pair.
#[derive(Debug)]
pub(super) struct Outbox {
    peer: Rank,
    producer: Producer<Memory>,
    area: Memory,
    geometry: Geometry,
    /// Lines that are no messages, and go first.
    control: VecDeque<Descriptor>,
    /// Messages that wait for a ticket or for room.
    waiting: BTreeMap<Turn, Pending>,
    /// Those of them that the receiver has asked for.
    wanted: BTreeMap<Turn, Pending>,
    turns: Map<MessageKey, Turn>,
    next_turn: u64,
    /// Asked for before they are there to be sent.
    announced: HashSet<MessageKey>,
    /// Since when nothing could be sent for want of tickets.
    hungry: Option<Instant>,
    /// Whether the receiver was told.
    starved: bool,
    slots: Pool,
    references: Pool,
    /// By ticket: what to tell the sender of when it comes back.
    referenced: [Option<MessageKey>; REFERENCES],
}

impl Outbox {
    pub(super) fn new(peer: Rank, area: Memory, geometry: Geometry) -> Self {
        Self {
            peer,
            producer: Producer::new(area, &geometry),
            area,
            geometry,
            control: VecDeque::new(),
            waiting: BTreeMap::new(),
            wanted: BTreeMap::new(),
            turns: Map::default(),
            next_turn: 0,
            announced: HashSet::new(),
            hungry: None,
            starved: false,
            slots: Pool::new(geometry.slots()),
            references: Pool::new(REFERENCES),
            referenced: [None; REFERENCES],
        }
    }

    /// Sends a message now, or queues it. `events` gets what has left its memory. Says whether a
    /// line was published.
    pub(super) fn send(
        &mut self,
        pending: Pending,
        priority: u8,
        host: &HostSegment,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        let asked_for = !self.announced.is_empty() && self.announced.remove(&pending.key);
        if self.is_idle() && self.publish(&pending, asked_for, host, events)? {
            return Ok(true);
        }
        let turn = (Reverse(priority), self.next_turn);
        self.next_turn += 1;
        self.turns.insert(pending.key, turn);
        let queue = if asked_for {
            &mut self.wanted
        } else {
            &mut self.waiting
        };
        queue.insert(turn, pending);
        self.flush(host, events)
    }

    /// Queues a line that is no message.
    pub(super) fn tell(&mut self, key: MessageKey, fingerprint: u32, body: Body) {
        self.control.push_back(Descriptor {
            key,
            fingerprint,
            len: 0,
            body,
        });
    }

    /// The receiver asks for a message.
    pub(super) fn ask_for(&mut self, key: MessageKey) {
        match self.turns.get(&key) {
            None => {
                self.announced.insert(key);
            }
            Some(&turn) => {
                if let Some(pending) = self.waiting.remove(&turn) {
                    self.wanted.insert(turn, pending);
                }
            }
        }
    }

    /// Takes back tickets and sends what can be sent. Says whether anything moved, and whether a
    /// line was published.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &HostSegment,
        events: &mut Vec<Event>,
    ) -> Result<(bool, bool), String> {
        let collected = self.collect(events)?;
        if self.is_idle() {
            return Ok((collected, false));
        }
        let mut published = self.flush(host, events)?;
        if collected || published {
            self.hungry = None;
        } else if !self.starved && *self.hungry.get_or_insert(now) + PATIENCE <= now {
            self.starve();
            published = self.flush_control()?;
        }
        Ok((collected || published, published))
    }

    /// Before sleeping: sees to it that the receiver gives what this rank waits for, and wakes it
    /// then. Says whether a line was published.
    pub(super) fn arm(&mut self) -> Result<bool, String> {
        if self.queued() > 0 && !self.starved {
            self.starve();
        }
        let published = self.flush_control()?;
        self.producer
            .set_waits(!self.is_idle() || self.references.out != 0);
        Ok(published)
    }

    /// After sleeping.
    pub(super) fn disarm(&mut self) {
        self.producer.set_waits(false);
    }

    /// Whether [`Outbox::poll`] would find something.
    pub(super) fn has_news(&self) -> bool {
        self.producer.has_news(self.out())
    }

    /// Whether anything was sent that has not arrived, as far as this rank knows.
    pub(super) fn is_done(&self) -> bool {
        self.is_idle() && self.references.out == 0
    }

    /// Whether messages wait to be sent, or to be read in this rank's memory.
    pub(super) fn has_messages(&self) -> bool {
        self.queued() > 0 || self.references.out != 0
    }

    /// Forgets the messages of an operation.
    pub(super) fn end(&mut self, group: u64, op: u32) {
        let other = |key: &MessageKey| (key.group, key.op) != (group, op);
        if self.queued() > 0 {
            self.waiting.retain(|_, pending| other(&pending.key));
            self.wanted.retain(|_, pending| other(&pending.key));
            self.turns.retain(|key, _| other(key));
            self.relieve_if_done();
        }
        if !self.announced.is_empty() {
            self.announced.retain(other);
        }
        if self.references.out != 0 {
            let mut revoked = 0;
            for (ticket, key) in self.referenced.iter_mut().enumerate() {
                if key.is_some_and(|key| !other(&key)) {
                    *key = None;
                    revoked |= 1 << ticket;
                }
            }
            if revoked != 0 {
                self.producer.revoke(revoked);
            }
        }
    }

    /// Forgets everything that waits: the peer is gone.
    pub(super) fn clear(&mut self) {
        self.control.clear();
        self.waiting.clear();
        self.wanted.clear();
        self.turns.clear();
        self.announced.clear();
    }

    /// Bytes of shared memory that this half has touched.
    pub(super) fn memory_in_use(&self) -> usize {
        let slots = self.slots.used.count_ones() as usize * self.geometry.slot_bytes();
        self.geometry.ring_bytes() + slots
    }

    fn is_idle(&self) -> bool {
        self.control.is_empty() && self.queued() == 0
    }

    fn queued(&self) -> usize {
        self.waiting.len() + self.wanted.len()
    }

    const fn out(&self) -> Tickets {
        Tickets {
            slots: self.slots.out,
            references: self.references.out,
        }
    }

    fn collect(&mut self, events: &mut Vec<Event>) -> Result<bool, String> {
        let returned = self.producer.collect(self.out())?;
        self.slots.put(returned.slots);
        self.references.put(returned.references);
        let mut references = returned.references;
        while references != 0 {
            let ticket = references.trailing_zeros() as usize;
            references &= references - 1;
            if let Some(key) = self.referenced[ticket].take() {
                events.push(Event::Sent {
                    peer: self.peer,
                    key,
                });
            }
        }
        Ok(returned != Tickets::default())
    }

    fn flush(&mut self, host: &HostSegment, events: &mut Vec<Event>) -> Result<bool, String> {
        let mut published = self.flush_control()?;
        while self.control.is_empty() && self.flush_one(host, events)? {
            published = true;
        }
        self.relieve_if_done();
        Ok(published)
    }

    /// Sends the message whose turn it is: of those asked for or of the others, as a ticket can be
    /// had.
    fn flush_one(&mut self, host: &HostSegment, events: &mut Vec<Event>) -> Result<bool, String> {
        let first = |queue: &BTreeMap<Turn, Pending>| {
            queue
                .first_key_value()
                .map(|(&turn, &pending)| (turn, pending))
        };
        let mut heads = [(first(&self.wanted), true), (first(&self.waiting), false)];
        if let [(Some((wanted, _)), _), (Some((waiting, _)), _)] = heads
            && waiting < wanted
        {
            heads.reverse();
        }
        for (head, asked_for) in heads {
            let Some((turn, pending)) = head else {
                continue;
            };
            if self.publish(&pending, asked_for, host, events)? {
                let queue = if asked_for {
                    &mut self.wanted
                } else {
                    &mut self.waiting
                };
                queue.remove(&turn);
                self.turns.remove(&pending.key);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn flush_control(&mut self) -> Result<bool, String> {
        let mut published = false;
        while let Some(line) = self.control.front()
            && self.producer.room()?
        {
            self.producer.publish(line);
            self.control.pop_front();
            published = true;
        }
        Ok(published)
    }

    fn publish(
        &mut self,
        pending: &Pending,
        asked_for: bool,
        host: &HostSegment,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        if !self.producer.room()? {
            return Ok(false);
        }
        let &Pending {
            key,
            fingerprint,
            src,
        } = pending;
        let len = src.len();
        let body = if len <= INLINE_BYTES {
            if !asked_for && !self.producer.room_for_short()? {
                return Ok(false);
            }
            let mut bytes = [0; INLINE_BYTES];
            src.read(&mut bytes[..len]);
            Body::Inline(bytes)
        } else if len >= REFERENCE_FROM
            && let Some(offset) = host.locate(src)
        {
            let Some(ticket) = self.references.take(asked_for) else {
                return Ok(false);
            };
            self.referenced[usize::from(ticket)] = Some(key);
            Body::Reference {
                ticket,
                offset: offset as u64,
            }
        } else {
            // Slots that have come back are warm, those never used are not.
            self.collect(events)?;
            let Some(ticket) = self.slots.take(asked_for) else {
                return Ok(false);
            };
            let start = self.geometry.slot_start(ticket);
            self.area.slice(start..start + len).copy_from(src);
            Body::Slot(ticket)
        };
        self.producer.publish(&Descriptor {
            key,
            fingerprint,
            len,
            body,
        });
        if !matches!(body, Body::Reference { .. }) {
            events.push(Event::Sent {
                peer: self.peer,
                key,
            });
        }
        Ok(true)
    }

    /// Has the receiver told that there are messages that must be asked for.
    fn starve(&mut self) {
        self.starved = true;
        self.tell(NO_KEY, 0, Body::Starved);
    }

    fn relieve_if_done(&mut self) {
        if self.starved && self.queued() == 0 {
            self.starved = false;
            self.hungry = None;
            self.tell(NO_KEY, 0, Body::Relieved);
        }
    }
}

/// For lines that are about no message.
const NO_KEY: MessageKey = MessageKey {
    group: 0,
    op: 0,
    lane: 0,
    message: 0,
    slice: 0,
};
