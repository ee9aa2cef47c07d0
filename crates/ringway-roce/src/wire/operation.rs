//! What a packet asks or answers: its opcode together with the extended headers that this opcode has.

use super::{Aeth, AtomicEth, Bth, Deth, Malformed, Reth, opcode, pieces::Pieces};

/// Immediate data: four bytes that go to the receiver's completion. They are the sender's bytes in network order.
pub type Immediate = u32;

/// The operation of a packet. A variant carries the extended headers that the opcode has, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND, the first packet of several.
    SendFirst,
    /// SEND, neither first nor last.
    SendMiddle,
    /// SEND, the last packet of several.
    SendLast,
    /// The same with immediate data.
    SendLastImmediate(Immediate),
    /// SEND in one packet.
    SendOnly,
    /// The same with immediate data.
    SendOnlyImmediate(Immediate),
    /// RDMA WRITE, the first packet of several.
    WriteFirst(Reth),
    /// RDMA WRITE, neither first nor last.
    WriteMiddle,
    /// RDMA WRITE, the last packet of several.
    WriteLast,
    /// The same with immediate data.
    WriteLastImmediate(Immediate),
    /// RDMA WRITE in one packet.
    WriteOnly(Reth),
    /// The same with immediate data.
    WriteOnlyImmediate(Reth, Immediate),
    /// RDMA READ request.
    ReadRequest(Reth),
    /// RDMA READ response, the first packet of several.
    ReadResponseFirst(Aeth),
    /// RDMA READ response, neither first nor last.
    ReadResponseMiddle,
    /// RDMA READ response, the last packet of several.
    ReadResponseLast(Aeth),
    /// RDMA READ response in one packet.
    ReadResponseOnly(Aeth),
    /// Acknowledgement, positive or negative.
    Acknowledge(Aeth),
    /// Acknowledgement of an atomic operation, with the value before it.
    AtomicAcknowledge(Aeth, u64),
    /// Which packets after its PSN have arrived, as the payload says: only between two of Ringway's endpoints that have agreed
    /// on it, see [`crate::rc`].
    SelectiveAcknowledge(Aeth),
    /// Atomic compare and swap.
    CompareSwap(AtomicEth),
    /// Atomic fetch and add.
    FetchAdd(AtomicEth),
    /// Unreliable datagram.
    UdSendOnly(Deth),
    /// The same with immediate data.
    UdSendOnlyImmediate(Deth, Immediate),
    /// Congestion notification.
    Cnp,
}

/// The most bytes that the extended headers of a packet have.
pub(super) const MAX_EXTENDED: usize = AtomicEth::LEN;

/// The reserved bytes of a congestion notification packet.
const CNP_RESERVED: usize = 16;

impl Operation {
    /// The opcode.
    pub const fn opcode(&self) -> u8 {
        match self {
            Self::SendFirst => opcode::SEND_FIRST,
            Self::SendMiddle => opcode::SEND_MIDDLE,
            Self::SendLast => opcode::SEND_LAST,
            Self::SendLastImmediate(_) => opcode::SEND_LAST_IMMEDIATE,
            Self::SendOnly => opcode::SEND_ONLY,
            Self::SendOnlyImmediate(_) => opcode::SEND_ONLY_IMMEDIATE,
            Self::WriteFirst(_) => opcode::WRITE_FIRST,
            Self::WriteMiddle => opcode::WRITE_MIDDLE,
            Self::WriteLast => opcode::WRITE_LAST,
            Self::WriteLastImmediate(_) => opcode::WRITE_LAST_IMMEDIATE,
            Self::WriteOnly(_) => opcode::WRITE_ONLY,
            Self::WriteOnlyImmediate(..) => opcode::WRITE_ONLY_IMMEDIATE,
            Self::ReadRequest(_) => opcode::READ_REQUEST,
            Self::ReadResponseFirst(_) => opcode::READ_RESPONSE_FIRST,
            Self::ReadResponseMiddle => opcode::READ_RESPONSE_MIDDLE,
            Self::ReadResponseLast(_) => opcode::READ_RESPONSE_LAST,
            Self::ReadResponseOnly(_) => opcode::READ_RESPONSE_ONLY,
            Self::Acknowledge(_) => opcode::ACKNOWLEDGE,
            Self::AtomicAcknowledge(..) => opcode::ATOMIC_ACKNOWLEDGE,
            Self::SelectiveAcknowledge(_) => opcode::SELECTIVE_ACKNOWLEDGE,
            Self::CompareSwap(_) => opcode::COMPARE_SWAP,
            Self::FetchAdd(_) => opcode::FETCH_ADD,
            Self::UdSendOnly(_) => opcode::UD_SEND_ONLY,
            Self::UdSendOnlyImmediate(..) => opcode::UD_SEND_ONLY_IMMEDIATE,
            Self::Cnp => opcode::CNP,
        }
    }

