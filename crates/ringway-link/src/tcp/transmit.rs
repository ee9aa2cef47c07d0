//! What goes to peers: messages as soon as they may, frames with the next write.

use ringway_plan::Rank;
use ringway_sys::Memory;

use super::{
    TcpTransport,
    frame::{Frame, Tag},
    ops::{Inbound, Outbound, Slot},
    peer::State,
    receive::cost,
    writer::{Given, Writer},
};
use crate::{Event, LinkError, MessageKey, Sink};

/// A message that would wait for more bytes than these takes a stream of its own: one alone does not fill fast wires.
const LATE: usize = 1 << 20;

impl TcpTransport {
    /// Sends a message, or makes it wait for the connection, for credit or for its grant.
    pub(super) fn post_send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        LinkError::check_peer(self.own, self.peers.len(), peer, key)?;
        if let State::Lost(error) = &self.peers[peer].state {
            return Err(error.clone());
        }
        if self.peers[peer].leaving {
            return Err(LinkError::Left { peer });
        }
        let (op, fingerprint) = self
            .ops
            .begun(&key)
            .ok_or_else(|| LinkError::not_begun(peer, key))?;
        let slot = Slot::new(peer, &key);
        let granted = match op.outbound.get(&slot) {
            None => None,
            Some(&Outbound::Granted { len }) => Some(len),
            Some(_) => return Err(LinkError::posted_twice(peer, key)),
        };
        let tag = Tag {
            key,
            fingerprint,
            len: src.len(),
        };
        self.peers[peer].unsent += 1;
        if let Some(expected) = granted {
            op.outbound.remove(&slot);
            self.peers[peer].strays -= 1;
            if expected == src.len() {
                self.transmit(peer, Frame::Data(tag), &tag, src, priority);
            } else {
                self.lose(
                    peer,
                    LinkError::Length {
                        peer,
                        key,
                        expected,
                        got: src.len(),
                    },
                );
            }
        } else if matches!(self.peers[peer].state, State::Ready) {
            self.dispatch(peer, tag, src, priority);
        } else {
            op.outbound
                .insert(slot, Outbound::Waiting { src, priority });
            self.peers[peer].backlog.push(key);
            self.connect(peer);
        }
        self.heat(peer);
        Ok(())
    }

    /// Sends a message that nobody has asked for, if it is short and there is credit; otherwise it waits to be asked.
    fn dispatch(&mut self, peer: Rank, tag: Tag, src: Memory, priority: u8) {
        let short = tag.len <= self.peers[peer].eager_limit;
        if short {
            self.reclaim(peer, cost(tag.len), priority);
        }
        let state = &mut self.peers[peer];
        if short && cost(tag.len) <= state.credit {
            state.credit -= cost(tag.len);
            self.transmit(peer, Frame::Eager(tag), &tag, src, priority);
            return;
        }
        if short {
            // The receiver does not know that there is no credit: it has to be told.
            self.control(peer, Frame::Announce(tag));
        } else {
            // Most likely the grant is on its way. It is announced only if it is still waited for at the next sleep.
            state.unannounced.push(tag.key);
        }
        self.wait_for_grant(peer, &tag.key, src, priority);
    }

    fn wait_for_grant(&mut self, peer: Rank, key: &MessageKey, src: Memory, priority: u8) {
        if let Some((op, _)) = self.ops.begun(key) {
            op.outbound
                .insert(Slot::new(peer, key), Outbound::Waiting { src, priority });
        }
    }

    /// Takes the credit of messages that still wait in the queue back for a more urgent one, until it has what it needs:
    /// otherwise it would wait to be asked for, and they would keep it from going ahead of them. They wait for that instead.
    fn reclaim(&mut self, peer: Rank, needed: usize, priority: u8) {
        while self.peers[peer].credit < needed {
            let state = &mut self.peers[peer];
            let first = state.streams.first_mut();
            let Some((key, src, lower)) =
                first.and_then(|stream| stream.writer.withdraw_unasked(priority))
            else {
                return;
            };
            state.credit += cost(src.len());
            if let Some((_, fingerprint)) = self.ops.begun(&key) {
                let len = src.len();
                let tag = Tag {
                    key,
                    fingerprint,
                    len,
                };
                self.control(peer, Frame::Announce(tag));
                self.wait_for_grant(peer, &key, src, lower);
            }
        }
    }

    /// Sends what waited for the peer's welcome.
    pub(super) fn dispatch_backlog(&mut self, peer: Rank) {
        for key in std::mem::take(&mut self.peers[peer].backlog) {
            let Some((op, fingerprint)) = self.ops.begun(&key) else {
                continue;
            };
            let slot = Slot::new(peer, &key);
            if let Some(&Outbound::Waiting { src, priority }) = op.outbound.get(&slot) {
                op.outbound.remove(&slot);
                let tag = Tag {
                    key,
                    fingerprint,
                    len: src.len(),
                };
                self.dispatch(peer, tag, src, priority);
            }
        }
    }

    /// Tells receivers of messages that they have not asked for.
    pub(super) fn announce_waiting(&mut self, peer: Rank) {
        for key in std::mem::take(&mut self.peers[peer].unannounced) {
            if let Some((op, fingerprint)) = self.ops.begun(&key)
                && let Some(Outbound::Waiting { src, .. }) = op.outbound.get(&Slot::new(peer, &key))
            {
                let len = src.len();
                self.control(
                    peer,
                    Frame::Announce(Tag {
                        key,
                        fingerprint,
                        len,
                    }),
                );
            }
        }
    }

    /// Gives a message to a stream.
    pub(super) fn transmit(
        &mut self,
        peer: Rank,
        frame: Frame,
        tag: &Tag,
        src: Memory,
        priority: u8,
    ) {
        let at = self.stream_for(peer, tag.len, priority);
        let Some(stream) = self.peers[peer].streams.get_mut(at) else {
            return;
        };
        let socket = std::os::fd::AsFd::as_fd(&stream.socket);
        match stream.writer.send(socket, frame, tag, src, priority) {
            Ok(Given::Sent) => {
                self.peers[peer].unsent -= 1;
                self.events.push(Event::Sent { peer, key: tag.key });
            }
            Ok(Given::Queued) => {
                if let Some((op, _)) = self.ops.begun(&tag.key) {
                    op.outbound
                        .insert(Slot::new(peer, &tag.key), Outbound::Queued);
                }
                self.soil(peer);
            }
            Err(error) => self.lose(
                peer,
                LinkError::Closed {
                    peer,
                    detail: error.to_string(),
                },
            ),
        }
    }

    /// The stream for a message: long ones share those that are for them, if there are any yet. One that may overtake goes where
    /// the others are: on another stream it would share the wire with them.
    fn stream_for(&mut self, peer: Rank, len: usize, priority: u8) -> usize {
        let state = &self.peers[peer];
        if len <= state.eager_limit {
            return 0;
        }
        let bulk = state
            .streams
            .iter()
            .enumerate()
            .skip(1)
            .filter(|(_, stream)| !stream.ended);
        let turn = |writer: &Writer| {
            let waits = writer.mixes(priority) && writer.before(priority) < LATE;
            (!waits, writer.backlog())
        };
        match bulk.min_by_key(|(_, stream)| turn(&stream.writer)) {
            Some((at, _)) => at,
            None => {
                self.ask_for_bulk(peer);
                0
            }
        }
    }

    /// Queues a frame without payload for the next write, or for the connection.
    pub(super) fn control(&mut self, peer: Rank, frame: Frame) {
        match self.peers[peer].streams.first_mut() {
            Some(stream) => {
                stream.writer.control(frame);
                self.soil(peer);
            }
            None => self.peers[peer].early.push(frame),
        }
    }

    /// Says where a message goes, and asks for it if it is long.
    pub(super) fn post_recv(
        &mut self,
        peer: Rank,
        key: MessageKey,
        sink: Sink,
    ) -> Result<(), LinkError> {
        LinkError::check_peer(self.own, self.peers.len(), peer, key)?;
        let (op, fingerprint) = self
            .ops
            .begun(&key)
            .ok_or_else(|| LinkError::not_begun(peer, key))?;
        let slot = Slot::new(peer, &key);
        let tag = |len| Tag {
            key,
            fingerprint,
            len,
        };
        let state = &mut self.peers[peer];
        match op.inbound.remove(&slot) {
            Some(Inbound::Stored { buffer, len }) => {
                LinkError::check_length(peer, key, sink.len(), len)?;
                state.posted += 1;
                self.deliver(peer, &tag(len), sink, buffer);
                self.give_back(peer, len);
            }
            Some(Inbound::Filling { len, claim: None }) => {
                LinkError::check_length(peer, key, sink.len(), len)?;
                state.posted += 1;
                op.inbound.insert(
                    slot,
                    Inbound::Filling {
                        len,
                        claim: Some(sink),
                    },
                );
                self.heat(peer);
            }
            Some(
                other @ (Inbound::Arriving
                | Inbound::Filling { .. }
                | Inbound::Posted { .. }
                | Inbound::Viewed { .. }),
            ) => {
                op.inbound.insert(slot, other);
                return Err(LinkError::posted_twice(peer, key));
            }
            announced => {
                if let State::Lost(error) = &state.state {
                    return Err(error.clone());
                }
                let mut granted = sink.len() > self.settings.eager_limit;
                if let Some(Inbound::Announced { len }) = announced {
                    state.strays -= 1;
                    LinkError::check_length(peer, key, sink.len(), len)?;
                    granted = true;
                }
                op.inbound.insert(slot, Inbound::Posted { sink, granted });
                state.posted += 1;
                if granted {
                    state.granted += 1;
                    self.control(peer, Frame::Grant(tag(sink.len())));
                }
                self.connect(peer);
                self.heat(peer);
            }
        }
        Ok(())
    }

    /// Writes what waits. Whether any byte was written.
    pub(super) fn flush(&mut self) -> bool {
        let mut moved = false;
        let mut sent = Vec::new();
        for at in (0..self.dirty.len()).rev() {
            let peer = self.dirty[at];
            let mut broken = None;
            for stream in &mut self.peers[peer].streams {
                if stream.writer.is_empty() {
                    continue;
                }
                match stream
                    .writer
                    .flush(std::os::fd::AsFd::as_fd(&stream.socket), &mut sent)
                {
                    Ok(wrote) => moved |= wrote,
                    Err(error) => broken = Some(error.to_string()),
                }
                if stream.writer.is_empty() && stream.watches_room {
                    stream.watches_room = false;
                    let interest = ringway_sys::Interest::Read;
                    if let Err(error) = self.set.modify(&stream.socket, stream.token, interest) {
                        broken = Some(error.to_string());
                    }
                }
            }
            for key in sent.drain(..) {
                if let Some((op, _)) = self.ops.begun(&key) {
                    op.outbound.remove(&Slot::new(peer, &key));
                }
                self.peers[peer].unsent -= 1;
                self.events.push(Event::Sent { peer, key });
            }
            if let Some(detail) = broken {
                self.broken(peer, detail);
            }
            let state = &mut self.peers[peer];
            if !state.has_output() {
                state.is_dirty = false;
                self.dirty.swap_remove(at);
            }
        }
        moved
    }

    /// A write failed. The peer may have said goodbye before it closed: what it said is read first.
    fn broken(&mut self, peer: Rank, detail: String) {
        self.hear_out(peer);
        if !matches!(self.peers[peer].state, State::Lost(_)) {
            let error = if self.peers[peer].leaving {
                LinkError::Left { peer }
            } else {
                LinkError::Closed { peer, detail }
            };
            self.lose(peer, error);
        }
    }

    /// Puts a peer on the list of those with something to write.
    pub(super) fn soil(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.peers[peer].is_dirty, true) {
            self.dirty.push(peer);
        }
    }

    /// Puts a peer on the list of those that are asked at each poll.
    pub(super) fn heat(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.peers[peer].is_hot, true) {
            self.hot.push(peer);
        }
    }
}
