//! The requester: the half of a queue pair that sends requests and sees them through.
//!
//! PSNs are given out when a request is started. Between `unacked` and `sent` lie the packets under way; `cursor` is
//! the next to be sent, and going back to N is setting it back. Requests complete in order, from the front.

mod settle;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    Completion, Counters, Link, Local, PostError, SendAttributes, SendRequest, Status, Work,
    request::{Inline, Posted, Request},
    selective::{Board, Held, Probe, SPAN},
};
use crate::{
    Access, AccessError, Key, MAX_WINDOW, ProtectionDomain, Psn, Region,
    timer::Retries,
    wire::{Aeth, Nak, Packet, Syndrome},
};

#[derive(Debug)]
pub(super) struct Requester {
    attributes: SendAttributes,
    inline: Inline,
    /// Posted, but without PSNs yet.
    waiting: VecDeque<Posted>,
    /// With PSNs, the oldest first.
    started: VecDeque<Request>,
    /// The oldest packet that is not acknowledged. In a READ: the next response.
    unacked: Psn,
    /// The next packet to send.
    cursor: Psn,
    /// One after the last packet that was ever sent.
    sent: Psn,
    /// One after the last packet of `started`.
    next: Psn,
    retries: Retries,
    rnr_retries: Retries,
    /// How many time-outs there were since the last progress.
    timed_out: u32,
    ack_deadline: Option<Instant>,
    rnr_until: Option<Instant>,
    /// Where a missing response made the requester go back to: only once, for each of the later responses that are
    /// under way says the same.
    went_back_to: Option<Psn>,
    /// With selective retransmission, the cursor never goes back: what is lost stands here.
    board: Option<Board>,
    /// With selective retransmission.
    probe: Option<Probe>,
    /// One after the last packet that the responder has said to have carried out; an answer before it may still be missing.
    carried_out: Psn,
}

/// The queue pair must fail: the request with this packet for this reason, the others as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) at: Psn,
    pub(super) status: Status,
}

impl Requester {
    pub(super) fn new(
        mut attributes: SendAttributes,
        capacity: usize,
        inline: usize,
        selective: bool,
    ) -> Self {
        let first = attributes.first_psn;
        if selective {
            // What is further ahead isn't kept.
            attributes.window = attributes.window.min(SPAN);
        }
        Self {
            attributes,
            inline: Inline::new(inline, capacity),
            waiting: VecDeque::with_capacity(capacity),
            started: VecDeque::with_capacity(capacity),
            unacked: first,
            cursor: first,
            sent: first,
            next: first,
            retries: Retries::limited(attributes.retries),
            timed_out: 0,
            rnr_retries: Retries::rnr(attributes.rnr_retries),
            ack_deadline: None,
            rnr_until: None,
            went_back_to: None,
            board: selective.then(|| Board::new(first)),
            probe: selective.then(Probe::default),
            carried_out: first,
        }
    }

    pub(super) fn post(
        &mut self,
        request: &SendRequest<'_>,
        capacity: usize,
        link: &Link,
    ) -> Result<(), PostError> {
        if self.waiting.len() + self.started.len() >= capacity {
            return Err(PostError::Full(capacity));
        }
        let length = request.work.length();
        let max = link.mtu.bytes().saturating_mul(MAX_WINDOW - 1).min(1 << 31);
        if length > max as usize {
            return Err(PostError::TooLong { length, max });
        }
        if request.work.is_answered() && self.attributes.initiator_depth == 0 {
            return Err(PostError::NoInitiatorDepth);
        }
        self.waiting.push_back(self.inline.keep(request)?);
        Ok(())
    }

    /// Writes the next packet, if there is one to send now.
    pub(super) fn poll_transmit<R: Region>(
        &mut self,
        now: Instant,
        link: &Link,
        domain: &ProtectionDomain<R>,
        counters: &mut Counters,
        out: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        if self.rnr_until.is_some() {
            return Ok(None);
        }
        let lost = self.board.as_ref().and_then(Board::first_lost);
        if lost.is_none()
            && (!self.window_is_open() || self.cursor == self.next && !self.start_next(link))
        {
            return Ok(None);
        }
        let psn = lost.unwrap_or(self.cursor);
        let Some(request) = self.request_at(psn) else {
            return Ok(None);
        };
        let packet = request.packet(psn, link.mtu, self.piece());
        // What is lost is counted among what is asked for already.
        if lost.is_none() && request.posted.work.is_answered() && !self.may_ask(packet.next) {
            return Ok(None);
        }
        let ack_every = (self.attributes.window.get() / 4).max(1);
        let next = packet.next;
        // What is missing holds up all after it.
        let ack_due = lost.is_some() || psn.get().is_multiple_of(ack_every);
        let asks = packet.asks(ack_due);
        let sent = packet
            .emit(psn, ack_due, link, domain, &self.inline, out)
            .map_err(|_: AccessError| Failure {
                at: psn,
                status: Status::LocalProtection,
            })?;
        if psn.is_before(self.sent) {
            counters.retransmitted += 1;
        }
        match &mut self.probe {
            Some(probe) if lost.is_some() => probe.sent_again(now),
            Some(probe) => probe.sent(now, psn, asks),
            None => {}
        }
        let packets = next.since(psn) as u32;
        match &mut self.board {
            Some(board) if lost.is_some() => board.sent_again(psn, packets),
            board => {
                self.cursor = next;
                if let Some(board) = board {
                    board.sent(packets);
                }
            }
        }
        if self.sent.is_before(self.cursor) {
            self.sent = self.cursor;
        }
        if self.ack_deadline.is_none() || lost == Some(self.unacked) {
            self.ack_deadline = self.ack_wait().map(|wait| now + wait);
        }
        Ok(Some(sent))
    }

