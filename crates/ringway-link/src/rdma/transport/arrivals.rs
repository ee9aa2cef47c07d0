//! What the device tells: the end of requests, and with it what peers have sent.

use ringway_plan::Rank;
use ringway_sys::Memory;

use super::{
    RdmaTransport,
    frame::{Frame, HEADER, Tag},
    link::{GREETING, Link, PING, STREAM},
    peer::{Held, Inbound, Outbound, Place, Route},
    pool::Lease,
};
use crate::{
    Event, LinkError, MessageKey, Sink,
    ops::Slot,
    rdma::{Completion, DeviceEvent, Done},
};

/// What frames of one peer may wait for their counterpart, in operations: what schedules in flight need is far less, and a
/// peer gone mad shall not fill the memory.
const STRAYS: usize = 1 << 16;

impl RdmaTransport {
    /// A request has ended.
    pub(super) fn completed(&mut self, completion: &Completion) {
        let at = completion.queue_pair.0 as usize;
        let Some(&Some((peer, channel))) = self.pairs.get(at) else {
            return;
        };
        let done = match completion.result {
            Ok(done) => done,
            Err(failure) => return self.failed(peer, failure.to_string()),
        };
        let state = &mut self.peers[peer];
        if let Done::ReceiveWrite {
            immediate: code @ STREAM..=PING,
            ..
        } = done
        {
            if let (Ok(device), Some(link)) = (&mut self.device, &mut state.link) {
                let done = link.greeted(&mut **device, channel, completion.id);
                self.checked(peer, done);
            }
            return self.probe_came(peer, code);
        }
        // The peer has heard this side, and said so: its verdict is on its way, and says which operations stay on TCP.
        if matches!(state.route, Route::Judging { .. })
            && matches!(done, Done::Receive { .. } | Done::ReceiveWrite { .. })
        {
            return state.early.push(*completion);
        }
        let (Ok(device), Some(link)) = (&mut self.device, &mut state.link) else {
            return;
        };
        let id = completion.id;
        match (done, channel) {
            (Done::Send | Done::Write, _) => {
                if let Some(key) = link.ended(channel, id, &mut self.pool) {
                    if let Some((op, _)) = self.ops.begun(&key) {
                        op.outbound.remove(&Slot::new(peer, &key));
                    }
                    self.events.push(Event::Sent { peer, key });
                } else if matches!(self.peers[peer].route, Route::Measuring { .. }) {
                    self.probe_arrived(peer);
                }
            }
            (
                Done::ReceiveWrite {
                    immediate: GREETING,
                    ..
                },
                _,
            ) => {
                let done = link.greeted(&mut **device, channel, id);
                return self.checked(peer, done);
            }
            (Done::Receive { length, .. }, 0) => self.frame_arrives(peer, id, length as usize),
            (Done::ReceiveWrite { immediate, .. }, 1..) => self.landed(peer, channel, immediate),
            (other, _) => {
                let detail = format!("{other:?} on queue pair {channel}");
                return self.lose(peer, LinkError::Protocol { peer, detail });
            }
        }
        self.soil(peer);
    }

    /// A queue pair to a peer has failed. Before the decision that decides for TCP; afterwards the two go over to it.
    pub(super) fn failed(&mut self, peer: Rank, detail: String) {
        match self.peers[peer].route {
            Route::Asking
            | Route::Connecting
            | Route::Proving { .. }
            | Route::Measuring { .. }
            | Route::Judging { .. } => {
                self.peers[peer].fault.get_or_insert(detail);
            }
            // Not yet: what the device has told besides was before.
            Route::Rdma if self.peers[peer].fault.is_none() => {
                self.peers[peer].fault = Some(detail);
                self.broken.push(peer);
            }
            Route::Rdma => {}
            Route::Idle | Route::Mending | Route::Tcp | Route::Lost(_) => {}
        }
    }

    /// Something has happened by no request. Returns why the device is of no use any more, if that is so.
    pub(super) fn device_event(&mut self, event: DeviceEvent) -> Option<String> {
        match event {
            DeviceEvent::Fatal => return Some("the device has failed".into()),
            DeviceEvent::QueuePair(pair) => {
                if let Some(&Some((peer, _))) = self.pairs.get(pair.0 as usize) {
                    self.failed(peer, "a queue pair has failed".into());
                }
            }
            DeviceEvent::PortDown => tracing::warn!("the port of the RDMA device is down"),
            DeviceEvent::PortUp => tracing::warn!("the port of the RDMA device is up again"),
            DeviceEvent::AddressChange => {
                tracing::warn!("the addresses of the RDMA device's port have changed");
            }
        }
        None
    }

