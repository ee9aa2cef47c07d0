//! What a simulation found.

use ringway_plan::Collective;

use crate::{
    packet::PacketReport,
    time::{Moment, Time},
    trace::{Record, path},
};

/// What one direction of a link carried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopLoad {
    /// [`ringway_fabric::Hop::index`].
    pub hop: usize,
    /// For the ranks, what was sent again included; others' traffic does not count, nor do headers.
    pub bytes: f64,
    /// By what it could have carried in the time: 0 to 1. Of packets, with headers and others'.
    pub busy: f64,
}

/// An operation's time, on what it was spent, and what links carried.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The end, with the account of the critical path.
    pub end: Moment,
    /// Of the vector.
    pub bytes: usize,
    /// Messages between ranks, slices counted one by one.
    pub messages: u64,
    /// By [`ringway_fabric::Hop::index`].
    pub hops: Vec<HopLoad>,
    /// All that took time, if asked for.
    pub records: Vec<Record>,
    /// What packets did, on their level.
    pub packets: Option<PacketReport>,
    pub(crate) ranks: usize,
    pub(crate) collective: Collective,
}

/// What a program of several operations came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Elapsed {
    /// When the last rank was at its end.
    pub end: Time,
    /// Messages between ranks, slices counted one by one.
    pub messages: u64,
    /// By [`ringway_fabric::Hop::index`].
    pub hops: Vec<HopLoad>,
    /// By operation: when the first rank started it, and when the last was at its end; none if it was under way at the end.
    pub operations: Vec<(Time, Option<Time>)>,
}

/// By what nccl-tests multiplies the size by time to get what each rank's link carries in the best algorithm.
pub fn busbw_factor(collective: Collective, ranks: usize) -> f64 {
    let n = ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::Barrier | Collective::Broadcast { .. } | Collective::Reduce { .. } => 1.0,
        _ => (n - 1.0) / n,
    }
}

impl Outcome {
    /// Bytes of the vector per second.
    pub fn algbw(&self) -> f64 {
        self.bytes as f64 / self.end.at.seconds()
    }

    /// Bytes per second that each rank's link carries in the best algorithm.
    pub fn busbw(&self) -> f64 {
        self.algbw() * busbw_factor(self.collective, self.ranks)
    }

    /// Links, the busiest first.
    pub fn hottest(&self) -> Vec<HopLoad> {
        let mut hops = self.hops.clone();
        hops.sort_by(|a, b| b.busy.total_cmp(&a.busy).then(a.hop.cmp(&b.hop)));
        hops
    }

    /// The records that the end waited for, one after the other; empty if none were kept.
    pub fn critical_path(&self) -> Vec<Record> {
        path(&self.records, self.end.cause)
    }
}
