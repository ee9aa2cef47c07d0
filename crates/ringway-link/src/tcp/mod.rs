//! Messages over TCP.
//!
//! # Protocol
//! Ranks of a pair share one stream for control frames and short messages, and, once a long message has been sent,
//! one or more for long ones. Frames have a header of fixed size ([`Frame`]), some a payload.
//!
//! - A *short* message (up to the receiver's `eager_limit`) goes out at once, header and payload in one call, against
//!   credit: the receiver keeps a window of memory for those that come before their receive is posted. If the
//!   receive is posted, the payload is read straight to where it wants it. Without credit a short message is
//!   announced, and then treated as a long one.
//! - A *long* message waits for a grant. The receiver sends one as soon as the receive is posted, so that in a schedule,
//!   where both sides post ahead, grants travel while other data does. Then the sender writes header and payload
//!   from the user's memory with one gathering call, and the receiver reads into the user's memory, or into a
//!   buffer for one that wants to look at it. A long message whose grant has not come when the rank goes to sleep is
//!   announced too, so that ranks that disagree about an operation learn of it. For the same reason a rank that goes
//!   to sleep tells each peer that it awaits a short message of, once for an operation, that it waits.
//!
//! # Why nothing gets stuck
//! 1. *A rank that polls reads whatever arrives.* Every byte has a place before it comes: a granted payload in the
//!    memory of its receive, an unasked one there or in the window, frames in this table. So a peer's bytes never wait
//!    in a socket for anything but a poll, and every write completes.
//! 2. *Control frames wait for no message that waits.* They go before queued messages, and behind at most the rest
//!    of one that is being written, which by (1) completes.
//! 3. *A message waits only for its own receive.* A long one for its grant, which the posted receive sends; a short
//!    one for nothing, or, without credit, for its grant too. Neither a lack of credit nor messages that nobody
//!    receives hold up a message whose receive is posted.
//!
//! So if the schedule is free of deadlock with messages that wait at the sender, as the verifier proves, so is its
//! execution. What is held in memory is bounded: the window for each peer, one buffer for each receive that is
//! posted to look at its message, and a few words for each announcement and grant.
//!
//! # Bytes from the wire
//! Every field of a header is checked against what this rank knows; what does not fit ends the connection, with
//! [`LinkError::Protocol`] or [`LinkError::Length`]. Memory is only allocated for lengths within the eager limit, or
//! equal to a posted receive's.

mod buffers;
mod connect;
mod frame;
mod ops;
mod peer;
mod reader;
mod receive;
mod settings;
mod transmit;
mod writer;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory, Timer, socket::unacknowledged};

pub use frame::{BadFrame, Frame, HEADER, Tag};
pub use settings::TcpSettings;

use crate::{
    Event, Inbox, LinkError, Listener, MessageKey, PeerAddress, Purpose, Sink, Transport,
    network_id,
};
use buffers::Buffers;
use ops::{Inbound, Ops, Outbound, Slot};
use peer::{Peer, State};
use reader::Target;

/// Up to so many peers are asked for data directly; with more, it is cheaper to ask the epoll set which have any.
const DIRECT: usize = 4;

/// Every so many polls the epoll set is asked all the same, for peers that nothing is expected of.
const LOOK_EVERY: u32 = 64;

/// What an event of the epoll set is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Inbox,
    Timer,
    Stream { rank: Rank, at: usize },
}

impl Token {
    const fn encode(self) -> u64 {
        match self {
            Self::Inbox => 0,
            Self::Timer => 1,
            Self::Stream { rank, at } => ((rank as u64 + 1) << 8) | at as u64,
        }
    }

    fn decode(token: u64) -> Self {
        match (token >> 8, token & 0xff) {
            (0, 0) => Self::Inbox,
            (0, _) => Self::Timer,
            (rank, at) => Self::Stream {
                rank: Rank::try_from(rank - 1).unwrap_or(Rank::MAX),
                at: usize::try_from(at).unwrap_or(usize::MAX),
            },
        }
    }
}

/// [`Transport`] over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    own: Rank,
    listener: Arc<Listener>,
    inbox: Inbox,
    settings: TcpSettings,
    addresses: Vec<PeerAddress>,
    peers: Vec<Peer>,
    ops: Ops,
    buffers: Buffers,
    set: Epoll,
    timer: Timer,
    /// What has happened since the last poll.
    events: Vec<Event>,
    /// Peers that messages are expected from or wait for.
    hot: Vec<Rank>,
    /// Peers with something to write.
    dirty: Vec<Rank>,
    /// Tokens of the epoll set, kept to spare the allocation.
    ready: Vec<u64>,
    /// The epoll set is to be asked at the next poll.
    look: bool,
    polls: u32,
    next_tick: Instant,
}

