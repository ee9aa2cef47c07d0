//! The invariant CRC (annex A17.3.3): a CRC-32 over everything that no router may change.

use crc32fast::Hasher;

use super::{Addresses, Flow, ICRC_LEN, ROCE_PORT};

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// The byte of the base header with FECN, BECN and reserved bits, which switches may set.
const BTH_CONGESTION: usize = 4;

/// The CRC of a packet, to be sent in little-endian order. `transport` is the UDP payload without the CRC itself.
///
/// What may change on the way counts as ones: of IPv4 the type of service, time to live and header checksum; of IPv6
/// the traffic class, flow label and hop limit; the UDP checksum; FECN and BECN. Eight bytes of ones stand for the
/// local route header that InfiniBand has and Ethernet doesn't.
pub fn icrc(flow: &Flow, transport: &[u8]) -> u32 {
    let mut crc = Hasher::new();
    crc.update(&[0xff; 8]);
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
            crc.update(&[
                0x45, 0xff, l0, l1, i0, i1, f0, f1, 0xff, protocol, 0xff, 0xff,
            ]);
            crc.update(&source.octets());
            crc.update(&destination.octets());
        }
        Addresses::V6 {
            source,
            destination,
        } => {
            let [l0, l1] = (udp_length as u16).to_be_bytes();
            crc.update(&[0x6f, 0xff, 0xff, 0xff, l0, l1, PROTOCOL_UDP, 0xff]);
            crc.update(&source.octets());
            crc.update(&destination.octets());
        }
    }
    let [s0, s1] = flow.source_port.to_be_bytes();
    let [d0, d1] = ROCE_PORT.to_be_bytes();
    let [l0, l1] = (udp_length as u16).to_be_bytes();
    crc.update(&[s0, s1, d0, d1, l0, l1, 0xff, 0xff]);

    let before = transport.len().min(BTH_CONGESTION);
    crc.update(&transport[..before]);
    crc.update(&[0xff]);
    crc.update(transport.get(BTH_CONGESTION + 1..).unwrap_or_default());
    crc.finalize()
}
