//! Messages: those of this rank as soon as they may, and places for the peers'.

use ringway_plan::Rank;
use ringway_sys::{Memory, Staging};

use super::{
    RdmaTransport,
    frame::{Frame, HEADER, Tag},
    link::{Fault, Link, Offered, Write},
    peer::{Held, Inbound, Outbound, Place, Route},
};
use crate::{
    Event, LinkError, MessageKey, Sink, Transport as _,
    ops::{Op, Slot},
    rdma::DeviceError,
};

impl RdmaTransport {
    pub(super) fn post_send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        LinkError::check_peer(self.own, self.peers.len(), peer, key)?;
        if let Route::Lost(error) = &self.peers[peer].route {
            return Err(error.clone());
        }
        if self.uses_tcp(peer, &key) {
            self.stays_on_tcp(peer, &key);
            return self.tcp.send(peer, key, src, priority);
        }
        if let Some(gone) = self.tcp.gone(peer) {
            return Err(gone);
        }
        let len = self.length(peer, key, src.len())?;
        let (op, fingerprint) = self
            .ops
            .begun(&key)
            .ok_or_else(|| LinkError::not_begun(peer, key))?;
        let slot = Slot::new(peer, &key);
        match op.outbound.remove(&slot) {
            None => {
                let waiting = Outbound::Waiting { src, priority };
                op.outbound.insert(slot, waiting);
                if matches!(self.peers[peer].route, Route::Rdma) {
                    self.start_waiting(peer, key, fingerprint);
                } else {
                    self.ask(peer);
                }
            }
            Some(Outbound::Offered(place)) if place.len == len => {
                op.outbound.insert(slot, Outbound::Queued { src, priority });
                self.queue(peer, key, src, priority, place);
            }
            Some(Outbound::Offered(place)) => {
                let (expected, got) = (place.len as usize, src.len());
                self.lose(
                    peer,
                    LinkError::Length {
                        peer,
                        key,
                        expected,
                        got,
                    },
                );
            }
            Some(other) => {
                op.outbound.insert(slot, other);
                return Err(LinkError::posted_twice(peer, key));
            }
        }
        Ok(())
    }

    /// Sends a message that waits: at once if it is short and there is credit; otherwise it waits for an offer.
    pub(super) fn start_waiting(&mut self, peer: Rank, key: MessageKey, fingerprint: u32) {
        let Some((op, _)) = self.ops.begun(&key) else {
            return;
        };
        let slot = Slot::new(peer, &key);
        let Some(&Outbound::Waiting { src, priority }) = op.outbound.get(&slot) else {
            return;
        };
        let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) else {
            return;
        };
        let len = src.len() as u32;
        let tag = Tag {
            key,
            fingerprint,
            len,
        };
        if src.len() > link.eager_limit() {
            // Most likely the offer is on its way. It is announced only if it is still waited for at the next sleep.
            link.unannounced.push(key);
            return;
        }
        let done = match link.send_eager(&mut **device, tag, src) {
            Ok(Some(flight)) => {
                let flying = Outbound::Flying {
                    flight,
                    src,
                    priority,
                };
                op.outbound.insert(slot, flying);
                Ok(())
            }
            // The receiver does not know that there is no credit: it has to be told.
            Ok(None) => link.send(&mut **device, Frame::Announce(tag)),
            Err(error) => Err(error),
        };
        self.checked(peer, done);
        self.soil(peer);
    }

    /// Has a message written to its place, which was offered.
    pub(super) fn queue(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
        place: Place,
    ) {
        if let Some(link) = &mut self.peers[peer].link {
            link.write(Write {
                key,
                src,
                priority,
                number: place.number,
                place: place.remote,
            });
        }
        self.flush_peer(peer);
    }

    pub(super) fn post_recv(
        &mut self,
        peer: Rank,
        key: MessageKey,
        sink: Sink,
    ) -> Result<(), LinkError> {
        LinkError::check_peer(self.own, self.peers.len(), peer, key)?;
        if self.uses_tcp(peer, &key) && !self.is_here(peer, &key) {
            self.stays_on_tcp(peer, &key);
            return self.tcp.recv(peer, key, sink);
        }
        self.length(peer, key, sink.len())?;
        let (op, fingerprint) = self
            .ops
            .begun(&key)
            .ok_or_else(|| LinkError::not_begun(peer, key))?;
        let slot = Slot::new(peer, &key);
        let found = op.inbound.remove(&slot);
        match found {
            Some(Inbound::Stored { slot: at, len }) => {
                LinkError::check_length(peer, key, sink.len(), len as usize)?;
                self.deliver(peer, key, sink, at);
                return Ok(());
            }
            Some(Inbound::Saved(saved)) => {
                LinkError::check_length(peer, key, sink.len(), saved.memory().len())?;
                self.deliver_saved(peer, key, sink, saved);
                return Ok(());
            }
            Some(other @ (Inbound::Posted { .. } | Inbound::Viewed(_))) => {
                op.inbound.insert(slot, other);
                return Err(LinkError::posted_twice(peer, key));
            }
            None | Some(Inbound::Announced { .. }) => {}
        }
        if let Route::Lost(error) = &self.peers[peer].route {
            return Err(error.clone());
        }
        op.inbound
            .insert(slot, Inbound::Posted { sink, offer: None });
        match found {
            Some(Inbound::Announced { len }) => {
                LinkError::check_length(peer, key, sink.len(), len as usize)?;
                self.offer(peer, key, fingerprint);
            }
            _ if matches!(self.peers[peer].route, Route::Rdma) => {
                self.offer_posted(peer, key, fingerprint);
            }
            _ => self.ask(peer),
        }
        Ok(())
    }

    /// Whether the messages of an operation to and from a peer go over TCP.
    fn uses_tcp(&self, peer: Rank, key: &MessageKey) -> bool {
        let state = &self.peers[peer];
        match state.route {
            Route::Tcp => true,
            // RDMA is tried again.
            Route::Asking | Route::Connecting | Route::Proving { .. } | Route::Measuring { .. } => {
                state.round > 0
            }
            Route::Judging { .. } | Route::Rdma | Route::Mending => self
                .ops
                .get(key.group, key.op)
                .is_some_and(|op| op.on_tcp.contains(&peer)),
            Route::Idle | Route::Lost(_) => false,
        }
    }

    /// A message to or from a peer goes over TCP: all others of its operation will.
    pub(super) fn stays_on_tcp(&mut self, peer: Rank, key: &MessageKey) {
        let state = &self.peers[peer];
        // Where there is no other way, ever, that need not be known.
        if !state.never
            && !state.prefers_tcp
            && let Some((op, _)) = self.ops.begun(key)
            && !op.on_tcp.contains(&peer)
        {
            op.on_tcp.push(peer);
        }
    }

    /// Whether a message has come over RDMA, and its receive was not posted then.
    fn is_here(&mut self, peer: Rank, key: &MessageKey) -> bool {
        self.ops.begun(key).is_some_and(|(op, _)| {
            let inbound = op.inbound.get(&Slot::new(peer, key));
            matches!(
                inbound,
                Some(Inbound::Stored { .. } | Inbound::Saved(_) | Inbound::Viewed(_))
            )
        })
    }

    /// Offers a place for a message if it is one that waits for that.
    pub(super) fn offer_posted(&mut self, peer: Rank, key: MessageKey, fingerprint: u32) {
        let Some((op, _)) = self.ops.begun(&key) else {
            return;
        };
        if let Some(Inbound::Posted { sink, offer: None }) = op.inbound.get(&Slot::new(peer, &key))
            && sink.len() > self.settings.eager_limit
        {
            self.offer(peer, key, fingerprint);
        }
    }

    /// Offers a place for a message whose receive is posted.
    pub(super) fn offer(&mut self, peer: Rank, key: MessageKey, fingerprint: u32) {
        if !matches!(self.peers[peer].route, Route::Rdma) {
            return;
        }
        let Some((op, _)) = self.ops.begun(&key) else {
            return;
        };
        let Some(Inbound::Posted { sink, offer }) = op.inbound.get_mut(&Slot::new(peer, &key))
        else {
            return;
        };
        let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) else {
            return;
        };
        let done = match self.pool.place(&mut **device, *sink) {
            Ok((lease, place)) => {
                let ended = false;
                let number = link.offers.insert(Offered { key, lease, ended });
                *offer = Some(number);
                let len = sink.len() as u32;
                let tag = Tag {
                    key,
                    fingerprint,
                    len,
                };
                let frame = Frame::Offer { tag, number, place };
                link.send(&mut **device, frame).map_err(Fault::from)
            }
            Err(none) => Err(none.into()),
        };
        self.faultless(peer, done);
        self.soil(peer);
    }

    /// Gives a short message to its receive.
    pub(super) fn deliver(&mut self, peer: Rank, key: MessageKey, sink: Sink, at: u64) {
        let Some(link) = &self.peers[peer].link else {
            return;
        };
        let end = HEADER + sink.len();
        let memory = link.slot(at, end).slice(HEADER..end);
        let mut view = Memory::EMPTY;
        if let Sink::View(1..) = sink {
            view = memory;
            if let Some((op, _)) = self.ops.begun(&key) {
                let viewed = Inbound::Viewed(Held::Slot(at));
                op.inbound.insert(Slot::new(peer, &key), viewed);
            }
        }
        self.events.push(Event::Received { peer, key, view });
        if let Sink::Place(place) = sink {
            place.copy_from(memory);
        }
        if view.is_empty() {
            self.give_back(peer, at);
        }
    }

    /// Gives a short message to its receive that came over a link which has failed since.
    fn deliver_saved(&mut self, peer: Rank, key: MessageKey, sink: Sink, saved: Staging) {
        let mut view = Memory::EMPTY;
        match sink {
            Sink::Place(place) => place.copy_from(saved.memory()),
            Sink::View(0) => {}
            Sink::View(_) => {
                view = saved.memory();
                if let Some((op, _)) = self.ops.begun(&key) {
                    let viewed = Inbound::Viewed(Held::Saved { _memory: saved });
                    op.inbound.insert(Slot::new(peer, &key), viewed);
                }
            }
        }
        self.events.push(Event::Received { peer, key, view });
    }

    /// The user has looked at a message.
    pub(super) fn give_up_view(&mut self, peer: Rank, held: Held) {
        match held {
            Held::Saved { .. } => {}
            Held::Buffer(buffer) => self.pool.give(buffer),
            Held::Slot(at) => self.give_back(peer, at),
        }
    }

    /// The slot of a short message is free again.
    pub(super) fn give_back(&mut self, peer: Rank, at: u64) {
        if let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) {
            let done = link.give_back(&mut **device, at, true);
            self.checked(peer, done);
            self.soil(peer);
        }
    }

    /// Sends a frame.
    pub(super) fn control(&mut self, peer: Rank, frame: Frame) {
        if let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) {
            let done = link.send(&mut **device, frame);
            self.checked(peer, done);
            self.soil(peer);
        }
    }

    /// Forgets what a peer has sent for an operation that it takes for another.
    pub(super) fn forget_from(&mut self, peer: Rank, group: u64, op: u32) {
        for (slot, inbound) in self.ops.forget_from(peer, group, op) {
            self.forget(slot, group, op, inbound);
        }
    }

    /// Ends the messages of an operation.
    pub(super) fn end(&mut self, group: u64, number: u32, ended: &mut Op<Inbound, Outbound>) {
        for (slot, inbound) in ended.inbound.drain() {
            self.forget(slot, group, number, inbound);
        }
        for (slot, outbound) in ended.outbound.drain() {
            match outbound {
                Outbound::Offered(Place { number, .. }) => {
                    self.control(slot.peer, Frame::Unused { number });
                }
                Outbound::Flying { flight, .. } => {
                    if let Some(link) = &mut self.peers[slot.peer].link {
                        link.abandon(flight);
                    }
                }
                Outbound::Queued { .. } => {
                    let mut unused = Vec::new();
                    if let Some(link) = &mut self.peers[slot.peer].link {
                        link.cancel_writes(group, number, |number| unused.push(number));
                    }
                    for number in unused {
                        self.control(slot.peer, Frame::Unused { number });
                    }
                }
                Outbound::Waiting { .. } => {}
            }
        }
    }

    /// A message is not waited for any more.
    fn forget(&mut self, slot: Slot, group: u64, op: u32, inbound: Inbound) {
        let (peer, key) = (slot.peer, slot.key(group, op));
        match inbound {
            Inbound::Announced { .. } | Inbound::Saved(_) | Inbound::Posted { offer: None, .. } => {
            }
            Inbound::Posted {
                offer: Some(number),
                ..
            } => {
                if let Some(link) = &mut self.peers[peer].link {
                    link.end_offer(number);
                }
                self.control(peer, Frame::Revoke { key, number });
            }
            Inbound::Stored { slot, .. } => self.give_back(peer, slot),
            Inbound::Viewed(held) => self.give_up_view(peer, held),
        }
    }

    /// Posts what waits for a peer.
    pub(super) fn flush_peer(&mut self, peer: Rank) {
        let mut started = std::mem::take(&mut self.started);
        let mut done = Ok(());
        if let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) {
            done = link.flush(&mut **device, &mut self.pool, &mut started);
        }
        for (key, flight) in started.drain(..) {
            if let Some((op, _)) = self.ops.begun(&key)
                && let Some(outbound) = op.outbound.get_mut(&Slot::new(peer, &key))
                && let Outbound::Queued { src, priority } = *outbound
            {
                *outbound = Outbound::Flying {
                    flight,
                    src,
                    priority,
                };
            }
        }
        self.started = started;
        // After those that it has started: they are to be sent again.
        self.faultless(peer, done);
        self.soil(peer);
    }

    /// Puts a peer on the list of those with something to post, if it has.
    pub(super) fn soil(&mut self, peer: Rank) {
        let state = &mut self.peers[peer];
        if !state.is_dirty && state.link.as_ref().is_some_and(Link::has_output) {
            state.is_dirty = true;
            self.dirty.push_back(peer);
        }
    }

    pub(super) fn checked(&mut self, peer: Rank, done: Result<(), DeviceError>) {
        self.faultless(peer, done.map_err(Fault::from));
    }

    pub(super) fn faultless(&mut self, peer: Rank, done: Result<(), Fault>) {
        match done {
            Ok(()) => {}
            Err(Fault::Limit { wanted, limit }) => {
                let detail = "a buffer for a long message over RDMA".into();
                self.lose(
                    peer,
                    LinkError::MemoryLimit {
                        peer,
                        detail,
                        wanted,
                        limit,
                    },
                );
            }
            Err(Fault::Device(error)) => {
                self.failed(peer, error.to_string());
            }
        }
    }

    /// The length of a message, if a device can move it.
    fn length(&self, peer: Rank, key: MessageKey, len: usize) -> Result<u32, LinkError> {
        let most = match &self.device {
            Ok(device) => device.limits().message,
            Err(_) => u32::MAX,
        };
        u32::try_from(len)
            .ok()
            .filter(|len| *len <= most)
            .ok_or(LinkError::Misuse {
                peer,
                key,
                detail: "it is longer than the device's longest message",
            })
    }
}
