//! The base transport header, with which every packet begins.

use crate::{Psn, Qpn};

/// The partition key that every port has: the default partition, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The base transport header (volume 1, 9.2), without the opcode, which is the
/// [`Operation`](super::Operation)'s, and without the pad count, which follows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The responder shall raise an event for this message if it asked for solicited ones only.
    pub solicited: bool,
    /// The connection's path migration state. Sent as given, never looked at.
    pub migrated: bool,
    /// The partition.
    pub pkey: u16,
    /// A switch marked this packet (InfiniBand only; over IP it is ECN).
    pub fecn: bool,
    /// The packet tells its receiver to slow down: set in a CNP.
    pub becn: bool,
    /// The queue pair that this packet is for.
    pub destination: Qpn,
    /// The responder shall acknowledge this packet.
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The header of a packet in the default partition with no flag set.
    pub const fn new(destination: Qpn, psn: Psn) -> Self {
        Self {
            solicited: false,
            migrated: false,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header; the reserved bits are ignored.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, flags, k0, k1, congestion, q0, q1, q2, ack, p0, p1, p2] = *bytes;
        Self {
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pkey: u16::from_be_bytes([k0, k1]),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            destination: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        }
    }

    /// The header as bytes. `pad` (0 to 3) is the number of bytes that fill the payload up to a multiple of 4.
    pub const fn emit(&self, opcode: u8, pad: u8) -> [u8; Self::LEN] {
        let flags = (self.solicited as u8) << 7 | (self.migrated as u8) << 6 | (pad & 3) << 4;
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        let ack = (self.ack_request as u8) << 7;
        let [k0, k1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.destination.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        [
            opcode, flags, k0, k1, congestion, q0, q1, q2, ack, p0, p1, p2,
        ]
    }
}
