//! What a queue pair counts.

/// Counts of a queue pair's life. Packets that are discarded change nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, of all kinds.
    pub packets_sent: u64,
    /// Packets sent another time.
    pub retransmitted: u64,
    /// Times that no acknowledgement came in time (`local_ack_timeout_err`).
    pub timeouts: u64,
    /// Sequence error NAKs received (`packet_seq_err`).
    pub sequence_naks_received: u64,
    /// Responses whose absence showed by a later one (`implied_nak_seq_err`).
    pub implied_naks: u64,
    /// "Receiver not ready" received (`rnr_nak_retry_err`).
    pub rnr_naks_received: u64,
    /// "Receiver not ready" sent.
    pub rnr_naks_sent: u64,
    /// Requests received after a gap (`out_of_sequence`).
    pub out_of_sequence: u64,
    /// Requests received again (`duplicate_request`).
    pub duplicate_requests: u64,
    /// READs and atomic operations received again, but not as they were; discarded.
    pub unknown_duplicates: u64,
    /// Responses to nothing that is under way; discarded.
    pub stale_responses: u64,
    /// Responses that don't fit the request; discarded.
    pub bad_responses: u64,
    /// Packets for another queue pair; discarded.
    pub wrong_queue_pair: u64,
    /// Packets of another partition; discarded.
    pub wrong_partition: u64,
    /// Packets from an address that isn't the peer's; discarded.
    pub wrong_source: u64,
    /// Packets of another service, or in a state that doesn't take them; discarded.
    pub unexpected: u64,
    /// Packets that a switch marked "congestion experienced" (`np_ecn_marked_roce_packets`).
    pub congestion_marks: u64,
    /// Congestion notifications sent (`np_cnp_sent`).
    pub cnps_sent: u64,
    /// Congestion notifications received (`rp_cnp_handled`).
    pub cnps_received: u64,
}
