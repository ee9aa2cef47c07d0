//! When to ask after the end of what is under way: if its last packets are lost, nothing comes that would show it.

use std::time::{Duration, Instant};

use crate::Psn;

/// The least time to wait: a peer whose process has lost its processor for a moment has lost nothing else.
const LEAST: Duration = Duration::from_millis(1);

/// The clock of a tail loss probe (RFC 8985, section 7): two round trips after the last that was sent or heard, the packet
/// that went last goes again. One probe, until the peer is heard.
#[derive(Debug, Default)]
pub(in crate::rc) struct Probe {
    /// What an acknowledgement takes, smoothed (RFC 6298, section 2). None until one has come: nothing is probed before.
    round_trip: Option<Duration>,
    /// A packet that asks for an acknowledgement, and when it went.
    timed: Option<(Psn, Instant)>,
    deadline: Option<Instant>,
    /// A probe has gone, or the ACK clock has run out, and nothing was heard since.
    spent: bool,
}

impl Probe {
    pub(in crate::rc) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// A packet has gone for the first time. `asks` is whether the peer answers it at once.
    pub(in crate::rc) fn sent(&mut self, now: Instant, psn: Psn, asks: bool) {
        if asks && self.timed.is_none() {
            self.timed = Some((psn, now));
        }
        self.start(now);
    }

    /// A packet has gone again. What is acknowledged from now on may be either (Karn's algorithm, RFC 6298, section 3).
    pub(in crate::rc) fn sent_again(&mut self, now: Instant) {
        self.timed = None;
        self.start(now);
    }

    /// Everything before `unacked` is done with, and more is under way or not.
    pub(in crate::rc) fn advanced(&mut self, now: Instant, unacked: Psn, more: bool) {
        if let Some((psn, sent)) = self.timed
            && psn.is_before(unacked)
        {
            let took = now.saturating_duration_since(sent);
            self.round_trip = Some(match self.round_trip {
                None => took,
                Some(before) => before * 7 / 8 + took / 8,
            });
            self.timed = None;
        }
        self.spent = false;
        if more {
            self.start(now);
        } else {
            self.deadline = None;
        }
    }

    /// The peer has said that something is missing: when the rest is acknowledged says nothing of a round trip.
    pub(in crate::rc) fn heard_of_loss(&mut self, now: Instant) {
        self.timed = None;
        self.spent = false;
        self.start(now);
    }

    /// Whether the time has come, which it does once.
    pub(in crate::rc) fn take_due(&mut self, now: Instant) -> bool {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if due {
            self.stop();
        }
        due
    }

    /// No probe goes until the peer is heard.
    pub(in crate::rc) const fn stop(&mut self) {
        self.deadline = None;
        self.spent = true;
    }

    fn start(&mut self, now: Instant) {
        let wait = self.round_trip.filter(|_| !self.spent);
        self.deadline = wait.map(|round_trip| now + (2 * round_trip).max(LEAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn nth(index: u32) -> Psn {
        Psn::new(index)
    }

    #[test]
    fn it_waits_two_round_trips_and_no_less_than_a_millisecond() {
        let start = Instant::now();
        for (took, wait) in [(MS / 100, MS), (MS / 2, MS), (3 * MS, 6 * MS)] {
            let mut probe = Probe::default();
            probe.sent(start, nth(1), true);
            assert_eq!(probe.deadline(), None);
            let now = start + took;
            probe.advanced(now, nth(2), true);
            assert_eq!(probe.deadline(), Some(now + wait));
            probe.sent(now + MS, nth(2), true);
            assert_eq!(probe.deadline(), Some(now + MS + wait));
            assert!(!probe.take_due(now + wait));
            assert!(probe.take_due(now + MS + wait));
            assert!(!probe.take_due(now + MS + wait));
        }
    }

    #[test]
    fn one_round_trip_counts_an_eighth() {
        let (start, mut probe) = (Instant::now(), Probe::default());
        for (index, took) in [(1, 8 * MS), (2, 16 * MS)] {
            probe.sent(start, nth(index), true);
            probe.advanced(start + took, nth(index + 1), false);
            assert_eq!(probe.deadline(), None);
        }
        probe.sent(start, nth(3), true);
        assert_eq!(probe.deadline(), Some(start + 18 * MS));
    }

    #[test]
    fn only_what_is_answered_at_once_and_went_once_is_timed() {
        let (start, mut probe) = (Instant::now(), Probe::default());
        probe.sent(start, nth(1), false);
        probe.advanced(start + MS, nth(2), true);
        probe.sent(start, nth(2), true);
        probe.sent_again(start);
        probe.advanced(start + MS, nth(3), true);
        probe.sent(start, nth(3), true);
        probe.heard_of_loss(start);
        probe.advanced(start + MS, nth(4), true);
        assert_eq!(probe.deadline(), None);
    }
}
