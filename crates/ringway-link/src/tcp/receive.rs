//! What peers send: frames, and the messages in them.

use ringway_plan::Rank;
use ringway_sys::Memory;

use super::{
    TcpTransport,
    frame::{Frame, Tag},
    ops::{Inbound, Outbound, Slot},
    peer::{Bulk, State},
    reader::{Body, ReadError, Step, Target},
};
use crate::{Event, LinkError, Sink};

/// Steps on one stream before others get their turn.
const STEPS: usize = 32;

/// What a waiting message costs beside its bytes, in the window's account.
const OVERHEAD: usize = 256;

/// Announcements and grants of one peer that may wait for their counterpart: what schedules in flight need is far
/// less, and a peer gone mad shall not fill the memory.
const STRAYS: usize = 1 << 16;

/// What an unasked message takes from the window.
pub(super) const fn cost(len: usize) -> usize {
    len.saturating_add(OVERHEAD)
}

impl TcpTransport {
    /// Reads what a stream has brought. Whether it brought anything.
    pub(super) fn pump(&mut self, peer: Rank, at: usize) -> bool {
        if let Some(stream) = self.peers[peer].streams.get_mut(at) {
            stream.reader.refresh();
        }
        for step in 0..STEPS {
            let Some(stream) = self.peers[peer].streams.get_mut(at) else {
                return step > 0;
            };
            if stream.ended {
                return step > 0;
            }
            let done = match stream.reader.step(std::os::fd::AsFd::as_fd(&stream.socket)) {
                Ok(Step::Blocked) => return step > 0,
                Ok(Step::Frame(frame)) => self.frame(peer, at, frame),
                Ok(Step::Body(body)) => self.complete(peer, body),
                Ok(Step::End) => {
                    self.ended(peer, at);
                    return true;
                }
                Err(ReadError::Frame(bad)) => Err(protocol(peer, bad.to_string())),
                Err(ReadError::System(error)) => {
                    if at > 0 {
                        self.hear_out(peer);
                    }
                    let state = &self.peers[peer];
                    if state.leaving && at < state.streams.len() {
                        // It closed with something of ours unread, for which its kernel resets the stream.
                        self.ended(peer, at);
                        return true;
                    }
                    Err(LinkError::Closed {
                        peer,
                        detail: error.to_string(),
                    })
                }
            };
            if let Err(error) = done {
                self.lose(peer, error);
                return true;
            }
        }
        true
    }

    fn frame(&mut self, peer: Rank, at: usize, frame: Frame) -> Result<(), LinkError> {
        let state = &self.peers[peer];
        let welcomed = matches!(state.state, State::Ready);
        if welcomed == matches!(frame, Frame::Welcome { .. }) {
            return Err(protocol(peer, format!("{frame:?} out of turn")));
        }
        if state.leaving && !matches!(frame, Frame::Data(_)) {
            return Err(protocol(peer, format!("{frame:?} after its goodbye")));
        }
        if at > 0 && !matches!(frame, Frame::Data(_)) {
            return Err(protocol(
                peer,
                format!("{frame:?} on a stream for long messages"),
            ));
        }
        if let Some(tag) = frame.tag() {
            let first = &mut self.peers[peer].first_group;
            first.get_or_insert(tag.key.group);
        }
        match frame {
            Frame::Announce(tag) => self.announced(peer, &tag),
            Frame::Credit(bytes) => {
                let peer = &mut self.peers[peer];
                peer.credit = peer.credit.saturating_add(bytes);
                Ok(())
            }
            Frame::Data(tag) => {
                let target = self.granted_arrives(peer, &tag)?;
                self.expect(peer, at, Body::new(tag, false, target))
            }
            Frame::Eager(tag) => {
                let target = self.eager_arrives(peer, &tag)?;
                self.expect(peer, at, Body::new(tag, true, target))
            }
            Frame::Goodbye => {
                self.peers[peer].leaving = true;
                Ok(())
            }
            Frame::Grant(tag) => self.granted(peer, &tag),
            Frame::Streams(count) => {
                if self.peers[peer].bulk == Bulk::None && self.dials(peer) {
                    self.dial_bulk(peer, count);
                }
                Ok(())
            }
            Frame::Waits(tag) => {
                self.agrees(peer, &tag);
                if self.ops.len() > STRAYS {
                    return Err(protocol(peer, format!("more than {STRAYS} operations")));
                }
                Ok(())
            }
            Frame::Welcome {
                eager_limit,
                window,
            } => {
                let state = &mut self.peers[peer];
                state.state = State::Ready;
                state.eager_limit = eager_limit;
                state.credit = window;
                self.dispatch_backlog(peer);
                Ok(())
            }
        }
    }

