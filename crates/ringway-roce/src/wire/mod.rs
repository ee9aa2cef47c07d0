//! Packets as bytes and as values.
//!
//! A RoCE v2 packet is the payload of a UDP datagram to port 4791: a base transport header ([`Bth`]), the extended
//! headers of its opcode ([`Operation`]), the payload, padding to a multiple of 4, and the invariant CRC
//! ([`icrc`]). [`Packet::parse`] reads any bytes without a panic, and [`Packet::emit`] writes.

mod bth;
mod extended;
mod flow;
mod icrc;
mod identification;
pub mod opcode;
mod operation;
mod packet;
mod pieces;
#[cfg(test)]
mod tests;

pub use bth::{Bth, DEFAULT_PKEY};
pub use extended::{Aeth, AtomicEth, Deth, Nak, Reth, Syndrome};
pub use flow::{Addresses, Flow, IpPacket, ROCE_PORT};
pub use icrc::icrc;
pub use operation::{Immediate, Operation};
pub(crate) use packet::emit_with;
pub use packet::{ICRC_LEN, MAX_OVERHEAD, Malformed, Packet};
