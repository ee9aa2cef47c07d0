//! All operations, of all lengths, exact to the byte.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ringway_link::rdma::{
    Access, AckTimeout, Device, DeviceError, Done, Mismatch, Mtu, PostError, QueuePairOptions,
    Source, Work,
};
use ringway_sys::{Epoll, Interest};

use crate::end::{End, LENGTH, LIMIT, pair, pattern, until};

const IPS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// However much the peer could send before this side looks: a READ is asked for as its socket buffer takes the answers.
#[test]
fn a_long_read_does_not_overflow_the_socket() {
    let options = QueuePairOptions {
        // Nothing is asked for twice, however slow the machine.
        ack_timeout: AckTimeout::new(20).unwrap(),
        ..QueuePairOptions::default()
    };
    let mut ends = pair(Ipv4Addr::LOCALHOST.into(), &options);
    let bytes = pattern(1, LENGTH);
    ends[1].fill(0, &bytes);
    for round in 0..4 {
        let into = ends[0].local(0, LENGTH);
        let remote = ends[1].remote(0);
        ends[0].post(round, Work::Read { into, remote });
    }
    ends[0].poll();
    until(&mut ends, |ends| {
        // Until it has nothing to send any more.
        for _ in 0..100 {
            ends[1].poll();
        }
        ends[0].completions.len() == 4
    });
    assert!(ends[0].bytes(0, LENGTH) == bytes);
    assert_eq!(ends[0].counter("socket_overflow"), 0);
    assert_eq!(ends[0].counter("retransmitted"), 0);
}

#[test]
fn messages_of_all_lengths_arrive_exactly() {
    for ip in IPS {
        for mtu in [Mtu::M256, Mtu::M1024, Mtu::M4096] {
            let options = QueuePairOptions {
                mtu,
                ..QueuePairOptions::default()
            };
            let mut ends = pair(ip, &options);
            let full = mtu.bytes() as usize;
            let lengths = [
                0,
                1,
                2,
                3,
                5,
                63,
                64,
                65,
                full - 1,
                full,
                full + 1,
                3 * full,
                100_001,
            ];
            for (id, length) in lengths.into_iter().enumerate() {
                let (from, to) = (1 + id * 7, 300_001 + id * 5);
                let bytes = pattern(id as u64, length);
                ends[0].fill(from, &bytes);
                let source = Source::Memory(ends[0].local(from, length));

                ends[1].post_receive(77, to, length);
                let immediate = (length % 2 == 1).then_some(id as u32);
                ends[0].post(id as u64, Work::Send { source, immediate });
                expect(&mut ends, 0, id as u64, Done::Send);
                let length = length as u32;
                expect(&mut ends, 1, 77, Done::Receive { length, immediate });
                assert!(ends[1].bytes(to, bytes.len()) == bytes);

                let remote = ends[1].remote(to + 200_000);
                ends[1].post_receive(78, 0, 0);
                let immediate = Some(9);
                ends[0].post(
                    5,
                    Work::Write {
                        source,
                        remote,
                        immediate,
                    },
                );
                expect(&mut ends, 0, 5, Done::Write);
                let immediate = 9;
                expect(&mut ends, 1, 78, Done::ReceiveWrite { length, immediate });
                assert!(ends[1].bytes(to + 200_000, bytes.len()) == bytes);
                assert_eq!(ends[1].bytes(to + 200_000 + bytes.len(), 8), [0; 8]);

                let into = ends[0].local(600_003, bytes.len());
                ends[0].post(6, Work::Read { into, remote });
                expect(&mut ends, 0, 6, Done::Read);
                assert!(ends[0].bytes(600_003, bytes.len()) == bytes);
            }
            for end in &ends {
                for name in ["socket_overflow", "rx_icrc_encapsulated", "packet_seq_err"] {
                    assert_eq!(end.counter(name), 0, "{name}");
                }
            }
        }
    }
}

/// Polls until one side has its next completion, which must be this one.
fn expect(ends: &mut [End; 2], side: usize, id: u64, done: Done) {
    until(ends, |ends| !ends[side].completions.is_empty());
    let completion = ends[side].completions.remove(0);
    assert_eq!((completion.id, completion.result), (id, Ok(done)));
}

#[test]
fn inline_bytes_may_change_once_they_are_posted() {
    let mut ends = pair(IPS[0], &QueuePairOptions::default());
    for id in 0..200 {
        ends[1].post_receive(id, id as usize * 64, 64);
    }
    for id in 0..200_u64 {
        let mut bytes = pattern(id, 64);
        let source = Source::Inline(&bytes);
        let immediate = None;
        ends[0].post(id, Work::Send { source, immediate });
        bytes.fill(0xff);
    }
    until(&mut ends, |ends| ends[1].completions.len() == 200);
    for id in 0..200 {
        assert!(ends[1].bytes(id as usize * 64, 64) == pattern(id, 64));
    }
}

#[test]
fn atomics_add_and_swap() {
    let mut ends = pair(IPS[1], &QueuePairOptions::default());
    let (into, remote) = (ends[0].local(0, 8), ends[1].remote(800));
    ends[1].fill(800, &41_u64.to_ne_bytes());
    let number = |end: &End, at| u64::from_ne_bytes(end.bytes(at, 8).try_into().unwrap());
    let add = 1;
    ends[0].post(1, Work::FetchAdd { into, remote, add });
    expect(&mut ends, 0, 1, Done::FetchAdd);
    assert_eq!((number(&ends[0], 0), number(&ends[1], 800)), (41, 42));
    for (compare, found, left) in [(41, 42, 42), (42, 42, 7)] {
        let swap = 7;
        ends[0].post(
            2,
            Work::CompareSwap {
                into,
                remote,
                compare,
                swap,
            },
        );
        expect(&mut ends, 0, 2, Done::CompareSwap);
        assert_eq!((number(&ends[0], 0), number(&ends[1], 800)), (found, left));
    }
}

