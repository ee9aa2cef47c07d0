//! What can be set about the RDMA transport.

use std::time::Duration;

use ringway_roce::timer::AckTimeout;

use super::MAX_CHANNELS;

/// Settings of [`super::RdmaTransport`]. They need not be the same on both sides of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSettings {
    /// The longest message, in bytes, that is sent without being asked for.
    pub eager_limit: usize,
    /// How many such messages a peer may have waiting here.
    pub eager_messages: u16,
    /// Queue pairs to each peer for longer messages, 1 to [`RdmaSettings::MAX_DATA_CHANNELS`]; none: 4 on a NIC, 2 in
    /// software.
    pub data_channels: Option<usize>,
    /// The executor's slice in bytes: how much is sent in one piece.
    pub slice: usize,
    /// How long a packet's acknowledgement is waited for before it is sent again; none: 268 ms on a NIC, where a queue pair
    /// fails after 7 times that, and 67 ms in software, where it fails after 255 times that, as a peer that computes answers
    /// nothing.
    pub ack_timeout: Option<AckTimeout>,
    /// How long two queue pairs may take to prove that they reach each other.
    pub proof_timeout: Duration,
    /// Whether RDMA to a peer is compared with TCP before it is used, and not used if it is slower.
    pub measures: bool,
    /// How long after its failure RDMA to a peer is tried again. Each time in vain is followed by twice as long a wait.
    pub first_retry: Duration,
    /// The longest of these waits. RDMA that held for as long begins again with the shortest.
    pub longest_retry: Duration,
    /// How long the end of an operation in the middle of messages waits, while nothing moves, for peers to say that they leave
    /// its memory alone; five times as long in all.
    pub cancel_patience: Duration,
    /// Bytes of registered buffers, at most.
    pub memory_limit: usize,
    /// Bytes of the user's memory that are registered, at most.
    pub registered_limit: usize,
}

impl RdmaSettings {
    /// The most queue pairs for long messages.
    pub const MAX_DATA_CHANNELS: usize = MAX_CHANNELS - 1;
}

impl Default for RdmaSettings {
    fn default() -> Self {
        Self {
            eager_limit: 4 << 10,
            eager_messages: 32,
            data_channels: None,
            slice: 512 << 10,
            ack_timeout: None,
            proof_timeout: Duration::from_secs(10),
            measures: false,
            first_retry: Duration::from_secs(1),
            longest_retry: Duration::from_secs(60),
            // An abort has to come through within a second.
            cancel_patience: Duration::from_millis(100),
            memory_limit: usize::MAX,
            registered_limit: usize::MAX,
        }
    }
}
