//! Endpoints with some queue pairs each, and a wire between.

use std::{
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    time::Duration,
};

use super::*;
use crate::{
    Access, Key, Psn,
    rc::{Local, Mtu, Source, Status, Work},
    timer::{AckTimeout, RnrTimer},
    wire::{Addresses, MAX_OVERHEAD},
};

const KEY: Key = Key(0x5eed_5eed);
const MTU: Mtu = Mtu::M256;

fn place(index: u8) -> SocketAddr {
    let ip: IpAddr = Ipv4Addr::new(10, 0, 0, index + 1).into();
    SocketAddr::new(ip, 40_000 + u16::from(index))
}

fn number(index: u8, of: u32) -> Qpn {
    Qpn::new(0x1000 * (u32::from(index) + 1) + of)
}

/// Two endpoints with so many queue pairs each, pairwise connected, each with 64 KiB of memory at address 0.
fn pair(count: u32) -> [Endpoint<Vec<u8>>; 2] {
    pair_of(count, false)
}

/// The same, with selective retransmission or without.
fn pair_of(count: u32, selective: bool) -> [Endpoint<Vec<u8>>; 2] {
    [0, 1].map(|index: u8| {
        let mut endpoint = Endpoint::new();
        endpoint
            .domain_mut()
            .register(KEY, vec![index; 64 << 10], 0, Access::ALL)
            .unwrap();
        for of in 0..count {
            let handle = endpoint
                .create(Attributes {
                    number: number(index, of),
                    access: Access::ALL,
                    send_queue: 64,
                    inline: 16,
                    receive_queue: 64,
                    congestion: None,
                })
                .unwrap();
            assert_eq!(handle, Handle(of));
            connect(&mut endpoint, index, of, selective);
        }
        endpoint
    })
}

fn connect(endpoint: &mut Endpoint<Vec<u8>>, index: u8, of: u32, selective: bool) {
    let (own, peer) = (place(index), place(1 - index));
    let receive = ReceiveAttributes {
        peer: number(1 - index, of),
        flow: Flow::between(own, peer).unwrap(),
        mtu: MTU,
        first_psn: Psn::new(7),
        responder_resources: 4,
        rnr_timer: RnrTimer::USUAL,
        selective,
    };
    let send = SendAttributes {
        first_psn: Psn::new(7),
        timeout: AckTimeout::new(10).unwrap(),
        retries: 2,
        backs_off: false,
        rnr_retries: 6,
        initiator_depth: 4,
        window: NonZeroU32::new(1000).unwrap(),
        read_window: NonZeroU32::new(1000).unwrap(),
    };
    endpoint
        .connect(Handle(of), peer, receive, send)
        .unwrap()
        .unwrap();
}

fn write(endpoint: &mut Endpoint<Vec<u8>>, of: u32, length: u32) {
    let local = Local {
        key: KEY,
        address: 0,
        length,
    };
    let request = SendRequest {
        id: u64::from(of),
        work: Work::Write {
            source: Source::Memory(local),
            remote: crate::rc::Remote {
                key: KEY,
                address: u64::from(of) * 1024,
            },
            immediate: None,
        },
        signaled: true,
        solicited: false,
    };
    endpoint.post_send(Handle(of), &request).unwrap().unwrap();
}

fn transmit(now: Instant, endpoint: &mut Endpoint<Vec<u8>>) -> Option<(Departure, Vec<u8>)> {
    let mut out = vec![0; MTU.bytes() as usize + MAX_OVERHEAD];
    let departure = endpoint.poll_transmit(now, &mut out)?;
    out.truncate(departure.length);
    Some((departure, out))
}

fn take(now: Instant, endpoint: &mut Endpoint<Vec<u8>>, index: u8, bytes: &[u8]) {
    let datagram = Datagram {
        from: place(1 - index),
        to: place(index),
        congestion_experienced: false,
        bytes,
    };
    endpoint.handle_datagram(now, &datagram);
}

fn exchange(now: Instant, [a, b]: &mut [Endpoint<Vec<u8>>; 2]) {
    loop {
        let (from_a, from_b) = (transmit(now, a), transmit(now, b));
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        if let Some((departure, bytes)) = from_a {
            assert_eq!(departure.to, place(1));
            take(now, b, 1, &bytes);
        }
        if let Some((_, bytes)) = from_b {
            take(now, a, 0, &bytes);
        }
    }
}

