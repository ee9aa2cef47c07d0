//! Marks, notifications and what they do to a queue pair.

use super::*;

/// 1 GB/s: a packet of 1000 bytes takes a microsecond.
const LINE: f64 = 1e9;

fn setup() -> Setup {
    Setup {
        congestion: Some(Parameters::new(LINE)),
        mtu: Mtu::M1024,
        ..Setup::default()
    }
}

fn take_marked(end: &mut End, now: Instant, bytes: &[u8]) {
    let arrival = Arrival {
        from: SocketAddr::new(end.peer_address(), ROCE_PORT),
        congestion_experienced: true,
        packet: Packet::parse(bytes).unwrap(),
    };
    end.qp.handle_packet(now, &arrival, &mut end.domain);
}

#[test]
fn marked_packets_are_answered_with_one_notification_in_an_interval() {
    let now = Instant::now();
    let (mut a, mut b) = connected(setup());
    a.post(1, write(&pattern(4096), b.remote(0)));
    for bytes in a.transmit_all(now) {
        take_marked(&mut b, now, &bytes);
    }
    let mut out = [0; 100];
    let mut transmit = |class| {
        let sent = b.qp.poll_transmit(now, &b.domain, &mut out).unwrap();
        assert_eq!(sent.class, class);
        out[..sent.length].to_vec()
    };
    let out = transmit(Class::Notification);
    let packet = Packet::parse(&out).unwrap();
    assert_eq!(packet.operation, Operation::Cnp);
    assert!(packet.bth.becn);
    a.take(now, &out);
    let out = transmit(Class::Data);
    a.take(now, &out);
    assert_eq!(b.transmit(now), None);
    let counters = b.qp.counters();
    assert_eq!((counters.congestion_marks, counters.cnps_sent), (4, 1));
    assert_eq!(a.qp.counters().cnps_received, 1);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
}

/// 106 is the usual setting; 0xc2 is what the captured notification of the wire's tests has.
#[test]
fn the_traffic_classes_are_the_usual_ones() {
    assert_eq!(Class::Data.traffic_class(), 106);
    assert_eq!(Class::Notification.traffic_class(), 0xc2);
}

#[test]
fn a_notified_sender_waits_between_packets_and_says_until_when() {
    let now = Instant::now();
    let (mut a, mut b) = connected(setup());
    a.inject(now, 0, Operation::Cnp, &[]);
    a.post(1, write(&pattern(2048), b.remote(0)));
    let first = a.transmit(now).unwrap();
    assert_eq!(a.transmit(now), None);
    // Half of the line rate.
    let then = now + Duration::from_nanos(first.len() as u64 * 2);
    assert_eq!(a.qp.poll_timeout(), Some(then));
    // An acknowledgement needn't wait.
    let reth = crate::wire::Reth {
        address: 0,
        key: Key(0),
        length: 0,
    };
    a.inject(now, 0xff_fffe, Operation::WriteOnly(reth), &[]);
    assert!(is_ack(&a.transmit(now).unwrap()));
    b.take(then, &first);
    let then = now + Duration::from_micros(10);
    a.qp.handle_timeout(then);
    let second = a.transmit(then).unwrap();
    b.take(then, &second);
    assert_eq!(b.memory()[..2048], pattern(2048));
}

#[test]
fn answers_to_reads_wait_too() {
    let now = Instant::now();
    let (mut a, mut b) = connected(setup());
    b.inject(now, 0, Operation::Cnp, &[]);
    let (into, remote) = (a.local(0, 2048), b.remote(0));
    a.post(1, Work::Read { into, remote });
    let request = a.transmit(now).unwrap();
    b.take(now, &request);
    assert!(b.transmit(now).is_some());
    assert_eq!(b.transmit(now), None);
    assert!(b.qp.poll_timeout().is_some());
    b.qp.fail();
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn without_congestion_control_marks_are_only_counted() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    a.inject(now, 0, Operation::Cnp, &[]);
    a.post(1, write(&pattern(1000), b.remote(0)));
    let packets = a.transmit_all(now);
    assert_eq!(packets.len(), 4);
    for bytes in &packets {
        take_marked(&mut b, now, bytes);
    }
    assert_eq!(b.transmit_all(now).len(), 1);
    assert_eq!(b.qp.counters().congestion_marks, 4);
    assert_eq!(b.qp.counters().cnps_sent, 0);
}
