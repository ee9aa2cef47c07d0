//! Packets that others made, and packets of all kinds there and back.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::{Key, Psn, Qpn};

const PYTHON_SEND: &str = "0400ffff000000118012345672696e67af1cf59e";
/// The byte that the CRC leaves out.
const BTH_CONGESTION: usize = 4;
const PYTHON_ACK: &str = "1100ffff00000011001234561f000007fd823669";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Takes an IP packet apart, checks its CRC and that it is written again byte for byte.
fn there_and_back(ip: &[u8]) -> IpPacket<'_> {
    let outer = IpPacket::parse(ip).unwrap();
    assert!(outer.flow.verify_icrc(outer.datagram));
    without_its_identification(&outer);
    let packet = Packet::parse(outer.datagram).unwrap();
    let mut again = Vec::new();
    packet.emit(&outer.flow, &mut again);
    assert_eq!(again, outer.datagram);
    outer
}

/// A UDP socket has the payload, the addresses and the ports. With that, the packet is intact as it is and not with any
/// byte changed.
fn without_its_identification(outer: &IpPacket<'_>) {
    let Flow { addresses, .. } = outer.flow;
    let (source, destination) = match addresses {
        Addresses::V4 {
            source,
            destination,
            ..
        } => (source.into(), destination.into()),
        Addresses::V6 {
            source,
            destination,
        } => (source.into(), destination.into()),
    };
    let seen = Flow::new(source, destination, outer.flow.source_port).unwrap();
    assert!(seen.verify_icrc_identified(outer.datagram));
    for at in (0..outer.datagram.len()).filter(|at| *at != BTH_CONGESTION) {
        let mut corrupt = outer.datagram.to_vec();
        corrupt[at] ^= 0x10;
        assert!(!seen.verify_icrc_identified(&corrupt), "byte {at}");
    }
}

/// Captured on a ConnectX-4 Lx; the packet is in Scapy's tests of RoCE.
#[test]
fn a_congestion_notification_of_hardware() {
    let ip = bytes(
        "45c2 003c 718c 4000 4011 9161 0a00 1101 0a00 1201 0000 12b7 0028 0000
         8100 ffff 4000 0118 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 82fd 002a",
    );
    let outer = there_and_back(&ip);
    assert_eq!(outer.traffic_class >> 2, 48);
    assert!(!outer.congestion_experienced());
    let packet = Packet::parse(outer.datagram).unwrap();
    assert_eq!(packet.operation, Operation::Cnp);
    assert!(packet.bth.becn && !packet.bth.fecn);
    assert_eq!(packet.bth.destination, Qpn::new(0x118));
}

/// The UC packet of Scapy's tests of RoCE: a CRC and a UDP checksum with an identification that isn't 0 and padding.
/// The unreliable connection isn't ours, so that only the checksums are looked at.
#[test]
fn the_checksums_of_a_padded_packet() {
    let ip = bytes(
        "4501 0040 0478 4000 4011 b4d5 c0a8 0007 c0a8 0007 c000 12b7 002c aca2
         2460 ffff 0000 00d3 00cf 1710 4630 818b e289 35d9 0e9a 9550 5401 be88 5e50 0000 78f3 53f3",
    );
    let outer = IpPacket::parse(&ip).unwrap();
    assert!(outer.flow.verify_icrc(outer.datagram));
    without_its_identification(&outer);
    assert_eq!(outer.flow.udp_checksum(outer.datagram), 0xaca2);
    assert_eq!(
        Packet::parse(outer.datagram),
        Err(Malformed::UnknownOpcode(0x24))
    );
}

