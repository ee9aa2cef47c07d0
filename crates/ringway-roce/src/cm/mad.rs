//! Management datagrams: the envelope of a message, and the packet around it.

use thiserror::Error;

use super::{Message, fields::BODY};
use crate::{
    Psn, Qpn,
    wire::{Bth, Deth, Flow, Operation, Packet},
};

/// The queue key of the management queue pair.
const MANAGEMENT_QKEY: u32 = 0x8001_0000;

const HEADER: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS_COMMUNICATION_MANAGEMENT: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// A management datagram of connection management (volume 1, 13.4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// A number that answers repeat.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// Why a packet is no message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotCm {
    /// It doesn't go to the management queue pair, with its queue key.
    #[error("not a datagram for queue pair 1 with its queue key")]
    Elsewhere,
    /// It isn't 256 bytes long.
    #[error("a management datagram has 256 bytes, and this one {0}")]
    Length(usize),
    /// It is of another management class, version or method.
    #[error(
        "management class {class}, version {version}, method {method:#04x} is not connection management's"
    )]
    Class {
        /// The management class.
        class: u8,
        /// Its version.
        version: u8,
        /// The method.
        method: u8,
    },
    /// The attribute is no message that is known here.
    #[error("attribute {0:#06x} is none of REQ, MRA, REJ, REP, RTU, DREQ, DREP")]
    Attribute(u16),
}

impl Mad {
    /// Bytes on the wire.
    pub const LEN: usize = HEADER + BODY;

    /// Reads a datagram.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotCm> {
        let length = NotCm::Length(bytes.len());
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| length)?;
        let (header, body) = bytes.split_first_chunk::<HEADER>().ok_or(length)?;
        let body: &[u8; BODY] = body.try_into().map_err(|_| length)?;
        let [
            base,
            class,
            version,
            method,
            _,
            _,
            _,
            _, //
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7, //
            a0,
            a1,
            _,
            _,
            _,
            _,
            _,
            _,
        ] = *header;
        let expected = (
            BASE_VERSION,
            CLASS_COMMUNICATION_MANAGEMENT,
            CLASS_VERSION,
            METHOD_SEND,
        );
        if (base, class, version, method) != expected {
            return Err(NotCm::Class {
                class,
                version,
                method,
            });
        }
        let attribute = u16::from_be_bytes([a0, a1]);
        Ok(Self {
            transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            message: Message::parse(attribute, body).ok_or(NotCm::Attribute(attribute))?,
        })
    }

    /// The datagram as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let [a0, a1] = self.message.attribute().to_be_bytes();
        bytes[..4].copy_from_slice(&[
            BASE_VERSION,
            CLASS_COMMUNICATION_MANAGEMENT,
            CLASS_VERSION,
            METHOD_SEND,
        ]);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&[a0, a1]);
        bytes[HEADER..].copy_from_slice(&self.message.emit());
        bytes
    }

    /// Reads the datagram that a packet carries.
    pub fn from_packet(packet: &Packet<'_>) -> Result<Self, NotCm> {
        match packet.operation {
            Operation::UdSendOnly(deth)
                if packet.bth.destination == Qpn::MANAGEMENT && deth.qkey == MANAGEMENT_QKEY =>
            {
                Self::parse(packet.payload)
            }
            _ => Err(NotCm::Elsewhere),
        }
    }

    /// Writes the packet that carries the datagram, in place of what is in `out`.
    pub fn emit_packet(&self, psn: Psn, flow: &Flow, out: &mut Vec<u8>) {
        let operation = Operation::UdSendOnly(Deth {
            qkey: MANAGEMENT_QKEY,
            source: Qpn::MANAGEMENT,
        });
        let packet = Packet {
            bth: Bth::new(Qpn::MANAGEMENT, psn),
            operation,
            payload: &self.emit(),
        };
        packet.emit(flow, out);
    }
}
