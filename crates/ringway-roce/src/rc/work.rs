//! Work requests, and how they end.

use thiserror::Error;

use super::State;
use crate::{Key, wire::Immediate};

/// A piece of registered local memory: a scatter/gather element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The region's key.
    pub key: Key,
    /// The address of the first byte.
    pub address: u64,
    /// The length in bytes.
    pub length: u32,
}

/// An address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The region's key.
    pub key: Key,
    /// The address of the first byte.
    pub address: u64,
}

/// Where the bytes of a SEND or WRITE come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// From registered memory, which must not change until the request has completed.
    Memory(Local),
    /// From anywhere: they are copied when the request is posted. At most [`Attributes::inline`](super::Attributes)
    /// bytes.
    Inline(&'a [u8]),
}

impl Source<'_> {
    /// The length in bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Memory(local) => local.length as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// A message into the receive that the peer has posted.
    Send {
        /// The message.
        source: Source<'a>,
        /// For the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Bytes into the peer's memory. With immediate data a receive of the peer's completes, too.
    Write {
        /// The bytes.
        source: Source<'a>,
        /// Where they go.
        remote: Remote,
        /// For the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Bytes out of the peer's memory.
    Read {
        /// Where they go.
        into: Local,
        /// Where they are.
        remote: Remote,
    },
    /// Adds to a number of the peer's.
    FetchAdd {
        /// Where the number before goes: eight bytes, in this machine's order.
        into: Local,
        /// Where it is.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// Replaces a number of the peer's if it is the expected one.
    CompareSwap {
        /// Where the number before goes: eight bytes, in this machine's order.
        into: Local,
        /// Where it is.
        remote: Remote,
        /// The expected number.
        compare: u64,
        /// The new number.
        swap: u64,
    },
}

impl Work<'_> {
    /// The bytes that move.
    pub(super) const fn length(&self) -> usize {
        match self {
            Self::Send { source, .. } | Self::Write { source, .. } => source.len(),
            Self::Read { into, .. } => into.length as usize,
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => 8,
        }
    }

    /// Whether the peer answers with data, so that an acknowledgement isn't enough.
    pub(super) const fn is_answered(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::FetchAdd { .. } | Self::CompareSwap { .. }
        )
    }

    pub(super) const fn done(&self) -> Done {
        match self {
            Self::Send { .. } => Done::Send,
            Self::Write { .. } => Done::Write,
            Self::Read { .. } => Done::Read,
            Self::FetchAdd { .. } => Done::FetchAdd,
            Self::CompareSwap { .. } => Done::CompareSwap,
        }
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub work: Work<'a>,
    /// Whether success is reported, too; failure always is.
    pub signaled: bool,
    /// Whether the peer shall raise an event even if it asked for solicited ones only.
    pub solicited: bool,
}

/// A request for the receive queue: room for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Where a SEND goes. A WRITE with immediate data uses up the receive, but not its memory.
    pub into: Local,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What ended.
    pub done: Done,
}

/// What a completed request was, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// A fetch and add.
    FetchAdd,
    /// A compare and swap.
    CompareSwap,
    /// A receive, by a SEND. Without success, the message is empty.
    Receive {
        /// The message's length in bytes.
        length: u32,
        /// The sender's immediate data.
        immediate: Option<Immediate>,
    },
    /// A receive, by a WRITE with immediate data.
    ReceiveWrite {
        /// How many bytes were written.
        length: u32,
        /// The sender's immediate data.
        immediate: Immediate,
    },
}

/// How a request ended: verbs' `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Status {
    /// It is done.
    #[error("success")]
    Success,
    /// The message was longer than the receive.
    #[error("local length error: the message was longer than the receive")]
    LocalLength,
    /// Local memory isn't registered, or not for this.
    #[error("local protection error: key, right or bounds of local memory are wrong")]
    LocalProtection,
    /// The queue pair had failed before.
    #[error("flushed: another request of the queue pair failed before")]
    Flushed,
    /// The peer doesn't do this operation, or the message was longer than its receive.
    #[error("remote invalid request: the peer does not take such a message")]
    RemoteInvalidRequest,
    /// The peer's key, access right or bounds.
    #[error("remote access error: key, right or bounds of the peer's memory are wrong")]
    RemoteAccess,
    /// The peer failed.
    #[error("remote operational error: the peer could not carry out the request")]
    RemoteOperational,
    /// The peer doesn't acknowledge.
    #[error("retries exceeded: the peer does not answer")]
    RetriesExceeded,
    /// The peer has posted no receive.
    #[error("RNR retries exceeded: the peer has posted no receive")]
    RnrRetriesExceeded,
    /// Another of verbs' numbers, which only NICs give.
    #[error("status {0} of ibv_wc_status")]
    Other(u32),
}

impl Status {
    const NUMBERED: [Self; 9] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalProtection,
        Self::Flushed,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperational,
        Self::RetriesExceeded,
        Self::RnrRetriesExceeded,
    ];

    /// The status of a number that verbs gave.
    pub fn from_code(code: u32) -> Self {
        Self::NUMBERED
            .into_iter()
            .find(|status| status.code() == code)
            .unwrap_or(Self::Other(code))
    }

    /// The number that verbs have for it (`IBV_WC_SUCCESS` and so on).
    pub const fn code(self) -> u32 {
        match self {
            Self::Success => 0,
            Self::LocalLength => 1,
            Self::LocalProtection => 4,
            Self::Flushed => 5,
            Self::RemoteInvalidRequest => 9,
            Self::RemoteAccess => 10,
            Self::RemoteOperational => 11,
            Self::RetriesExceeded => 12,
            Self::RnrRetriesExceeded => 13,
            Self::Other(code) => code,
        }
    }
}

/// Why a request wasn't taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// Not in this state.
    #[error(
        "the queue pair is in state {0:?}; sending needs ReadyToSend, receiving any state but Error"
    )]
    State(State),
    /// The queue is full.
    #[error("the queue holds {0} requests already; take completions first, or make it longer")]
    Full(usize),
    /// Too many packets for the sequence numbers.
    #[error("{length} bytes are more than {max}, the longest message with this MTU")]
    TooLong {
        /// The message's length in bytes.
        length: usize,
        /// The longest possible.
        max: u32,
    },
    /// More inline bytes than the queue pair was made for.
    #[error(
        "{length} inline bytes are more than the queue pair's {max}; send from registered memory"
    )]
    Inline {
        /// The message's length in bytes.
        length: usize,
        /// The most inline bytes.
        max: usize,
    },
    /// The initiator depth is 0.
    #[error("the connection was made with an initiator depth of 0: no READs, no atomics")]
    NoInitiatorDepth,
}
