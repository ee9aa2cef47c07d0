//! Messages over RDMA.
//!
//! # Who goes this way
//! The transport stands on the rank's TCP transport, whose session has checked who the peer is. With the first message of a
//! pair the two ranks tell each other their queue pairs over it, connect and prove them (`decide.rs`); what can't be reached
//! by RDMA goes over TCP, and a warning says why. Until then messages wait. If a queue pair fails later, the two agree on what had
//! come, and move the rest to TCP. Then they try RDMA again, ever more rarely and for ever, while messages go over TCP; when it works
//! operations that begin go over RDMA, and those that have begun stay where they are.
//!
//! # Protocol
//! To each peer there are a queue pair for frames and short messages and some for long ones.
//!
//! - A *short* message (up to the receiver's eager limit) is a SEND, header and payload, against a credit: the receiver keeps
//!   as many slots posted. One whose receive isn't posted stays in its slot, and one that is to be looked at is looked at
//!   there; the credit goes back when the slot is free. Without credit a short message is announced, and then treated as
//!   a long one.
//! - A *long* message waits for an offer, which its receiver sends as soon as the receive is posted: address, key and a number.
//!   The sender WRITEs it there, with the number as immediate data, against a credit of the
//!   queue pair, of which one completes a receive. It is announced when the rank goes to sleep and the offer hasn't come.
//! - An offer is used once, by the WRITE, or comes back as unused: from a sender whose operation has ended or is another, or
//!   because the receiver, whose operation has ended, has asked for it. Until one of the two the memory stays reserved: the
//!   peer may write there at any time.
//! - Every frame brings credit back; if there is none to send, and half is used, one goes for that alone.
//!
//! # Whose memory
//! Messages are sent from, and received into, user memory that is registered, and otherwise buffers of the transport's own, at
//! the price of a copy. Nothing is registered for a message, but over a device for which that costs nothing. When an operation has ended, however it ended, its memory is the
//! user's again: if it ends in the middle, `cancel` waits until flights from there have ended and peers have said that they
//! won't write there, and cuts off those that don't say so. `docs/decisions/0010-registered-memory.md` says more.
//!
//! # Why nothing gets stuck
//! As with TCP, see there: a rank that polls takes all frames off their slots and all long messages off their receives, and
//! posts them again, so that credit always comes back; frames wait for no message; a message waits only for its own
//! receive. One credit for frames is kept for those that give credit back.

mod arrivals;
mod decide;
mod exchange;
mod frame;
mod link;
mod measure;
mod mend;
mod messages;
mod pace;
mod peer;
mod pool;
mod registrations;
mod retry;
mod settings;
mod slab;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory, Staging};

pub use settings::RdmaSettings;

use self::{
    exchange::{NOTE, Stage},
    frame::{Frame, Tag},
    link::Link,
    peer::{Inbound, Ops, Outbound, Peer, Route},
    pool::Pool,
};
use super::{Completion, Device};
use crate::{
    Event, LinkError, MessageKey, RegisterError, RegisteredMemory, Sink, Transport, ops::Slot,
    tcp::TcpTransport,
};

/// The most queue pairs to a peer.
const MAX_CHANNELS: usize = 9;

/// What all ranks take the operation of the notes for.
const NOTES: u32 = 1;

/// [`Transport`] over an RDMA device, and over TCP to peers that it doesn't reach.
pub struct RdmaTransport {
    own: Rank,
    /// Before the buffers: with it the registrations end.
    device: Result<Box<dyn Device>, String>,
    tcp: TcpTransport,
    settings: RdmaSettings,
    peers: Vec<Peer>,
    /// By the queue pair's number: whose it is, and which channel.
    pairs: Vec<Option<(Rank, usize)>>,
    ops: Ops,
    pool: Pool,
    epoll: Epoll,
    /// How many decisions are under way.
    open: usize,
    /// When RDMA to a peer is tried again next.
    next_retry: Option<Instant>,
    /// What is sent over TCP to measure it.
    probe: Option<Staging>,
    /// How many links have queue pairs.
    links: usize,
    /// Peers whose queue pairs have failed.
    broken: Vec<Rank>,
    /// Peers with something to post.
    dirty: VecDeque<Rank>,
    /// What has happened since the last poll.
    events: Vec<Event>,
    /// Kept to spare allocations.
    completions: Vec<Completion>,
    started: Vec<(MessageKey, u32)>,
    tcp_events: Vec<Event>,
    keys: Vec<(MessageKey, u32, bool, bool)>,
    /// What was armed: TCP, then the device.
    armed: (bool, bool),
}

