//! Messages as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::wire::{Flow, Packet, ROCE_PORT};

/// Every field of a REQ at the place that the specification's table 106 gives it, counted in bytes from the header.
#[test]
fn the_fields_of_a_req_are_where_they_belong() {
    let mut req = match initiator(Instant::now()).poll_transmit() {
        Some(Mad {
            message: Message::Req(req),
            ..
        }) => req,
        other => panic!("{other:?}"),
    };
    req.remote_response_timeout = 20;
    req.local_response_timeout = 19;
    req.end_to_end_flow_control = true;
    req.shared_receive_queue = true;
    req.cm_retries = 15;
    req.primary.flow_label = 0xabcde;
    req.primary.packet_rate = 3;
    req.primary.service_level = 5;
    req.primary.subnet_local = true;
    let mad = Mad {
        transaction: 0x0102_0304_0506_0708,
        message: Message::Req(req),
    };
    let bytes = mad.emit();
    let expected: &[(usize, &[u8])] = &[
        // The header: versions, class, method, transaction, attribute.
        (0, &[1, 7, 2, 3, 0, 0, 0, 0]),
        (8, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (16, &[0, 0x10, 0, 0, 0, 0, 0, 0]),
        // Local number, service of port 18515, device, queue pair and resources.
        (24, &[0, 0, 0, 0xa, 0, 0, 0, 0]),
        (24 + 8, &[0, 0, 0, 0, 0x01, 0x06, 0x48, 0x53]),
        (24 + 16, &[0x02, 0, 0, 0xff, 0xfe, 0, 0, 1]),
        (24 + 28, &[0, 0, 0, 0]),
        (24 + 32, &[0, 0, 0x11, 4, 0, 0, 0, 8]),
        // Remote response timeout 20, RC, flow control; PSN; local response timeout 19, retries 6.
        (
            24 + 40,
            &[0, 0, 0, 20 << 3 | 1, 0x12, 0x34, 0x56, 19 << 3 | 6],
        ),
        // Partition; MTU 3, RNR retries 7; CM retries 15, shared receive queue.
        (24 + 48, &[0xff, 0xff, 0x37, 0xf8]),
        // No LIDs; GIDs.
        (24 + 52, &[0xff, 0xff, 0xff, 0xff]),
        (
            24 + 56,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        ),
        (
            24 + 72,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2],
        ),
        // Flow label and rate; traffic class, hop limit, service level, ACK timeout 14.
        (
            24 + 88,
            &[0xab, 0xcd, 0xe0, 3, 106, 64, 5 << 4 | 8, 14 << 3],
        ),
        // rdma_cm's header: version, IPv4, port 4000, addresses; then the user's.
        (24 + 140, &[0, 0x40, 0x0f, 0xa0]),
        (24 + 144, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]),
        (24 + 160, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]),
        (24 + 176, b"hello\0"),
    ];
    for (at, part) in expected {
        assert_eq!(bytes[*at..at + part.len()], **part, "at {at}");
    }
    assert_eq!(Mad::parse(&bytes), Ok(mad));
}

/// The same for a REP, table 110.
#[test]
fn the_fields_of_a_rep_are_where_they_belong() {
    let rep = Rep {
        ids: Ids {
            local: 0xb,
            remote: 0xa,
        },
        qkey: 1,
        qpn: Qpn::new(0x22),
        starting_psn: Psn::new(0x65_4321),
        responder_resources: 5,
        initiator_depth: 4,
        target_ack_delay: 15,
        failover: 2,
        end_to_end_flow_control: true,
        rnr_retries: 6,
        shared_receive_queue: true,
        guid: 0x0200_00ff_fe00_0002,
        private_data: [7; 196],
    };
    let message = Message::Rep(rep);
    let mad = Mad {
        transaction: 1,
        message,
    };
    let bytes = mad.emit();
    let expected: &[(usize, &[u8])] = &[
        (16, &[0, 0x13]),
        (24, &[0, 0, 0, 0xb, 0, 0, 0, 0xa, 0, 0, 0, 1, 0, 0, 0x22, 0]),
        (
            24 + 20,
            &[
                0x65,
                0x43,
                0x21,
                0,
                5,
                4,
                15 << 3 | 2 << 1 | 1,
                6 << 5 | 0x10,
            ],
        ),
        (24 + 28, &[0x02, 0, 0, 0xff, 0xfe, 0, 0, 2, 7]),
    ];
    for (at, part) in expected {
        assert_eq!(bytes[*at..at + part.len()], **part, "at {at}");
    }
    assert_eq!(Mad::parse(&bytes), Ok(mad));
}

