//! Packets under way, and queues of them: no memory is taken for a packet once there have been as many at a time.

use ringway_roce::wire::{Bth, Operation};

/// No packet, and no link.
pub(super) const NONE: u32 = u32::MAX;

/// A packet, without its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// The packet after it in its queue, or the free slot after it.
    pub(super) next: u32,
    /// Where its way's next hop stands, see [`super::ways::Ways`].
    pub(super) way: u32,
    pub(super) connection: u32,
    /// The hop that it came over, whose share of the switch's buffer it takes; [`NONE`] at its own NIC.
    pub(super) ingress: u32,
    /// Bytes on the wire, and of these the message's.
    pub(super) wire: u32,
    pub(super) payload: u32,
    /// A notification, which overtakes data and is never paused.
    pub(super) control: bool,
    /// From the receiver to the sender.
    pub(super) backwards: bool,
    /// "Congestion experienced".
    pub(super) marked: bool,
    /// It has been sent before.
    pub(super) resent: bool,
    /// Of traffic of others.
    pub(super) foreign: bool,
    pub(super) bth: Bth,
    pub(super) operation: Operation,
}

impl Packet {
    /// A packet that is about to take its first hop.
    pub(super) const fn new(connection: u32, bth: Bth, operation: Operation) -> Self {
        Self {
            next: NONE,
            way: 0,
            connection,
            ingress: NONE,
            wire: 0,
            payload: 0,
            control: false,
            backwards: false,
            marked: false,
            resent: false,
            foreign: false,
            bth,
            operation,
        }
    }
}

/// All packets, by number.
#[derive(Debug, Default)]
pub(super) struct Pool {
    packets: Vec<Packet>,
    free: Option<u32>,
}

impl Pool {
    pub(super) fn add(&mut self, packet: Packet) -> u32 {
        match self.free {
            Some(number) => {
                let slot = &mut self.packets[number as usize];
                self.free = Some(slot.next).filter(|&next| next != NONE);
                *slot = packet;
                number
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    /// Takes a packet out.
    pub(super) fn remove(&mut self, number: u32) -> Packet {
        let slot = &mut self.packets[number as usize];
        let packet = *slot;
        slot.next = self.free.unwrap_or(NONE);
        self.free = Some(number);
        packet
    }
}

impl std::ops::Index<u32> for Pool {
    type Output = Packet;

    fn index(&self, number: u32) -> &Packet {
        &self.packets[number as usize]
    }
}

impl std::ops::IndexMut<u32> for Pool {
    fn index_mut(&mut self, number: u32) -> &mut Packet {
        &mut self.packets[number as usize]
    }
}

/// Packets that wait for a link, first in, first out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
    /// On the wire.
    pub(super) bytes: u64,
}

impl Queue {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
        bytes: 0,
    };

    pub(super) const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub(super) fn push(&mut self, number: u32, pool: &mut Pool) {
        let packet = &mut pool[number];
        packet.next = NONE;
        self.bytes += u64::from(packet.wire);
        match self.is_empty() {
            true => self.first = number,
            false => pool[self.last].next = number,
        }
        self.last = number;
    }

    pub(super) fn pop(&mut self, pool: &Pool) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let number = self.first;
        let packet = &pool[number];
        self.first = packet.next;
        self.bytes -= u64::from(packet.wire);
        Some(number)
    }
}
