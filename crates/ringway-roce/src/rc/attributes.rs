//! What a queue pair is told about itself, its peer and the path between them.

use std::num::NonZeroU32;

use crate::{
    Access, Psn, Qpn, dcqcn,
    timer::{AckTimeout, RnrTimer},
    wire::Flow,
};

/// The most payload that a packet may have. Both sides must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes, what fits into Ethernet's usual 1500.
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes, which needs jumbo frames.
    M4096,
}

impl Mtu {
    /// All of them, the smallest first.
    pub const ALL: [Self; 5] = [
        Self::M256,
        Self::M512,
        Self::M1024,
        Self::M2048,
        Self::M4096,
    ];

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// The number of this MTU in management messages and in `ibv_mtu`: 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU of a number from 1 to 5.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// How many packets a message of so many bytes takes: at least one.
    pub(super) const fn packets(self, length: u32) -> u32 {
        if length == 0 {
            1
        } else {
            length.div_ceil(self.bytes())
        }
    }
}

/// What a queue pair is from its creation on.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Its number, which the peer addresses.
    pub number: Qpn,
    /// What the peer may do to memory over this queue pair, whatever the regions allow.
    pub access: Access,
    /// How many send requests may wait or be under way.
    pub send_queue: usize,
    /// How many bytes a request may carry inline.
    pub inline: usize,
    /// How many receives may be posted.
    pub receive_queue: usize,
    /// Congestion control; without it, marks are counted and notifications ignored.
    pub congestion: Option<dcqcn::Parameters>,
}

/// What a queue pair needs to receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveAttributes {
    /// The peer's number.
    pub peer: Qpn,
    /// Addresses and ports of the packets to the peer.
    pub flow: Flow,
    /// The path's MTU.
    pub mtu: Mtu,
    /// The PSN that the peer's first packet will have.
    pub first_psn: Psn,
    /// How many READs and atomic operations the peer may have under way.
    pub responder_resources: u8,
    /// How long a peer shall wait if no receive is posted.
    pub rnr_timer: RnrTimer,
    /// Whether both sides have agreed on selective retransmission, which is Ringway's own: a NIC doesn't know it.
    pub selective: bool,
}

/// What a queue pair needs to send.
#[derive(Clone, Copy, Debug)]
pub struct SendAttributes {
    /// The PSN of the first packet, which the peer expects.
    pub first_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to send again without progress after time-outs and sequence errors. The standard's codes end at 7,
    /// which is seven times.
    pub retries: u8,
    /// Whether each time-out without progress is twice as long as the one before: then seven retries wait 255 times the first,
    /// and one lost packet still costs no more than that. For a peer that answers late, as its processor is at other things.
    pub backs_off: bool,
    /// How often to send again without progress after "receiver not ready", 0 to 6; 7 is for ever.
    pub rnr_retries: u8,
    /// How many READs and atomic operations may be under way: at most the peer's `responder_resources`.
    pub initiator_depth: u8,
    /// How many packets may be sent ahead of the acknowledgements, so that they don't overflow the peer's socket
    /// buffer.
    pub window: NonZeroU32,
    /// How many packets of answers may be under way, so that they don't overflow this side's socket buffer: longer READs
    /// are asked for piece by piece.
    pub read_window: NonZeroU32,
}
