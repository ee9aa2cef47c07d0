//! A send request that has its PSNs: which packet is which part of it.

use super::{Link, Local, Mtu, PostError, Remote, SendRequest, Source, Work};
use crate::{
    Access, AccessError, Key, ProtectionDomain, Psn, Region,
    wire::{AtomicEth, Bth, Operation, Reth, emit_with},
};

/// A request as it was posted, with its inline bytes kept by the queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) id: u64,
    /// With inline bytes, the address of the source counts from the beginning of [`Inline`]'s.
    pub(super) work: Work<'static>,
    pub(super) inline: bool,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
}

/// The inline bytes of all requests of a send queue, in as many slots as it holds requests.
#[derive(Debug)]
pub(super) struct Inline {
    bytes: Box<[u8]>,
    /// The length of a slot in bytes.
    slot: usize,
    slots: usize,
    next: usize,
}

impl Inline {
    pub(super) fn new(slot: usize, slots: usize) -> Self {
        Self {
            bytes: vec![0; slot * slots].into(),
            slot,
            slots,
            next: 0,
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) {
        let start = address as usize;
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
    }

    /// Takes a request. Its slot is free: requests end in the order in which they are posted, and the queue holds no
    /// more than there are slots.
    pub(super) fn keep(&mut self, request: &SendRequest<'_>) -> Result<Posted, PostError> {
        let mut inline = false;
        let mut keep = |source: Source<'_>| match source {
            Source::Memory(local) => Ok(Source::Memory(local)),
            Source::Inline(bytes) => {
                let (length, max) = (bytes.len(), self.slot);
                if length > max {
                    return Err(PostError::Inline { length, max });
                }
                let start = self.next * max;
                self.bytes[start..start + length].copy_from_slice(bytes);
                self.next = (self.next + 1) % self.slots;
                inline = true;
                Ok(Source::Memory(Local {
                    key: Key(0),
                    address: start as u64,
                    length: length as u32,
                }))
            }
        };
        let work = match request.work {
            Work::Send { source, immediate } => Work::Send {
                source: keep(source)?,
                immediate,
            },
            Work::Write {
                source,
                remote,
                immediate,
            } => Work::Write {
                source: keep(source)?,
                remote,
                immediate,
            },
            Work::Read { into, remote } => Work::Read { into, remote },
            Work::FetchAdd { into, remote, add } => Work::FetchAdd { into, remote, add },
            Work::CompareSwap {
                into,
                remote,
                compare,
                swap,
            } => Work::CompareSwap {
                into,
                remote,
                compare,
                swap,
            },
        };
        Ok(Posted {
            id: request.id,
            work,
            inline,
            signaled: request.signaled,
            solicited: request.solicited,
        })
    }
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) posted: Posted,
    pub(super) first: Psn,
    /// How many PSNs it has: its packets, or of a READ those of the response.
    pub(super) packets: u32,
}

/// A packet to be sent.
pub(super) struct Outgoing<'a> {
    operation: Operation,
    payload: Option<(&'a Source<'static>, u32)>,
    inline: bool,
    length: u32,
    solicited: bool,
    /// The last one of a message that the peer has to acknowledge.
    ends: bool,
    /// The PSN of the packet after it.
    pub(super) next: Psn,
}

impl Request {
    pub(super) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    pub(super) const fn contains(&self, psn: Psn) -> bool {
        psn.index_in(self.first, self.packets).is_some()
    }

