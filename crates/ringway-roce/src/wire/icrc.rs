//! The invariant CRC (annex A17.3.3): a CRC-32 over everything that no router may change.

use crc32fast::Hasher;

use super::{Addresses, Flow, ICRC_LEN, pieces::Pieces};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// The byte of the base header with FECN, BECN and reserved bits, which switches may set.
const BTH_CONGESTION: usize = 4;

/// The most bytes that are covered up to there, of headers around the packet and its own.
const COVERED: usize = 8 + IPV6_HEADER + UDP_HEADER + BTH_CONGESTION + 1;

/// The CRC of a packet, to be sent in little-endian order. `transport` is the UDP payload without the CRC itself.
///
/// What may change on the way counts as ones: of IPv4 the type of service, time to live and header checksum; of IPv6
/// the traffic class, flow label and hop limit; the UDP checksum; FECN and BECN. Eight bytes of ones stand for the
/// local route header that InfiniBand has and Ethernet doesn't.
pub fn icrc(flow: &Flow, transport: &[u8]) -> u32 {
    // In one piece: for the CRC, starting costs more than a few bytes.
    let mut covered = Pieces::<COVERED>::new();
    covered.push(&[0xff; 8]);
    let udp_length = UDP_HEADER + transport.len() + ICRC_LEN;
    match flow.addresses {
        Addresses::V4 {
            source,
            destination,
            identification,
            fragment,
        } => {
            let [l0, l1] = ((IPV4_HEADER + udp_length) as u16).to_be_bytes();
            let [i0, i1] = identification.to_be_bytes();
            let [f0, f1] = fragment.to_be_bytes();
            let protocol = PROTOCOL_UDP;
            covered.push(&[
                0x45, 0xff, l0, l1, i0, i1, f0, f1, 0xff, protocol, 0xff, 0xff,
            ]);
            covered.push(&source.octets());
            covered.push(&destination.octets());
        }
        Addresses::V6 {
            source,
            destination,
        } => {
            let [l0, l1] = (udp_length as u16).to_be_bytes();
            covered.push(&[0x6f, 0xff, 0xff, 0xff, l0, l1, PROTOCOL_UDP, 0xff]);
            covered.push(&source.octets());
            covered.push(&destination.octets());
        }
    }
    let [s0, s1] = flow.source_port.to_be_bytes();
    let [d0, d1] = flow.destination_port.to_be_bytes();
    let [l0, l1] = (udp_length as u16).to_be_bytes();
    covered.push(&[s0, s1, d0, d1, l0, l1, 0xff, 0xff]);
    covered.push(&transport[..transport.len().min(BTH_CONGESTION)]);
    covered.push(&[0xff]);

    let mut crc = Hasher::new();
    crc.update(covered.as_slice());
    crc.update(transport.get(BTH_CONGESTION + 1..).unwrap_or_default());
    crc.finalize()
}
