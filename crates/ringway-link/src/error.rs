//! What can go wrong with a connection to a peer.

use std::time::Duration;

use ringway_plan::Rank;

use crate::{MessageKey, rdma::DeviceError};

/// Memory can't be registered with an RDMA device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The device or the system refuses.
    #[error("memory cannot be registered for RDMA: {0}")]
    Device(#[from] DeviceError),
    /// The limit would be passed.
    #[error(
        "registering {bytes} bytes for RDMA would make it {wanted} in all where the limit is {limit}; raise RINGWAY_REGISTERED_LIMIT"
    )]
    Limit {
        /// Bytes that are to be registered, in whole pages.
        bytes: usize,
        /// Bytes that would be registered.
        wanted: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// A fault between this rank and one peer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer ended an operation while this rank was reading one of its messages in the peer's own memory, which may
    /// have changed since.
    #[error("rank {peer} gave up message {key} while it was being read")]
    Cancelled {
        /// The sender.
        peer: Rank,
        /// Which message.
        key: MessageKey,
    },
    /// The peer closed the connection without saying goodbye: it crashed, was killed, or its host went down.
    #[error(
        "rank {peer} closed the connection without leaving: it crashed or was killed ({detail})"
    )]
    Closed {
        /// The peer.
        peer: Rank,
        /// What the operating system said.
        detail: String,
    },
    /// The peer left in good order while it was still needed.
    #[error("rank {peer} has left the job")]
    Left {
        /// The peer.
        peer: Rank,
    },
    /// A message has another length than its receiver expects: the ranks disagree about the operation.
    #[error(
        "message {key} from rank {peer} has {got} bytes where {expected} were expected: the ranks call different operations"
    )]
    Length {
        /// The sender.
        peer: Rank,
        /// Which message.
        key: MessageKey,
        /// Bytes that the receiver expects.
        expected: usize,
        /// Bytes that the sender sends.
        got: usize,
    },
    /// The caller may not do what it asked for: a fault of this program, not of the peer.
    #[error("message {key} to or from rank {peer} is not possible: {detail}")]
    Misuse {
        /// The peer.
        peer: Rank,
        /// Which message.
        key: MessageKey,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// Bytes that are no message of Ringway's, or not one that fits the state of the connection.
    #[error("rank {peer} sent bytes that break the protocol: {detail}")]
    Protocol {
        /// The peer.
        peer: Rank,
        /// What was wrong with them.
        detail: String,
    },
    /// The queue pairs to the peer have failed, or its device.
    #[error("the RDMA connection to rank {peer} has failed: {detail}")]
    Rdma {
        /// The peer.
        peer: Rank,
        /// What the device said.
        detail: String,
    },
    /// The peer, or what answers in its place, does not take this process for one of its job.
    #[error("rank {peer} at {address} refused the connection: {detail}")]
    Refused {
        /// The peer.
        peer: Rank,
        /// Where it answered.
        address: String,
        /// What it expected and what it found.
        detail: String,
    },
    /// No connection within the deadline.
    #[error("no connection to rank {peer} within {waited:.1?}: tried {tried}; {remedy}")]
    Unreachable {
        /// The peer.
        peer: Rank,
        /// How long was tried.
        waited: Duration,
        /// Every address tried, each with what came of it.
        tried: String,
        /// What to do about it.
        remedy: String,
    },
    /// A buffer limit would be passed.
    #[error(
        "{detail}, from or to rank {peer}, would take the buffers to {wanted} bytes where the limit is {limit}; \
         raise RINGWAY_BUFFER_SIZE, and RINGWAY_MEMORY_LIMIT where that is lower"
    )]
    MemoryLimit {
        /// The peer that the buffers are for.
        peer: Rank,
        /// What the memory was for.
        detail: String,
        /// Bytes in use with this one.
        wanted: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The operating system refused.
    #[error("{what} for rank {peer} failed: {detail}")]
    System {
        /// The peer.
        peer: Rank,
        /// The call.
        what: &'static str,
        /// What it said.
        detail: String,
    },
}

impl LinkError {
    /// A message cannot be posted for an operation that is not under way.
    pub(crate) const fn not_begun(peer: Rank, key: MessageKey) -> Self {
        let detail = "its operation has not begun, or has ended";
        Self::Misuse { peer, key, detail }
    }

    /// A message can be posted once.
    pub(crate) const fn posted_twice(peer: Rank, key: MessageKey) -> Self {
        let detail = "it was posted before";
        Self::Misuse { peer, key, detail }
    }

    /// Checks that `peer` is another of the world's `ranks`.
    pub(crate) const fn check_peer(
        own: Rank,
        ranks: usize,
        peer: Rank,
        key: MessageKey,
    ) -> Result<(), Self> {
        let detail = if peer == own {
            "a rank has no link to itself"
        } else if peer >= ranks {
            "the world has no such rank"
        } else {
            return Ok(());
        };
        Err(Self::Misuse { peer, key, detail })
    }

    /// Checks that a message has the length that its receive expects.
    pub(crate) const fn check_length(
        peer: Rank,
        key: MessageKey,
        expected: usize,
        got: usize,
    ) -> Result<(), Self> {
        if got == expected {
            return Ok(());
        }
        Err(Self::Length {
            peer,
            key,
            expected,
            got,
        })
    }

    /// The peer that it is about.
    pub const fn peer(&self) -> Rank {
        match self {
            Self::Cancelled { peer, .. }
            | Self::Closed { peer, .. }
            | Self::Left { peer }
            | Self::Length { peer, .. }
            | Self::Misuse { peer, .. }
            | Self::Protocol { peer, .. }
            | Self::Rdma { peer, .. }
            | Self::Refused { peer, .. }
            | Self::Unreachable { peer, .. }
            | Self::MemoryLimit { peer, .. }
            | Self::System { peer, .. } => *peer,
        }
    }
}