/// Captured from Linux's rxe (kernel 6.1) while it did all operations with this crate: of each kind one.
#[test]
fn packets_of_rxe() {
    let ack = |msn| Aeth {
        syndrome: Syndrome::Ack {
            credits: Syndrome::NO_CREDITS,
        },
        msn: Psn::new(msn),
    };
    let operands = AtomicEth {
        address: 0x7f00_0000_0100,
        key: Key(1),
        swap_or_add: 0,
        compare: 0,
    };
    let cases = [
        (
            "4500003c b5d04000 40116ede 0a000102 0a000101 fc2812b7 00280000
            0400ffff 000abcde 80fffff0 00007f3b 9a3df000 00000203 00000000 8b9390cf",
            Operation::SendOnly,
        ),
        (
            "45000030 b5d24000 40116ee8 0a000102 0a000101 fc2812b7 001c0000
            1100ffff 000abcde 00d7498d 1f000001 0bbaa908",
            Operation::Acknowledge(ack(1)),
        ),
        (
            "45000048 b5d34000 40116ecf 0a000102 0a000101 fc2812b7 00340000
            1400ffff 000abcde 80fffff1 00007f00 00000100 00000001 00000000 00000005 00000000 00000000 073b9b35",
            Operation::FetchAdd(AtomicEth { swap_or_add: 5, ..operands }),
        ),
        (
            "45000048 b5d44000 40116ece 0a000102 0a000101 fc2812b7 00340000
            1300ffff 000abcde 80fffff2 00007f00 00000100 00000001 00000000 00000007 00000000 0000002e 2094e7f0",
            Operation::CompareSwap(AtomicEth { swap_or_add: 7, compare: 46, ..operands }),
        ),
        (
            "4500003c b5f04000 40116ebe 0a000102 0a000101 fc2812b7 00280000
            0c00ffff 000abcde 8000000e 00007f00 00010000 00000001 0001869f 66f83029",
            Operation::ReadRequest(Reth { address: 0x7f00_0001_0000, key: Key(1), length: 99_999 }),
        ),
        (
            "45000038 b5f24000 40116ec0 0a000102 0a000101 fc2812b7 00240000
            1200ffff 000abcde 00d7498e 1f000002 00000000 00000029 38ad76ef",
            Operation::AtomicAcknowledge(ack(2), 41),
        ),
    ];
    for (hex, expected) in cases {
        let ip = bytes(hex);
        let outer = there_and_back(&ip);
        let packet = Packet::parse(outer.datagram).unwrap();
        assert_eq!(packet.operation, expected);
        assert_eq!(packet.bth.destination, Qpn::new(0xabcde));
    }
}

/// Made by Scapy 2.8, with values in all fields that routers change.
#[test]
fn the_checksums_of_an_ipv6_packet() {
    let ip = bytes(
        "66a1 2345 0020 113d fd00 0000 0000 0000 0000 0000 0000 0001 fd00 0000 0000 0000 0000 0000 0000 0002
         c000 12b7 0020 804d 0420 ffff 0000 0002 0000 0003 7061 6464 6564 0000 f82b 7c29",
    );
    let outer = there_and_back(&ip);
    assert_eq!(outer.traffic_class, 0x6a);
    assert_eq!(outer.flow.udp_checksum(outer.datagram), 0x804d);
    let packet = Packet::parse(outer.datagram).unwrap();
    assert_eq!(
        (packet.operation, packet.payload),
        (Operation::SendOnly, &b"padded"[..])
    );
}

/// A checksum of 0 would mean that there is none.
#[test]
fn a_udp_checksum_is_never_0() {
    let flow = Flow::new(
        Ipv4Addr::LOCALHOST.into(),
        Ipv4Addr::LOCALHOST.into(),
        ROCE_PORT,
    )
    .unwrap();
    let rest = flow.udp_checksum(&[0; 4]).to_be_bytes();
    assert_eq!(flow.udp_checksum(&[0, 0, rest[0], rest[1]]), 0xffff);
}

/// As rdma-lab's Python peer computes them, which has exchanged messages with Linux's rxe: a SEND, and an ACK.
#[test]
fn packets_of_a_peer_that_talked_with_rxe() {
    let flow = Flow::new(
        Ipv4Addr::new(10, 0, 1, 1).into(),
        Ipv4Addr::new(10, 0, 1, 2).into(),
        ROCE_PORT,
    )
    .unwrap();
    let mut bth = Bth::new(Qpn::new(0x11), Psn::new(0x12_3456));
    bth.ack_request = true;
    let send = Packet {
        bth,
        operation: Operation::SendOnly,
        payload: b"ring",
    };
    let mut out = Vec::new();
    send.emit(&flow, &mut out);
    assert_eq!(out, bytes(PYTHON_SEND));

    bth.ack_request = false;
    let ack = Packet {
        bth,
        operation: Operation::Acknowledge(Aeth {
            syndrome: Syndrome::Ack {
                credits: Syndrome::NO_CREDITS,
            },
            msn: Psn::new(7),
        }),
        payload: &[],
    };
    ack.emit(&flow, &mut out);
    assert_eq!(out, bytes(PYTHON_ACK));
}