#[test]
fn packets_find_their_queue_pairs() {
    let now = Instant::now();
    let mut ends = pair(5);
    for of in 0..5 {
        write(&mut ends[0], of, 1000);
    }
    exchange(now, &mut ends);
    let ended: Vec<_> = std::iter::from_fn(|| ends[0].poll_completion()).collect();
    assert_eq!(ended.len(), 5);
    for (handle, completion) in ended {
        assert_eq!(completion.status, Status::Success);
        assert_eq!(u64::from(handle.0), completion.id);
    }
    let memory = ends[1].domain().region(KEY).unwrap();
    for of in 0..5 {
        assert!(memory[of * 1024..][..1000].iter().all(|byte| *byte == 0));
        assert!(
            memory[of * 1024 + 1000..][..24]
                .iter()
                .all(|byte| *byte == 1)
        );
    }
    assert_eq!(*ends[1].refused(), Refused::default());
}

#[test]
fn a_long_message_leaves_turns_to_the_others() {
    let now = Instant::now();
    let [mut a, _] = pair(3);
    write(&mut a, 0, 60_000);
    write(&mut a, 1, 60_000);
    write(&mut a, 2, 10);
    let mut order = vec![];
    while let Some((departure, _)) = transmit(now, &mut a) {
        order.push(departure.handle.0);
    }
    // A full packet is 256 bytes, base header and CRC.
    let turn = TURN.div_ceil(256 + 16 + PACKET);
    assert_eq!(order[..turn], vec![0; turn]);
    assert_eq!(order[turn..2 * turn], vec![1; turn]);
    assert_eq!(order[2 * turn..2 * turn + 2], [2, 0]);
    let count = |of| order.iter().filter(|other| **other == of).count();
    assert_eq!([count(0), count(1), count(2)], [235, 235, 1]);
}

/// As of Linux's rxe and of NICs; others send 0, and the whole CRC counts.
#[test]
fn counted_identifications_are_taken_at_port_4791_only() {
    let now = Instant::now();
    let [mut a, mut b] = pair(1);
    write(&mut a, 0, 100);
    let (_, packet) = transmit(now, &mut a).unwrap();
    for (port, refused) in [(ROCE_PORT, 0), (40_000, 1)] {
        let to = SocketAddr::new(place(1).ip(), port);
        let mut flow = Flow::between(place(0), to).unwrap();
        if let Addresses::V4 { identification, .. } = &mut flow.addresses {
            *identification = 0xb5d0;
        }
        let mut bytes = packet.clone();
        let covered = bytes.len() - 4;
        let crc = crate::wire::icrc(&flow, &bytes[..covered]);
        bytes[covered..].copy_from_slice(&crc.to_le_bytes());
        let datagram = Datagram {
            from: place(0),
            to,
            congestion_experienced: false,
            bytes: &bytes,
        };
        b.handle_datagram(now, &datagram);
        assert_eq!(b.refused().bad_icrc, refused);
    }
    assert_eq!(b.domain().region(KEY).unwrap()[..100], [0; 100]);
}

