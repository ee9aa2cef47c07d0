//! The responder: the half of a queue pair that carries out the peer's requests.

use std::collections::VecDeque;

use super::{
    Completion, Counters, Done, Link, Mtu, ReceiveAttributes, ReceiveRequest, Status,
    replies::{Answered, Replies},
    selective::{Held, Kept},
};
use crate::{
    Access, AccessError, MAX_WINDOW, ProtectionDomain, Psn, Region,
    wire::{AtomicEth, Immediate, Nak, Operation, Packet, Reth, Syndrome},
};

#[derive(Debug)]
pub(super) struct Responder {
    attributes: ReceiveAttributes,
    access: Access,
    /// The PSN of the next packet.
    expected: Psn,
    /// How many messages have been completed.
    msn: Psn,
    /// The expected packet has been refused, so that nothing more is said until it comes again.
    refused: bool,
    /// What the next packet continues.
    message: Option<Message>,
    /// What has come before its turn, with selective retransmission.
    kept: Option<Kept>,
    pub(super) replies: Replies,
}

#[derive(Debug)]
enum Message {
    Send {
        receive: ReceiveRequest,
        received: u32,
    },
    Write {
        reth: Reth,
        received: u32,
    },
}

/// What a packet needs, besides the responder, to be carried out.
pub(super) struct Surroundings<'a, R> {
    pub(super) receives: &'a mut VecDeque<ReceiveRequest>,
    pub(super) domain: &'a mut ProtectionDomain<R>,
    pub(super) counters: &'a mut Counters,
    pub(super) completions: &'a mut VecDeque<Completion>,
    /// How many bytes may be allocated.
    pub(super) room: usize,
}

/// The queue pair must fail. The NAK that says so waits to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fatal;

enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The request is refused.
    Nak(Nak),
    /// The message doesn't go into the receive.
    Receive(ReceiveRequest, Status, Nak),
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Self {
        Self::Nak(match error {
            AccessError::Misaligned { .. } => Nak::InvalidRequest,
            AccessError::UnknownKey(_)
            | AccessError::Denied { .. }
            | AccessError::OutOfBounds { .. } => Nak::RemoteAccess,
        })
    }
}

const INVALID: Refusal = Refusal::Nak(Nak::InvalidRequest);

/// A packet of a SEND or WRITE: its place in the message.
#[derive(Clone, Copy)]
struct Piece {
    starts: bool,
    ends: bool,
    immediate: Option<Immediate>,
}

impl Piece {
    const FIRST: Self = Self::of(true, false, None);
    const MIDDLE: Self = Self::of(false, false, None);

    const fn of(starts: bool, ends: bool, immediate: Option<Immediate>) -> Self {
        Self {
            starts,
            ends,
            immediate,
        }
    }

    const fn last(immediate: Option<Immediate>) -> Self {
        Self::of(false, true, immediate)
    }

    const fn only(immediate: Option<Immediate>) -> Self {
        Self::of(true, true, immediate)
    }

    /// All packets of a message but the last are full, and the last of several isn't empty.
    const fn fits(self, length: usize, mtu: Mtu) -> bool {
        let full = mtu.bytes() as usize;
        match (self.starts, self.ends) {
            (_, false) => length == full,
            (true, true) => length <= full,
            (false, true) => length > 0 && length <= full,
        }
    }
}

impl Responder {
    pub(super) fn new(attributes: ReceiveAttributes, access: Access) -> Self {
        Self {
            attributes,
            access,
            expected: attributes.first_psn,
            msn: Psn::new(0),
            refused: false,
            message: None,
            kept: attributes.selective.then(|| Kept::new(attributes.mtu)),
            replies: Replies::new(attributes.responder_resources),
        }
    }

    /// The bytes allocated for packets before their turn.
    pub(super) fn footprint(&self) -> usize {
        self.kept.as_ref().map_or(0, Kept::footprint)
    }

