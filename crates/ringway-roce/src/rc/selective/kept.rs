//! The responder's side: packets that have come before their turn.

use super::{Held, SPAN};
use crate::{
    Psn,
    rc::Mtu,
    wire::{Bth, Operation, Packet},
};

/// Packets that wait for others, at most [`SPAN`] - 1.
#[derive(Debug)]
pub(in crate::rc) struct Kept {
    mtu: usize,
    /// By PSN modulo [`SPAN`].
    slots: Box<[Option<Head>]>,
    count: usize,
    /// The payloads, a slot for each. There is none until the first packet is kept.
    payloads: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    bth: Bth,
    operation: Operation,
    length: usize,
}

impl Kept {
    pub(in crate::rc) fn new(mtu: Mtu) -> Self {
        Self {
            mtu: mtu.bytes() as usize,
            slots: Box::default(),
            count: 0,
            payloads: Box::default(),
        }
    }

    pub(in crate::rc) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes allocated for payloads.
    pub(in crate::rc) const fn footprint(&self) -> usize {
        self.payloads.len()
    }

    /// Keeps a packet that is so many ahead of the expected one. False if it isn't kept: it is there already, too far ahead, or
    /// longer than any can be; or the payloads have no place yet, which takes more than `room` bytes.
    pub(in crate::rc) fn keep(&mut self, packet: &Packet<'_>, ahead: u32, room: usize) -> bool {
        let length = packet.payload.len();
        if ahead >= SPAN.get() || length > self.mtu {
            return false;
        }
        if self.slots.is_empty() {
            let bytes = SPAN.get() as usize * self.mtu;
            if bytes > room {
                return false;
            }
            self.slots = vec![None; SPAN.get() as usize].into();
            self.payloads = vec![0; bytes].into();
        }
        let slot = slot(packet.bth.psn);
        if self.slots[slot].is_some() {
            return false;
        }
        self.payloads[slot * self.mtu..][..length].copy_from_slice(packet.payload);
        self.slots[slot] = Some(Head {
            bth: packet.bth,
            operation: packet.operation,
            length,
        });
        self.count += 1;
        true
    }

    /// The packet with this PSN, which is the expected one.
    pub(in crate::rc) fn get(&self, psn: Psn) -> Option<Packet<'_>> {
        let slot = slot(psn);
        let head = (*self.slots.get(slot)?)?;
        Some(Packet {
            bth: head.bth,
            operation: head.operation,
            payload: &self.payloads[slot * self.mtu..][..head.length],
        })
    }

    /// So many packets from `first` on are no longer waited for.
    pub(in crate::rc) fn forget(&mut self, first: Psn, packets: u32) {
        for index in 0..packets.min(SPAN.get()) {
            if self.count == 0 {
                return;
            }
            let taken = self.slots[slot(first.plus(index))].take();
            self.count -= usize::from(taken.is_some());
        }
    }

    /// Which packets are kept after the expected one.
    pub(in crate::rc) fn held(&self, expected: Psn) -> Held {
        let mut held = Held::default();
        for bit in 0..SPAN.get() - 1 {
            if matches!(self.slots.get(slot(expected.plus(1 + bit))), Some(Some(_))) {
                held.insert(bit);
            }
        }
        held
    }
}

const fn slot(psn: Psn) -> usize {
    (psn.get() % SPAN.get()) as usize
}
