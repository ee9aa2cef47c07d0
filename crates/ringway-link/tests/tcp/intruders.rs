//! A peer that is authenticated and then sends what no rank would.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Identity, LinkError, Listener, MessageKey, Purpose, Sink, Transport,
    tcp::{Frame, HEADER, Tag, TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

use crate::world::{FINGERPRINT, GROUP, Node, key, listeners, small};

/// A rank 0 and, in place of rank 1, a socket.
fn victim(settings: &TcpSettings) -> (Node, TcpStream, Listener) {
    let (mut listeners, mut addresses) = listeners(2);
    let identity = *listeners[0].identity();
    let intruder = Listener::start(&Bind::default(), Identity::new(identity.job, 2, 1)).unwrap();
    addresses[1].nonce = intruder.identity().nonce;
    let deadline = Instant::now() + Duration::from_secs(10);
    let session = intruder
        .connect(addresses[0].clone(), Purpose::Data, 0, deadline)
        .unwrap();
    session.stream.set_nonblocking(false).unwrap();
    let listener = listeners.swap_remove(0);
    let mut node = Node::new(TcpTransport::new(listener, addresses, settings.clone()).unwrap());
    node.begin(0);
    (node, session.stream, intruder)
}

fn welcome() -> Vec<u8> {
    Frame::Welcome {
        eager_limit: 1000,
        window: 4000,
    }
    .encode()
    .to_vec()
}

fn tag(message: u32, len: usize) -> Tag {
    Tag {
        key: key(0, message),
        fingerprint: FINGERPRINT,
        len,
    }
}

/// What the victim says of these bytes.
fn verdict(prepare: impl FnOnce(&mut Node), bytes: &[u8]) -> Vec<LinkError> {
    let (mut node, mut stream, _intruder) = victim(&small());
    prepare(&mut node);
    stream.write_all(bytes).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.lost.is_empty() && Instant::now() < deadline {
        node.poll();
    }
    node.lost
}

#[test]
fn frames_that_do_not_fit_end_the_connection() {
    let with = |frames: &[Frame]| {
        let frames = frames.iter().flat_map(Frame::encode);
        welcome().into_iter().chain(frames).collect::<Vec<u8>>()
    };
    let mut unknown = with(&[Frame::Goodbye]);
    unknown[HEADER + 2] = 77;
    let mut dirty = with(&[Frame::Goodbye]);
    dirty[HEADER + 30] = 1;
    let eager = |m| {
        let mut bytes = Frame::Eager(tag(m, 900)).encode().to_vec();
        bytes.resize(HEADER + 900, 0);
        bytes
    };
    let over_credit: Vec<u8> = [welcome(), (0..4).flat_map(eager).collect()].concat();
    let cases: [(&str, Vec<u8>); 12] = [
        (
            "magic",
            b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n".to_vec(),
        ),
        ("unknown kind 77", unknown),
        ("bad reserved byte", dirty),
        ("out of turn", Frame::Credit(10).encode().to_vec()),
        ("out of turn", [welcome(), welcome()].concat()),
        ("bytes unasked", with(&[Frame::Eager(tag(0, 1001))])),
        ("than its credit", over_credit),
        ("without a grant", with(&[Frame::Data(tag(0, 5000))])),
        (
            "a second grant",
            with(&[Frame::Grant(tag(0, 5000)), Frame::Grant(tag(0, 5000))]),
        ),
        (
            "twice",
            with(&[Frame::Announce(tag(0, 5000)), Frame::Announce(tag(0, 5000))]),
        ),
        (
            "after its goodbye",
            with(&[Frame::Goodbye, Frame::Credit(1)]),
        ),
        (
            "twice",
            with(&[Frame::Eager(tag(0, 0)), Frame::Eager(tag(0, 0))]),
        ),
    ];
    for (expected, bytes) in cases {
        let lost = verdict(|_| {}, &bytes);
        assert_eq!(lost.len(), 1, "{expected}: {lost:?}");
        assert!(
            matches!(&lost[0], LinkError::Protocol { peer: 1, .. }),
            "{expected}: {lost:?}"
        );
        assert!(
            lost[0].to_string().contains(expected),
            "{expected}: {}",
            lost[0]
        );
    }
}

#[test]
fn lengths_that_differ_are_named() {
    for (own, frame) in [
        (500, Frame::Eager(tag(0, 400))),
        (5000, Frame::Eager(tag(0, 400))),
        (5000, Frame::Data(tag(0, 1 << 40))),
        (500, Frame::Announce(tag(0, 5000))),
    ] {
        let bytes = [welcome(), frame.encode().to_vec()].concat();
        let place = Staging::new(own);
        let lost = verdict(
            |node| node.recv(1, key(0, 0), Sink::Place(place.memory())),
            &bytes,
        );
        match (&lost[..], frame) {
            (
                [
                    LinkError::Length {
                        peer: 1, expected, ..
                    },
                ],
                _,
            ) if *expected == own => {}
            // A receive that was announced to be long cannot be met by a short one.
            ([LinkError::Protocol { .. }], Frame::Eager(_)) if own > 1000 => {}
            other => panic!("{other:?}"),
        }
    }
    let place = Staging::new(5000);
    let bytes = [welcome(), Frame::Grant(tag(0, 6000)).encode().to_vec()].concat();
    let lost = verdict(|node| node.send(1, key(0, 0), place.memory()), &bytes);
    assert!(
        matches!(
            lost[..],
            [LinkError::Length {
                expected: 6000,
                got: 5000,
                ..
            }]
        ),
        "{lost:?}"
    );
}

/// A flood of announcements is bounded.
#[test]
fn endless_announcements_end_the_connection() {
    let (mut node, mut stream, _intruder) = victim(&small());
    let flood = std::thread::spawn(move || {
        let mut bytes = welcome();
        for m in 0..70_000 {
            bytes.extend_from_slice(&Frame::Announce(tag(m, 5000)).encode());
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.read(&mut [0; 1 << 12]);
        stream
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.lost.is_empty() && Instant::now() < deadline {
        node.poll();
    }
    assert!(
        matches!(&node.lost[..], [LinkError::Protocol { .. }]),
        "{:?}",
        node.lost
    );
    flood.join().unwrap();
}

/// An impostor with the right job and rank, but another process than the one published.
#[test]
fn another_process_of_the_rank_gets_no_connection() {
    let (mut node, mut stream, _intruder) = {
        let (mut listeners, addresses) = listeners(2);
        let identity = Identity::new(listeners[0].identity().job, 2, 1);
        let intruder = Listener::start(&Bind::default(), identity).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let session = intruder
            .connect(addresses[0].clone(), Purpose::Data, 0, deadline)
            .unwrap();
        session.stream.set_nonblocking(false).unwrap();
        let tcp = TcpTransport::new(listeners.swap_remove(0), addresses, small()).unwrap();
        (Node::new(tcp), session.stream, intruder)
    };
    for _ in 0..100 {
        node.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    assert_eq!(
        stream.read(&mut [0; 64]).unwrap(),
        0,
        "closed without a welcome"
    );
    assert!(node.lost.is_empty());
}

/// A peer whose operation differs: one event, its messages dropped, its credit given back.
#[test]
fn other_fingerprints_are_a_mismatch_once() {
    let (mut node, mut stream, _intruder) = victim(&small());
    let other = |m: u32, op: u32| Tag {
        key: MessageKey { op, ..key(0, m) },
        fingerprint: 0xbad,
        len: 100,
    };
    let mut bytes = welcome();
    for m in 0..5 {
        for op in [0, 1] {
            bytes.extend_from_slice(&Frame::Eager(other(m, op)).encode());
            bytes.extend_from_slice(&[0; 100]);
        }
    }
    let place = Staging::new(100);
    node.recv(1, key(0, 0), Sink::Place(place.memory()));
    stream.write_all(&bytes).unwrap();
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        node.poll();
    }
    assert_eq!(node.mismatches, [(1, 0, 0xbad)]);
    // The messages of operation 1 came before it began.
    node.begin(1);
    node.poll();
    assert_eq!(node.mismatches, [(1, 0, 0xbad), (1, 1, 0xbad)]);
    assert!(node.lost.is_empty() && node.received.is_empty());
    // All ten messages are given back: 10 * 356 bytes, an eighth of the window or more at a time.
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut credit = 0;
    node.poll();
    let mut frame = [0; HEADER];
    while credit < 3560 {
        stream.read_exact(&mut frame).unwrap();
        if let Frame::Credit(bytes) = Frame::decode(&frame).unwrap() {
            credit += bytes;
        }
    }
    node.tcp.cancel(GROUP, 0);
    node.tcp.cancel(GROUP, 1);
}

/// A peer that leaves with something unread in its socket has its kernel reset the stream behind its goodbye.
#[test]
fn a_reset_behind_a_goodbye_is_a_leave() {
    let (mut node, mut stream, _intruder) = victim(&small());
    // Somebody who waits for the peer, or its leaving were no event.
    let place = Staging::new(100);
    node.recv(1, key(0, 0), Sink::Place(place.memory()));
    let deadline = Instant::now() + Duration::from_secs(10);
    stream.write_all(&welcome()).unwrap();
    // It has nothing more to write then: only reading can tell it of the reset.
    stream
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    let mut greeting = [0; HEADER];
    while !stream.peek(&mut greeting).is_ok_and(|got| got == HEADER) {
        assert!(Instant::now() < deadline, "no welcome");
        node.poll();
    }
    stream.write_all(&Frame::Goodbye.encode()).unwrap();
    // A reset takes with it what is still on its way.
    while ringway_sys::socket::unacknowledged(stream.as_fd()).unwrap() > 0 {
        assert!(Instant::now() < deadline);
    }
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
    while node.lost.is_empty() {
        assert!(Instant::now() < deadline, "its leaving is not noticed");
        node.poll();
    }
    assert!(
        matches!(node.lost[..], [LinkError::Left { peer: 1 }]),
        "{:?}",
        node.lost
    );
}
