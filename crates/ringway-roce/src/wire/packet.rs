//! A whole packet: everything between the UDP header and the invariant CRC.

use std::convert::Infallible;

use thiserror::Error;

use super::{Bth, Flow, Operation, icrc, operation::MAX_EXTENDED, pieces::Pieces};

/// The bytes of the invariant CRC at the end.
pub const ICRC_LEN: usize = 4;

/// The most bytes that a packet has besides its payload, CRC included.
pub const MAX_OVERHEAD: usize = Bth::LEN + MAX_EXTENDED + 3 + ICRC_LEN;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The headers that the opcode asks for, the padding and the CRC don't fit in.
    #[error("the packet ends before its headers do")]
    Truncated,
    /// The opcode is of another transport service, or of no service.
    #[error("opcode {0:#04x} is none of the reliable connection's or the datagram's")]
    UnknownOpcode(u8),
    /// The transport header version isn't 0.
    #[error("transport header version {0} is not 0, the only one there is")]
    UnknownVersion(u8),
    /// The IP or UDP header around the packet is not one that RoCE v2 uses.
    #[error("not an unfragmented IP packet with UDP to port 4791")]
    NotRoce,
}

/// A packet, its payload where the packet was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base header.
    pub bth: Bth,
    /// The operation with its headers.
    pub operation: Operation,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the UDP payload of a packet. The CRC is left out of account: see [`Flow::verify_icrc`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let (bth, rest) = datagram
            .split_first_chunk::<{ Bth::LEN }>()
            .ok_or(Malformed::Truncated)?;
        let [opcode, flags, ..] = *bth;
        if flags & 0x0f != 0 {
            return Err(Malformed::UnknownVersion(flags & 0x0f));
        }
        let (operation, rest) = Operation::parse(opcode, rest)?;
        let trailer = usize::from(flags >> 4 & 3) + ICRC_LEN;
        let payload = rest
            .len()
            .checked_sub(trailer)
            .and_then(|len| rest.get(..len))
            .ok_or(Malformed::Truncated)?;
        Ok(Self {
            bth: Bth::parse(bth),
            operation,
            payload,
        })
    }

    /// Writes the packet with its CRC for `flow` in place of what is in `out`.
    pub fn emit(&self, flow: &Flow, out: &mut Vec<u8>) {
        out.clear();
        out.resize(self.payload.len() + MAX_OVERHEAD, 0);
        let fill = |into: &mut [u8]| {
            into.copy_from_slice(self.payload);
            Ok::<(), Infallible>(())
        };
        let Ok(length) = emit_with(
            &self.bth,
            &self.operation,
            self.payload.len(),
            flow,
            out,
            fill,
        );
        out.truncate(length);
    }
}

/// Writes a packet whose payload `fill` puts straight into its place, so that it is copied only once, to the beginning
/// of `out`. Returns its length, which is at most [`MAX_OVERHEAD`] more than the payload's.
///
/// # Panics
/// If it is longer than `out`.
pub(crate) fn emit_with<E>(
    bth: &Bth,
    operation: &Operation,
    payload: usize,
    flow: &Flow,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let pad = payload.next_multiple_of(4) - payload;
    let mut head = Pieces::new();
    head.push(&bth.emit(operation.opcode(), pad as u8));
    operation.emit(&mut head);
    let head = head.as_slice();
    let end = head.len() + payload + pad;
    let (covered, rest) = out.split_at_mut(end);
    let (into, body) = covered.split_at_mut(head.len());
    into.copy_from_slice(head);
    let (body, padding) = body.split_at_mut(payload);
    fill(body)?;
    padding.fill(0);
    let crc = icrc(flow, covered);
    rest[..ICRC_LEN].copy_from_slice(&crc.to_le_bytes());
    Ok(end + ICRC_LEN)
}
