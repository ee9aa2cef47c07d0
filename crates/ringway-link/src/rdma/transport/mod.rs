//! Messages over RDMA.
//!
//! # Who goes this way
//! The transport stands on the rank's TCP transport, whose session has checked who the peer is. With the first message of a
//! pair the two ranks tell each other their queue pairs over it, connect and prove them (`decide.rs`); what can't be reached
//! by RDMA goes over TCP, and a warning says why. Until then messages wait.
//!
//! # Protocol
//! To each peer there are a queue pair for frames and short messages and some for long ones.
//!
//! - A *short* message (up to the receiver's eager limit) is a SEND, header and payload, against a credit: the receiver keeps
//!   as many slots posted. One whose receive isn't posted stays in its slot, and one that is to be looked at is looked at
//!   there; the credit goes back when the slot is free. Without credit a short message is announced, and then treated as
//!   a long one.
//! - A *long* message waits for an offer, which its receiver sends as soon as the receive is posted: address, key and a number.
//!   The sender copies it to registered memory and WRITEs it there, with the number as immediate data, against a credit of the
//!   queue pair, of which one completes a receive. It is announced when the rank goes to sleep and the offer hasn't come.
//! - An offer is used once, by the WRITE, or comes back as unused: from a sender whose operation has ended or is another, or
//!   because the receiver, whose operation has ended, has asked for it. Until one of the two the memory stays reserved: the
//!   peer may write there at any time.
//! - Every frame brings credit back; if there is none to send, and half is used, one goes for that alone.
//!
//! # Whose memory
//! The device sees only buffers of the transport's own, registered when they are made and then used again. So nothing is
//! registered for a message, the user may free memory when an operation has ended, however it ended, and a peer can never
//! write to what it was not offered. The price is a copy at each side; `docs/decisions/0009-rdma-transport.md` says more.
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
mod messages;
mod peer;
mod pool;
mod settings;
mod slab;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory};

pub use settings::RdmaSettings;

use self::{
    exchange::NOTE,
    frame::{Frame, Tag},
    peer::{Inbound, Ops, Outbound, Peer, Route},
    pool::Pool,
};
use super::{Completion, Device};
use crate::{Event, LinkError, MessageKey, Sink, Transport, ops::Slot, tcp::TcpTransport};

/// The most queue pairs to a peer.
const MAX_CHANNELS: usize = 5;

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
    /// Peers with something to post.
    dirty: Vec<Rank>,
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
            pool: Pool::new(settings.memory_limit),
            settings,
            pairs: Vec::new(),
            ops: Ops::default(),
            epoll,
            open: 0,
            dirty: Vec::new(),
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
        let Ok(device) = &mut self.device else {
            return false;
        };
        let mut completions = std::mem::take(&mut self.completions);
        let polled = device.poll(now, &mut completions);
        while let Ok(device) = &mut self.device
            && let Some(event) = device.poll_event()
        {
            self.device_event(event);
        }
        for completion in completions.drain(..) {
            self.completed(&completion);
        }
        self.completions = completions;
        match polled {
            Ok(moved) => moved,
            Err(error) => {
                self.device_failed(&error.to_string());
                self.device = Err(error.to_string());
                true
            }
        }
    }

    /// Looks what TCP has: the messages of peers that RDMA does not reach, notes, and the end of peers.
    fn poll_tcp(&mut self, now: Instant) -> bool {
        let mut events = std::mem::take(&mut self.tcp_events);
        let moved = self.tcp.poll(now, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Received { peer, key, view } if key.group == exchange::GROUP => {
                    let mut note = [0; NOTE];
                    view.read(&mut note);
                    self.tcp.release(peer, key);
                    self.noted(now, peer, key.message, &note);
                }
                Event::Sent { key, .. } if key.group == exchange::GROUP => {}
                Event::Lost { peer, error } => {
                    // What it had sent before is there by now.
                    self.poll_device(now);
                    self.lose(peer, error);
                }
                event => self.events.push(event),
            }
        }
        self.tcp_events = events;
        if !moved {
            return false;
        }
        self.hear_offers();
        true
    }

    /// Posts what waits.
    fn flush(&mut self) {
        for _ in 0..self.dirty.len() {
            let Some(peer) = self.dirty.pop() else {
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
        if self.open > 0 {
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
        "rdma"
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
        if matches!(self.peers[peer].route, Route::Tcp) {
            return self.tcp.release(peer, key);
        }
        let slot = Slot::new(peer, &key);
        if let Some((op, _)) = self.ops.begun(&key)
            && let Some(Inbound::Viewed(_)) = op.inbound.get(&slot)
            && let Some(Inbound::Viewed(held)) = op.inbound.remove(&slot)
        {
            self.give_up_view(peer, held);
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = self.poll_device(now);
        moved |= self.poll_tcp(now);
        if self.open > 0 {
            self.judge(now);
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
            Ok(device) => {
                self.armed.1 = true;
                device.arm()
            }
            Err(_) => true,
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
        }
        // The caller may be at other things for a while. What peers wait for, acknowledgements too, must not wait for the
        // next poll.
        if let Ok(device) = &mut self.device {
            device.flush();
        }
    }

    fn slice_bytes(&self) -> usize {
        self.settings.slice
    }

    fn memory_in_use(&self) -> usize {
        self.tcp.memory_in_use() + self.pool.footprint()
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
        self.tcp
            .close(deadline.saturating_duration_since(Instant::now()));
        for peer in 0..self.peers.len() {
            self.lose(peer, LinkError::Left { peer: self.own });
        }
    }
}
