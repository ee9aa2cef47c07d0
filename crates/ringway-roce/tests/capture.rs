//! Packets of Linux's rxe and of the endpoint in software, captured in the virtual machine of `cargo xtask test vm`: read and
//! written again, each is the same byte for byte.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ringway_roce::{
    Qpn,
    cm::Mad,
    wire::{Addresses, IpPacket, Packet},
};

/// The headers of a capture, of each frame in it (pcap-savefile(5)), and of Ethernet.
const FILE: usize = 24;
const FRAME: usize = 16;
const ETHERNET: usize = 14;

/// Opcodes that each side has sent, over IPv4 and IPv6: SENDs of one packet, and of several with immediate data; WRITEs of
/// several, without and with; READs and their answers; acknowledgements; atomic operations and theirs; and the datagrams of
/// connection management.
const OPCODES: [u8; 16] = [
    0x00, 0x01, 0x03, 0x04, 0x06, 0x07, 0x09, 0x0c, 0x0d, 0x0e, 0x0f, 0x11, 0x12, 0x13, 0x14, 0x64,
];

/// The IP packets of a capture.
fn packets(capture: &[u8]) -> Vec<&[u8]> {
    assert_eq!(capture[..4], 0xa1b2_c3d4_u32.to_le_bytes(), "microseconds");
    let mut rest = &capture[FILE..];
    let mut packets = vec![];
    while let Some((header, frames)) = rest.split_first_chunk::<FRAME>() {
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let length = number(8) as usize;
        assert_eq!(length, number(12) as usize, "captured as a whole");
        packets.push(&frames[ETHERNET..length]);
        rest = &frames[length..];
    }
    packets
}

#[test]
#[ignore = "needs a capture: cargo xtask test vm"]
fn captured_packets_are_written_the_same() {
    let file = std::env::var("RINGWAY_TEST_CAPTURE").unwrap();
    let capture = std::fs::read(file).unwrap();
    let mut seen: BTreeSet<(IpAddr, u8)> = BTreeSet::new();
    let mut written = vec![];
    for bytes in packets(&capture) {
        let IpPacket { flow, datagram, .. } = IpPacket::parse(bytes).unwrap();
        assert!(flow.verify_icrc(datagram), "CRC of {bytes:02x?}");
        let packet = Packet::parse(datagram).unwrap();
        packet.emit(&flow, &mut written);
        assert!(written == datagram, "{packet:?}: {bytes:02x?}");
        if packet.bth.destination == Qpn::MANAGEMENT {
            let mad = Mad::from_packet(&packet).unwrap();
            assert!(mad.emit() == packet.payload, "{mad:?}: {bytes:02x?}");
        }
        let from = match flow.addresses {
            Addresses::V4 { source, .. } => source.into(),
            Addresses::V6 { source, .. } => source.into(),
        };
        seen.insert((from, datagram[0]));
    }
    for side in [1, 9] {
        let v4 = Ipv4Addr::new(10, 0, 0, side as u8);
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, side);
        for from in [IpAddr::from(v4), v6.into()] {
            for opcode in OPCODES {
                let is_seen = seen.contains(&(from, opcode));
                assert!(is_seen, "{from} {opcode:#04x}: {seen:x?}");
            }
        }
    }
}
