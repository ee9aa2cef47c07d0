//! The wire between two hosts, measured by datagrams that are marked as data is, by streams of TCP, and by RDMA.
//!
//! One end answers (`answer`), the other asks (`ask`). All datagrams may not be cut on their way, and tell the type of
//! service with which they came.

mod answer;
mod ask;
mod port;
mod stream;
mod trace;
mod ways;

pub(super) use answer::Answerer;
pub(super) use ask::{Peer, ask};
pub(super) use port::{Address, errors};
pub(in crate::doctor) use stream::Rdma;

/// DSCP 26 with ECT(0): how Ringway marks its data.
const MARK: u8 = 106;

/// Headers of IP and UDP before a datagram's payload.
const fn headers(v4: bool) -> usize {
    if v4 { 28 } else { 48 }
}

/// The time of day, in nanoseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(0))
}