impl TcpTransport {
    /// A transport for the rank of `listener`, whose data connections it takes over. `addresses` has all ranks of
    /// the world in order, as each published itself; the entry of this rank is not used. Connections are made
    /// when first needed.
    ///
    /// # Errors
    /// If the process has no descriptors left (`ulimit -n`).
    pub fn new(
        listener: Arc<Listener>,
        addresses: Vec<PeerAddress>,
        settings: TcpSettings,
    ) -> io::Result<Self> {
        let (set, timer, inbox) = (Epoll::new()?, Timer::new()?, listener.inbox(Purpose::Data));
        set.add(inbox.fd(), Token::Inbox.encode(), Interest::Read)?;
        set.add(&timer, Token::Timer.encode(), Interest::Read)?;
        let here = network_id();
        let is_remote = |a: &PeerAddress| a.network == 0 || a.network != here;
        Ok(Self {
            own: listener.rank(),
            listener,
            inbox,
            peers: addresses
                .iter()
                .map(|address| Peer::new(is_remote(address)))
                .collect(),
            addresses,
            ops: Ops::default(),
            buffers: Buffers::new(settings.memory_limit),
            settings,
            set,
            timer,
            events: Vec::new(),
            hot: Vec::new(),
            dirty: Vec::new(),
            ready: Vec::new(),
            look: false,
            polls: 0,
            next_tick: Instant::now(),
        })
    }

    /// Connects to all peers, without waiting: a first operation then need not.
    pub fn connect_all(&mut self) {
        for peer in 0..self.peers.len() {
            if peer != self.own {
                self.connect(peer);
            }
        }
    }

    /// This rank.
    pub(crate) const fn rank(&self) -> Rank {
        self.own
    }

    /// How many ranks the world has.
    pub(crate) const fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// The messages of an operation that peers have sent, or want to send, and no receive is posted for.
    pub(crate) fn unasked(&self, group: u64, number: u32) -> Vec<(Rank, MessageKey)> {
        let Some(op) = self.ops.get(group, number) else {
            return Vec::new();
        };
        let stored = op.inbound.iter().filter(|(_, inbound)| {
            matches!(inbound, Inbound::Stored { .. } | Inbound::Announced { .. })
        });
        stored
            .map(|(slot, _)| (slot.peer, slot.key(group, number)))
            .collect()
    }

    /// The operations, by group and number, of which a peer has sent messages that no receive is posted for.
    pub(crate) fn sent_early(&self, peer: Rank) -> impl Iterator<Item = (u64, u32)> {
        self.ops.iter().filter_map(move |(number, op)| {
            let is_early = |(slot, inbound): (&Slot, &_)| {
                slot.peer == peer && matches!(inbound, Inbound::Stored { .. })
            };
            op.inbound.iter().any(is_early).then_some(number)
        })
    }

    /// The group of the first message that a peer has sent, announced, granted or waited for.
    pub(crate) fn first_group(&self, peer: Rank) -> Option<u64> {
        self.peers[peer].first_group
    }

    /// Why nothing can be sent to a peer any more, if that is so.
    pub(crate) fn gone(&self, peer: Rank) -> Option<LinkError> {
        match &self.peers[peer].state {
            State::Lost(error) => Some(error.clone()),
            _ if self.peers[peer].leaving => Some(LinkError::Left { peer }),
            _ => None,
        }
    }

    /// Reads what has arrived: from few peers by asking them, from many by asking the epoll set.
    fn read(&mut self) -> bool {
        let mut moved = false;
        self.polls = self.polls.wrapping_add(1);
        if self.look || self.hot.len() > DIRECT || self.polls.is_multiple_of(LOOK_EVERY) {
            self.look = false;
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            if self.set.wait(&mut ready, Some(Duration::ZERO)).is_ok() {
                for token in &ready {
                    moved |= match Token::decode(*token) {
                        Token::Inbox => false,
                        Token::Timer => {
                            self.next_tick = Instant::now();
                            self.timer.set(None).is_err()
                        }
                        Token::Stream { rank, at } => {
                            rank < self.peers.len() && self.pump(rank, at)
                        }
                    };
                }
            }
            self.ready = ready;
        }
        for at in (0..self.hot.len()).rev() {
            let rank = self.hot[at];
            let peer = &mut self.peers[rank];
            if !peer.is_needed() {
                peer.is_hot = false;
                self.hot.swap_remove(at);
            } else if self.hot.len() <= DIRECT {
                for at in 0..self.peers[rank].streams.len() {
                    if at == 0 || self.peers[rank].granted > 0 {
                        moved |= self.pump(rank, at);
                    }
                }
            }
        }
        moved
    }

    /// Messages of an ended operation are not to be filled any more.
    fn cancel_inbound(&mut self, group: u64, op: u32, slot: Slot, inbound: Inbound) {
        let peer = &mut self.peers[slot.peer];
        match inbound {
            Inbound::Announced { .. } => peer.strays -= 1,
            Inbound::Arriving | Inbound::Filling { .. } => {
                let key = slot.key(group, op);
                let claimed = !matches!(inbound, Inbound::Filling { claim: None, .. });
                peer.posted -= usize::from(claimed);
                for stream in &mut peer.streams {
                    if let Some(body) = stream.reader.body()
                        && body.tag.key == key
                    {
                        body.target = Target::Discard;
                        peer.granted -= usize::from(!body.eager);
                    }
                }
            }
            Inbound::Posted { granted, .. } => {
                peer.posted -= 1;
                peer.granted -= usize::from(granted);
            }
            Inbound::Stored { len, .. } => self.give_back(slot.peer, len),
            Inbound::Viewed { .. } => {}
        }
    }

