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
    /// Packets sent again to find out whether the last ones are lost.
    pub probes: u64,
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
    /// Selective acknowledgements that showed a loss.
    pub selective_acks_received: u64,
    /// Requests received before their turn, and kept until it came.
    pub kept: u64,
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
    /// Requests refused for key, right or bounds (`resp_remote_access_errors`).
    pub access_refused: u64,
    /// Requests refused as invalid: not allowed, or not what fits.
    pub invalid_refused: u64,
}

impl Counters {
    /// Adds another's counts.
    pub const fn add(&mut self, other: &Self) {
        self.packets_sent += other.packets_sent;
        self.retransmitted += other.retransmitted;
        self.timeouts += other.timeouts;
        self.probes += other.probes;
        self.sequence_naks_received += other.sequence_naks_received;
        self.implied_naks += other.implied_naks;
        self.rnr_naks_received += other.rnr_naks_received;
        self.rnr_naks_sent += other.rnr_naks_sent;
        self.out_of_sequence += other.out_of_sequence;
        self.selective_acks_received += other.selective_acks_received;
        self.kept += other.kept;
        self.duplicate_requests += other.duplicate_requests;
        self.unknown_duplicates += other.unknown_duplicates;
        self.stale_responses += other.stale_responses;
        self.bad_responses += other.bad_responses;
        self.wrong_queue_pair += other.wrong_queue_pair;
        self.wrong_partition += other.wrong_partition;
        self.wrong_source += other.wrong_source;
        self.unexpected += other.unexpected;
        self.congestion_marks += other.congestion_marks;
        self.cnps_sent += other.cnps_sent;
        self.cnps_received += other.cnps_received;
        self.access_refused += other.access_refused;
        self.invalid_refused += other.invalid_refused;
    }

    /// Tells each count with its name: a NIC's, where NICs count the same.
    pub fn tell(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        tell("packets_sent", self.packets_sent);
        tell("retransmitted", self.retransmitted);
        tell("local_ack_timeout_err", self.timeouts);
        tell("tail_loss_probes", self.probes);
        tell("packet_seq_err", self.sequence_naks_received);
        tell("implied_nak_seq_err", self.implied_naks);
        tell("rnr_nak_retry_err", self.rnr_naks_received);
        tell("rnr_naks_sent", self.rnr_naks_sent);
        tell("out_of_sequence", self.out_of_sequence);
        tell("selective_acks_received", self.selective_acks_received);
        tell("kept", self.kept);
        tell("duplicate_request", self.duplicate_requests);
        tell("unknown_duplicates", self.unknown_duplicates);
        tell("stale_responses", self.stale_responses);
        tell("bad_responses", self.bad_responses);
        tell("wrong_queue_pair", self.wrong_queue_pair);
        tell("wrong_partition", self.wrong_partition);
        tell("wrong_source", self.wrong_source);
        tell("unexpected", self.unexpected);
        tell("np_ecn_marked_roce_packets", self.congestion_marks);
        tell("np_cnp_sent", self.cnps_sent);
        tell("rp_cnp_handled", self.cnps_received);
        tell("resp_remote_access_errors", self.access_refused);
        tell("invalid_refused", self.invalid_refused);
    }
}