    /// Nothing moves over the device any more. It isn't opened again, as registered memory is registered with it: peers are told
    /// so when they try, and try no more.
    pub(super) fn device_failed(&mut self, detail: String) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].link.is_some() {
                self.failed(peer, detail.clone());
            }
        }
        self.mend();
        self.device = Err(detail);
    }

    fn frame_arrives(&mut self, peer: Rank, slot: u64, length: usize) {
        if !matches!(self.peers[peer].route, Route::Rdma | Route::Mending) {
            return self.breaks_protocol(peer, "a frame before its verdict".into());
        }
        let Some(link) = &mut self.peers[peer].link else {
            return;
        };
        link.came(0);
        let mut header = [0; HEADER];
        let memory = link.slot(slot, length);
        memory
            .slice(0..memory.len().min(HEADER))
            .read(&mut header[..memory.len().min(HEADER)]);
        let decoded = Frame::decode(&header[..memory.len().min(HEADER)]);
        let (frame, credit) = match decoded {
            Ok(decoded) => decoded,
            Err(bad) => return self.breaks_protocol(peer, bad.to_string()),
        };
        if !link.credit(&credit) {
            return self.breaks_protocol(peer, "more credit than was used".into());
        }
        let payload = match frame {
            Frame::Eager(tag) => tag.len as usize,
            _ => 0,
        };
        if length != HEADER + payload {
            let detail = format!("{length} bytes where {frame:?} has {}", HEADER + payload);
            return self.breaks_protocol(peer, detail);
        }
        let is_eager = matches!(frame, Frame::Eager(_));
        let done = match frame {
            Frame::Eager(tag) => self.eager_arrives(peer, &tag, slot),
            Frame::Announce(tag) => self.announced(peer, &tag),
            Frame::Credit => Ok(()),
            Frame::Offer { tag, number, place } => self.offered(
                peer,
                &tag,
                Place {
                    len: tag.len,
                    number,
                    remote: place,
                },
            ),
            Frame::Revoke { key, number } => {
                self.revoked(peer, &key, number);
                Ok(())
            }
            Frame::Unused { number } => {
                self.unused(peer, number);
                Ok(())
            }
            Frame::Waits(tag) => {
                self.agrees(peer, &tag);
                Ok(())
            }
        };
        if let Err(error) = done {
            return self.lose(peer, error);
        }
        if self.ops.len() > STRAYS {
            return self.breaks_protocol(peer, format!("more than {STRAYS} operations"));
        }
        if !is_eager
            && let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link)
        {
            let done = link.give_back(&mut **device, slot, false);
            self.checked(peer, done);
        }
    }

    fn breaks_protocol(&mut self, peer: Rank, detail: String) {
        self.lose(peer, LinkError::Protocol { peer, detail });
    }

    /// Whether a peer takes part in the same operation; if not, that is an event, once.
    fn agrees(&mut self, peer: Rank, tag: &Tag) -> bool {
        self.ops
            .agrees(peer, &tag.key, tag.fingerprint, &mut self.events)
    }

    /// A short message has come.
    fn eager_arrives(&mut self, peer: Rank, tag: &Tag, at: u64) -> Result<(), LinkError> {
        let slot = Slot::new(peer, &tag.key);
        if !self.agrees(peer, tag) {
            self.give_back(peer, at);
            return Ok(());
        }
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(());
        };
        match op.inbound.remove(&slot) {
            None => {
                let (slot_of_link, len) = (at, tag.len);
                let stored = Inbound::Stored {
                    slot: slot_of_link,
                    len,
                };
                op.inbound.insert(slot, stored);
                Ok(())
            }
            Some(Inbound::Posted { sink, offer: None }) => {
                LinkError::check_length(peer, tag.key, sink.len(), tag.len as usize)?;
                self.deliver(peer, tag.key, sink, at);
                Ok(())
            }
            Some(_) => Err(repeated(peer, tag)),
        }
    }

    /// A peer has a message and waits for a place.
    fn announced(&mut self, peer: Rank, tag: &Tag) -> Result<(), LinkError> {
        if !self.agrees(peer, tag) {
            return Ok(());
        }
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(());
        };
        let slot = Slot::new(peer, &tag.key);
        match op.inbound.get(&slot) {
            None => {
                op.inbound.insert(slot, Inbound::Announced { len: tag.len });
                Ok(())
            }
            Some(&Inbound::Posted { sink, offer }) => {
                LinkError::check_length(peer, tag.key, sink.len(), tag.len as usize)?;
                if offer.is_none() {
                    let fingerprint = op.fingerprint.unwrap_or_default();
                    self.offer(peer, tag.key, fingerprint);
                }
                Ok(())
            }
            // The announcement crossed the offer, and the message overtook it on another queue pair.
            Some(Inbound::Viewed(Held::Buffer(_))) => Ok(()),
            Some(_) => Err(repeated(peer, tag)),
        }
    }

    /// A peer has a place for a message.
    fn offered(&mut self, peer: Rank, tag: &Tag, place: Place) -> Result<(), LinkError> {
        // With the link all offers end.
        if !matches!(self.peers[peer].route, Route::Rdma) {
            return Ok(());
        }
        let wanted = self.agrees(peer, tag);
        let Some(op) = self.ops.open(&tag.key).filter(|_| wanted) else {
            let number = place.number;
            self.control(peer, Frame::Unused { number });
            return Ok(());
        };
        let slot = Slot::new(peer, &tag.key);
        match op.outbound.get(&slot) {
            None => {
                op.outbound.insert(slot, Outbound::Offered(place));
                Ok(())
            }
            Some(&Outbound::Waiting { src, priority }) => {
                if src.len() != tag.len as usize {
                    return Err(LinkError::Length {
                        peer,
                        key: tag.key,
                        expected: tag.len as usize,
                        got: src.len(),
                    });
                }
                op.outbound.insert(slot, Outbound::Queued { src, priority });
                self.queue(peer, tag.key, src, priority, place);
                Ok(())
            }
            Some(_) => {
                let detail = format!("a second offer for message {}", tag.key);
                Err(LinkError::Protocol { peer, detail })
            }
        }
    }

    /// A peer wants its offer back: if it is not in use, nor used already, it is told so.
    fn revoked(&mut self, peer: Rank, key: &MessageKey, number: u32) {
        let slot = Slot::new(peer, key);
        let Some(op) = self.ops.open(key) else {
            return;
        };
        if let Some(Outbound::Offered(place)) = op.outbound.get(&slot)
            && place.number == number
        {
            op.outbound.remove(&slot);
            self.control(peer, Frame::Unused { number });
        }
    }

    /// An offer of this side's comes back.
    fn unused(&mut self, peer: Rank, number: u32) {
        let Some(link) = &mut self.peers[peer].link else {
            return;
        };
        let Some(offered) = link.take_offer(number) else {
            return self.breaks_protocol(peer, format!("offer {number}, which was never made"));
        };
        self.pool.end(offered.lease);
        if !offered.ended
            && let Some((op, _)) = self.ops.begun(&offered.key)
            && let Some(Inbound::Posted { offer, .. }) =
                op.inbound.get_mut(&Slot::new(peer, &offered.key))
        {
            *offer = None;
        }
    }

    /// A long message has come, to the place that was offered.
    fn landed(&mut self, peer: Rank, channel: usize, number: u32) {
        let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link) else {
            return;
        };
        let done = link.landed(&mut **device, channel);
        let Some(offered) = link.take_offer(number) else {
            let detail = format!("a message for offer {number}, which was never made");
            return self.breaks_protocol(peer, detail);
        };
        self.checked(peer, done);
        let key = offered.key;
        let slot = Slot::new(peer, &key);
        let op = self.ops.begun(&key).filter(|_| !offered.ended);
        let Some((op, _)) = op else {
            return self.pool.end(offered.lease);
        };
        let Some(Inbound::Posted { sink, .. }) = op.inbound.remove(&slot) else {
            return self.pool.end(offered.lease);
        };
        let view = match (offered.lease, sink) {
            (Lease::Buffer(buffer), Sink::View(len)) => {
                let lies = buffer.memory(len);
                let held = Held::Buffer(buffer);
                op.inbound.insert(slot, Inbound::Viewed(held));
                lies
            }
            (Lease::Buffer(buffer), Sink::Place(place)) => {
                place.copy_from(buffer.memory(place.len()));
                self.pool.give(buffer);
                Memory::EMPTY
            }
            (in_place, _) => {
                self.pool.end(in_place);
                Memory::EMPTY
            }
        };
        self.events.push(Event::Received { peer, key, view });
    }

    pub(super) fn is_gone(&self, peer: Rank) -> bool {
        self.tcp.gone(peer).is_some()
    }

    /// Whether the peer has all that this side has sent, or is gone.
    pub(super) fn is_drained(&self, peer: Rank) -> bool {
        let state = &self.peers[peer];
        match state.route {
            Route::Rdma => state.link.as_ref().is_none_or(Link::is_idle) || self.is_gone(peer),
            Route::Mending => self.is_gone(peer),
            _ => true,
        }
    }
}

fn repeated(peer: Rank, tag: &Tag) -> LinkError {
    let detail = format!("message {} twice, or in another way than agreed", tag.key);
    LinkError::Protocol { peer, detail }
}
