//! What can be set about the TCP transport.

use std::time::Duration;

/// Settings of [`super::TcpTransport`]. Decision 0005 says what the defaults were measured against; the example
/// `tcp_bench` measures what others do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// The longest message, in bytes, that is sent without being asked for. It costs no round trip, and a copy
    /// if it comes before its receive is posted. At most 2^32 - 1.
    pub eager_limit: usize,
    /// Bytes of such messages that each peer may have waiting here.
    pub window: usize,
    /// Streams to each peer for longer messages, 0 to [`TcpSettings::MAX_STREAMS`]; 0 sends all over one.
    pub streams: usize,
    /// The executor's slice in bytes: how much is sent in one piece.
    pub slice: usize,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long a peer's host may leave sent bytes unanswered until it counts as dead.
    pub silence: Duration,
    /// Bytes of buffers, at most.
    pub memory_limit: usize,
    /// `SO_SNDBUF` and `SO_RCVBUF` in bytes; `None` leaves them to the kernel, which adapts them.
    pub socket_buffers: Option<usize>,
    /// The congestion control, such as `dctcp`; `None` leaves it to the system, but for peers on the same host, which
    /// get Reno.
    pub congestion: Option<String>,
}

impl TcpSettings {
    /// The most streams for long messages.
    pub const MAX_STREAMS: usize = 16;
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            eager_limit: 64 << 10,
            window: 1 << 20,
            streams: 1,
            slice: 512 << 10,
            connect_timeout: Duration::from_secs(30),
            silence: Duration::from_secs(2),
            memory_limit: usize::MAX,
            socket_buffers: None,
            congestion: None,
        }
    }
}