/// The shorter messages, tables 107, 108, 111 to 113.
#[test]
fn the_fields_of_the_others_are_where_they_belong() {
    let ids = Ids {
        local: 1,
        remote: 2,
    };
    let rej = Rej {
        ids,
        about: About::Rep,
        reason: Reason::CONSUMER,
        information_length: 8,
        information: [3; 72],
        private_data: [4; 148],
    };
    let mra = Mra {
        ids,
        about: About::Rep,
        service_timeout: 24,
        private_data: [5; 222],
    };
    let dreq = Dreq {
        ids,
        remote_qpn: Qpn::new(0x123),
        private_data: [6; 220],
    };
    let rtu = Rtu {
        ids,
        private_data: [7; 224],
    };
    let drep = Drep {
        ids,
        private_data: [8; 224],
    };
    let cases: [(Message, u8, &[u8]); 5] = [
        (Message::Mra(mra), 0x11, &[1 << 6, 24 << 3, 5, 5]),
        (Message::Rej(rej), 0x12, &[1 << 6, 8 << 1, 0, 28, 3, 3]),
        (Message::Rtu(rtu), 0x14, &[7, 7]),
        (Message::Dreq(dreq), 0x15, &[0, 1, 0x23, 0, 6, 6]),
        (Message::Drep(drep), 0x16, &[8, 8]),
    ];
    for (message, attribute, rest) in cases {
        let mad = Mad {
            transaction: 9,
            message,
        };
        let bytes = mad.emit();
        assert_eq!(bytes[17], attribute);
        assert_eq!(bytes[24..32], [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(bytes[32..32 + rest.len()], *rest);
        assert_eq!(Mad::parse(&bytes), Ok(mad));
    }
}

/// What follows is what Linux's rdma_cm (kernel 6.1) sent while rping talked with this crate, without the zeros at
/// the end.
fn captured(hex: &str) -> Mad {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let mut bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    bytes.resize(Mad::LEN, 0);
    let mad = Mad::parse(&bytes).unwrap();
    assert_eq!(mad.emit()[..], bytes);
    mad
}

#[test]
fn a_req_of_rdma_cm() {
    let mad = captured(
        "01070203 00000000 00000006 4899154d 00100000 00000000 4d159948 00000000 00000000 01061c06
        50540aff fe000102 00000000 00000000 00001301 00000001 000000a0 e88dfaa7 ffff57f0 ffffffff
        00000000 00000000 0000ffff 0a000102 00000000 00000000 0000ffff 0a000101 378ff000 00400098
        00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
        00000000 00409fe7 00000000 00000000 00000000 0a000102 00000000 00000000 00000000 0a000101",
    );
    let Message::Req(req) = mad.message else {
        panic!("no REQ");
    };
    assert_eq!(service_port(req.service_id), Some(7174));
    assert_eq!(req.qpn, Qpn::new(0x13));
    assert_eq!(req.starting_psn, Psn::new(0xe8_8dfa));
    assert_eq!(Mtu::from_code(req.mtu), Some(Mtu::M4096));
    assert_eq!((req.retries, req.rnr_retries, req.cm_retries), (7, 7, 15));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!(
        (req.remote_response_timeout, req.local_response_timeout),
        (20, 20)
    );
    assert_eq!(
        (req.primary.local_lid, req.primary.hop_limit),
        (Path::NO_LID, 64)
    );
    assert_eq!(
        (req.primary.flow_label, req.primary.ack_timeout),
        (0x378ff, 19)
    );
    let (source, destination) = (Ipv4Addr::new(10, 0, 1, 2), Ipv4Addr::new(10, 0, 1, 1));
    assert_eq!(req.primary.local_gid, source.to_ipv6_mapped());
    assert_eq!(req.primary.remote_gid, destination.to_ipv6_mapped());
    let header = IpHeader {
        source: source.into(),
        source_port: 40_935,
        destination: destination.into(),
    };
    let found = req.private_data.first_chunk().and_then(IpHeader::parse);
    assert_eq!(found, Some(header));
}

#[test]
fn a_rep_of_rdma_cm() {
    let mad = captured(
        "01070203 00000000 00000000 12345678 00130000 00000000 4f159948 000a11ce 00000000 00001100
        00000000 a8573300 010178e0 50540aff fe000102",
    );
    assert_eq!(mad.transaction, 0x1234_5678);
    let Message::Rep(rep) = mad.message else {
        panic!("no REP");
    };
    assert_eq!(rep.ids.remote, 0xa11ce);
    assert_eq!(rep.qpn, Qpn::new(0x11));
    assert_eq!(rep.starting_psn, Psn::new(0xa8_5733));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.rnr_retries), (15, 7));
    assert!(!rep.shared_receive_queue && !rep.end_to_end_flow_control);
}