impl RdmaTransport {
    /// A transport over a device, or for a rank that has none, with the reason: peers are told, and use TCP.
    ///
    /// # Errors
    /// If the process has no descriptors left (`ulimit -n`).
    pub fn new(
        mut tcp: TcpTransport,
        device: Result<Box<dyn Device>, String>,
        settings: RdmaSettings,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(tcp.fd(), 0, Interest::Read)?;
        if let Ok(device) = &device {
            epoll.add(device.fd(), 1, Interest::Read)?;
        }
        tcp.begin(exchange::GROUP, 0, NOTES);
        Ok(Self {
            own: tcp.rank(),
            device,
            peers: (0..tcp.ranks()).map(|_| Peer::new()).collect(),
            tcp,
            pool: Pool::new(settings.memory_limit, settings.registered_limit),
            settings,
            pairs: Vec::new(),
            ops: Ops::default(),
            epoll,
            open: 0,
            next_retry: None,
            probe: None,
            links: 0,
            broken: Vec::new(),
            dirty: VecDeque::new(),
            events: Vec::new(),
            completions: Vec::new(),
            started: Vec::new(),
            tcp_events: Vec::new(),
            keys: Vec::new(),
            armed: (false, false),
        })
    }

    /// Whether messages to and from a peer go over RDMA, which is decided when the first is asked for.
    pub fn reaches(&self, peer: Rank) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|peer| matches!(peer.route, Route::Rdma))
    }

    /// Looks what the device has for this rank.
    fn poll_device(&mut self, now: Instant) -> bool {
        let (Ok(device), 1..) = (&mut self.device, self.links) else {
            return false;
        };
        let mut completions = std::mem::take(&mut self.completions);
        let polled = device.poll(now, &mut completions);
        let mut end = polled.as_ref().err().map(ToString::to_string);
        while let Ok(device) = &mut self.device
            && let Some(event) = device.poll_event()
        {
            end = self.device_event(event).or(end);
        }
        for completion in completions.drain(..) {
            self.completed(&completion);
        }
        self.completions = completions;
        if let Some(detail) = end {
            self.device_failed(detail);
            return true;
        }
        self.mend();
        polled.unwrap_or(true)
    }

    /// Looks what TCP has: the messages of peers that RDMA does not reach, notes, and the end of peers.
    fn poll_tcp(&mut self, now: Instant) -> bool {
        let mut events = std::mem::take(&mut self.tcp_events);
        let mut gone = Vec::new();
        let mut moved = false;
        loop {
            let known = gone.len();
            let more = self.tcp.poll(now, &mut events);
            for event in events.drain(..) {
                match event {
                    Event::Lost { peer, error } => gone.push((peer, error)),
                    event => self.tcp_event(now, event),
                }
            }
            if more {
                self.hear(now);
            }
            moved |= more;
            if gone.len() == known {
                break;
            }
            // What they had sent before is there by now, their last notes too: these come with the next turn.
            self.poll_device(now);
        }
        for (peer, error) in gone {
            self.lose(peer, error);
        }
        self.tcp_events = events;
        moved
    }

    fn tcp_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Received { peer, key, .. }
                if key.group == exchange::GROUP && Stage::of(key.message).is_none() =>
            {
                self.tcp.release(peer, key);
                self.probe_came_by_tcp(peer, key);
            }
            Event::Received { peer, key, view } if key.group == exchange::GROUP => {
                let mut note = [0; NOTE];
                view.read(&mut note);
                self.tcp.release(peer, key);
                self.noted(now, peer, key, &note);
            }
            Event::Sent { key, .. } if key.group == exchange::GROUP => {}
            event => self.events.push(event),
        }
    }

    /// After an operation has ended: waits until neither this device nor a peer touches the user's memory for it. A peer that
    /// says nothing for long is cut off.
    fn part_from_memory(&mut self) {
        let lingers = |peer: &Peer| peer.link.as_ref().is_some_and(Link::lingers);
        let patience = self.settings.cancel_patience;
        let began = Instant::now();
        let mut last_moved = began;
        while let Some(peer) = self.peers.iter().position(lingers) {
            let now = Instant::now();
            if now - last_moved >= patience || now - began >= 5 * patience {
                let detail = format!(
                    "an operation has ended in the middle of a message, and the rank does not say within {:.1?} that it leaves \
                     this one's memory alone",
                    now - began
                );
                self.break_off(peer, detail);
            } else if self.poll_device(now) | self.poll_tcp(now) {
                self.flush();
                last_moved = now;
            } else {
                self.flush();
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        if let Ok(device) = &mut self.device {
            self.pool.settle(&mut **device);
        }
    }

    /// Posts what waits.
    fn flush(&mut self) {
        for _ in 0..self.dirty.len() {
            // From the front: one without credit goes back in, and must not keep the others from their turn.
            let Some(peer) = self.dirty.pop_front() else {
                return;
            };
            self.peers[peer].is_dirty = false;
            self.flush_peer(peer);
        }
    }

    /// Tells receivers of messages that they have not asked for, and senders that are waited for.
    fn announce_waiting(&mut self) {
        for peer in 0..self.peers.len() {
            let Some(link) = &mut self.peers[peer].link else {
                continue;
            };
            if link.unannounced.is_empty() {
                continue;
            }
            for key in std::mem::take(&mut link.unannounced) {
                if let Some((op, fingerprint)) = self.ops.begun(&key)
                    && let Some(Outbound::Waiting { src, .. }) =
                        op.outbound.get(&Slot::new(peer, &key))
                {
                    let len = src.len() as u32;
                    let tag = Tag {
                        key,
                        fingerprint,
                        len,
                    };
                    self.control(peer, Frame::Announce(tag));
                }
            }
        }
        if self.peers.iter().any(Peer::holds_messages) {
            return;
        }
        let waits = |inbound: &_| matches!(inbound, Inbound::Posted { offer: None, .. });
        for (peer, key, fingerprint) in self.ops.untold(waits) {
            let len = 0;
            let tag = Tag {
                key,
                fingerprint,
                len,
            };
            self.control(peer, Frame::Waits(tag));
        }
    }
}

impl Transport for RdmaTransport {
    fn name(&self) -> &'static str {
        if self.settings.measures {
            "tcp,rdma"
        } else {
            "rdma"
        }
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        self.tcp.begin(group, op, fingerprint);
        for (peer, theirs) in self.ops.begin(group, op, fingerprint) {
            self.events.push(Event::Mismatch {
                peer,
                group,
                op,
                theirs,
            });
            // What it sent belongs to another operation.
            self.forget_from(peer, group, op);
        }
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        self.post_send(peer, key, src, priority)
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        self.post_recv(peer, key, sink)
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        let slot = Slot::new(peer, &key);
        if let Some((op, _)) = self.ops.begun(&key)
            && let Some(Inbound::Viewed(_)) = op.inbound.get(&slot)
            && let Some(Inbound::Viewed(held)) = op.inbound.remove(&slot)
        {
            return self.give_up_view(peer, held);
        }
        self.tcp.release(peer, key);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = self.poll_device(now);
        moved |= self.poll_tcp(now);
        if self.open > 0 {
            self.judge(now);
        }
        // Those that have failed before their verdict came.
        self.mend();
        if self.next_retry.is_some_and(|next| next <= now) {
            self.try_again(now);
        }
        self.flush();
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn arm(&mut self) -> bool {
        self.announce_waiting();
        self.flush();
        if !self.events.is_empty() {
            return false;
        }
        self.armed.0 = true;
        if !self.tcp.arm() {
            return false;
        }
        match &mut self.device {
            Ok(device) if self.links > 0 => {
                self.armed.1 = true;
                device.arm()
            }
            _ => true,
        }
    }

    fn disarm(&mut self) {
        let (tcp, device) = std::mem::take(&mut self.armed);
        if tcp {
            self.tcp.disarm();
        }
        if device && let Ok(device) = &mut self.device {
            device.disarm();
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        self.tcp.cancel(group, op);
        if let Some(mut ended) = self.ops.end(group, op) {
            self.end(group, op, &mut ended);
            self.ops.recycle(ended);
            self.part_from_memory();
        }
        // The caller may be at other things for a while. What peers wait for, acknowledgements too, must not wait for the
        // next poll.
        if let (Ok(device), 1..) = (&mut self.device, self.links) {
            device.flush();
        }
    }

    fn slice_bytes(&self) -> usize {
        self.settings.slice
    }

    fn memory_in_use(&self) -> usize {
        let device = self.device.as_ref().map_or(0, |device| device.footprint());
        self.tcp.memory_in_use() + self.pool.footprint() + device
    }

    fn register(&mut self, memory: Memory) -> Result<(), RegisterError> {
        match &mut self.device {
            Ok(device) if !memory.is_empty() => self.pool.hold(&mut **device, memory),
            _ => Ok(()),
        }
    }

    fn deregister(&mut self, memory: Memory) {
        match &mut self.device {
            Ok(device) if !memory.is_empty() => self.pool.give_up(&mut **device, memory),
            _ => {}
        }
    }

    fn registered(&self) -> RegisteredMemory {
        self.pool.registered()
    }

    fn close(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut events = Vec::new();
        loop {
            let moved = self.poll(Instant::now(), &mut events);
            if (0..self.peers.len()).all(|peer| self.is_drained(peer)) {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !moved && self.arm() {
                let wait = left.min(Duration::from_millis(2));
                let _ = self.epoll.wait(&mut Vec::new(), Some(wait));
            }
            self.disarm();
        }
        (0..self.peers.len()).for_each(|peer| self.part(peer));
        self.tcp
            .close(deadline.saturating_duration_since(Instant::now()));
        for peer in 0..self.peers.len() {
            self.lose(peer, LinkError::Left { peer: self.own });
        }
    }
}
