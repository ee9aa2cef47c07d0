//! Connections by rdma_cm's protocol between two devices, each at UDP port 4791 of an address of its own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    process,
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    ConnectionChange, ConnectionEvent, ConnectionId, Device, DeviceError, Done, Mismatch, Mtu,
    QueuePairOptions, Reason, Source, Status, Work,
};
use ringway_roce::{
    Psn,
    cm::{About, Drep, Dreq, Ids, Mad, Message, Rej, Rtu},
    wire::{Flow, ROCE_PORT},
};
use ringway_sys::{Epoll, Interest};

use crate::{
    end::{End, LIMIT, pattern, until},
    relay::{Faults, Sockets},
};

/// The port that is listened at.
const SERVICE: u16 = 7174;

/// Longer than any answer is waited for.
const EVER: Duration = Duration::from_secs(60);

/// An address of loopback that no other test has, of this process or another.
fn ip() -> IpAddr {
    static COUNT: AtomicU8 = AtomicU8::new(2);
    let [.., high, low] = process::id().to_be_bytes();
    Ipv4Addr::new(127, COUNT.fetch_add(1, Ordering::Relaxed), high, low).into()
}

fn end() -> End {
    End::open(ip(), true, &QueuePairOptions::default())
}

/// An initiator and a listener.
fn ends() -> [End; 2] {
    let mut ends = [end(), end()];
    ends[1].device.listen(SERVICE).unwrap();
    ends
}

fn service(end: &End) -> SocketAddr {
    SocketAddr::new(end.address().ip, SERVICE)
}

/// The next thing that happens to a connection of one side.
fn event(ends: &mut [End; 2], side: usize) -> ConnectionEvent {
    let mut found = None;
    until(ends, |ends| {
        found = ends[side].device.poll_connection();
        found.is_some()
    });
    found.unwrap()
}

/// The listener's request, and what it carries.
fn requested(ends: &mut [End; 2]) -> (ConnectionId, Vec<u8>) {
    let event = event(ends, 1);
    match event.change {
        ConnectionChange::Requested {
            port: SERVICE,
            mtu: Mtu::M4096,
            private_data,
            ..
        } => (event.connection, private_data),
        other => panic!("{other:?}"),
    }
}

/// Waits until a connection is there on one side. Returns the peer's private data.
fn established(ends: &mut [End; 2], side: usize, connection: ConnectionId) -> Vec<u8> {
    let event = event(ends, side);
    match event.change {
        ConnectionChange::Established { private_data } => {
            assert_eq!(event.connection, connection);
            private_data
        }
        other => panic!("{other:?}"),
    }
}

fn connect(ends: &mut [End; 2]) -> [ConnectionId; 2] {
    let (pairs, to) = ([ends[0].queue_pair, ends[1].queue_pair], service(&ends[1]));
    let own = ends[0].device.connect_to(pairs[0], to, b"hello").unwrap();
    let (other, said) = requested(ends);
    assert_eq!((&said[..6], said.len()), (b"hello\0".as_slice(), 56));
    ends[1].device.accept(other, pairs[1], b"welcome").unwrap();
    let answer = established(ends, 0, own);
    assert_eq!((&answer[..8], answer.len()), (b"welcome\0".as_slice(), 196));
    established(ends, 1, other);
    [own, other]
}

/// Moves some bytes from one side to the other.
fn send(ends: &mut [End; 2], from: usize) {
    let (to, bytes) = (1 - from, pattern(from as u64, 9001));
    ends[from].fill(0, &bytes);
    ends[to].post_receive(1, 20_000, bytes.len());
    let source = Source::Memory(ends[from].local(0, bytes.len()));
    let immediate = None;
    ends[from].post(2, Work::Send { source, immediate });
    until(ends, |ends| {
        ends.iter().all(|end| !end.completions.is_empty())
    });
    let length = bytes.len() as u32;
    let received = ends[to].completions.remove(0).result;
    assert_eq!(received, Ok(Done::Receive { length, immediate }));
    assert_eq!(ends[from].completions.remove(0).result, Ok(Done::Send));
    assert!(ends[to].bytes(20_000, bytes.len()) == bytes);
}

