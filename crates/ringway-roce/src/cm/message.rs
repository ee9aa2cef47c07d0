//! The messages of connection management (volume 1, 12.6), without the REQ, which has a file of its own.

use super::{
    Req,
    fields::{BODY, Fields},
};
use crate::{Psn, Qpn};

/// A message, of which a connection's life consists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement: the answer takes longer.
    Mra(Mra),
    /// Rejection.
    Rej(Rej),
    /// Reply to a REQ.
    Rep(Rep),
    /// Ready to use: the answer to a REP.
    Rtu(Rtu),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Reply to a DREQ.
    Drep(Drep),
}

impl Message {
    /// The number of the message's kind: the attribute of a management datagram.
    pub(super) const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
        }
    }

    pub(super) fn parse(attribute: u16, body: &[u8; BODY]) -> Option<Self> {
        let fields = Fields(body);
        Some(match attribute {
            0x10 => Self::Req(Req::parse(&fields)),
            0x11 => Self::Mra(Mra::parse(&fields)),
            0x12 => Self::Rej(Rej::parse(&fields)),
            0x13 => Self::Rep(Rep::parse(&fields)),
            0x14 => Self::Rtu(Rtu::parse(&fields)),
            0x15 => Self::Dreq(Dreq::parse(&fields)),
            0x16 => Self::Drep(Drep::parse(&fields)),
            _ => return None,
        })
    }

    pub(super) fn emit(&self) -> [u8; BODY] {
        let mut fields = Fields::zero();
        match self {
            Self::Req(message) => message.emit(&mut fields),
            Self::Mra(message) => message.emit(&mut fields),
            Self::Rej(message) => message.emit(&mut fields),
            Self::Rep(message) => message.emit(&mut fields),
            Self::Rtu(message) => message.emit(&mut fields),
            Self::Dreq(message) => message.emit(&mut fields),
            Self::Drep(message) => message.emit(&mut fields),
        }
        fields.0
    }
}

/// The two sides' numbers of the connection, as the sender of a message sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 if the sender doesn't know it yet.
    pub remote: u32,
}

impl Ids {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            local: fields.u32(0),
            remote: fields.u32(4),
        }
    }

    fn emit(self, fields: &mut Fields<[u8; BODY]>) {
        fields.put(0, &self.local.to_be_bytes());
        fields.put(4, &self.remote.to_be_bytes());
    }
}

/// Which message another one is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Something else: in an MRA a LAP, in a REJ no message.
    Other(u8),
}

impl About {
    /// From the two high bits.
    const fn parse(byte: u8) -> Self {
        match byte >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            other => Self::Other(other),
        }
    }

    const fn emit(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1 << 6,
            Self::Other(other) => other << 6,
        }
    }
}

/// Message receipt acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The connection.
    pub ids: Ids,
    /// What has been received.
    pub about: About,
    /// How long the answer may take: 4.096 µs · 2^code, 0 to 31.
    pub service_timeout: u8,
    /// The user's.
    pub private_data: [u8; 222],
}

impl Mra {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            about: About::parse(fields.u8(8)),
            service_timeout: fields.u8(9) >> 3,
            private_data: fields.bytes(10),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put(8, &[self.about.emit(), self.service_timeout << 3]);
        fields.put(10, &self.private_data);
    }
}

/// Why a connection is rejected (volume 1, table 109): the reasons that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u16);

impl Reason {
    /// The answer did not come in time.
    pub const TIMEOUT: Self = Self(4);
    /// Nobody listens at this service.
    pub const INVALID_SERVICE: Self = Self(8);
    /// The transport service isn't the reliable connection.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The path's MTU isn't one.
    pub const INVALID_MTU: Self = Self(26);
    /// The user said no; see the private data.
    pub const CONSUMER: Self = Self(28);
}

/// Rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The connection.
    pub ids: Ids,
    /// What is rejected.
    pub about: About,
    /// Why.
    pub reason: Reason,
    /// How many bytes of `information` say more, 0 to 72.
    pub information_length: u8,
    /// More on the reason.
    pub information: [u8; 72],
    /// The user's.
    pub private_data: [u8; 148],
}

impl Rej {
    /// One that says nothing more.
    pub(super) const fn new(ids: Ids, about: About, reason: Reason) -> Self {
        Self {
            ids,
            about,
            reason,
            information_length: 0,
            information: [0; 72],
            private_data: [0; 148],
        }
    }

    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            about: About::parse(fields.u8(8)),
            information_length: fields.u8(9) >> 1,
            reason: Reason(fields.u16(10)),
            information: fields.bytes(12),
            private_data: fields.bytes(84),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put(8, &[self.about.emit(), self.information_length << 1]);
        fields.put(10, &self.reason.0.to_be_bytes());
        fields.put(12, &self.information);
        fields.put(84, &self.private_data);
    }
}

/// Reply to a request for communication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The connection.
    pub ids: Ids,
    /// The queue key, for datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The PSN that the receiver's first packet shall have: what the sender expects.
    pub starting_psn: Psn,
    /// How many READs and atomic operations the sender can have coming in.
    pub responder_resources: u8,
    /// How many it will have going out.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge: 4.096 µs · 2^code, 0 to 31.
    pub target_ack_delay: u8,
    /// Whether an alternate path was taken, 0 to 3.
    pub failover: u8,
    /// Whether the sender counts credits.
    pub end_to_end_flow_control: bool,
    /// How often the receiver shall try again after "receiver not ready", 0 to 7.
    pub rnr_retries: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub shared_receive_queue: bool,
    /// The sender's device.
    pub guid: u64,
    /// The user's.
    pub private_data: [u8; 196],
}

impl Rep {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            qkey: fields.u32(8),
            qpn: Qpn::new(fields.u24(12)),
            starting_psn: Psn::new(fields.u24(20)),
            responder_resources: fields.u8(24),
            initiator_depth: fields.u8(25),
            target_ack_delay: fields.u8(26) >> 3,
            failover: fields.u8(26) >> 1 & 3,
            end_to_end_flow_control: fields.u8(26) & 1 != 0,
            rnr_retries: fields.u8(27) >> 5,
            shared_receive_queue: fields.u8(27) & 0x10 != 0,
            guid: fields.u64(28),
            private_data: fields.bytes(36),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put(8, &self.qkey.to_be_bytes());
        fields.put_u24_u8(12, self.qpn.get(), 0);
        fields.put_u24_u8(20, self.starting_psn.get(), 0);
        let flags = self.target_ack_delay << 3
            | (self.failover & 3) << 1
            | u8::from(self.end_to_end_flow_control);
        let retries = self.rnr_retries << 5 | u8::from(self.shared_receive_queue) << 4;
        fields.put(
            24,
            &[
                self.responder_resources,
                self.initiator_depth,
                flags,
                retries,
            ],
        );
        fields.put(28, &self.guid.to_be_bytes());
        fields.put(36, &self.private_data);
    }
}

/// Ready to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The connection.
    pub ids: Ids,
    /// The user's.
    pub private_data: [u8; 224],
}

impl Rtu {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            private_data: fields.bytes(8),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put(8, &self.private_data);
    }
}

/// Request to disconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The connection.
    pub ids: Ids,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The user's.
    pub private_data: [u8; 220],
}

impl Dreq {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            remote_qpn: Qpn::new(fields.u24(8)),
            private_data: fields.bytes(12),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put_u24_u8(8, self.remote_qpn.get(), 0);
        fields.put(12, &self.private_data);
    }
}

/// Reply to a request to disconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The connection.
    pub ids: Ids,
    /// The user's.
    pub private_data: [u8; 224],
}

impl Drep {
    fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            ids: Ids::parse(fields),
            private_data: fields.bytes(8),
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        self.ids.emit(fields);
        fields.put(8, &self.private_data);
    }
}
