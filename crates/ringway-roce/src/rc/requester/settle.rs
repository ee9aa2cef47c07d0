//! What of the packets under way is done with: requests end, or the requester goes back to what is missing.

use std::{collections::VecDeque, time::Instant};

use super::{Failure, Requester};
use crate::{
    Psn,
    rc::{Completion, Counters, Status},
    timer::RnrTimer,
};

impl Requester {
    /// Takes everything before `target` as acknowledged. False if a response that should have come before is
    /// missing: then the requester goes back to it.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        target: Psn,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) -> bool {
        if let Some(board) = &mut self.board {
            board.there_before(target);
            if self.carried_out.is_before(target) {
                self.carried_out = target;
            }
        }
        while self.unacked.is_before(target) {
            let Some(front) = self.started.front() else {
                return true;
            };
            if front.posted.work.is_answered() {
                if self.went_back_to != Some(self.unacked) && self.cursor != self.unacked {
                    counters.implied_naks += 1;
                    self.went_back_to = Some(self.unacked);
                    self.go_back();
                }
                return false;
            }
            let end = front.end();
            self.advance(now, if target.is_before(end) { target } else { end });
            self.complete_front(completions);
        }
        true
    }

    /// An answer that was missing has come: what was carried out after it can complete, and answers that were discarded are asked for
    /// again; go-back-N has sent all of it again.
    pub(super) fn settle_carried_out(
        &mut self,
        now: Instant,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) {
        let front = self.started.front();
        let index = front.map_or(0, |front| self.unacked.since(front.first) as u32);
        // Within a piece of a READ the rest of what was asked for again is still to come.
        if self.board.is_some() && index.is_multiple_of(self.piece()) {
            self.settle(now, self.carried_out, counters, completions);
        }
    }

    /// Takes everything before an answer as acknowledged. False if another one is missing before it: it is discarded, and has to be
    /// asked for again after that one.
    pub(super) fn settle_before_answer(
        &mut self,
        now: Instant,
        psn: Psn,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) -> bool {
        if !self.is_under_way(psn) {
            return false;
        }
        if let Some(board) = &mut self.board {
            board.answered(psn);
        }
        let is_next = self.settle(now, psn, counters, completions);
        if !is_next && self.carried_out == psn {
            self.carried_out = psn.plus(1);
        }
        is_next
    }

    /// The connection makes progress: all retries are there again, and the clock starts anew.
    pub(super) fn advance(&mut self, now: Instant, unacked: Psn) {
        self.unacked = unacked;
        if self.cursor.is_before(unacked) {
            self.cursor = unacked;
        }
        if let Some(board) = &mut self.board {
            board.forget_before(unacked);
        }
        if let Some(probe) = &mut self.probe {
            probe.advanced(now, unacked, unacked != self.sent);
        }
        self.retries.refill();
        self.rnr_retries.refill();
        self.timed_out = 0;
        self.ack_deadline = if self.unacked == self.sent || self.rnr_until.is_some() {
            None
        } else {
            self.ack_wait().map(|wait| now + wait)
        };
    }

    /// Sends again from the oldest packet on; with selective retransmission only that one.
    fn go_back(&mut self) {
        match &mut self.board {
            Some(board) => board.lose_first(),
            None => self.cursor = self.unacked,
        }
    }

    /// Completes the front request if all of it is acknowledged.
    pub(super) fn complete_front(&mut self, completions: &mut VecDeque<Completion>) {
        let unacked = self.unacked;
        if let Some(request) = self
            .started
            .pop_front_if(|request| !unacked.is_before(request.end()))
            && request.posted.signaled
        {
            completions.push_back(Completion {
                id: request.posted.id,
                status: Status::Success,
                done: request.posted.work.done(),
            });
        }
    }

    /// Goes back, which takes a retry.
    pub(super) fn retry(&mut self, exhausted: Status) -> Result<(), Failure> {
        if !self.retries.take() {
            return Err(Failure {
                at: self.unacked,
                status: exhausted,
            });
        }
        self.go_back();
        // The clock starts anew with the next packet.
        self.ack_deadline = None;
        Ok(())
    }

    pub(super) fn wait_for_receiver(&mut self, now: Instant, timer: u8) -> Result<(), Failure> {
        if !self.rnr_retries.take() {
            return Err(Failure {
                at: self.unacked,
                status: Status::RnrRetriesExceeded,
            });
        }
        self.go_back();
        if let Some(probe) = &mut self.probe {
            probe.stop();
        }
        self.rnr_until = RnrTimer::new(timer).map(|timer| now + timer.duration());
        self.ack_deadline = None;
        Ok(())
    }
}
