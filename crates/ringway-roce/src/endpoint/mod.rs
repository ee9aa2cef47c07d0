//! An endpoint: many queue pairs of one IP address, which a device drives as one.
//!
//! The device hands in datagrams and the time, and takes datagrams out. An endpoint finds the queue pair that a packet
//! is for, lets the queue pairs send in turns, keeps their clocks, and counts what it refuses. Its work for a packet
//! doesn't grow with the number of queue pairs, and takes no memory from the system.
//!
//! [`Endpoint::handle_datagram`] takes a datagram, [`Endpoint::poll_transmit`] gives the next one,
//! [`Endpoint::poll_timeout`] says when to call [`Endpoint::handle_timeout`], and [`Endpoint::poll_completion`] says
//! which requests have ended. After a datagram, a timeout and a posted request, poll the others until they give nothing.
//!
//! An endpoint with a [`Manager`] also answers at the management queue pair: [`Endpoint::manager_mut`] connects and
//! accepts, [`Endpoint::poll_management`] gives the next of its datagrams. Take its notices first.

mod counters;
#[cfg(test)]
mod tests;
mod timers;

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use thiserror::Error;

pub use counters::Refused;

use crate::{
    ProtectionDomain, Psn, Qpn, Region,
    cm::{Mad, Manager},
    hash,
    rc::{
        Arrival, Attributes, Class, Completion, Counters, PostError, QueuePair, ReceiveAttributes,
        ReceiveRequest, SendAttributes, SendRequest, State, StateError,
    },
    wire::{Flow, Packet, ROCE_PORT},
};
use timers::Timers;

/// How many bytes a queue pair sends, about, before it is another's turn: what goes into one large UDP datagram that the
/// kernel or the NIC cuts, which is 15 packets of the largest MTU. Each packet counts for more than its bytes, as it costs
/// more than these.
const TURN: usize = 64_000;

/// What a packet costs, in bytes.
const PACKET: usize = 256;

/// A queue pair of an endpoint, by its index. Indices begin at 0 and are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// A UDP datagram that has come.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// The address and port that it was sent to.
    pub to: SocketAddr,
    /// Whether a switch marked it: both ECN bits are set.
    pub congestion_experienced: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Datagram<'_> {
    /// Whether the CRC is right. What comes to port 4791 is of a NIC or of Linux's rxe, which count the identifications
    /// of their packets over IPv4; what comes to other ports was sent with 0, and is held to it.
    fn is_intact(&self) -> bool {
        Flow::between(self.from, self.to).is_some_and(|flow| {
            if self.to.port() == ROCE_PORT {
                flow.verify_icrc_identified(self.bytes)
            } else {
                flow.verify_icrc(self.bytes)
            }
        })
    }
}

/// A datagram that is to go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The queue pair whose packet it is.
    pub handle: Handle,
    /// The receiver's address and port.
    pub to: SocketAddr,
    /// Its class.
    pub class: Class,
    /// Its length in bytes.
    pub length: usize,
}

/// A queue pair can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the endpoint has a queue pair {0} already, or the number is reserved; choose another number"
)]
pub struct NumberTaken(pub Qpn);

/// A handle that stands for no queue pair (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the endpoint has no queue pair with index {}; it was removed, or is another endpoint's", .0.0)]
pub struct NoQueuePair(pub Handle);

/// Many queue pairs behind one address; see the [module](self).
#[derive(Debug)]
pub struct Endpoint<R> {
    domain: ProtectionDomain<R>,
    slots: Vec<Option<Slot>>,
    free: Vec<Handle>,
    by_number: HashMap<Qpn, Handle, hash::Build>,
    /// Those that may have something to send, each once.
    ready: VecDeque<Handle>,
    /// How many bytes the first of them has sent in its turn.
    turn: usize,
    timers: Timers,
    completions: VecDeque<(Handle, Completion)>,
    failed: VecDeque<Handle>,
    refused: Refused,
    /// The counts of queue pairs that are gone.
    gone: Counters,
    /// The bytes that all queue pairs have allocated since they were made, and the most that they may.
    footprint: usize,
    footprint_limit: usize,
    manager: Option<Manager>,
    /// Of the next management datagram.
    management_psn: Psn,
}