    /// How long the oldest packet may stay unacknowledged; None: for ever.
    fn ack_wait(&self) -> Option<Duration> {
        let doublings = if self.attributes.backs_off {
            self.timed_out
        } else {
            0
        };
        let wait = self.attributes.timeout.duration()?;
        Some(wait.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)))
    }

    /// An acknowledgement, positive or negative.
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), Failure> {
        if !self.is_under_way(psn) {
            counters.stale_responses += 1;
            return Ok(());
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.settle(now, psn.plus(1), counters, completions);
                self.find_lost();
            }
            Syndrome::RnrNak { timer } => {
                if self.settle(now, psn, counters, completions) && self.rnr_until.is_none() {
                    counters.rnr_naks_received += 1;
                    self.wait_for_receiver(now, timer)?;
                }
            }
            // A selective responder has other words for it.
            Syndrome::Nak(Nak::SequenceError) if self.board.is_some() => {
                counters.stale_responses += 1;
            }
            Syndrome::Nak(Nak::SequenceError) => {
                let reached = self.settle(now, psn, counters, completions);
                if reached && self.rnr_until.is_none() && self.cursor != psn {
                    counters.sequence_naks_received += 1;
                    self.retry(Status::RetriesExceeded)?;
                }
            }
            Syndrome::Nak(nak) => {
                self.settle(now, psn, counters, completions);
                let status = match nak {
                    Nak::RemoteAccess => Status::RemoteAccess,
                    Nak::RemoteOperational => Status::RemoteOperational,
                    Nak::InvalidRequest | Nak::SequenceError => Status::RemoteInvalidRequest,
                };
                return Err(Failure { at: psn, status });
            }
            Syndrome::Reserved(_) => counters.stale_responses += 1,
        }
        Ok(())
    }

    /// A selective acknowledgement: everything before `psn` is carried out, and of what follows the payload says what is there.
    pub(super) fn acknowledge_some(
        &mut self,
        now: Instant,
        psn: Psn,
        payload: &[u8],
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) {
        if self.board.is_none() || !self.is_under_way(psn) {
            counters.stale_responses += 1;
            return;
        }
        let Some(held) = Held::parse(payload) else {
            counters.bad_responses += 1;
            return;
        };
        self.settle(now, psn, counters, completions);
        if let Some(board) = &mut self.board {
            if held == Held::default() {
                board.lose_unkept(psn);
            } else {
                board.there_after(psn, held);
            }
        }
        if let Some(probe) = &mut self.probe {
            probe.heard_of_loss(now);
        }
        if self.find_lost() {
            counters.selective_acks_received += 1;
        }
    }

    /// Looks for what is lost by what is there.
    fn find_lost(&mut self) -> bool {
        self.board.as_mut().is_some_and(Board::find_lost)
    }

    /// A packet of a READ's response.
    pub(super) fn read_response<R: Region>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        link: &Link,
        domain: &mut ProtectionDomain<R>,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if !self.settle_before_answer(now, psn, counters, completions) {
            counters.stale_responses += 1;
            return Ok(());
        }
        let place = self
            .started
            .front()
            .and_then(|request| request.response_place(psn, link.mtu));
        let Some(place) = place.filter(|place| place.length as usize == packet.payload.len())
        else {
            counters.bad_responses += 1;
            return Ok(());
        };
        let Local { key, address, .. } = place;
        write_local(domain, psn, key, address, packet.payload)?;
        self.advance(now, psn.plus(1));
        self.complete_front(completions);
        self.settle_carried_out(now, counters, completions);
        Ok(())
    }

    /// The answer to an atomic operation.
    pub(super) fn atomic_response<R: Region>(
        &mut self,
        now: Instant,
        psn: Psn,
        before: u64,
        domain: &mut ProtectionDomain<R>,
        counters: &mut Counters,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), Failure> {
        if !self.settle_before_answer(now, psn, counters, completions) {
            counters.stale_responses += 1;
            return Ok(());
        }
        let into = match self.started.front().map(|request| &request.posted.work) {
            Some(Work::FetchAdd { into, .. } | Work::CompareSwap { into, .. }) => *into,
            _ => {
                counters.bad_responses += 1;
                return Ok(());
            }
        };
        write_local(domain, psn, into.key, into.address, &before.to_ne_bytes())?;
        self.advance(now, psn.plus(1));
        self.complete_front(completions);
        self.settle_carried_out(now, counters, completions);
        Ok(())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let probe = self.probe.as_ref().and_then(Probe::deadline);
        [self.ack_deadline, self.rnr_until, probe]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            counters.timeouts += 1;
            self.timed_out += 1;
            self.went_back_to = None;
            self.retry(Status::RetriesExceeded)?;
            if let Some(probe) = &mut self.probe {
                probe.stop();
            }
            if let Some(board) = &mut self.board {
                board.lose_latest();
            }
        } else if let (Some(probe), Some(board)) = (&mut self.probe, &mut self.board)
            && probe.take_due(now)
            && board.first_lost().is_none()
        {
            counters.probes += 1;
            board.lose_latest();
        }
        // What is lost may turn out to be there before it goes again, and then nothing else starts the clock.
        let waits = self.unacked != self.sent && self.rnr_until.is_none();
        if self.board.is_some() && waits && self.ack_deadline.is_none() {
            self.ack_deadline = self.ack_wait().map(|wait| now + wait);
        }
        Ok(())
    }

    /// Ends all requests: the one with the failed packet with its status, the others as flushed.
    pub(super) fn fail(self, failure: Option<Failure>, completions: &mut VecDeque<Completion>) {
        let started = self.started.into_iter().map(|request| {
            let status = failure.filter(|failure| request.contains(failure.at));
            (request.posted, status.map(|failure| failure.status))
        });
        let waiting = self.waiting.into_iter().map(|posted| (posted, None));
        for (posted, status) in started.chain(waiting) {
            completions.push_back(Completion {
                id: posted.id,
                status: status.unwrap_or(Status::Flushed),
                done: posted.work.done(),
            });
        }
    }

    const fn is_under_way(&self, psn: Psn) -> bool {
        let count = self.sent.since(self.unacked) as u32;
        psn.index_in(self.unacked, count).is_some()
    }

    /// A READ counts with all its responses; if nothing else is under way it may go beyond the window.
    const fn window_is_open(&self) -> bool {
        (self.cursor.since(self.unacked) as u32) < self.attributes.window.get()
    }

    /// How many packets of a READ are asked for at once: half of what may be under way, so that answers don't cease while the
    /// next question is on its way.
    fn piece(&self) -> u32 {
        (self.attributes.read_window.get() / 2).max(1)
    }

    /// Whether the answer of the packets from the cursor to `next` may be asked for, beside those that are under way.
    fn may_ask(&self, next: Psn) -> bool {
        let (mut questions, mut packets) = (0, 0);
        for request in &self.started {
            let (more, of) = request.asked(self.unacked, self.cursor, self.piece());
            questions += more;
            packets += of;
        }
        packets += next.since(self.cursor) as u32;
        questions < usize::from(self.attributes.initiator_depth)
            && packets <= self.attributes.read_window.get()
    }

    /// Gives PSNs to the next request, unless the limits forbid it.
    fn start_next(&mut self, link: &Link) -> bool {
        let Some(posted) = self.waiting.front() else {
            return false;
        };
        let packets = link.mtu.packets(posted.work.length() as u32);
        // From the beginning of the oldest request on, for its packets are compared with all others.
        let oldest = self
            .started
            .front()
            .map_or(self.next, |request| request.first);
        let taken = self.next.since(oldest) as u32;
        if taken + packets >= MAX_WINDOW {
            return false;
        }
        let Some(posted) = self.waiting.pop_front() else {
            return false;
        };
        self.started.push_back(Request {
            posted,
            first: self.next,
            packets,
        });
        self.next = self.next.plus(packets);
        true
    }

    fn request_at(&self, psn: Psn) -> Option<&Request> {
        let after = self
            .started
            .partition_point(|request| !psn.is_before(request.first));
        self.started
            .get(after.checked_sub(1)?)
            .filter(|request| request.contains(psn))
    }
}

fn write_local<R: Region>(
    domain: &mut ProtectionDomain<R>,
    psn: Psn,
    key: Key,
    address: u64,
    bytes: &[u8],
) -> Result<(), Failure> {
    // Nothing needs no memory.
    if bytes.is_empty() {
        return Ok(());
    }
    domain
        .write(key, address, bytes, Access::LOCAL_WRITE)
        .map_err(|_: AccessError| Failure {
            at: psn,
            status: Status::LocalProtection,
        })
}