    fn cancel_outbound(&mut self, group: u64, op: u32, slot: Slot, outbound: &Outbound) {
        let peer = &mut self.peers[slot.peer];
        match outbound {
            Outbound::Granted { .. } => peer.strays -= 1,
            Outbound::Waiting { .. } => peer.unsent -= 1,
            Outbound::Queued => {
                peer.unsent -= 1;
                for at in 0..peer.streams.len() {
                    let cancelled = self.peers[slot.peer]
                        .streams
                        .get_mut(at)
                        .map(|stream| stream.writer.cancel(group, op, &self.buffers));
                    if let Some(Err(over)) = cancelled {
                        // Without memory for the rest of a message that is half sent, its stream has to go.
                        let error = LinkError::MemoryLimit {
                            peer: slot.peer,
                            detail: "the rest of a cancelled message".into(),
                            wanted: over.wanted,
                            limit: over.limit,
                        };
                        self.lose(slot.peer, error);
                    }
                }
            }
        }
    }

    fn sleep(&mut self, until: Instant) {
        self.watch_room();
        let wait = until
            .saturating_duration_since(Instant::now())
            .min(Duration::from_millis(2));
        self.ready.clear();
        let _ = self.set.wait(&mut self.ready, Some(wait));
        self.look = true;
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        for (peer, theirs) in self.ops.begin(group, op, fingerprint) {
            self.events.push(Event::Mismatch {
                peer,
                group,
                op,
                theirs,
            });
            // What it sent belongs to another operation.
            for (slot, inbound) in self.ops.forget_from(peer, group, op) {
                self.cancel_inbound(group, op, slot, inbound);
            }
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
        if let Some((op, _)) = self.ops.begun(&key) {
            let slot = Slot::new(peer, &key);
            if let Some(Inbound::Viewed { .. }) = op.inbound.get(&slot) {
                op.inbound.remove(&slot);
            }
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        while let Some(arrival) = self.inbox.take() {
            self.arrived(arrival);
            moved = true;
        }
        moved |= self.read();
        moved |= self.flush();
        if now >= self.next_tick {
            self.tick(now);
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn arm(&mut self) -> bool {
        for at in 0..self.hot.len() {
            self.announce_waiting(self.hot[at]);
        }
        let waits = |inbound: &_| matches!(inbound, Inbound::Posted { granted: false, .. });
        for (peer, key, fingerprint) in self.ops.untold(waits) {
            let len = 0;
            self.control(
                peer,
                Frame::Waits(Tag {
                    key,
                    fingerprint,
                    len,
                }),
            );
        }
        self.flush();
        self.watch_room();
        let awaited = self.hot.iter().any(|&peer| self.peers[peer].is_needed());
        if !self.events.is_empty() || self.timer.set(awaited.then_some(connect::TICK)).is_err() {
            return false;
        }
        self.ready.clear();
        self.set.wait(&mut self.ready, Some(Duration::ZERO)).is_ok() && self.ready.is_empty()
    }

    fn disarm(&mut self) {
        self.look = true;
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        let Some(mut ended) = self.ops.end(group, op) else {
            return;
        };
        for (slot, inbound) in ended.inbound.drain() {
            self.cancel_inbound(group, op, slot, inbound);
        }
        for (slot, outbound) in ended.outbound.drain() {
            self.cancel_outbound(group, op, slot, &outbound);
        }
        self.ops.recycle(ended);
    }

    fn slice_bytes(&self) -> usize {
        self.settings.slice
    }

    fn memory_in_use(&self) -> usize {
        self.buffers.in_use() + self.peers.iter().map(Peer::footprint).sum::<usize>()
    }

    fn close(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut events = Vec::new();
        let mut said = false;
        // At streams that nothing was expected on, too: what is left unread resets them.
        self.look = true;
        loop {
            self.poll(Instant::now(), &mut events);
            if self.dirty.is_empty() {
                if !said {
                    for rank in 0..self.peers.len() {
                        if matches!(self.peers[rank].state, State::Greeting | State::Ready) {
                            self.control(rank, Frame::Goodbye);
                        }
                    }
                    said = true;
                    continue;
                }
                // Only what the peer's host has is safe from the reset that closing may cause.
                let streams = self.peers.iter().flat_map(|peer| &peer.streams);
                if streams
                    .clone()
                    .all(|s| unacknowledged(s.fd()).is_ok_and(|bytes| bytes == 0))
                {
                    break;
                }
            }
            if Instant::now() >= deadline {
                break;
            }
            self.sleep(deadline);
        }
        for rank in 0..self.peers.len() {
            self.peers[rank].streams.clear();
            self.peers[rank].state = State::Lost(LinkError::Left { peer: self.own });
        }
    }
}