#[derive(Debug)]
struct Slot {
    queue_pair: QueuePair,
    peer: Option<SocketAddr>,
    is_ready: bool,
    has_failed: bool,
}

impl<R> Default for Endpoint<R> {
    fn default() -> Self {
        Self {
            domain: ProtectionDomain::default(),
            slots: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::default(),
            ready: VecDeque::new(),
            turn: 0,
            timers: Timers::default(),
            completions: VecDeque::new(),
            failed: VecDeque::new(),
            refused: Refused::default(),
            gone: Counters::default(),
            footprint: 0,
            footprint_limit: usize::MAX,
            manager: None,
            management_psn: Psn::new(0),
        }
    }
}

impl<R: Region> Endpoint<R> {
    /// One without queue pairs and memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory of all queue pairs.
    pub const fn domain(&self) -> &ProtectionDomain<R> {
        &self.domain
    }

    /// The memory of all queue pairs, to register some.
    pub const fn domain_mut(&mut self) -> &mut ProtectionDomain<R> {
        &mut self.domain
    }

    /// Takes part in connection management from now on.
    pub fn manage(&mut self, manager: Manager) {
        self.manager = Some(manager);
    }

    /// Its connections and listeners, if it takes part.
    pub const fn manager_mut(&mut self) -> Option<&mut Manager> {
        self.manager.as_mut()
    }

    /// Its connections and listeners, if it takes part.
    pub const fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// Adds a queue pair, whose number had better be random: it is the first thing that a forger has to guess.
    pub fn create(&mut self, attributes: Attributes) -> Result<Handle, NumberTaken> {
        let number = attributes.number;
        // 0 and 1 are for management, the last one is for multicast.
        let reserved = !(2..0xff_ffff).contains(&number.get());
        if reserved || self.by_number.contains_key(&number) {
            return Err(NumberTaken(number));
        }
        // All of a queue pair's requests may end at once, and running takes no memory.
        let most = attributes.send_queue + attributes.receive_queue;
        let more = most.saturating_sub(self.completions.len());
        self.completions.reserve(more);
        let slot = Some(Slot {
            queue_pair: QueuePair::new(attributes),
            peer: None,
            is_ready: false,
            has_failed: false,
        });
        let handle = if let Some(handle) = self.free.pop() {
            self.slots[handle.0 as usize] = slot;
            handle
        } else {
            self.slots.push(slot);
            Handle(self.slots.len() as u32 - 1)
        };
        self.by_number.insert(number, handle);
        Ok(handle)
    }

    /// Connects a queue pair to its peer.
    pub fn connect(
        &mut self,
        handle: Handle,
        peer: SocketAddr,
        receive: ReceiveAttributes,
        send: SendAttributes,
    ) -> Result<Result<(), StateError>, NoQueuePair> {
        let slot = self.slot_mut(handle)?;
        let connected = slot
            .queue_pair
            .receive_with(receive)
            .and_then(|()| slot.queue_pair.send_with(send));
        if connected.is_ok() {
            slot.peer = Some(peer);
        }
        Ok(connected)
    }

    /// Removes a queue pair. Nothing is heard of its requests any more.
    pub fn destroy(&mut self, handle: Handle) -> Result<(), NoQueuePair> {
        let slot = self
            .slots
            .get_mut(handle.0 as usize)
            .and_then(Option::take)
            .ok_or(NoQueuePair(handle))?;
        self.gone.add(slot.queue_pair.counters());
        self.footprint -= slot.queue_pair.footprint();
        let number = slot.queue_pair.number();
        self.by_number.remove(&number);
        if let Some(manager) = &mut self.manager {
            manager.forget(number);
        }
        if self.ready.front() == Some(&handle) {
            self.turn = 0;
        }
        self.ready.retain(|ready| *ready != handle);
        self.failed.retain(|failed| *failed != handle);
        self.completions.retain(|(of, _)| *of != handle);
        self.timers.remove(handle.0);
        self.free.push(handle);
        Ok(())
    }

