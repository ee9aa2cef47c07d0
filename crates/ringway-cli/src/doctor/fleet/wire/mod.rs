//! The wire between two hosts, measured by datagrams that are marked as data is, by streams of TCP, and by RDMA.
//!
//! One end answers (`answer`), the other asks (`ask`). All datagrams may not be cut on their way, and tell the type of
//! service with which they came.

mod answer;
mod ask;
mod message;
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
