//! The extended transport headers that follow the base header: what an operation addresses, and its immediate data.
//!
//! Each is read from and written to an array of its length, so that neither can fail.

use crate::{Key, Psn, Qpn};

/// RDMA extended transport header (volume 1, 9.3.3): the memory that a WRITE or a READ addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The address of the first byte, as the region's owner counts.
    pub address: u64,
    /// The key of the region.
    pub key: Key,
    /// The length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            l0,
            l1,
            l2,
            l3,
        ] = *bytes;
        Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: Key(u32::from_be_bytes([k0, k1, k2, k3])),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The header as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.address.to_be_bytes();
        let [k0, k1, k2, k3] = self.key.0.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3,
        ]
    }
}

/// Atomic extended transport header (volume 1, 9.3.6): eight bytes of the responder's memory, and the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The address, a multiple of 8.
    pub address: u64,
    /// The key of the region.
    pub key: Key,
    /// What to store (compare and swap) or to add (fetch and add).
    pub swap_or_add: u64,
    /// What to compare with (compare and swap); 0 otherwise.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7, //
            k0,
            k1,
            k2,
            k3, //
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7, //
            c0,
            c1,
            c2,
            c3,
            c4,
            c5,
            c6,
            c7,
        ] = *bytes;
        Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: Key(u32::from_be_bytes([k0, k1, k2, k3])),
            swap_or_add: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            compare: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        }
    }

    /// The header as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.address.to_be_bytes();
        let [k0, k1, k2, k3] = self.key.0.to_be_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.swap_or_add.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.compare.to_be_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, //
            k0, k1, k2, k3, //
            s0, s1, s2, s3, s4, s5, s6, s7, //
            c0, c1, c2, c3, c4, c5, c6, c7,
        ]
    }
}

/// Datagram extended transport header (volume 1, 9.3.2): who sends a datagram, and the receiver's password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The queue key, which must be the receiving queue pair's.
    pub qkey: u32,
    /// The queue pair that sent the datagram.
    pub source: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header; the reserved byte is ignored.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            source: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// The header as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.source.get().to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

/// Acknowledge extended transport header (volume 1, 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledgement, or why not.
    pub syndrome: Syndrome,
    /// The message sequence number: how many messages the responder has completed, modulo 2^24.
    pub msn: Psn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [syndrome, m0, m1, m2] = *bytes;
        Self {
            syndrome: Syndrome::parse(syndrome),
            msn: Psn::new(u32::from_be_bytes([0, m0, m1, m2])),
        }
    }

    /// The header as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome.emit(), m0, m1, m2]
    }
}

/// What an acknowledgement says (volume 1, tables 43 to 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the packet's PSN has arrived. The code says how many receives are posted; see
    /// [`Syndrome::NO_CREDITS`].
    Ack {
        /// The credit code, 0 to 31.
        credits: u8,
    },
    /// Receiver not ready: no receive is posted for this message. Try again after the time of this code.
    RnrNak {
        /// The timer code, 0 to 31; see [`crate::timer::RnrTimer`].
        timer: u8,
    },
    /// Refused.
    Nak(Nak),
    /// A code that the specification reserves.
    Reserved(u8),
}

/// Why a request was refused (volume 1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing: the PSN names the one that the responder expects.
    SequenceError,
    /// The responder doesn't do this operation, or the packets of the message don't fit together.
    InvalidRequest,
    /// The key, the access right or the bounds are wrong.
    RemoteAccess,
    /// The responder failed at no fault of the request.
    RemoteOperational,
}

impl Syndrome {
    /// The credit code of a responder that doesn't count credits.
    pub const NO_CREDITS: u8 = 31;

    const fn parse(byte: u8) -> Self {
        // The top bit is reserved as 0.
        match (byte >> 5, byte & 0x1f) {
            (0b000, credits) => Self::Ack { credits },
            (0b001, timer) => Self::RnrNak { timer },
            (0b011, 0) => Self::Nak(Nak::SequenceError),
            (0b011, 1) => Self::Nak(Nak::InvalidRequest),
            (0b011, 2) => Self::Nak(Nak::RemoteAccess),
            (0b011, 3) => Self::Nak(Nak::RemoteOperational),
            _ => Self::Reserved(byte),
        }
    }

    const fn emit(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(Nak::SequenceError) => 0x60,
            Self::Nak(Nak::InvalidRequest) => 0x61,
            Self::Nak(Nak::RemoteAccess) => 0x62,
            Self::Nak(Nak::RemoteOperational) => 0x63,
            Self::Reserved(byte) => byte,
        }
    }
}