    /// The packet with a PSN of this request's. Of a READ, it asks for what is still missing from there on of a piece of so
    /// many packets: pieces have fixed ends, for a responder that is asked again compares with what it was asked before.
    pub(super) fn packet(&self, psn: Psn, mtu: Mtu, piece: u32) -> Outgoing<'_> {
        let index = psn.since(self.first) as u32;
        let offset = index * mtu.bytes();
        let (operation, payload) = match &self.posted.work {
            Work::Send { source, immediate } => {
                (self.send(index, *immediate), Some((source, offset)))
            }
            Work::Write {
                source,
                remote,
                immediate,
            } => {
                let operation = self.write(index, *remote, source.len() as u32, *immediate);
                (operation, Some((source, offset)))
            }
            Work::Read { into, remote } => {
                let reth = Reth {
                    address: remote.address.wrapping_add(u64::from(offset)),
                    key: remote.key,
                    length: (into.length - offset).min(
                        mtu.bytes()
                            .saturating_mul(self.piece_end(index, piece) - index),
                    ),
                };
                (Operation::ReadRequest(reth), None)
            }
            Work::FetchAdd { remote, add, .. } => {
                (Operation::FetchAdd(atomic(*remote, *add, 0)), None)
            }
            Work::CompareSwap {
                remote,
                compare,
                swap,
                ..
            } => {
                let atomic = atomic(*remote, *swap, *compare);
                (Operation::CompareSwap(atomic), None)
            }
        };
        let last = index + 1 == self.packets;
        let next = match self.posted.work {
            Work::Read { .. } => self.first.plus(self.piece_end(index, piece)),
            _ => psn.plus(1),
        };
        Outgoing {
            operation,
            length: payload.map_or(0, |(source, offset)| {
                mtu.bytes().min(source.len() as u32 - offset)
            }),
            payload,
            inline: self.posted.inline,
            solicited: self.posted.solicited && last,
            ends: last && payload.is_some(),
            next,
        }
    }

    /// Where the piece with a packet ends.
    fn piece_end(&self, index: u32, piece: u32) -> u32 {
        (index / piece + 1).saturating_mul(piece).min(self.packets)
    }

    /// How many questions, and packets of answers to them, the PSNs from `start` to `end` stand for.
    pub(super) fn asked(&self, start: Psn, end: Psn, piece: u32) -> (usize, u32) {
        let index = |psn: Psn| psn.since(self.first).clamp(0, self.packets as i32) as u32;
        let (start, end) = (index(start), index(end));
        if !self.posted.work.is_answered() || start >= end {
            return (0, 0);
        }
        let pieces = end.div_ceil(piece) - start / piece;
        (pieces as usize, end - start)
    }

    /// Where the response with a PSN of this READ's goes, and how long it must be.
    pub(super) fn response_place(&self, psn: Psn, mtu: Mtu) -> Option<Local> {
        let Work::Read { into, .. } = self.posted.work else {
            return None;
        };
        let offset = psn.index_in(self.first, self.packets)? * mtu.bytes();
        Some(Local {
            key: into.key,
            address: into.address.wrapping_add(u64::from(offset)),
            length: mtu.bytes().min(into.length - offset),
        })
    }

    const fn send(&self, index: u32, immediate: Option<u32>) -> Operation {
        match (index == 0, index + 1 == self.packets, immediate) {
            (true, true, None) => Operation::SendOnly,
            (true, true, Some(data)) => Operation::SendOnlyImmediate(data),
            (true, false, _) => Operation::SendFirst,
            (false, false, _) => Operation::SendMiddle,
            (false, true, None) => Operation::SendLast,
            (false, true, Some(data)) => Operation::SendLastImmediate(data),
        }
    }

    const fn write(
        &self,
        index: u32,
        remote: Remote,
        length: u32,
        immediate: Option<u32>,
    ) -> Operation {
        let reth = Reth {
            address: remote.address,
            key: remote.key,
            length,
        };
        match (index == 0, index + 1 == self.packets, immediate) {
            (true, true, None) => Operation::WriteOnly(reth),
            (true, true, Some(data)) => Operation::WriteOnlyImmediate(reth, data),
            (true, false, _) => Operation::WriteFirst(reth),
            (false, false, _) => Operation::WriteMiddle,
            (false, true, None) => Operation::WriteLast,
            (false, true, Some(data)) => Operation::WriteLastImmediate(data),
        }
    }
}

const fn atomic(remote: Remote, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        address: remote.address,
        key: remote.key,
        swap_or_add,
        compare,
    }
}

impl Outgoing<'_> {
    /// Whether the peer answers it at once: with data, or as it is asked for an acknowledgement.
    pub(super) const fn asks(&self, ack_due: bool) -> bool {
        self.payload.is_none() || self.ends || ack_due
    }

    /// Writes the packet; its payload comes straight out of registered memory.
    pub(super) fn emit<R: Region>(
        &self,
        psn: Psn,
        ack_due: bool,
        link: &Link,
        domain: &ProtectionDomain<R>,
        inline: &Inline,
        out: &mut [u8],
    ) -> Result<usize, AccessError> {
        let mut bth = Bth::new(link.peer, psn);
        bth.solicited = self.solicited;
        bth.ack_request = self.payload.is_some() && self.asks(ack_due);
        emit_with(
            &bth,
            &self.operation,
            self.length as usize,
            &link.flow,
            out,
            |into| {
                match self.payload {
                    None => Ok(()),
                    Some((Source::Inline(_), _)) => Ok(()),
                    Some((Source::Memory(local), offset)) if self.inline => {
                        inline.read(local.address + u64::from(offset), into);
                        Ok(())
                    }
                    // Nothing needs no memory.
                    Some((Source::Memory(local), _)) if local.length == 0 => Ok(()),
                    Some((Source::Memory(local), offset)) => {
                        let address = local.address.wrapping_add(u64::from(offset));
                        domain.read(local.key, address, into, Access::NONE)
                    }
                }
            },
        )
    }
}