#[test]
fn ipv6_changes_nothing_that_routers_change() {
    let source = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    let destination = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    let flow = Flow::new(source.into(), destination.into(), 49152).unwrap();
    let packet = Packet {
        bth: Bth::new(Qpn::new(2), Psn::new(3)),
        operation: Operation::SendOnly,
        payload: b"padded",
    };
    let mut datagram = Vec::new();
    packet.emit(&flow, &mut datagram);
    for (traffic_class, label, hops) in
        [(0u8, 0u32, 64u8), (0x6a, 0xfffff, 1), (0x6b, 0x12345, 255)]
    {
        let first = 6 << 28 | u32::from(traffic_class) << 20 | label;
        let length = (8 + datagram.len()) as u16;
        let mut ip = first.to_be_bytes().to_vec();
        ip.extend(length.to_be_bytes());
        ip.extend([17, hops]);
        ip.extend(source.octets());
        ip.extend(destination.octets());
        ip.extend(49152u16.to_be_bytes());
        ip.extend(ROCE_PORT.to_be_bytes());
        ip.extend(length.to_be_bytes());
        ip.extend(flow.udp_checksum(&datagram).to_be_bytes());
        ip.extend(&datagram);
        let outer = there_and_back(&ip);
        assert_eq!(outer.traffic_class, traffic_class);
        assert_eq!(outer.congestion_experienced(), traffic_class == 0x6b);
        assert_eq!(outer.flow, flow);
    }
    // FECN and BECN are the switches' too; a payload byte is not.
    datagram[4] |= 0x80;
    assert!(flow.verify_icrc(&datagram));
    datagram[12] ^= 1;
    assert!(!flow.verify_icrc(&datagram));
}

#[test]
fn what_is_no_packet_says_why() {
    assert_eq!(Packet::parse(&[]), Err(Malformed::Truncated));
    let flow = Flow::new(
        Ipv4Addr::LOCALHOST.into(),
        Ipv4Addr::LOCALHOST.into(),
        ROCE_PORT,
    )
    .unwrap();
    let mut out = Vec::new();
    Packet {
        bth: Bth::new(Qpn::new(2), Psn::new(3)),
        operation: Operation::SendOnly,
        payload: &[],
    }
    .emit(&flow, &mut out);
    assert!(Packet::parse(&out).is_ok());
    let mut version = out.clone();
    version[1] |= 1;
    assert_eq!(Packet::parse(&version), Err(Malformed::UnknownVersion(1)));
    let mut pad = out.clone();
    pad[1] |= 0x10;
    assert_eq!(Packet::parse(&pad), Err(Malformed::Truncated));
    let mut opcode = out;
    opcode[0] = 0x1f;
    assert_eq!(Packet::parse(&opcode), Err(Malformed::UnknownOpcode(0x1f)));
    assert_eq!(IpPacket::parse(&[0x50]), Err(Malformed::NotRoce));
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(address, key, length)| Reth {
        address,
        key: Key(key),
        length,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>().prop_map(|(syndrome, msn)| {
        let [_, m0, m1, m2] = msn.to_be_bytes();
        Aeth::parse(&[syndrome, m0, m1, m2])
    })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(address, key, swap_or_add, compare)| AtomicEth {
        address,
        key: Key(key),
        swap_or_add,
        compare,
    })
}