#[test]
fn a_message_travels_in_a_datagram_for_queue_pair_1() {
    let (source, destination): (IpAddr, IpAddr) = (
        Ipv4Addr::new(10, 0, 0, 1).into(),
        Ipv4Addr::new(10, 0, 0, 2).into(),
    );
    let flow = Flow::new(source, destination, ROCE_PORT).unwrap();
    let mad = initiator(Instant::now()).poll_transmit().unwrap();
    let mut out = Vec::new();
    mad.emit_packet(Psn::new(7), &flow, &mut out);
    assert!(flow.verify_icrc(&out));
    let packet = Packet::parse(&out).unwrap();
    assert_eq!(packet.bth.psn, Psn::new(7));
    assert_eq!(Mad::from_packet(&packet), Ok(mad));
    let mut elsewhere = packet;
    elsewhere.bth.destination = Qpn::new(2);
    assert_eq!(Mad::from_packet(&elsewhere), Err(NotCm::Elsewhere));
}

#[test]
fn what_is_no_message_says_why() {
    let bytes = initiator(Instant::now()).poll_transmit().unwrap().emit();
    assert_eq!(Mad::parse(&bytes[1..]), Err(NotCm::Length(255)));
    let mut class = bytes;
    class[1] = 3;
    assert_eq!(
        Mad::parse(&class),
        Err(NotCm::Class {
            class: 3,
            version: 2,
            method: 3
        })
    );
    let mut attribute = bytes;
    attribute[17] = 0x19;
    assert_eq!(Mad::parse(&attribute), Err(NotCm::Attribute(0x19)));
}

#[test]
fn services_are_ports() {
    assert_eq!(service_id(18515), 0x0106_4853);
    assert_eq!(service_port(0x0106_4853), Some(18515));
    assert_eq!(service_port(0x0111_4853), None);
}

#[test]
fn addresses_of_both_families() {
    let source = "fd00::1".parse::<Ipv6Addr>().unwrap();
    let destination = "fd00::2".parse::<Ipv6Addr>().unwrap();
    let header = IpHeader {
        source: source.into(),
        source_port: 5,
        destination: destination.into(),
    };
    let bytes = header.emit();
    assert_eq!(bytes[..4], [0, 0x60, 0, 5]);
    assert_eq!(bytes[4..20], source.octets());
    assert_eq!(IpHeader::parse(&bytes), Some(header));
    let mut version = bytes;
    version[0] = 1;
    assert_eq!(IpHeader::parse(&version), None);
    let mut family = bytes;
    family[1] = 0x50;
    assert_eq!(IpHeader::parse(&family), None);
    let mapped = IpHeader::gid(Ipv4Addr::new(10, 0, 0, 1).into());
    assert_eq!(mapped, "::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap());
}

proptest! {
    /// Reserved bits are not kept, all others are.
    #[test]
    fn every_message_comes_back(attribute in 0x0fu8..0x18, body in prop::collection::vec(any::<u8>(), 232)) {
        let mut bytes = vec![1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, attribute, 0, 0, 0, 0, 0, 0];
        bytes.extend(body);
        match Mad::parse(&bytes) {
            Ok(mad) => {
                let again = mad.emit();
                prop_assert_eq!(Mad::parse(&again), Ok(mad));
                prop_assert!(again.iter().zip(&bytes).all(|(again, first)| again & !first == 0));
            }
            Err(error) => prop_assert_eq!(error, NotCm::Attribute(attribute.into())),
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::parse(&bytes);
    }
}