    /// A queue pair, to look at.
    pub fn queue_pair(&self, handle: Handle) -> Result<&QueuePair, NoQueuePair> {
        self.slots
            .get(handle.0 as usize)
            .and_then(Option::as_ref)
            .map(|slot| &slot.queue_pair)
            .ok_or(NoQueuePair(handle))
    }

    /// The queue pair of a number.
    pub fn find(&self, number: Qpn) -> Option<Handle> {
        self.by_number.get(&number).copied()
    }

    /// Puts a request into a send queue.
    pub fn post_send(
        &mut self,
        handle: Handle,
        request: &SendRequest<'_>,
    ) -> Result<Result<(), PostError>, NoQueuePair> {
        let posted = self.slot_mut(handle)?.queue_pair.post_send(request);
        self.make_ready(handle);
        Ok(posted)
    }

    /// Makes room for a message.
    pub fn post_receive(
        &mut self,
        handle: Handle,
        request: ReceiveRequest,
    ) -> Result<Result<(), PostError>, NoQueuePair> {
        Ok(self.slot_mut(handle)?.queue_pair.post_receive(request))
    }

    /// Takes a datagram.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &Datagram<'_>) {
        let packet = match Packet::parse(datagram.bytes) {
            Ok(packet) => packet,
            Err(malformed) => return self.refused.malformed(malformed),
        };
        if !datagram.is_intact() {
            self.refused.bad_icrc += 1;
            return;
        }
        let number = packet.bth.destination;
        if let (Qpn::MANAGEMENT, Some(manager)) = (number, &mut self.manager) {
            return match Mad::from_packet(&packet) {
                Ok(mad) => manager.handle(now, datagram.from.ip(), &mad),
                Err(_) => manager.malformed(),
            };
        }
        let Some(&handle) = self.by_number.get(&number) else {
            self.refused.unknown_queue_pair += 1;
            return;
        };
        if let Some(manager) = &mut self.manager {
            manager.heard_from(now, datagram.from.ip(), number);
        }
        let Some(slot) = &mut self.slots[handle.0 as usize] else {
            return;
        };
        let arrival = Arrival {
            from: datagram.from,
            congestion_experienced: datagram.congestion_experienced,
            packet,
        };
        let before = slot.queue_pair.footprint();
        let room = self.footprint_limit.saturating_sub(self.footprint);
        slot.queue_pair.limit_growth(room);
        slot.queue_pair
            .handle_packet(now, &arrival, &mut self.domain);
        self.footprint = self.footprint - before + slot.queue_pair.footprint();
        self.collect(handle);
        self.make_ready(handle);
    }

    /// Writes the next datagram to the beginning of `out`, which must have room for the largest MTU and
    /// [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD). None if there is none now.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Departure> {
        while let Some(&handle) = self.ready.front() {
            if self.turn >= TURN {
                self.turn = 0;
                self.ready.rotate_left(1);
                continue;
            }
            let slot = self.slots.get_mut(handle.0 as usize)?.as_mut()?;
            let sent = slot.queue_pair.poll_transmit(now, &self.domain, out);
            if let (Some(sent), Some(to)) = (sent, slot.peer) {
                self.turn += sent.length + PACKET;
                return Some(Departure {
                    handle,
                    to,
                    class: sent.class,
                    length: sent.length,
                });
            }
            slot.is_ready = false;
            match slot.queue_pair.poll_timeout() {
                Some(deadline) => self.timers.set(handle.0, deadline),
                // Or who sleeps now would be woken for nothing.
                None => self.timers.remove(handle.0),
            }
            self.turn = 0;
            self.ready.pop_front();
            // A request whose memory is gone fails when it is to be sent.
            self.collect(handle);
        }
        None
    }

    /// Writes the next datagram of connection management in place of what is in `out`. It goes from `own` to port 4791 of
    /// the address that is returned.
    pub fn poll_management(&mut self, own: SocketAddr, out: &mut Vec<u8>) -> Option<IpAddr> {
        loop {
            let (to, mad) = self.manager.as_mut()?.poll_transmit()?;
            // Of another family there is no peer, as its messages come from where they go to.
            if let Some(flow) = Flow::between(own, SocketAddr::new(to, ROCE_PORT)) {
                mad.emit_packet(self.management_psn, &flow, out);
                self.management_psn = self.management_psn.plus(1);
                return Some(to);
            }
        }
    }

    /// The next request that has ended, with its queue pair.
    pub fn poll_completion(&mut self) -> Option<(Handle, Completion)> {
        self.completions.pop_front()
    }

    /// The next queue pair that has failed. Its requests have completed.
    pub fn poll_failed(&mut self) -> Option<Handle> {
        self.failed.pop_front()
    }

    /// Whether [`Endpoint::poll_completion`], [`Endpoint::poll_failed`] or the manager have something to tell.
    pub fn has_news(&self) -> bool {
        !self.completions.is_empty()
            || !self.failed.is_empty()
            || self.manager.as_ref().is_some_and(Manager::has_notices)
    }

    /// Whether a queue pair may have something to send now.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When to call [`Endpoint::handle_timeout`], if nothing happens before. Often there will be nothing to do then.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let managed = self.manager.as_ref().and_then(Manager::poll_timeout);
        match (self.timers.next(), managed) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Lets the clocks run out that have.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(manager) = &mut self.manager {
            manager.handle_timeout(now);
        }
        while let Some(index) = self.timers.pop(now) {
            let handle = Handle(index);
            let Ok(slot) = self.slot_mut(handle) else {
                continue;
            };
            slot.queue_pair.handle_timeout(now);
            self.collect(handle);
            // Which sets the clock anew.
            self.make_ready(handle);
        }
    }

    /// The bytes that all queue pairs have allocated since they were made, see [`QueuePair::footprint`].
    pub const fn footprint(&self) -> usize {
        self.footprint
    }

    /// The most that [`Self::footprint`] may become; what it is already stays. Packets that come early and have no room are dropped,
    /// and come again.
    pub const fn limit_footprint(&mut self, bytes: usize) {
        self.footprint_limit = bytes;
    }

    /// What no queue pair took.
    pub const fn refused(&self) -> &Refused {
        &self.refused
    }

    /// What all queue pairs have counted, those that are gone included.
    pub fn counters(&self) -> Counters {
        let mut sum = self.gone;
        for slot in self.slots.iter().flatten() {
            sum.add(slot.queue_pair.counters());
        }
        sum
    }

    fn slot_mut(&mut self, handle: Handle) -> Result<&mut Slot, NoQueuePair> {
        self.slots
            .get_mut(handle.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(NoQueuePair(handle))
    }

    fn make_ready(&mut self, handle: Handle) {
        if let Some(Some(slot)) = self.slots.get_mut(handle.0 as usize)
            && !slot.is_ready
        {
            slot.is_ready = true;
            self.ready.push_back(handle);
        }
    }

    /// Takes over what a queue pair has to tell.
    fn collect(&mut self, handle: Handle) {
        let Some(Some(slot)) = self.slots.get_mut(handle.0 as usize) else {
            return;
        };
        while let Some(completion) = slot.queue_pair.poll_completion() {
            self.completions.push_back((handle, completion));
        }
        if slot.queue_pair.state() == State::Error && !slot.has_failed {
            slot.has_failed = true;
            self.failed.push_back(handle);
        }
    }
}
