//! Everything that took time, for critical paths and pictures.

use std::{collections::BTreeSet, fmt::Write as _};

use ringway_fabric::{Fabric, Hop};
use ringway_plan::Rank;

use crate::{outcome::Outcome, time::Time, world::World};

/// What took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes from a rank to another, from the first that left to the last that arrived.
    Message {
        /// The receiver.
        to: Rank,
    },
    /// A reduction or copy.
    Work,
}

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What.
    pub kind: Kind,
    /// Of which rank; of messages, the sender.
    pub rank: Rank,
    /// Bytes.
    pub bytes: u64,
    /// When it began.
    pub begun: Time,
    /// When it ended.
    pub ended: Time,
    /// The number of the record whose end it waited for, if any.
    pub cause: Option<u32>,
}

/// The chain of records that leads to `last`, the first first.
pub(crate) fn path(records: &[Record], last: Option<u32>) -> Vec<Record> {
    let record = |number: u32| records.get(number as usize).copied();
    let before = |r: &Record| r.cause.and_then(record);
    let mut path: Vec<Record> = std::iter::successors(last.and_then(record), before).collect();
    path.reverse();
    path
}

/// A run with records as a trace that Perfetto and chrome://tracing open: a process for each host, a thread for each rank's
/// messages and one for its work; and one process more with a thread for each link that had to pause. Times are in
/// microseconds.
pub fn chrome_trace(outcome: &Outcome, world: &World, fabric: &Fabric) -> String {
    let mut text = String::from("{\"traceEvents\":[\n");
    // Writing to a String cannot fail.
    let mut line = |line: std::fmt::Arguments<'_>| _ = writeln!(text, "{{{line}}},");
    for rank in 0..world.ranks() {
        let host = world.place(rank).host;
        for (thread, what) in [(2 * rank, "sends"), (2 * rank + 1, "works")] {
            line(format_args!(
                "\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{host},\"tid\":{thread},\"args\":{{\"name\":\"rank {rank} {what}\"}}"
            ));
        }
    }
    let span = |begun: Time, ended: Time| {
        let took = ended.since(begun).0 as f64 / 1e6;
        (begun.0 as f64 / 1e6, took)
    };
    for record in &outcome.records {
        let (rank, host) = (record.rank, world.place(record.rank).host);
        let (thread, name) = match record.kind {
            Kind::Message { to } => (2 * rank, format!("to {to}")),
            Kind::Work => (2 * rank + 1, "reduce".to_owned()),
        };
        let (begun, took) = span(record.begun, record.ended);
        line(format_args!(
            "\"ph\":\"X\",\"name\":\"{name}\",\"pid\":{host},\"tid\":{thread},\"ts\":{begun:.6},\"dur\":{took:.6},\"args\":{{\"bytes\":{}}}",
            record.bytes
        ));
    }
    let links = fabric.hosts();
    let mut named = BTreeSet::new();
    for pause in outcome.packets.iter().flat_map(|p| &p.pauses) {
        let hop = pause.hop;
        if named.insert(hop) {
            let name = Hop::of_index(hop).name(fabric);
            line(format_args!(
                "\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{links},\"tid\":{hop},\"args\":{{\"name\":\"{name}\"}}"
            ));
        }
        let (begun, took) = span(pause.begun, pause.ended);
        line(format_args!(
            "\"ph\":\"X\",\"name\":\"paused\",\"pid\":{links},\"tid\":{hop},\"ts\":{begun:.6},\"dur\":{took:.6}"
        ));
    }
    // A last event without a comma after it.
    text += "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"simulation\"}}\n]}\n";
    text
}