#[test]
fn what_is_refused_is_counted_by_kind_and_harmless() {
    let now = Instant::now();
    let [mut a, mut b] = pair(1);
    write(&mut a, 0, 100);
    let (_, good) = transmit(now, &mut a).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    // A packet with the CRC that it should have, but other headers.
    let forged = |at: usize, byte: u8| {
        let mut bytes = with(at, byte);
        let covered = bytes.len() - 4;
        let flow = Flow::between(place(0), place(1)).unwrap();
        let crc = crate::wire::icrc(&flow, &bytes[..covered]);
        bytes[covered..].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    take(now, &mut b, 1, &good[..20]);
    take(now, &mut b, 1, &[]);
    take(now, &mut b, 1, &with(0, 0xff));
    take(now, &mut b, 1, &with(1, 0x01));
    take(now, &mut b, 1, &with(40, 0xff));
    take(now, &mut b, 1, &forged(6, 0x77));
    let expected = Refused {
        truncated: 2,
        unknown_opcode: 1,
        unknown_version: 1,
        bad_icrc: 1,
        unknown_queue_pair: 1,
    };
    assert_eq!(*b.refused(), expected);
    // From another port than the one agreed on, with a CRC for it.
    let from = SocketAddr::new(place(0).ip(), 999);
    let mut bytes = good.clone();
    let covered = bytes.len() - 4;
    let crc = crate::wire::icrc(&Flow::between(from, place(1)).unwrap(), &bytes[..covered]);
    bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    let datagram = Datagram {
        from,
        to: place(1),
        congestion_experienced: false,
        bytes: &bytes,
    };
    b.handle_datagram(now, &datagram);
    assert_eq!(b.counters().wrong_source, 1);
    let memory = b.domain().region(KEY).unwrap();
    assert!(memory.iter().all(|byte| *byte == 1));
    take(now, &mut b, 1, &good);
    // A replay is not carried out again.
    b.domain_mut()
        .write(KEY, 0, &[9], Access::LOCAL_WRITE)
        .unwrap();
    take(now, &mut b, 1, &good);
    assert_eq!(b.domain().region(KEY).unwrap()[..2], [9, 0]);
    assert_eq!(b.counters().duplicate_requests, 1);
    // A wrong key ends the queue pair, and changes nothing.
    let (psn, key) = (11, 20);
    let mut bytes = forged(psn, 8);
    bytes[key] ^= 1;
    let crc = crate::wire::icrc(
        &Flow::between(place(0), place(1)).unwrap(),
        &bytes[..covered],
    );
    bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    take(now, &mut b, 1, &bytes);
    assert_eq!(b.counters().access_refused, 1);
    assert_eq!(b.poll_failed(), Some(Handle(0)));
    assert_eq!(b.domain().region(KEY).unwrap()[..2], [9, 0]);
}

#[test]
fn a_peer_that_is_gone_is_noticed_and_the_others_go_on() {
    let mut now = Instant::now();
    let mut ends = pair(2);
    ends[1].destroy(Handle(0)).unwrap();
    write(&mut ends[0], 0, 600);
    write(&mut ends[0], 1, 600);
    let mut ended = vec![];
    for _ in 0..10 {
        exchange(now, &mut ends);
        ended.extend(std::iter::from_fn(|| ends[0].poll_completion()));
        let Some(next) = ends[0].poll_timeout() else {
            break;
        };
        now = now.max(next);
        ends[0].handle_timeout(now);
    }
    let statuses: Vec<_> = ended
        .iter()
        .map(|(handle, completion)| (handle.0, completion.status))
        .collect();
    assert_eq!(
        statuses,
        [(1, Status::Success), (0, Status::RetriesExceeded)]
    );
    assert_eq!(ends[0].poll_failed(), Some(Handle(0)));
    assert_eq!(ends[0].poll_failed(), None);
    assert_eq!(ends[0].counters().timeouts, 3);
    // The first transmission and two more, of three packets each.
    assert_eq!(ends[1].refused().unknown_queue_pair, 9);
    assert_eq!(ends[0].poll_timeout(), None);
    assert!(now.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_is_destroyed_is_forgotten_and_its_number_free() {
    let now = Instant::now();
    let mut ends = pair(2);
    write(&mut ends[0], 0, 10);
    exchange(now, &mut ends);
    write(&mut ends[0], 0, 10);
    ends[0].destroy(Handle(0)).unwrap();
    let gone = NoQueuePair(Handle(0));
    assert_eq!(ends[0].destroy(Handle(0)), Err(gone));
    assert_eq!(ends[0].poll_completion(), None);
    assert!(transmit(now, &mut ends[0]).is_none());
    assert_eq!(ends[0].counters().packets_sent, 1);
    let attributes = Attributes {
        number: number(0, 0),
        access: Access::ALL,
        send_queue: 1,
        inline: 0,
        receive_queue: 1,
        congestion: None,
    };
    assert_eq!(ends[0].create(attributes), Ok(Handle(0)));
    assert_eq!(ends[0].create(attributes), Err(NumberTaken(number(0, 0))));
    let number = Qpn::MANAGEMENT;
    assert_eq!(
        ends[0].create(Attributes {
            number,
            ..attributes
        }),
        Err(NumberTaken(number))
    );
}

#[test]
fn what_comes_early_is_kept_within_the_limit() {
    let now = Instant::now();
    let mut ends = pair_of(2, true);
    let one = 256 * MTU.bytes() as usize;
    ends[1].limit_footprint(2 * one - 1);
    for of in 0..2 {
        write(&mut ends[0], of, 4 * MTU.bytes());
    }
    // The first packet of each is lost.
    while let Some((_, bytes)) = transmit(now, &mut ends[0]) {
        if Packet::parse(&bytes).unwrap().bth.psn != Psn::new(7) {
            take(now, &mut ends[1], 1, &bytes);
        }
    }
    assert_eq!(ends[1].footprint(), one);
    exchange(now, &mut ends);
    let ended: Vec<_> = std::iter::from_fn(|| ends[0].poll_completion()).collect();
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|(_, it)| it.status == Status::Success));
    assert_eq!(ends[1].footprint(), one);
    for of in 0..2 {
        ends[1].destroy(Handle(of)).unwrap();
    }
    assert_eq!(ends[1].footprint(), 0);
}