#[test]
fn a_connection_carries_data_until_either_side_ends_it() {
    for who in [0, 1] {
        let mut ends = ends();
        let connections = connect(&mut ends);
        send(&mut ends, 0);
        send(&mut ends, 1);
        ends[who].device.disconnect(connections[who]).unwrap();
        for side in [0, 1] {
            let event = event(&mut ends, side);
            assert_eq!(event.connection, connections[side]);
            assert_eq!(event.peer.ip(), ends[1 - side].address().ip);
            assert_eq!(event.change, ConnectionChange::Disconnected);
        }
        let again = ends[who].device.disconnect(connections[who]);
        assert!(matches!(again, Err(DeviceError::Management { .. })));
        for end in &ends {
            for name in ["cm_malformed", "cm_stray", "cm_unexpected", "retransmitted"] {
                assert_eq!(end.counter(name), 0, "{name}");
            }
        }
    }
}

/// A queue pair that is destroyed after its connection has told the peer doesn't leave it waiting.
#[test]
fn who_destroys_a_queue_pair_may_have_disconnected_before() {
    let mut ends = ends();
    let connections = connect(&mut ends);
    ends[0].device.disconnect(connections[0]).unwrap();
    let gone = ends[0].queue_pair;
    ends[0].device.destroy(gone);
    let event = event(&mut ends, 1);
    assert_eq!(event.change, ConnectionChange::Disconnected);
    // Its answer is to nobody.
    until(&mut ends, |ends| ends[0].counter("cm_stray") == 1);
}

#[test]
fn a_refusal_tells_why() {
    let mut ends = ends();
    let (pair, to) = (ends[0].queue_pair, service(&ends[1]));
    let own = ends[0].device.connect_to(pair, to, &[]).unwrap();
    let (other, _) = requested(&mut ends);
    ends[1].device.reject(other, b"not today").unwrap();
    let told = event(&mut ends, 0);
    assert_eq!((told.connection, told.peer), (own, to));
    match told.change {
        ConnectionChange::Rejected {
            reason: Reason::CONSUMER,
            private_data,
        } => assert_eq!(&private_data[..10], b"not today\0"),
        other => panic!("{other:?}"),
    }
    // Nobody listens at another port, nor here any more. The queue pair can be tried again with.
    ends[1].device.stop_listening(SERVICE).unwrap();
    for port in [SERVICE, SERVICE + 1] {
        let to = SocketAddr::new(to.ip(), port);
        ends[0].device.connect_to(pair, to, &[]).unwrap();
        let told = event(&mut ends, 0);
        let refused = matches!(
            told.change,
            ConnectionChange::Rejected {
                reason: Reason::INVALID_SERVICE,
                ..
            }
        );
        assert!(refused, "{told:?}");
    }
    assert_eq!(ends[1].counter("cm_unlistened"), 2);
    assert!(ends[1].device.poll_connection().is_none());
}

#[test]
fn who_does_not_answer_is_named() {
    let mut initiator = end();
    // Somebody is there, and says nothing.
    let silent = UdpSocket::bind(SocketAddr::new(ip(), ROCE_PORT)).unwrap();
    let to = SocketAddr::new(silent.local_addr().unwrap().ip(), SERVICE);
    let own = initiator
        .device
        .connect_to(initiator.queue_pair, to, &[])
        .unwrap();
    let mut now = Instant::now();
    let told = loop {
        initiator.device.poll(now, &mut Vec::new()).unwrap();
        if let Some(event) = initiator.device.poll_connection() {
            break event;
        }
        now += Duration::from_millis(100);
        assert!(now < Instant::now() + EVER, "it goes on asking");
    };
    assert_eq!((told.connection, told.peer), (own, to));
    assert_eq!(told.change, ConnectionChange::Unreachable);
    // The first REQ, nine repetitions of it, and the REJ by which the peer may forget it.
    initiator.device.poll(now, &mut Vec::new()).unwrap();
    assert_eq!(initiator.counter("datagrams_sent"), 11);
}

