//! Selective retransmission, which two of Ringway's endpoints agree on when they connect: only what is lost goes again.
//!
//! The responder keeps what comes early ([`Kept`]) and carries it out when its turn has come. Instead of a NAK it says
//! which packets it has ([`Held`]); the requester notes it down and knows what is lost ([`Board`]). The idea of a bitmap
//! for RDMA is IRN's (Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018, section 3.1), that of telling losses
//! by the order of sending RACK's (RFC 8985).

mod board;
mod kept;
mod probe;

use std::num::NonZeroU32;

pub(super) use board::Board;
pub(super) use kept::Kept;
pub(super) use probe::Probe;

/// How far ahead of the expected packet another one is kept, in packets. No window is wider.
pub(super) const SPAN: NonZeroU32 = NonZeroU32::MIN.saturating_add(255);

/// Which packets are there beyond the expected one: bit `i` stands for the one `i + 1` later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held([u64; SPAN.get() as usize / 64]);

impl Held {
    /// Bytes on the wire.
    pub(super) const LEN: usize = SPAN.get() as usize / 8;

    /// Reads the payload of a selective acknowledgement; None if it has another length.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let payload: &[u8; Self::LEN] = payload.try_into().ok()?;
        let mut held = Self::default();
        let (words, _) = payload.as_chunks();
        for (word, bytes) in held.0.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(held)
    }

    /// The payload of a selective acknowledgement.
    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut payload = [0; Self::LEN];
        let (words, _) = payload.as_chunks_mut();
        for (bytes, word) in words.iter_mut().zip(self.0) {
            *bytes = word.to_le_bytes();
        }
        payload
    }

    fn insert(&mut self, bit: u32) {
        self.0[bit as usize / 64] |= 1 << (bit % 64);
    }

    /// The bits that are set, the least first.
    fn bits(self) -> impl Iterator<Item = u32> {
        (0..SPAN.get()).filter(move |bit| self.0[*bit as usize / 64] >> (bit % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_where_the_documentation_says() {
        let mut held = Held::default();
        let bits = [0, 9, 63, 64, 255];
        for bit in bits {
            held.insert(bit);
        }
        let mut payload = [0; 32];
        (payload[0], payload[1], payload[7], payload[8], payload[31]) = (1, 2, 0x80, 1, 0x80);
        assert_eq!(held.emit(), payload);
        assert_eq!(Held::parse(&payload), Some(held));
        assert!(held.bits().eq(bits));
        assert_eq!(Held::parse(&payload[1..]), None);
    }
}