#[test]
fn many_queue_pairs_of_two_devices_do_not_mix() {
    let options = QueuePairOptions::default();
    let mut ends = pair(IPS[0], &options);
    let mut others = vec![];
    for _ in 0..7 {
        let created = [0, 1].map(|side: usize| ends[side].device.create(&options).unwrap());
        let addresses = [0, 1].map(|side: usize| ends[side].device.address(created[side]).unwrap());
        for side in 0..2 {
            let peer = &addresses[1 - side];
            ends[side].device.connect(created[side], peer).unwrap();
        }
        others.push(created[0]);
    }
    let first = ends[0].queue_pair;
    for (index, queue_pair) in std::iter::once(first).chain(others.clone()).enumerate() {
        let (at, length) = (index * 60_000, 50_001);
        ends[0].fill(at, &pattern(index as u64, length));
        ends[0].queue_pair = queue_pair;
        let source = Source::Memory(ends[0].local(at, length));
        let remote = ends[1].remote(at);
        ends[0].post(
            index as u64,
            Work::Write {
                source,
                remote,
                immediate: None,
            },
        );
    }
    until(&mut ends, |ends| ends[0].completions.len() == 8);
    for index in 0..8 {
        let expected = pattern(index as u64, 50_001);
        assert!(ends[1].bytes(index * 60_000, 50_001) == expected);
    }
    // One that is gone takes its completions and its address with it; the others go on.
    ends[0].device.destroy(first);
    assert!(matches!(
        ends[0].device.address(first),
        Err(DeviceError::Misuse { .. })
    ));
    ends[0].completions.clear();
    let source = Source::Inline(b"on");
    let remote = ends[1].remote(0);
    let immediate = None;
    let work = Work::Write {
        source,
        remote,
        immediate,
    };
    ends[0].queue_pair = others[0];
    ends[0].post(1, work);
    expect(&mut ends, 0, 1, Done::Write);
}

#[test]
fn a_sleeper_is_woken_by_what_comes_and_by_the_clock() {
    let [mut a, mut b] = pair(IPS[0], &QueuePairOptions::default());
    let set = Epoll::new().unwrap();
    set.add(b.device.fd(), 1, Interest::Read).unwrap();
    let mut ready = vec![];
    b.post_receive(1, 0, 100);
    assert!(b.device.arm());
    set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert!(ready.is_empty());
    b.device.disarm();
    let source = Source::Inline(b"wake up");
    let immediate = None;
    a.post(1, Work::Send { source, immediate });
    assert!(b.device.arm());
    // What was posted goes out before its sender sleeps.
    assert!(a.device.arm());
    set.wait(&mut ready, Some(LIMIT)).unwrap();
    assert_eq!(ready, [1]);
    b.device.disarm();
    b.poll();
    assert_eq!(b.completions.len(), 1);
    // The acknowledgement has not been sent; without it the sender's own clock wakes it.
    let set = Epoll::new().unwrap();
    set.add(a.device.fd(), 2, Interest::Read).unwrap();
    ready.clear();
    set.wait(&mut ready, Some(LIMIT)).unwrap();
    assert_eq!(ready, [2]);
    a.device.disarm();
    a.poll();
    a.device.arm();
    let mut ends = [a, b];
    until(&mut ends, |ends| !ends[0].completions.is_empty());
    assert!(ends[0].counter("local_ack_timeout_err") > 0);
    assert!(ends[1].counter("duplicate_request") > 0);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let options = QueuePairOptions::default();
    let [mut a, b] = pair(IPS[0], &options);
    let twice = a.device.connect(a.queue_pair, &b.address()).unwrap_err();
    assert!(matches!(twice, DeviceError::Misuse { .. }), "{twice}");
    let mut nic = b.address();
    nic.software = None;
    let fresh = a.device.create(&options).unwrap();
    let port = a.device.connect(fresh, &nic).unwrap_err();
    assert!(matches!(port, DeviceError::Mismatch(Mismatch::Port)));
    let deep = QueuePairOptions {
        send_depth: 1 << 20,
        ..options
    };
    let limit = a.device.create(&deep).unwrap_err().to_string();
    assert!(
        limit.contains("send requests: 1048576 asked for"),
        "{limit}"
    );
    let long = [0; 65];
    let work = Work::Send {
        source: Source::Inline(&long),
        immediate: None,
    };
    let request = ringway_link::rdma::SendRequest {
        id: 0,
        work,
        signaled: true,
        solicited: false,
    };
    let inline = a.device.post_send(a.queue_pair, &request).unwrap_err();
    assert!(matches!(
        inline,
        DeviceError::Post {
            error: PostError::Inline {
                length: 65,
                max: 64
            },
            ..
        }
    ));
    let rights = a.device.register(a.memory.memory(), Access::REMOTE_WRITE);
    assert!(rights.is_err());
    a.device.deregister(&a.region).unwrap();
    assert!(a.device.deregister(&a.region).is_err());
}