fn deth() -> impl Strategy<Value = Deth> {
    any::<(u32, u32)>().prop_map(|(qkey, source)| Deth {
        qkey,
        source: Qpn::new(source),
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let plain = prop::sample::select(vec![
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::SendOnly,
        Operation::WriteMiddle,
        Operation::WriteLast,
        Operation::ReadResponseMiddle,
        Operation::Cnp,
    ]);
    prop_oneof![
        plain,
        any::<u32>().prop_map(Operation::SendLastImmediate),
        any::<u32>().prop_map(Operation::SendOnlyImmediate),
        any::<u32>().prop_map(Operation::WriteLastImmediate),
        reth().prop_map(Operation::WriteFirst),
        reth().prop_map(Operation::WriteOnly),
        reth().prop_map(Operation::ReadRequest),
        (reth(), any::<u32>()).prop_map(|(reth, data)| Operation::WriteOnlyImmediate(reth, data)),
        aeth().prop_map(Operation::ReadResponseFirst),
        aeth().prop_map(Operation::ReadResponseLast),
        aeth().prop_map(Operation::ReadResponseOnly),
        aeth().prop_map(Operation::Acknowledge),
        aeth().prop_map(Operation::SelectiveAcknowledge),
        (aeth(), any::<u64>())
            .prop_map(|(aeth, before)| Operation::AtomicAcknowledge(aeth, before)),
        atomic().prop_map(Operation::CompareSwap),
        atomic().prop_map(Operation::FetchAdd),
        deth().prop_map(Operation::UdSendOnly),
        (deth(), any::<u32>()).prop_map(|(deth, data)| Operation::UdSendOnlyImmediate(deth, data)),
    ]
}

fn bth() -> impl Strategy<Value = Bth> {
    any::<([bool; 5], u16, u32, u32)>().prop_map(|(flags, pkey, destination, psn)| Bth {
        solicited: flags[0],
        migrated: flags[1],
        pkey,
        fecn: flags[2],
        becn: flags[3],
        destination: Qpn::new(destination),
        ack_request: flags[4],
        psn: Psn::new(psn),
    })
}

proptest! {
    #[test]
    fn every_packet_comes_back(
        bth in bth(),
        operation in operation(),
        payload in prop::collection::vec(any::<u8>(), 0..70),
        addresses in any::<(u32, u32, u16)>(),
    ) {
        let (source, destination, port) = addresses;
        let flow = Flow::new(Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into(), port).unwrap();
        let packet = Packet { bth, operation, payload: &payload };
        let mut out = Vec::new();
        packet.emit(&flow, &mut out);
        prop_assert_eq!(out.len() % 4, 0);
        prop_assert!(out.len() <= payload.len() + MAX_OVERHEAD);
        prop_assert_eq!(Packet::parse(&out), Ok(packet));
        prop_assert!(flow.verify_icrc(&out));
    }

    #[test]
    fn any_identification_is_read_from_the_crc(
        counted: u16,
        payload in prop::collection::vec(any::<u8>(), 0..4200),
    ) {
        let seen = Flow::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into(), 5).unwrap();
        let mut sent = seen;
        if let Addresses::V4 { identification, .. } = &mut sent.addresses {
            *identification = counted;
        }
        let packet = Packet {
            bth: Bth::new(Qpn::new(2), Psn::new(3)),
            operation: Operation::SendOnly,
            payload: &payload,
        };
        let mut out = Vec::new();
        packet.emit(&sent, &mut out);
        prop_assert!(seen.verify_icrc_identified(&out));
        prop_assert_eq!(seen.verify_icrc(&out), counted == 0);
        let (covered, crc) = out.split_last_chunk::<ICRC_LEN>().unwrap();
        let difference = icrc(&seen, covered) ^ u32::from_le_bytes(*crc);
        let following = (22 + out.len()) as u16;
        prop_assert_eq!(identification::identification(difference, following), Some(counted));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), opcode in 0u8..0xc2) {
        let _ = IpPacket::parse(&bytes);
        let mut bytes = bytes;
        if let [first, second, ..] = bytes.as_mut_slice() {
            *first = opcode;
            *second &= 0xf0;
        }
        let _ = Packet::parse(&bytes);
        let flow = Flow::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into(), 1).unwrap();
        flow.verify_icrc(&bytes);
        flow.verify_icrc_identified(&bytes);
        for (version, length) in [(0x45, 28), (0x60, 48)] {
            let mut ip = vec![0; length];
            ip[0] = version;
            ip[if version == 0x45 { 9 } else { 6 }] = 17;
            ip[length - 6..length - 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
            ip.extend(&bytes);
            let _ = IpPacket::parse(&ip);
        }
    }
}
