//! What a transport is: tagged messages between the ranks of a world, from memory into memory.
//!
//! `docs/decisions/0002-transport.md` walks three users through it: shared memory that is read in place, TCP
//! streams, and RDMA WRITE into offered memory.

use std::{
    fmt,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::Memory;

use crate::{LinkError, RegisterError};

/// Names a message between two ranks. Both sides compute it from the schedule, so that it needs no
/// negotiation. Between two ranks and in one direction, a key is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    /// The communicator (group) of the operation; 0 is the world. For point-to-point messages a hash of group,
    /// sender, receiver and tag, with the top bit set, so that each such stream numbers its operations itself.
    pub group: u64,
    /// The number of the operation in its group, from 0, modulo 2^32.
    pub op: u32,
    /// The lane of the schedule.
    pub lane: u16,
    /// The number of the message in its lane between the two ranks.
    pub message: u32,
    /// The slice of the message.
    pub slice: u32,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "group {} operation {} lane {} message {} slice {}",
            self.group, self.op, self.lane, self.message, self.slice
        )
    }
}

/// Where a received message goes.
#[derive(Clone, Copy, Debug)]
pub enum Sink {
    /// Into this memory, whose length the message must have.
    Place(Memory),
    /// Anywhere: the transport shows where it lies (the sender's own memory, a slot, a staging buffer) until
    /// [`Transport::release`]. For reducing straight from there. The message must have this length.
    View(usize),
}

impl Sink {
    /// The length in bytes that the message must have.
    pub const fn len(&self) -> usize {
        match *self {
            Self::Place(memory) => memory.len(),
            Self::View(len) => len,
        }
    }

    /// Whether the message must have no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What happened, as [`Transport::poll`] tells it.
#[derive(Debug)]
pub enum Event {
    /// A message has left its memory, which may be reused.
    Sent {
        /// The receiver.
        peer: Rank,
        /// Which message.
        key: MessageKey,
    },
    /// A message has arrived. With [`Sink::View`], `view` holds it until released; with [`Sink::Place`] it is
    /// in place and `view` is [`Memory::EMPTY`].
    Received {
        /// The sender.
        peer: Rank,
        /// Which message.
        key: MessageKey,
        /// The bytes, for [`Sink::View`].
        view: Memory,
    },
    /// A peer's message (or its announcement) belongs to an operation that [`Transport::begin`] has begun here
    /// with another fingerprint: the two ranks call different operations. Reported once for a peer and operation.
    Mismatch {
        /// The peer.
        peer: Rank,
        /// The operation's group.
        group: u64,
        /// The operation's number.
        op: u32,
        /// The peer's fingerprint.
        theirs: u32,
    },
    /// The connection to a peer is lost: no message to or from it will complete any more.
    Lost {
        /// The peer.
        peer: Rank,
        /// Why.
        error: LinkError,
    },
}

/// What is registered with RDMA devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredMemory {
    /// Bytes of the user's, in whole pages.
    pub bytes: usize,
    /// In how many ranges of pages.
    pub regions: usize,
    /// How often devices were asked to register something so far, buffers of transports included.
    pub registrations: u64,
}

impl std::ops::Add for RegisteredMemory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            regions: self.regions + other.regions,
            registrations: self.registrations + other.registrations,
        }
    }
}

/// Wakes a thread that sleeps on a transport's [`Transport::fd`]. Cheap to clone, callable from any thread.
pub trait Wake: Send + Sync {
    /// Makes the fd readable, once, so that the sleeper looks again.
    fn wake(&self);
}

/// Moves messages between this rank and its peers.
///
/// One thread at a time drives a transport. `send` and `recv` only start; nothing blocks but the caller's own
/// sleep on [`Transport::fd`]. Calls for different keys may come in any order on the two sides; a message
/// whose `recv` has not been posted waits at bounded memory. Memory given to `send` must not change, and
/// memory given to `recv` must not be used, until the event, or until [`Transport::cancel`] returns.
pub trait Transport: Send {
    /// `shm`, `tcp` ...
    fn name(&self) -> &'static str;

    /// Begins an operation: until [`Transport::cancel`], messages of it may be sent and received. `fingerprint`
    /// goes along with each (in its header), and is compared with the peers': one that differs is an
    /// [`Event::Mismatch`], also for messages that arrived before this call, and for those that no `recv` here
    /// asks for.
    fn begin(&mut self, group: u64, op: u32, fingerprint: u32);

    /// Starts sending. Among messages that wait for the same peer, a higher `priority` goes first.
    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError>;

    /// Says where a message is to go. Messages of other length are a [`LinkError`] at poll.
    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError>;

    /// Gives back the view of a received message.
    fn release(&mut self, peer: Rank, key: MessageKey);

    /// Moves what can be moved without blocking, and appends what happened to `events`. Returns whether
    /// anything moved, events or not.
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool;

    /// Before sleeping on [`Transport::fd`]: asks for it to become readable at the next arrival. False if
    /// something has arrived already, so that the caller must poll in place of sleeping.
    fn arm(&mut self) -> bool;

    /// After sleeping, or after `arm` returned false.
    fn disarm(&mut self);

    /// Readable, once armed, when [`Transport::poll`] may find something.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Ends an operation, after its last event or in the middle: forgets all its messages, in both directions, done or not: when it returns no memory of
    /// theirs is touched any more. Late arrivals are dropped.
    fn cancel(&mut self, group: u64, op: u32);

    /// The longest message worth sending in one piece, in bytes: the executor's slice.
    fn slice_bytes(&self) -> usize;

    /// Bytes that the transport has allocated for buffers.
    fn memory_in_use(&self) -> usize;

    /// Makes memory known that messages will come from and go to again and again: where a device can, they do so without a
    /// copy. It must stay valid until [`Transport::deregister`] has been called as often, with the same memory.
    ///
    /// # Errors
    /// If the device or a limit refuses; then messages are copied.
    fn register(&mut self, _memory: Memory) -> Result<(), RegisterError> {
        Ok(())
    }

    /// Takes back a [`Transport::register`]: with the last one of a range its registration ends. Operations that are under way
    /// may go on.
    fn deregister(&mut self, _memory: Memory) {}

    /// What is registered.
    fn registered(&self) -> RegisteredMemory {
        RegisteredMemory::default()
    }

    /// Tells peers of an orderly leave, within `timeout`, so that they do not take it for a crash.
    fn close(&mut self, timeout: Duration);
}