    /// Takes a request of the peer's.
    pub(super) fn handle<R: Region>(
        &mut self,
        packet: &Packet<'_>,
        around: &mut Surroundings<'_, R>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth.psn;
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            self.repeat(packet, around.counters);
            return Ok(());
        }
        if ahead > 0 {
            self.take_early(packet, ahead as u32, around.room, around.counters);
            return Ok(());
        }
        let keeps_some = self.kept.as_ref().is_some_and(|kept| !kept.is_empty());
        if self.refused || keeps_some {
            self.refused = false;
            self.replies.withdraw_refusal();
        }
        self.carry_out(packet, around)?;
        if keeps_some {
            self.carry_out_kept(around)?;
        }
        Ok(())
    }

    /// A packet that isn't the next one.
    fn take_early(
        &mut self,
        packet: &Packet<'_>,
        ahead: u32,
        room: usize,
        counters: &mut Counters,
    ) {
        counters.out_of_sequence += 1;
        if let Some(kept) = &mut self.kept {
            counters.kept += u64::from(kept.keep(packet, ahead, room));
            // Who waits for a receiver goes on by itself.
            if !self.refused {
                self.replies.report(self.expected, self.msn);
            }
        } else if !self.refused {
            self.refuse(Syndrome::Nak(Nak::SequenceError));
        }
    }

    /// Carries out what was kept and is now the next, and says what is still missing.
    fn carry_out_kept<R: Region>(&mut self, around: &mut Surroundings<'_, R>) -> Result<(), Fatal> {
        let Some(mut kept) = self.kept.take() else {
            return Ok(());
        };
        let mut result = Ok(());
        while !self.refused
            && result.is_ok()
            && let Some(packet) = kept.get(self.expected)
        {
            let first = self.expected;
            result = self.carry_out(&packet, around);
            // One that is refused comes again.
            kept.forget(first, (self.expected.since(first) as u32).max(1));
        }
        let missing = !kept.is_empty();
        self.kept = Some(kept);
        result?;
        match (self.refused, missing) {
            (true, _) => {}
            (false, true) => self.replies.report(self.expected, self.msn),
            // In place of what was reported, and perhaps not sent yet.
            (false, false) => self.acknowledge(),
        }
        Ok(())
    }

    /// Carries out the packet that is next, and answers it.
    fn carry_out<R: Region>(
        &mut self,
        packet: &Packet<'_>,
        around: &mut Surroundings<'_, R>,
    ) -> Result<(), Fatal> {
        match self.execute(packet, around) {
            Ok(packets) => {
                if let Some(kept) = &mut self.kept {
                    kept.forget(self.expected, packets);
                }
                self.expected = self.expected.plus(packets);
                // An answer with data is an acknowledgement, too.
                if packet.bth.ack_request && !is_answered(&packet.operation) {
                    self.acknowledge();
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                around.counters.rnr_naks_sent += 1;
                self.refuse(Syndrome::RnrNak {
                    timer: self.attributes.rnr_timer.code(),
                });
                Ok(())
            }
            Err(Refusal::Nak(nak)) => {
                match nak {
                    Nak::RemoteAccess => around.counters.access_refused += 1,
                    _ => around.counters.invalid_refused += 1,
                }
                self.refuse(Syndrome::Nak(nak));
                Err(Fatal)
            }
            Err(Refusal::Receive(receive, status, nak)) => {
                around.completions.push_back(receive.ended(status));
                self.refuse(Syndrome::Nak(nak));
                Err(Fatal)
            }
        }
    }

    /// Writes the next answer, if there is one.
    pub(super) fn poll_transmit<R: Region>(
        &mut self,
        link: &Link,
        domain: &ProtectionDomain<R>,
        out: &mut [u8],
    ) -> Result<Option<usize>, AccessError> {
        let kept = &self.kept;
        let held = |psn| {
            kept.as_ref()
                .map_or_else(Held::default, |kept| kept.held(psn))
        };
        self.replies.poll_transmit(link, domain, held, out)
    }

    /// The memory of an answer has gone while it was being sent.
    pub(super) fn refuse_answer(&mut self, psn: Psn) {
        self.replies.clear();
        self.replies
            .refuse(psn, self.msn, Syndrome::Nak(Nak::RemoteAccess));
    }

    /// Ends the receive that a message is coming into.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        if let Some(Message::Send { receive, .. }) = self.message.take() {
            completions.push_back(receive.ended(Status::Flushed));
        }
    }

    fn refuse(&mut self, syndrome: Syndrome) {
        self.refused = true;
        self.replies.refuse(self.expected, self.msn, syndrome);
    }

    fn acknowledge(&mut self) {
        self.replies.acknowledge(self.expected.minus(1), self.msn);
    }

    /// A packet from the past is not carried out again, but its requester wants to hear of it once more.
    fn repeat(&mut self, packet: &Packet<'_>, counters: &mut Counters) {
        counters.duplicate_requests += 1;
        let psn = packet.bth.psn;
        let known = match &packet.operation {
            Operation::ReadRequest(reth) => {
                self.replies.repeat_read(psn, *reth, self.attributes.mtu)
            }
            Operation::CompareSwap(operands) | Operation::FetchAdd(operands) => {
                let opcode = packet.operation.opcode();
                self.replies.repeat_atomic(psn, opcode, *operands)
            }
            _ => {
                self.acknowledge();
                true
            }
        };
        if !known {
            counters.unknown_duplicates += 1;
        }
    }

    /// Does what the packet asks for. Returns how many PSNs it takes.
    fn execute<R: Region>(
        &mut self,
        packet: &Packet<'_>,
        around: &mut Surroundings<'_, R>,
    ) -> Result<u32, Refusal> {
        let payload = packet.payload;
        match packet.operation {
            Operation::SendFirst => self.send(Piece::FIRST, payload, around),
            Operation::SendMiddle => self.send(Piece::MIDDLE, payload, around),
            Operation::SendLast => self.send(Piece::last(None), payload, around),
            Operation::SendLastImmediate(data) => {
                self.send(Piece::last(Some(data)), payload, around)
            }
            Operation::SendOnly => self.send(Piece::only(None), payload, around),
            Operation::SendOnlyImmediate(data) => {
                self.send(Piece::only(Some(data)), payload, around)
            }
            Operation::WriteFirst(reth) => self.write(Piece::FIRST, Some(reth), payload, around),
            Operation::WriteMiddle => self.write(Piece::MIDDLE, None, payload, around),
            Operation::WriteLast => self.write(Piece::last(None), None, payload, around),
            Operation::WriteLastImmediate(data) => {
                self.write(Piece::last(Some(data)), None, payload, around)
            }
            Operation::WriteOnly(reth) => {
                self.write(Piece::only(None), Some(reth), payload, around)
            }
            Operation::WriteOnlyImmediate(reth, data) => {
                self.write(Piece::only(Some(data)), Some(reth), payload, around)
            }
            Operation::ReadRequest(reth) => self.read(reth, payload, around.domain),
            Operation::FetchAdd(operands) => self.atomic(
                packet,
                operands,
                |domain: &mut ProtectionDomain<R>| {
                    domain.fetch_add(operands.key, operands.address, operands.swap_or_add)
                },
                around.domain,
            ),
            Operation::CompareSwap(operands) => self.atomic(
                packet,
                operands,
                |domain: &mut ProtectionDomain<R>| {
                    let AtomicEth {
                        key,
                        address,
                        compare,
                        swap_or_add,
                    } = operands;
                    domain.compare_swap(key, address, compare, swap_or_add)
                },
                around.domain,
            ),
            _ => Err(INVALID),
        }
    }

    fn send<R: Region>(
        &mut self,
        piece: Piece,
        payload: &[u8],
        around: &mut Surroundings<'_, R>,
    ) -> Result<u32, Refusal> {
        if !piece.fits(payload.len(), self.attributes.mtu) {
            return Err(INVALID);
        }
        let (receive, received) = match (piece.starts, &self.message) {
            (true, None) => {
                let receive = around.receives.pop_front().ok_or(Refusal::NotReady)?;
                (receive, 0)
            }
            (false, Some(Message::Send { receive, received })) => (*receive, *received),
            _ => return Err(INVALID),
        };
        self.message = None;
        let length = received.saturating_add(payload.len() as u32);
        if length > receive.into.length {
            let (status, nak) = (Status::LocalLength, Nak::InvalidRequest);
            return Err(Refusal::Receive(receive, status, nak));
        }
        if !payload.is_empty() {
            let address = receive.into.address.wrapping_add(u64::from(received));
            around
                .domain
                .write(receive.into.key, address, payload, Access::LOCAL_WRITE)
                .map_err(|_: AccessError| {
                    let (status, nak) = (Status::LocalProtection, Nak::RemoteOperational);
                    Refusal::Receive(receive, status, nak)
                })?;
        }
        if piece.ends {
            self.msn = self.msn.plus(1);
            around.completions.push_back(Completion {
                id: receive.id,
                status: Status::Success,
                done: Done::Receive {
                    length,
                    immediate: piece.immediate,
                },
            });
        } else {
            self.message = Some(Message::Send {
                receive,
                received: length,
            });
        }
        Ok(1)
    }

    fn write<R: Region>(
        &mut self,
        piece: Piece,
        start: Option<Reth>,
        payload: &[u8],
        around: &mut Surroundings<'_, R>,
    ) -> Result<u32, Refusal> {
        if !piece.fits(payload.len(), self.attributes.mtu) {
            return Err(INVALID);
        }
        let (reth, received) = match (start, &self.message) {
            (Some(reth), None) => {
                self.check(reth, Access::REMOTE_WRITE, around.domain)?;
                (reth, 0)
            }
            (None, Some(Message::Write { reth, received })) => (*reth, *received),
            _ => return Err(INVALID),
        };
        let length = received.saturating_add(payload.len() as u32);
        if length > reth.length || piece.ends && length != reth.length {
            return Err(INVALID);
        }
        // Before anything is written, for the packet will come again.
        if piece.immediate.is_some() && around.receives.is_empty() {
            return Err(Refusal::NotReady);
        }
        if !payload.is_empty() {
            let address = reth.address.wrapping_add(u64::from(received));
            around
                .domain
                .write(reth.key, address, payload, Access::REMOTE_WRITE)?;
        }
        self.message = None;
        if !piece.ends {
            self.message = Some(Message::Write {
                reth,
                received: length,
            });
            return Ok(1);
        }
        self.msn = self.msn.plus(1);
        if let Some(immediate) = piece.immediate
            && let Some(receive) = around.receives.pop_front()
        {
            around.completions.push_back(Completion {
                id: receive.id,
                status: Status::Success,
                done: Done::ReceiveWrite { length, immediate },
            });
        }
        Ok(1)
    }

    fn read<R: Region>(
        &mut self,
        reth: Reth,
        payload: &[u8],
        domain: &ProtectionDomain<R>,
    ) -> Result<u32, Refusal> {
        let packets = self.attributes.mtu.packets(reth.length);
        let room = self.replies.has_room();
        if self.message.is_some() || !payload.is_empty() || packets >= MAX_WINDOW || !room {
            return Err(INVALID);
        }
        self.check(reth, Access::REMOTE_READ, domain)?;
        self.msn = self.msn.plus(1);
        self.replies
            .answer(self.expected, packets, self.msn, Answered::Read(reth));
        Ok(packets)
    }

    fn atomic<R: Region>(
        &mut self,
        packet: &Packet<'_>,
        operands: AtomicEth,
        operate: impl FnOnce(&mut ProtectionDomain<R>) -> Result<u64, AccessError>,
        domain: &mut ProtectionDomain<R>,
    ) -> Result<u32, Refusal> {
        let room = self.replies.has_room();
        if self.message.is_some() || !packet.payload.is_empty() || !room {
            return Err(INVALID);
        }
        if !self.access.contains(Access::REMOTE_ATOMIC) {
            return Err(INVALID);
        }
        let before = operate(domain)?;
        self.msn = self.msn.plus(1);
        let answered = Answered::Atomic {
            opcode: packet.operation.opcode(),
            operands,
            before,
        };
        self.replies.answer(self.expected, 1, self.msn, answered);
        Ok(1)
    }

    /// Whether the queue pair and the memory allow the whole message. No bytes need no memory.
    fn check<R: Region>(
        &self,
        reth: Reth,
        needed: Access,
        domain: &ProtectionDomain<R>,
    ) -> Result<(), Refusal> {
        if !self.access.contains(needed) {
            return Err(INVALID);
        }
        if reth.length > 0 {
            domain.check(reth.key, reth.address, u64::from(reth.length), needed)?;
        }
        Ok(())
    }
}

const fn is_answered(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest(_) | Operation::FetchAdd(_) | Operation::CompareSwap(_)
    )
}

impl ReceiveRequest {
    /// The completion of a receive that got no message.
    pub(super) const fn ended(self, status: Status) -> Completion {
        Completion {
            id: self.id,
            status,
            done: Done::Receive {
                length: 0,
                immediate: None,
            },
        }
    }
}
