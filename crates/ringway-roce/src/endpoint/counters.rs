//! What an endpoint counts besides its queue pairs.

use crate::wire::Malformed;

/// Datagrams that no queue pair took, by why. They changed nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// They ended before their headers did.
    pub truncated: u64,
    /// Of an operation that isn't the reliable connection's or the datagram's.
    pub unknown_opcode: u64,
    /// Of another version of the transport header.
    pub unknown_version: u64,
    /// With a wrong invariant CRC: changed on the way, or for another address (`rx_icrc_encapsulated`).
    pub bad_icrc: u64,
    /// For a queue pair that there is none of.
    pub unknown_queue_pair: u64,
}

impl Refused {
    pub(super) const fn malformed(&mut self, malformed: Malformed) {
        let count = match malformed {
            Malformed::Truncated | Malformed::NotRoce => &mut self.truncated,
            Malformed::UnknownOpcode(_) => &mut self.unknown_opcode,
            Malformed::UnknownVersion(_) => &mut self.unknown_version,
        };
        *count += 1;
    }

    /// Tells each count with its name.
    pub fn tell(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        tell("truncated", self.truncated);
        tell("unknown_opcode", self.unknown_opcode);
        tell("unknown_version", self.unknown_version);
        tell("rx_icrc_encapsulated", self.bad_icrc);
        tell("unknown_queue_pair", self.unknown_queue_pair);
    }
}