#[test]
fn a_request_that_comes_again_is_none_of_its_own() {
    let mut ends = ends();
    let (pairs, to) = ([ends[0].queue_pair, ends[1].queue_pair], service(&ends[1]));
    let own = ends[0].device.connect_to(pairs[0], to, &[]).unwrap();
    let (other, _) = requested(&mut ends);
    // The initiator's clock runs out before the listener has decided. It is told to wait, and does.
    let mut now = Instant::now() + Duration::from_secs(1);
    ends[0].device.poll(now, &mut Vec::new()).unwrap();
    until(&mut ends, |ends| ends[1].counter("cm_repeated_req") == 1);
    until(&mut ends, |ends| ends[0].counter("receive_calls") > 100);
    now += Duration::from_secs(3);
    ends[0].device.poll(now, &mut Vec::new()).unwrap();
    until(&mut ends, |ends| ends[1].counter("receive_calls") > 1000);
    assert_eq!(ends[1].counter("cm_repeated_req"), 1);
    assert!(ends[1].device.poll_connection().is_none());
    ends[1].device.accept(other, pairs[1], &[]).unwrap();
    established(&mut ends, 0, own);
    established(&mut ends, 1, other);
    send(&mut ends, 0);
}

/// Of all messages a fifth gets lost, and some are doubled or late.
#[test]
fn connections_come_about_over_a_network_that_loses() {
    let options = QueuePairOptions {
        mtu: Mtu::M1024,
        ..QueuePairOptions::default()
    };
    let mut ends = [0, 1].map(|_| End::open(ip(), true, &options));
    ends[1].device.listen(SERVICE).unwrap();
    let own = [ip(), ip()].map(|ip| SocketAddr::new(ip, ROCE_PORT));
    let sides = [&ends[0], &ends[1]].map(|end| {
        let mut address = end.address();
        address.software.as_mut().unwrap().port = ROCE_PORT;
        address
    });
    let faults = Faults {
        lost: 200,
        repeated: 100,
        late: 100,
        ..Faults::NONE
    };
    let relay = Sockets::at(own).start(sides, faults);
    let to = SocketAddr::new(own[0].ip(), SERVICE);
    const COUNT: usize = 10;
    let pairs = [0, 1].map(|side: usize| {
        let mut pairs = vec![ends[side].queue_pair];
        pairs.resize_with(COUNT, || ends[side].device.create(&options).unwrap());
        pairs
    });
    let mut asked = vec![];
    for (index, &pair) in pairs[0].iter().enumerate() {
        let said = [index as u8];
        asked.push(ends[0].device.connect_to(pair, to, &said).unwrap());
    }
    let (mut accepted, mut there, mut over) = (vec![], [0, 0], [0, 0]);
    // Both sides' clocks are ahead of this one's, by as much as nothing has happened for.
    let mut now = Instant::now();
    let deadline = now + LIMIT;
    while over != [COUNT; 2] {
        assert!(Instant::now() < deadline, "{there:?} {over:?}");
        std::thread::sleep(Duration::from_millis(2));
        now += Duration::from_millis(20);
        for side in 0..2 {
            ends[side].device.poll(now, &mut Vec::new()).unwrap();
            while let Some(event) = ends[side].device.poll_connection() {
                match event.change {
                    ConnectionChange::Requested { private_data, .. } => {
                        let pair = pairs[1][usize::from(private_data[0])];
                        ends[1].device.accept(event.connection, pair, &[]).unwrap();
                        accepted.push(event.connection);
                    }
                    ConnectionChange::Established { .. } => there[side] += 1,
                    ConnectionChange::Disconnected => over[side] += 1,
                    other => panic!("{side}: {other:?}"),
                }
            }
        }
        if there == [COUNT; 2] {
            there = [0, 0];
            for (&one, &other) in asked.iter().zip(&accepted).step_by(2) {
                ends[0].device.disconnect(one).unwrap();
                ends[1].device.disconnect(other).unwrap();
            }
            for &one in asked.iter().skip(1).step_by(2) {
                ends[0].device.disconnect(one).unwrap();
            }
        }
    }
    assert_eq!(accepted.len(), COUNT);
    assert!(relay.stop() > 0);
    assert!(ends[1].counter("cm_repeated_req") > 0);
}

