//! How the memory between one sender and one receiver is laid out.

use super::descriptor;

/// Bytes of a pair of cache lines: what one side writes is never in a pair that the other side
/// writes, as the hardware fetches both.
const LINES: usize = 128;

/// The unit of slots: whole pages, so that slots never used take no memory.
const PAGE: usize = 4096;

/// References that can be out at once: the bits of a word.
pub(super) const REFERENCES: usize = 64;

/// The sizes of the area that carries messages from one rank to another: a ring of descriptors,
/// then slots for payloads. The same on all ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    descriptors: usize,
    slots: usize,
    slot_bytes: usize,
}

impl Default for Geometry {
    /// 64 descriptors and 16 slots of 64 KiB: what is on its way between two cores fits a
    /// second-level cache.
    fn default() -> Self {
        Self::new(64, 16, 64 << 10)
    }
}

impl Geometry {
    /// `descriptors` is rounded up to a power of two from 2 to 65,536, `slots` is brought into
    /// 2..=64, and `slot_bytes` is rounded up to whole pages of 4 KiB, up to 1 GiB.
    pub fn new(descriptors: usize, slots: usize, slot_bytes: usize) -> Self {
        Self {
            descriptors: descriptors.clamp(2, 1 << 16).next_power_of_two(),
            slots: slots.clamp(2, 64),
            slot_bytes: slot_bytes.clamp(1, 1 << 30).next_multiple_of(PAGE),
        }
    }

    /// Bytes of the area of one ordered pair of ranks.
    pub const fn area_bytes(&self) -> usize {
        self.ring_bytes() + self.slots * self.slot_bytes
    }

    /// Bytes of a slot: the longest message that is copied.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes before the slots.
    pub(super) const fn ring_bytes(&self) -> usize {
        ((DESCRIPTORS + self.descriptors * descriptor::WORDS) * 8).next_multiple_of(PAGE)
    }

    /// Where a slot starts, from the start of the area.
    pub(super) const fn slot_start(&self, slot: u8) -> usize {
        self.ring_bytes() + slot as usize * self.slot_bytes
    }

    pub(super) const fn descriptors(&self) -> usize {
        self.descriptors
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }
}

/// Written by the sender: a bit for each reference whose message was cancelled, until its ticket
/// comes back.
pub(super) const REVOKED: usize = 0;
/// Written by the sender: 1 while it sleeps and waits for something to be given back.
pub(super) const WAITS: usize = 1;
/// Written by the receiver: how many descriptors it has taken.
pub(super) const TAKEN: usize = LINES / 8;
/// Written by the receiver: how many messages without a ticket it no longer keeps.
pub(super) const DELIVERED: usize = TAKEN + 1;
/// Bits set by the receiver and cleared by the sender: slots given back.
pub(super) const RETURNED_SLOTS: usize = TAKEN + 2;
/// Bits set by the receiver and cleared by the sender: references given back.
pub(super) const RETURNED_REFERENCES: usize = TAKEN + 3;
/// Written by the sender: the ring.
pub(super) const DESCRIPTORS: usize = 2 * LINES / 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_start_on_a_page_after_the_ring() {
        for descriptors in [2, 16, 30, 32, 64, 128, 65536] {
            let geometry = Geometry::new(descriptors, 3, 5000);
            let ring = (DESCRIPTORS + descriptors * descriptor::WORDS) * 8;
            assert!(geometry.ring_bytes().is_multiple_of(PAGE));
            assert!(geometry.ring_bytes() >= ring && geometry.ring_bytes() < ring + 2 * PAGE);
            assert_eq!(geometry.area_bytes(), geometry.ring_bytes() + 3 * 8192);
        }
    }
}
