//! What this rank is doing, as its signs of life tell the others.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use ringway_plan::{Collective, Rank};

/// Written by whoever runs operations, with plain stores; read by the control thread at each heartbeat.
///
/// A reader may see the operation of one moment with the step of the next: it is for people to read.
#[derive(Debug, Default)]
pub struct Activity {
    /// Of a message: the other rank.
    group: AtomicU64,
    /// Bits 8..40: number in the group; 0..8: what it is; 0 is idle.
    operation: AtomicU64,
    /// Bits 48..64: lane; 32..48: step; 0..32: chunk; valid while an operation is.
    step: AtomicU64,
}

/// A copy of an [`Activity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) group: u64,
    pub(super) operation: u64,
    pub(super) step: u64,
}

impl Activity {
    /// An operation begins: number `call` of `group` (0 is the world), from 0.
    #[inline]
    pub fn begin(&self, collective: Collective, group: u64, call: u64) {
        self.note(code(collective), group, call);
    }

    /// A message begins: number `call` to or from `peer` under its tag, from 0.
    #[inline]
    pub fn begin_message(&self, direction: Direction, peer: Rank, call: u64) {
        self.note(direction as u8, peer as u64, call);
    }

    #[inline]
    fn note(&self, code: u8, group: u64, call: u64) {
        let word = (call & 0xffff_ffff) << 8 | u64::from(code);
        self.step.store(0, Ordering::Relaxed);
        self.group.store(group, Ordering::Relaxed);
        self.operation.store(word, Ordering::Relaxed);
    }

    /// It has come to this step of its schedule.
    #[inline]
    pub fn step(&self, lane: u16, step: u16, chunk: u32) {
        let word = u64::from(lane) << 48 | u64::from(step) << 32 | u64::from(chunk);
        self.step.store(word, Ordering::Relaxed);
    }

    /// No operation is in flight.
    #[inline]
    pub fn end(&self) {
        self.operation.store(0, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            group: self.group.load(Ordering::Relaxed),
            operation: self.operation.load(Ordering::Relaxed),
            step: self.step.load(Ordering::Relaxed),
        }
    }
}

/// Which end of a message a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It sends.
    Send = 10,
    /// It receives.
    Recv = 11,
}

/// What a rank was last seen doing, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) snapshot: Snapshot,
    /// How long it had been in that operation when it was last seen.
    pub(super) since: Duration,
    began: Instant,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            snapshot: Snapshot::default(),
            since: Duration::ZERO,
            began: now,
        }
    }

    /// It is seen doing this.
    pub(super) fn look(&mut self, snapshot: Snapshot, now: Instant) {
        if (snapshot.group, snapshot.operation) != (self.snapshot.group, self.snapshot.operation) {
            self.began = now;
        }
        self.snapshot = snapshot;
        self.since = now - self.began;
    }

    /// It says that it has been doing this for so long.
    pub(super) const fn set(&mut self, snapshot: Snapshot, since: Duration) {
        self.snapshot = snapshot;
        self.since = since;
    }
}

const fn code(collective: Collective) -> u8 {
    match collective {
        Collective::AllGather => 1,
        Collective::AllReduce => 2,
        Collective::AllToAll => 3,
        Collective::Barrier => 4,
        Collective::Broadcast { .. } => 5,
        Collective::Gather { .. } => 6,
        Collective::Reduce { .. } => 7,
        Collective::ReduceScatter => 8,
        Collective::Scatter { .. } => 9,
    }
}

impl Snapshot {
    /// `all_reduce (operation 17 of the world)`, `send to rank 2 (message 0 under its tag)`; empty while idle, or if the
    /// number is of nothing.
    pub(super) fn operation_text(self) -> String {
        let wanted = (self.operation & 0xff) as u8;
        let number = self.operation >> 8 & 0xffff_ffff;
        for (direction, text) in [(Direction::Send, "send to"), (Direction::Recv, "recv from")] {
            if direction as u8 == wanted {
                return format!(
                    "{text} rank {} (message {number} under its tag)",
                    self.group
                );
            }
        }
        let Some(collective) = Collective::all(0).into_iter().find(|&c| code(c) == wanted) else {
            return String::new();
        };
        let group = match self.group {
            0 => "the world".to_owned(),
            group => format!("group {group:x}"),
        };
        format!("{} (operation {number} of {group})", collective.name())
    }

    /// `lane 0, step 3, chunk 2`; of use while there is an operation.
    pub(super) fn step_text(self) -> String {
        format!(
            "lane {}, step {}, chunk {}",
            self.step >> 48,
            self.step >> 32 & 0xffff,
            self.step & 0xffff_ffff
        )
    }
}
