//! What a responder has to say: acknowledgements, and the answers to READs and atomic operations.
//!
//! Answered requests stay in a table of *resources* as long as the requester may ask again. A READ is carried out
//! again then; an atomic operation is not, its result is kept.

use std::collections::VecDeque;

use super::{Link, Mtu, selective::Held};
use crate::{
    Access, AccessError, ProtectionDomain, Psn, Region,
    wire::{Aeth, AtomicEth, Bth, Nak, Operation, Reth, Syndrome, emit_with},
};

#[derive(Debug)]
pub(super) struct Replies {
    /// In the order of their PSNs, which is the order in which they are sent.
    queue: VecDeque<Reply>,
    resources: VecDeque<Resource>,
    depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Acknowledge {
        psn: Psn,
        aeth: Aeth,
    },
    /// Which packets are kept after the expected one.
    Selective {
        psn: Psn,
        msn: Psn,
    },
    Atomic {
        psn: Psn,
        msn: Psn,
        before: u64,
    },
    /// What is left of a READ's response, a packet at a time.
    Read {
        psn: Psn,
        msn: Psn,
        rest: Reth,
        begun: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Resource {
    first: Psn,
    packets: u32,
    msn: Psn,
    request: Answered,
    /// The whole answer has been sent once, so that the requester may be through with it.
    sent: bool,
}

/// A request that is answered with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Read(Reth),
    Atomic {
        /// The opcode, for the same operands mean different things.
        opcode: u8,
        operands: AtomicEth,
        before: u64,
    },
}

impl Reply {
    const fn psn(&self) -> Psn {
        match *self {
            Self::Acknowledge { psn, .. }
            | Self::Selective { psn, .. }
            | Self::Atomic { psn, .. }
            | Self::Read { psn, .. } => psn,
        }
    }
}

impl Replies {
    pub(super) fn new(depth: u8) -> Self {
        let depth = usize::from(depth);
        // An answer for each resource, and an acknowledgement before each and after the last.
        Self {
            queue: VecDeque::with_capacity(2 * depth + 2),
            resources: VecDeque::with_capacity(depth + 1),
            depth,
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Acknowledges everything up to `psn`; with another acknowledgement already waiting, that one says it.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: Psn) {
        let aeth = Aeth {
            syndrome: Syndrome::Ack {
                credits: Syndrome::NO_CREDITS,
            },
            msn,
        };
        self.queue.pop_back_if(|last| {
            matches!(last, Reply::Acknowledge { psn: other, aeth }
                if matches!(aeth.syndrome, Syndrome::Ack { .. }) && !psn.is_before(*other))
        });
        let reply = Reply::Acknowledge { psn, aeth };
        if !self.queue.contains(&reply) {
            self.insert(reply);
        }
    }

    /// Refuses the packet with the expected PSN `psn`. Only one refusal waits at a time.
    pub(super) fn refuse(&mut self, psn: Psn, msn: Psn, syndrome: Syndrome) {
        self.withdraw_refusal();
        let aeth = Aeth { syndrome, msn };
        self.insert(Reply::Acknowledge { psn, aeth });
    }

    /// Says which packets are there beside the expected one. Only one such answer waits at a time.
    pub(super) fn report(&mut self, psn: Psn, msn: Psn) {
        self.withdraw_refusal();
        // It acknowledges all before it.
        self.queue
            .pop_back_if(|last| matches!(last, Reply::Acknowledge { .. }));
        self.insert(Reply::Selective { psn, msn });
    }

    /// The packet that was missing has come before its refusal was sent.
    pub(super) fn withdraw_refusal(&mut self) {
        self.queue.retain(|reply| match reply {
            Reply::Acknowledge { aeth, .. } => matches!(aeth.syndrome, Syndrome::Ack { .. }),
            Reply::Selective { .. } => false,
            Reply::Atomic { .. } | Reply::Read { .. } => true,
        });
    }

    /// Whether the requester keeps to the number of requests it may have under way.
    pub(super) fn has_room(&self) -> bool {
        self.depth > 0
            && (self.resources.len() < self.depth
                || self.resources.front().is_some_and(|oldest| oldest.sent))
    }

    /// Answers a new request.
    pub(super) fn answer(&mut self, first: Psn, packets: u32, msn: Psn, request: Answered) {
        if self.resources.len() >= self.depth
            && let Some(gone) = self.resources.pop_front()
        {
            // A late repetition may still be waiting.
            self.queue.retain(|reply| {
                matches!(reply, Reply::Acknowledge { .. })
                    || reply.psn().index_in(gone.first, gone.packets).is_none()
            });
        }
        let resource = Resource {
            first,
            packets,
            msn,
            request,
            sent: false,
        };
        self.resources.push_back(resource);
        self.insert(resource.reply());
    }

    /// Answers a READ again, from the PSN on which the requester misses. False if it isn't a repetition.
    pub(super) fn repeat_read(&mut self, psn: Psn, asked: Reth, mtu: Mtu) -> bool {
        let Some(&Resource {
            first,
            packets,
            msn,
            request: Answered::Read(reth),
            ..
        }) = self.resource(psn)
        else {
            return false;
        };
        let offset = psn.since(first) as u32 * mtu.bytes();
        let rest = Reth {
            address: reth.address.wrapping_add(u64::from(offset)),
            key: reth.key,
            length: reth.length - offset,
        };
        if asked != rest {
            return false;
        }
        let waiting = self.queue.iter_mut().find(|reply| {
            matches!(reply, Reply::Read { .. }) && reply.psn().index_in(first, packets).is_some()
        });
        let reply = Reply::Read {
            psn,
            msn,
            rest,
            begun: false,
        };
        match waiting {
            // The answer hasn't got that far yet.
            Some(waiting) if waiting.psn().is_before(psn) => {}
            Some(waiting) => *waiting = reply,
            None => self.insert(reply),
        }
        true
    }

    /// Gives the result of an atomic operation again. False if it isn't a repetition.
    pub(super) fn repeat_atomic(&mut self, psn: Psn, asked_opcode: u8, asked: AtomicEth) -> bool {
        let Some(&resource) = self.resource(psn) else {
            return false;
        };
        match resource.request {
            Answered::Atomic {
                opcode, operands, ..
            } if opcode == asked_opcode && operands == asked => {
                let reply = resource.reply();
                if !self.queue.contains(&reply) {
                    self.insert(reply);
                }
                true
            }
            _ => false,
        }
    }

    /// Writes the next packet, if there is one. `held` is what is kept after a PSN.
    pub(super) fn poll_transmit<R: Region>(
        &mut self,
        link: &Link,
        domain: &ProtectionDomain<R>,
        held: impl FnOnce(Psn) -> Held,
        out: &mut [u8],
    ) -> Result<Option<usize>, AccessError> {
        let Some(&reply) = self.queue.front() else {
            return Ok(None);
        };
        let bth = Bth::new(link.peer, reply.psn());
        let no_payload = |_: &mut [u8]| Ok::<(), AccessError>(());
        let sent = match reply {
            Reply::Acknowledge { aeth, .. } => emit_with(
                &bth,
                &Operation::Acknowledge(aeth),
                0,
                &link.flow,
                out,
                no_payload,
            )?,
            Reply::Selective { psn, msn } => {
                let syndrome = Syndrome::Nak(Nak::SequenceError);
                let operation = Operation::SelectiveAcknowledge(Aeth { syndrome, msn });
                let payload = held(psn).emit();
                let fill = |into: &mut [u8]| {
                    into.copy_from_slice(&payload);
                    Ok::<(), AccessError>(())
                };
                emit_with(&bth, &operation, payload.len(), &link.flow, out, fill)?
            }
            Reply::Atomic { psn, msn, before } => {
                let operation = Operation::AtomicAcknowledge(ack(msn), before);
                let sent = emit_with(&bth, &operation, 0, &link.flow, out, no_payload)?;
                self.answer_is_sent(psn);
                sent
            }
            Reply::Read {
                psn,
                msn,
                rest,
                begun,
            } => {
                let length = rest.length.min(link.mtu.bytes());
                let ends = length == rest.length;
                let operation = match (begun, ends) {
                    (false, true) => Operation::ReadResponseOnly(ack(msn)),
                    (false, false) => Operation::ReadResponseFirst(ack(msn)),
                    (true, false) => Operation::ReadResponseMiddle,
                    (true, true) => Operation::ReadResponseLast(ack(msn)),
                };
                let fill = |into: &mut [u8]| {
                    if into.is_empty() {
                        return Ok(());
                    }
                    domain.read(rest.key, rest.address, into, Access::REMOTE_READ)
                };
                let sent = emit_with(&bth, &operation, length as usize, &link.flow, out, fill)?;
                if ends {
                    self.answer_is_sent(psn);
                } else if let Some(front) = self.queue.front_mut() {
                    *front = Reply::Read {
                        psn: psn.plus(1),
                        msn,
                        rest: Reth {
                            address: rest.address.wrapping_add(u64::from(length)),
                            key: rest.key,
                            length: rest.length - length,
                        },
                        begun: true,
                    };
                    return Ok(Some(sent));
                }
                sent
            }
        };
        self.queue.pop_front();
        Ok(Some(sent))
    }

    /// Whether the next packet has a payload.
    pub(super) fn next_is_data(&self) -> bool {
        matches!(self.queue.front(), Some(Reply::Read { .. }))
    }

    /// The PSN of the reply that is next.
    pub(super) fn next_psn(&self) -> Option<Psn> {
        self.queue.front().map(Reply::psn)
    }

    fn insert(&mut self, reply: Reply) {
        let later = |other: &Reply| reply.psn().is_before(other.psn());
        let at = self.queue.iter().rposition(|other| !later(other));
        self.queue.insert(at.map_or(0, |at| at + 1), reply);
    }

    fn resource(&self, psn: Psn) -> Option<&Resource> {
        let holds = |resource: &&Resource| psn.index_in(resource.first, resource.packets).is_some();
        self.resources.iter().find(holds)
    }

    fn answer_is_sent(&mut self, psn: Psn) {
        let resource = self
            .resources
            .iter_mut()
            .find(|resource| psn.index_in(resource.first, resource.packets).is_some());
        if let Some(resource) = resource {
            resource.sent = true;
        }
    }
}

impl Resource {
    const fn reply(&self) -> Reply {
        match self.request {
            Answered::Read(rest) => Reply::Read {
                psn: self.first,
                msn: self.msn,
                rest,
                begun: false,
            },
            Answered::Atomic { before, .. } => Reply::Atomic {
                psn: self.first,
                msn: self.msn,
                before,
            },
        }
    }
}

const fn ack(msn: Psn) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack {
            credits: Syndrome::NO_CREDITS,
        },
        msn,
    }
}
