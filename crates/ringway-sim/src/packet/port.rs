//! One direction of a link: what waits to be sent over it, and what it has done.

use std::collections::VecDeque;

use super::pool::{Pool, Queue};
use crate::time::Time;

/// What one direction of a link did on the level of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Packets that it sent.
    pub packets: u64,
    /// Bytes on the wire that it sent: with headers, preambles and gaps, answers, and the traffic of others.
    pub wire_bytes: u64,
    /// The most bytes of data that waited for it at a time.
    pub longest_queue: u64,
    /// How long its far end had it pause.
    pub paused: Time,
    /// How often.
    pub pauses: u64,
    /// Packets that were marked as they began to wait for it.
    pub marked: u64,
    /// Congestion notifications that it sent.
    pub notifications: u64,
    /// Packets that found no room to wait for it, or that were for it when it was given up.
    pub dropped: u64,
    /// Packets that it sent and that their sender had sent before.
    pub resent: u64,
    /// Bytes of messages in these.
    pub resent_bytes: u64,
}

/// A time in which one direction of a link had to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// [`ringway_fabric::Hop::index`].
    pub hop: usize,
    /// From when.
    pub begun: Time,
    /// Until when.
    pub ended: Time,
}

/// A queue that its hop serves before the others.
pub(super) const CONTROL: usize = 0;
pub(super) const DATA: usize = 1;

#[derive(Debug)]
pub(super) struct Port {
    /// The node at its far end.
    pub(super) to: u32,
    /// Bytes per second; 0 is down.
    pub(super) rate: f64,
    pub(super) latency: Time,
    /// It is down, and switches know: they send nothing there.
    pub(super) given_up: bool,
    /// Until when it sends.
    pub(super) busy: Time,
    /// Whether it is an event when it has sent.
    pub(super) expected: bool,
    pub(super) queues: [Queue; 2],
    /// Since when data may not be sent.
    pub(super) paused: Option<Time>,
    /// Connections of its NIC that may have something to send.
    pub(super) ready: VecDeque<u32>,
    /// Where a host hands on what others send, its own and theirs take turns.
    pub(super) own_turn: bool,
    /// Of what came over it, the bytes that wait at its far end, and whether these told it to pause.
    pub(super) held: u64,
    pub(super) stopped: bool,
    pub(super) counts: PortCounts,
}

impl Port {
    pub(super) const fn new(to: u32, rate: f64, latency: Time) -> Self {
        Self {
            to,
            rate,
            latency,
            given_up: false,
            busy: Time(0),
            expected: false,
            queues: [Queue::EMPTY; 2],
            paused: None,
            ready: VecDeque::new(),
            own_turn: false,
            held: 0,
            stopped: false,
            counts: PortCounts {
                packets: 0,
                wire_bytes: 0,
                longest_queue: 0,
                paused: Time(0),
                pauses: 0,
                marked: 0,
                notifications: 0,
                dropped: 0,
                resent: 0,
                resent_bytes: 0,
            },
        }
    }

    pub(super) fn push(&mut self, number: u32, pool: &mut Pool) {
        let class = if pool[number].control { CONTROL } else { DATA };
        self.queues[class].push(number, pool);
        let longest = &mut self.counts.longest_queue;
        *longest = (*longest).max(self.queues[DATA].bytes);
    }

    /// Whether something waits that it may send.
    pub(super) fn has_work(&self) -> bool {
        let data = !self.queues[DATA].is_empty() || !self.ready.is_empty();
        !self.queues[CONTROL].is_empty() || data && self.paused.is_none()
    }

    /// So much as one packet takes to be sent.
    pub(super) fn takes(&self, wire: u32) -> Time {
        Time::of_bytes(f64::from(wire), self.rate)
    }
}
