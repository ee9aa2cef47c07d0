//! The table of a queue pair's states.

use super::*;

#[test]
fn a_queue_pair_goes_from_state_to_state_in_order() {
    let setup = Setup::default();
    let mut a = End::new(0, setup);
    assert_eq!(a.qp.state(), State::Init);
    assert_eq!(
        a.qp.send_with(send_attributes(setup)),
        Err(StateError {
            needed: State::ReadyToReceive,
            found: State::Init
        })
    );
    a.receive_with(1, setup);
    assert_eq!(a.qp.state(), State::ReadyToReceive);
    a.send_with(setup);
    assert_eq!(a.qp.state(), State::ReadyToSend);
    assert!(a.qp.receive_with(receive_attributes(0, 1, setup)).is_err());
    a.qp.fail();
    assert_eq!(a.qp.state(), State::Error);
    assert!(a.qp.send_with(send_attributes(setup)).is_err());
}

#[test]
fn before_a_peer_is_known_packets_are_discarded() {
    let now = Instant::now();
    let mut a = End::new(0, Setup::default());
    a.post_receive(1, 0, 100);
    a.inject(now, 0xff_fffe, Operation::SendOnly, b"early");
    assert_eq!(a.qp.counters().unexpected, 1);
    assert_eq!(a.completions(), []);
    assert_eq!(a.transmit(now), None);
}

#[test]
fn ready_to_receive_answers_requests_but_sends_none() {
    let now = Instant::now();
    let setup = Setup::default();
    let mut a = End::new(0, setup);
    a.receive_with(1, setup);
    a.post_receive(1, 0, 100);
    let refused = a.qp.post_send(&SendRequest {
        id: 1,
        work: send(b"no"),
        signaled: true,
        solicited: false,
    });
    assert_eq!(refused, Err(PostError::State(State::ReadyToReceive)));
    a.inject(now, setup.psn, Operation::SendOnly, b"hello");
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    assert!(is_ack(&a.transmit(now).unwrap()));
    a.inject(now, setup.psn, ACK, &[]);
    assert_eq!(a.qp.counters().unexpected, 1);
}

#[test]
fn failing_ends_all_requests() {
    let now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    a.post(1, send(b"under way"));
    assert!(a.transmit(now).is_some());
    a.post(2, write(b"waiting", b.remote(0)));
    a.post_receive(3, 0, 10);
    // An answer that waits isn't sent any more.
    a.inject(
        now,
        0xff_fffe,
        Operation::WriteOnly(crate::wire::Reth {
            address: 0,
            key: Key(0),
            length: 0,
        }),
        &[],
    );
    a.qp.fail();
    let flushed = [1, 2, 3].map(|id| (id, Status::Flushed));
    assert_eq!(a.statuses(), flushed);
    assert_eq!(a.transmit(now), None);
    assert_eq!(a.qp.poll_timeout(), None);
    let into = a.local(0, 1);
    let refused = a.qp.post_receive(ReceiveRequest { id: 4, into });
    assert_eq!(refused, Err(PostError::State(State::Error)));
    a.inject(now, 0xff_ffff, Operation::SendOnly, b"late");
    assert_eq!(a.qp.counters().unexpected, 1);
    a.qp.fail();
    assert_eq!(a.completions(), []);
}

#[test]
fn foreign_packets_change_nothing_and_are_counted() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    b.post_receive(1, 0, 100);
    a.post(1, send(b"right"));
    let bytes = a.transmit(now).unwrap();
    let right = Packet::parse(&bytes).unwrap();

    let mut wrong = right;
    wrong.bth.destination = Qpn::new(0x99);
    b.take_from(now, a.address, wrong);
    let mut wrong = right;
    wrong.bth.pkey = 0x8001;
    b.take_from(now, a.address, wrong);
    b.take_from(now, b.address, right);
    let mut wrong = right;
    wrong.operation = Operation::UdSendOnly(crate::wire::Deth {
        qkey: 1,
        source: Qpn::new(1),
    });
    b.take_from(now, a.address, wrong);
    let expected = Counters {
        wrong_queue_pair: 1,
        wrong_partition: 1,
        wrong_source: 1,
        unexpected: 1,
        ..Counters::default()
    };
    assert_eq!(*b.qp.counters(), expected);
    assert_eq!(b.completions(), []);
    assert_eq!(b.transmit(now), None);

    // A limited member of the partition is welcome.
    let mut limited = right;
    limited.bth.pkey = 0x7fff;
    b.take_from(now, a.address, limited);
    assert_eq!(b.statuses(), [(1, Status::Success)]);
}

#[test]
fn what_cannot_be_posted() {
    let setup = Setup {
        depth: 0,
        ..Setup::default()
    };
    let (mut a, b) = connected(setup);
    let request = |work| SendRequest {
        id: 0,
        work,
        signaled: true,
        solicited: false,
    };
    let read = Work::Read {
        into: a.local(0, 8),
        remote: b.remote(0),
    };
    assert_eq!(
        a.qp.post_send(&request(read)),
        Err(PostError::NoInitiatorDepth)
    );
    let mut long = a.local(0, 0);
    long.length = u32::MAX;
    let long = Work::Send {
        source: Source::Memory(long),
        immediate: None,
    };
    let max = 256 * (crate::MAX_WINDOW - 1);
    assert_eq!(
        a.qp.post_send(&request(long)),
        Err(PostError::TooLong {
            length: u32::MAX as usize,
            max
        })
    );
    for _ in 0..128 {
        a.post(0, send(&[]));
        a.post_receive(0, 0, 0);
    }
    assert_eq!(
        a.qp.post_send(&request(send(&[]))),
        Err(PostError::Full(128))
    );
    let into = a.local(0, 0);
    assert_eq!(
        a.qp.post_receive(ReceiveRequest { id: 0, into }),
        Err(PostError::Full(128))
    );
}