    /// Reads the extended headers of `opcode` from the front of `bytes`, and returns what follows them.
    pub(super) fn parse(opcode: u8, bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut rest = Rest(bytes);
        let operation = match opcode {
            opcode::SEND_FIRST => Self::SendFirst,
            opcode::SEND_MIDDLE => Self::SendMiddle,
            opcode::SEND_LAST => Self::SendLast,
            opcode::SEND_LAST_IMMEDIATE => Self::SendLastImmediate(rest.immediate()?),
            opcode::SEND_ONLY => Self::SendOnly,
            opcode::SEND_ONLY_IMMEDIATE => Self::SendOnlyImmediate(rest.immediate()?),
            opcode::WRITE_FIRST => Self::WriteFirst(rest.reth()?),
            opcode::WRITE_MIDDLE => Self::WriteMiddle,
            opcode::WRITE_LAST => Self::WriteLast,
            opcode::WRITE_LAST_IMMEDIATE => Self::WriteLastImmediate(rest.immediate()?),
            opcode::WRITE_ONLY => Self::WriteOnly(rest.reth()?),
            opcode::WRITE_ONLY_IMMEDIATE => {
                Self::WriteOnlyImmediate(rest.reth()?, rest.immediate()?)
            }
            opcode::READ_REQUEST => Self::ReadRequest(rest.reth()?),
            opcode::READ_RESPONSE_FIRST => Self::ReadResponseFirst(rest.aeth()?),
            opcode::READ_RESPONSE_MIDDLE => Self::ReadResponseMiddle,
            opcode::READ_RESPONSE_LAST => Self::ReadResponseLast(rest.aeth()?),
            opcode::READ_RESPONSE_ONLY => Self::ReadResponseOnly(rest.aeth()?),
            opcode::ACKNOWLEDGE => Self::Acknowledge(rest.aeth()?),
            opcode::ATOMIC_ACKNOWLEDGE => {
                Self::AtomicAcknowledge(rest.aeth()?, u64::from_be_bytes(*rest.take()?))
            }
            opcode::SELECTIVE_ACKNOWLEDGE => Self::SelectiveAcknowledge(rest.aeth()?),
            opcode::COMPARE_SWAP => Self::CompareSwap(AtomicEth::parse(rest.take()?)),
            opcode::FETCH_ADD => Self::FetchAdd(AtomicEth::parse(rest.take()?)),
            opcode::UD_SEND_ONLY => Self::UdSendOnly(Deth::parse(rest.take()?)),
            opcode::UD_SEND_ONLY_IMMEDIATE => {
                Self::UdSendOnlyImmediate(Deth::parse(rest.take()?), rest.immediate()?)
            }
            opcode::CNP => {
                rest.take::<CNP_RESERVED>()?;
                Self::Cnp
            }
            _ => return Err(Malformed::UnknownOpcode(opcode)),
        };
        Ok((operation, rest.0))
    }

    /// Appends the extended headers.
    pub(super) fn emit(&self, out: &mut Pieces<{ Bth::LEN + MAX_EXTENDED }>) {
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle => {}
            Self::SendLastImmediate(immediate)
            | Self::SendOnlyImmediate(immediate)
            | Self::WriteLastImmediate(immediate) => out.push(&immediate.to_be_bytes()),
            Self::WriteFirst(reth) | Self::WriteOnly(reth) | Self::ReadRequest(reth) => {
                out.push(&reth.emit());
            }
            Self::WriteOnlyImmediate(reth, immediate) => {
                out.push(&reth.emit());
                out.push(&immediate.to_be_bytes());
            }
            Self::ReadResponseFirst(aeth)
            | Self::ReadResponseLast(aeth)
            | Self::ReadResponseOnly(aeth)
            | Self::Acknowledge(aeth)
            | Self::SelectiveAcknowledge(aeth) => out.push(&aeth.emit()),
            Self::AtomicAcknowledge(aeth, before) => {
                out.push(&aeth.emit());
                out.push(&before.to_be_bytes());
            }
            Self::CompareSwap(atomic) | Self::FetchAdd(atomic) => out.push(&atomic.emit()),
            Self::UdSendOnly(deth) => out.push(&deth.emit()),
            Self::UdSendOnlyImmediate(deth, immediate) => {
                out.push(&deth.emit());
                out.push(&immediate.to_be_bytes());
            }
            Self::Cnp => out.push(&[0; CNP_RESERVED]),
        }
    }
}

/// The bytes that have not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn reth(&mut self) -> Result<Reth, Malformed> {
        self.take().map(Reth::parse)
    }

    fn aeth(&mut self) -> Result<Aeth, Malformed> {
        self.take().map(Aeth::parse)
    }

    fn immediate(&mut self) -> Result<Immediate, Malformed> {
        self.take().copied().map(Immediate::from_be_bytes)
    }
}