#[test]
fn what_strangers_say_is_counted_by_kind_and_changes_nothing() {
    let mut ends = ends();
    let (pair, to) = (ends[0].queue_pair, service(&ends[1]));
    let own = ends[0].device.connect_to(pair, to, &[]).unwrap();
    let (other, _) = requested(&mut ends);
    let stranger = UdpSocket::bind(SocketAddr::new(ip(), 0)).unwrap();
    let listener = SocketAddr::new(to.ip(), ROCE_PORT);
    let flow = Flow::between(stranger.local_addr().unwrap(), listener).unwrap();
    let packet = |message| {
        let mut bytes = vec![];
        let transaction = 1;
        let mad = Mad {
            transaction,
            message,
        };
        mad.emit_packet(Psn::new(0), &flow, &mut bytes);
        bytes
    };
    // The numbers of a connection that isn't the stranger's, and those of none.
    let known = Ids {
        local: own.0,
        remote: other.0,
    };
    let unknown = Ids {
        local: 1,
        remote: other.0 + 1,
    };
    let private_data = [0; 224];
    for ids in [known, unknown] {
        stranger
            .send_to(&packet(Message::Rtu(Rtu { ids, private_data })), listener)
            .unwrap();
        let rej = Rej {
            ids,
            about: About::Req,
            reason: Reason::CONSUMER,
            information_length: 0,
            information: [0; 72],
            private_data: [0; 148],
        };
        stranger
            .send_to(&packet(Message::Rej(rej)), listener)
            .unwrap();
    }
    let drep = packet(Message::Drep(Drep {
        ids: known,
        private_data,
    }));
    // Of another class of management, of another queue key, cut short.
    for (at, byte) in [(8 + 12 + 1, 4), (12, 1)] {
        let mut bytes = drep.clone();
        bytes[at] = byte;
        stranger.send_to(&sealed(&flow, bytes), listener).unwrap();
    }
    stranger
        .send_to(&sealed(&flow, drep[..100].to_vec()), listener)
        .unwrap();
    // A DREQ is answered, as its sender would go on asking.
    let dreq = Dreq {
        ids: unknown,
        remote_qpn: ends[1].address().number,
        private_data: [0; 220],
    };
    stranger
        .send_to(&packet(Message::Dreq(dreq)), listener)
        .unwrap();
    until(&mut ends, |ends| ends[1].counter("cm_stray") == 5);
    assert_eq!(ends[1].counter("cm_malformed"), 3);
    assert_eq!(ends[1].counter("cm_unlistened"), 0);
    assert!(ends[1].device.poll_connection().is_none());
    // The connection comes about all the same.
    let accepting = ends[1].queue_pair;
    ends[1].device.accept(other, accepting, &[]).unwrap();
    established(&mut ends, 0, own);
    established(&mut ends, 1, other);
    // What its peer says at a wrong time is no stranger's.
    send(&mut ends, 1);
}