    fn expect(&mut self, peer: Rank, at: usize, body: Body) -> Result<(), LinkError> {
        if body.tag.len == 0 {
            return self.complete(peer, body);
        }
        self.peers[peer].streams[at].reader.expect(body);
        Ok(())
    }

    /// Whether a peer takes part in the same operation; if not, that is an event, once.
    fn agrees(&mut self, peer: Rank, tag: &Tag) -> bool {
        self.ops
            .agrees(peer, &tag.key, tag.fingerprint, &mut self.events)
    }

    /// Where the payload of a message goes that was sent unasked.
    fn eager_arrives(&mut self, peer: Rank, tag: &Tag) -> Result<Target, LinkError> {
        if tag.len > self.settings.eager_limit {
            let detail = format!(
                "{} bytes unasked, at most {}",
                tag.len, self.settings.eager_limit
            );
            return Err(protocol(peer, detail));
        }
        let state = &mut self.peers[peer];
        state.used += cost(tag.len);
        if state.used > self.settings.window {
            return Err(protocol(peer, "more bytes unasked than its credit".into()));
        }
        if !self.agrees(peer, tag) {
            return Ok(Target::Discard);
        }
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(Target::Discard);
        };
        let entry = op.inbound.get_mut(&Slot::new(peer, &tag.key));
        let sink = match entry {
            None => {
                let filling = Inbound::Filling {
                    len: tag.len,
                    claim: None,
                };
                op.inbound.insert(Slot::new(peer, &tag.key), filling);
                return self.stage(peer, tag.len);
            }
            Some(Inbound::Posted {
                sink,
                granted: false,
            }) => *sink,
            Some(_) => return Err(repeated(peer, tag)),
        };
        LinkError::check_length(peer, tag.key, sink.len(), tag.len)?;
        if let Some(entry) = entry {
            *entry = Inbound::Arriving;
        }
        self.target(peer, sink)
    }

    /// Where the payload of a message goes that was granted.
    fn granted_arrives(&mut self, peer: Rank, tag: &Tag) -> Result<Target, LinkError> {
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(Target::Discard);
        };
        let Some(entry) = op.inbound.get_mut(&Slot::new(peer, &tag.key)) else {
            return Err(protocol(
                peer,
                format!("message {} without a grant", tag.key),
            ));
        };
        let Inbound::Posted {
            sink,
            granted: true,
        } = *entry
        else {
            return Err(repeated(peer, tag));
        };
        LinkError::check_length(peer, tag.key, sink.len(), tag.len)?;
        *entry = Inbound::Arriving;
        self.target(peer, sink)
    }

    fn target(&self, peer: Rank, sink: Sink) -> Result<Target, LinkError> {
        match sink {
            Sink::Place(memory) => Ok(Target::Place(memory)),
            Sink::View(len) => self.stage(peer, len),
        }
    }

    fn stage(&self, peer: Rank, len: usize) -> Result<Target, LinkError> {
        if len == 0 {
            return Ok(Target::Discard);
        }
        self.buffers
            .take(len)
            .map(Target::Staged)
            .map_err(|over| LinkError::MemoryLimit {
                peer,
                detail: format!("a message of {len} bytes"),
                wanted: over.wanted,
                limit: over.limit,
            })
    }

    /// A payload is complete.
    fn complete(&mut self, peer: Rank, body: Body) -> Result<(), LinkError> {
        let Body {
            tag, eager, target, ..
        } = body;
        let slot = Slot::new(peer, &tag.key);
        let entry = self
            .ops
            .open(&tag.key)
            .and_then(|op| op.inbound.get_mut(&slot));
        match entry {
            Some(Inbound::Filling { claim: None, len }) => {
                let buffer = if let Target::Staged(buffer) = target {
                    Some(buffer)
                } else {
                    None
                };
                let len = *len;
                if let Some(entry) = entry {
                    *entry = Inbound::Stored { buffer, len };
                }
                // Its credit is given back when it is received.
                return Ok(());
            }
            Some(Inbound::Filling {
                claim: Some(sink), ..
            }) => {
                let sink = *sink;
                let buffer = if let Target::Staged(buffer) = target {
                    Some(buffer)
                } else {
                    None
                };
                self.deliver(peer, &tag, sink, buffer);
            }
            Some(Inbound::Arriving) => {
                let view = if let Target::Staged(buffer) = target {
                    let view = buffer.memory();
                    if let Some(entry) = entry {
                        *entry = Inbound::Viewed { _buffer: buffer };
                    }
                    view
                } else {
                    self.forget_inbound(&tag, &slot);
                    Memory::EMPTY
                };
                self.peers[peer].posted -= 1;
                self.peers[peer].granted -= usize::from(!eager);
                self.events.push(Event::Received {
                    peer,
                    key: tag.key,
                    view,
                });
            }
            // Cancelled while it arrived, or of an operation that differs.
            _ => {}
        }
        if eager {
            self.give_back(peer, tag.len);
        }
        Ok(())
    }

    fn forget_inbound(&mut self, tag: &Tag, slot: &Slot) {
        if let Some(op) = self.ops.open(&tag.key) {
            op.inbound.remove(slot);
        }
    }

    /// Gives a message that lies in a buffer to its receive.
    pub(super) fn deliver(
        &mut self,
        peer: Rank,
        tag: &Tag,
        sink: Sink,
        buffer: Option<super::buffers::Buffer>,
    ) {
        let slot = Slot::new(peer, &tag.key);
        let mut view = Memory::EMPTY;
        let mut kept = None;
        match (sink, buffer) {
            (Sink::Place(memory), Some(buffer)) => memory.copy_from(buffer.memory()),
            (Sink::View(_), Some(buffer)) => {
                view = buffer.memory();
                kept = Some(Inbound::Viewed { _buffer: buffer });
            }
            (_, None) => {}
        }
        if let Some(op) = self.ops.open(&tag.key) {
            match kept {
                Some(viewed) => op.inbound.insert(slot, viewed),
                None => op.inbound.remove(&slot),
            };
        }
        self.peers[peer].posted -= 1;
        self.events.push(Event::Received {
            peer,
            key: tag.key,
            view,
        });
    }

    /// Gives the credit of an unasked message back to its sender, with that of others.
    pub(super) fn give_back(&mut self, peer: Rank, len: usize) {
        let state = &mut self.peers[peer];
        state.owed += cost(len);
        // Soon enough that a sender does not run out of it while less than a window is under way.
        if state.owed >= self.settings.window / 8 {
            let owed = std::mem::take(&mut state.owed);
            state.used -= owed;
            self.control(peer, Frame::Credit(owed));
        }
    }

    /// A peer has a message and waits for a grant.
    fn announced(&mut self, peer: Rank, tag: &Tag) -> Result<(), LinkError> {
        if !self.agrees(peer, tag) {
            return Ok(());
        }
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(());
        };
        let fingerprint = op.fingerprint;
        match op.inbound.get_mut(&Slot::new(peer, &tag.key)) {
            None => {
                let announced = Inbound::Announced { len: tag.len };
                op.inbound.insert(Slot::new(peer, &tag.key), announced);
                self.stray(peer)
            }
            Some(Inbound::Posted { sink, granted }) => {
                LinkError::check_length(peer, tag.key, sink.len(), tag.len)?;
                if !std::mem::replace(granted, true) {
                    self.peers[peer].granted += 1;
                    let fingerprint = fingerprint.unwrap_or_default();
                    self.control(
                        peer,
                        Frame::Grant(Tag {
                            fingerprint,
                            ..*tag
                        }),
                    );
                }
                Ok(())
            }
            // The announcement crossed the grant, and the data, on another stream, overtook it.
            Some(Inbound::Arriving | Inbound::Viewed { .. }) => Ok(()),
            Some(_) => Err(repeated(peer, tag)),
        }
    }

    /// A peer has a place for a message.
    fn granted(&mut self, peer: Rank, tag: &Tag) -> Result<(), LinkError> {
        if !self.agrees(peer, tag) {
            return Ok(());
        }
        let Some(op) = self.ops.open(&tag.key) else {
            return Ok(());
        };
        match op.outbound.get(&Slot::new(peer, &tag.key)) {
            None => {
                op.outbound.insert(
                    Slot::new(peer, &tag.key),
                    Outbound::Granted { len: tag.len },
                );
                self.stray(peer)
            }
            Some(&Outbound::Waiting { src, priority }) => {
                if src.len() != tag.len {
                    let (key, expected, got) = (tag.key, tag.len, src.len());
                    return Err(LinkError::Length {
                        peer,
                        key,
                        expected,
                        got,
                    });
                }
                op.outbound.remove(&Slot::new(peer, &tag.key));
                self.transmit(peer, Frame::Data(*tag), tag, src, priority);
                Ok(())
            }
            Some(_) => Err(protocol(
                peer,
                format!("a second grant of message {}", tag.key),
            )),
        }
    }

    /// Counts an announcement or a grant that waits for its counterpart.
    fn stray(&mut self, peer: Rank) -> Result<(), LinkError> {
        self.peers[peer].strays += 1;
        if self.peers[peer].strays > STRAYS {
            return Err(protocol(
                peer,
                format!("more than {STRAYS} messages nobody asked for"),
            ));
        }
        Ok(())
    }
}

pub(super) const fn protocol(peer: Rank, detail: String) -> LinkError {
    LinkError::Protocol { peer, detail }
}

fn repeated(peer: Rank, tag: &Tag) -> LinkError {
    protocol(
        peer,
        format!("message {} twice, or in another way than agreed", tag.key),
    )
}