/// A packet with the right CRC, whatever is in it.
fn sealed(flow: &Flow, mut bytes: Vec<u8>) -> Vec<u8> {
    let covered = bytes.len() - 4;
    let crc = ringway_roce::wire::icrc(flow, &bytes[..covered]);
    bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let mut ends = ends();
    let (pairs, to) = ([ends[0].queue_pair, ends[1].queue_pair], service(&ends[1]));
    let mut portless = End::new(ip(), &QueuePairOptions::default());
    let error = portless.device.listen(SERVICE).unwrap_err().to_string();
    assert!(error.contains("without UDP port 4791"), "{error}");
    assert!(ends[1].device.listen(SERVICE).is_err());
    let long = ends[0].device.connect_to(pairs[0], to, &[0; 57]);
    let long = long.unwrap_err().to_string();
    assert!(long.contains("57 bytes of private data"), "{long}");
    let family = SocketAddr::new("::1".parse().unwrap(), SERVICE);
    let family = ends[0].device.connect_to(pairs[0], family, &[]);
    assert!(matches!(
        family,
        Err(DeviceError::Mismatch(Mismatch::Family { .. }))
    ));
    let own = ends[0].device.connect_to(pairs[0], to, &[]).unwrap();
    let twice = ends[0].device.connect_to(pairs[0], to, &[]);
    assert!(matches!(twice, Err(DeviceError::Misuse { .. })));

    let (other, _) = requested(&mut ends);
    assert!(ends[1].device.disconnect(other).is_err());
    let of_class = |traffic_class| QueuePairOptions {
        traffic_class,
        ..QueuePairOptions::default()
    };
    let classless = ends[1].device.create(&of_class(0)).unwrap();
    let error = ends[1].device.accept(other, classless, &[]).unwrap_err();
    let class = Mismatch::TrafficClass { own: 0, peer: 106 };
    assert!(matches!(error, DeviceError::Mismatch(it) if it == class));
    let small = QueuePairOptions {
        mtu: Mtu::M1024,
        ..QueuePairOptions::default()
    };
    let small = ends[1].device.create(&small).unwrap();
    let error = ends[1].device.accept(other, small, &[]).unwrap_err();
    assert!(error.to_string().contains("path MTU"), "{error}");
    // None of that was an answer.
    ends[1].device.accept(other, pairs[1], &[]).unwrap();
    established(&mut ends, 0, own);
    established(&mut ends, 1, other);
    let nobody = ends[1].device.reject(ConnectionId(own.0 ^ 1), &[]);
    assert!(matches!(nobody, Err(DeviceError::Management { .. })));
}

#[test]
fn a_sleeper_is_woken_by_a_request_and_by_a_clock() {
    let [mut a, mut b] = ends();
    let set = Epoll::new().unwrap();
    set.add(b.device.fd(), 1, Interest::Read).unwrap();
    assert!(b.device.arm());
    a.device.connect_to(a.queue_pair, service(&b), &[]).unwrap();
    // What was asked for goes out before its sender sleeps.
    assert!(a.device.arm());
    let mut ready = vec![];
    set.wait(&mut ready, Some(LIMIT)).unwrap();
    assert_eq!(ready, [1]);
    b.device.disarm();
    // The listener says nothing, and the initiator's clock wakes it to ask again.
    let set = Epoll::new().unwrap();
    set.add(a.device.fd(), 2, Interest::Read).unwrap();
    ready.clear();
    set.wait(&mut ready, Some(LIMIT)).unwrap();
    assert_eq!(ready, [2]);
    a.device.disarm();
    a.poll();
    b.poll();
    assert!(!b.device.arm(), "it has something to tell");
    assert!(b.device.poll_connection().is_some());
    until(&mut [a, b], |ends| ends[1].counter("cm_repeated_req") == 1);
}

/// Who has died is noticed by the queue pair, as ever; the connection then ends without its answer.
#[test]
fn the_end_of_a_peer_ends_its_connection() {
    let mut ends = ends();
    let connections = connect(&mut ends);
    let [mut a, b] = ends;
    drop(b);
    let source = Source::Inline(b"are you there?");
    let immediate = None;
    a.post(1, Work::Send { source, immediate });
    let mut now = Instant::now();
    while a.completions.is_empty() {
        a.device.poll(now, &mut a.completions).unwrap();
        now += Duration::from_millis(10);
    }
    let status = a.completions[0].result.unwrap_err().status;
    assert_eq!(status, Status::RetriesExceeded);
    a.device.disconnect(connections[0]).unwrap();
    let told = loop {
        a.device.poll(now, &mut a.completions).unwrap();
        if let Some(event) = a.device.poll_connection() {
            break event;
        }
        now += Duration::from_millis(100);
        assert!(now < Instant::now() + EVER);
    };
    assert_eq!(told.change, ConnectionChange::Disconnected);
}
