//! The requester's table, a test for a line.

use super::*;

fn read(a: &End, b: &End, length: usize) -> Work<'static> {
    let (into, remote) = (a.local(0, length), b.remote(0));
    Work::Read { into, remote }
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let now = Instant::now();
    let setup = Setup {
        window: 8,
        ..Setup::default()
    };
    let (mut a, mut b) = connected(setup);
    let bytes = pattern(5000);
    a.post(1, write(&bytes, b.remote(0)));
    let first = a.transmit_all(now);
    assert_eq!(first.len(), 8);
    // A quarter of the window asks for an acknowledgement, so that the sender needn't wait for the end.
    let asks = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().bth.ack_request;
    assert_eq!(first.iter().filter(|bytes| asks(bytes)).count(), 4);
    for bytes in first {
        b.take(now, &bytes);
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(b.memory()[..5000], bytes);
}

/// Or the answers would overflow the requester's own socket buffer.
#[test]
fn a_long_read_is_asked_for_piece_by_piece() {
    let now = Instant::now();
    let setup = Setup {
        read_window: 8,
        ..Setup::default()
    };
    let (mut a, mut b) = connected(setup);
    let bytes = pattern(5000);
    b.fill(0, &bytes);
    let work = read(&a, &b, 5000);
    a.post(1, work);
    let asked = |packets: &[Vec<u8>]| -> Vec<(u64, u32)> {
        let reth = |bytes: &Vec<u8>| match operation(bytes) {
            Operation::ReadRequest(reth) => (reth.address - BASE, reth.length),
            other => panic!("{other:?}"),
        };
        packets.iter().map(reth).collect()
    };
    let first = a.transmit_all(now);
    assert_eq!(asked(&first), [(0, 1024), (1024, 1024)]);
    for bytes in &first {
        b.take(now, bytes);
    }
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 8);
    // Within a piece there is no room for the next one yet.
    for bytes in &answers[..3] {
        a.take(now, bytes);
        assert_eq!(a.transmit(now), None);
    }
    a.take(now, &answers[3]);
    assert_eq!(asked(&a.transmit_all(now)), [(2048, 1024)]);
    // All else is lost, and asked for again up to the same ends.
    a.take(now, &answers[4]);
    a.qp.handle_timeout(now + TIMEOUT);
    let again = a.transmit_all(now);
    assert_eq!(asked(&again), [(1280, 768), (2048, 1024)]);
    for bytes in &again {
        b.take(now, bytes);
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    assert_eq!(a.memory()[..5000], bytes);
    assert_eq!(b.qp.counters().unknown_duplicates, 0);
}

/// More than half of the numbers under way, and old packets would look like new ones.
#[test]
fn however_large_the_window_half_of_the_numbers_stay_free() {
    let now = Instant::now();
    let setup = Setup {
        window: u32::MAX,
        read_window: u32::MAX,
        ..Setup::default()
    };
    let (mut a, b) = connected(setup);
    let mut into = a.local(0, 0);
    into.length = 256 * (crate::MAX_WINDOW - 1);
    let remote = b.remote(0);
    a.post(1, Work::Read { into, remote });
    a.post(2, write(b"x", remote));
    assert_eq!(a.transmit_all(now).len(), 1);
    // Not even when the READ has begun to be answered.
    let first = Operation::ReadResponseFirst(aeth(Syndrome::Ack { credits: 0 }));
    a.inject(now, 0xff_fffe, first, &[1; 256]);
    assert_eq!(a.memory()[..256], [1; 256]);
    assert_eq!(a.transmit_all(now).len(), 0);
}

#[test]
fn the_initiator_depth_bounds_reads() {
    let now = Instant::now();
    let setup = Setup {
        depth: 2,
        ..Setup::default()
    };
    let (mut a, mut b) = connected(setup);
    for id in 0..3 {
        let work = read(&a, &b, 8);
        a.post(id, work);
    }
    // What comes later waits, too, for requests start in order.
    a.post(3, write(b"x", b.remote(0)));
    assert_eq!(a.transmit_all(now).len(), 2);
    a.qp.handle_timeout(now + TIMEOUT);
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses().len(), 4);
}

#[test]
fn an_acknowledgement_after_a_lost_response_asks_for_it_again() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    b.fill(0, &pattern(600));
    let work = read(&a, &b, 600);
    a.post(1, work);
    a.post(2, write(b"x", b.remote(1000)));
    for bytes in a.transmit_all(now) {
        b.take(now, &bytes);
    }
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 4);
    a.take(now, &answers[0]);
    a.take(now, &answers[3]);
    assert_eq!(a.qp.counters().implied_naks, 1);
    assert_eq!(a.completions(), []);
    // The rest of the READ, and the WRITE after it.
    let again = a.transmit_all(now);
    assert_eq!(again.len(), 2);
    let Operation::ReadRequest(reth) = operation(&again[0]) else {
        panic!("no READ")
    };
    assert_eq!(
        (psn(&again[0]), reth.address, reth.length),
        (0xff_ffff, BASE + 256, 344)
    );
    for bytes in again {
        b.take(now, &bytes);
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [1, 2].map(|id| (id, Status::Success)));
    assert_eq!(a.memory()[..600], pattern(600));
}

#[test]
fn a_later_response_asks_for_the_missing_one_once() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let work = read(&a, &b, 1000);
    a.post(1, work);
    let request = a.transmit(now).unwrap();
    b.take(now, &request);
    let answers = b.transmit_all(now);
    for bytes in &answers[1..] {
        a.take(now, bytes);
    }
    assert_eq!(a.qp.counters().implied_naks, 1);
    assert_eq!(a.transmit_all(now).len(), 1);
    a.take(now, &answers[2]);
    assert_eq!(a.qp.counters().implied_naks, 1);
    assert_eq!(a.transmit(now), None);
    // It was only late.
    for bytes in &answers {
        a.take(now, bytes);
    }
    assert_eq!(a.statuses(), [(1, Status::Success)]);
}

#[test]
fn after_a_time_out_a_missing_response_may_show_again() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let work = read(&a, &b, 1000);
    a.post(1, work);
    for round in 1..=2 {
        let request = a.transmit(now).unwrap();
        b.take(now, &request);
        for bytes in &b.transmit_all(now)[1..] {
            a.take(now, bytes);
        }
        assert_eq!(a.qp.counters().implied_naks, round);
        // What asks for it is lost.
        assert_eq!(a.transmit_all(now).len(), 1);
        a.qp.handle_timeout(now + TIMEOUT);
    }
}

#[test]
fn responses_that_nobody_waits_for_are_discarded() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    a.post(1, write(b"x", b.remote(0)));
    let request = a.transmit(now).unwrap();
    b.take(now, &request);
    let answer = b.transmit(now).unwrap();
    a.take(now, &answer);
    assert_eq!(a.statuses().len(), 1);
    a.take(now, &answer);
    for (number, operation) in [
        (0xff_fffe, nak(Nak::RemoteAccess)),
        (0xff_ffff, nak(Nak::RemoteAccess)),
        (5, ACK),
        (
            0xff_ffff,
            Operation::ReadResponseOnly(aeth(Syndrome::Ack { credits: 0 })),
        ),
        (
            0xff_ffff,
            Operation::AtomicAcknowledge(aeth(Syndrome::Ack { credits: 0 }), 1),
        ),
    ] {
        a.inject(now, number, operation, &[]);
    }
    assert_eq!(a.qp.counters().stale_responses, 6);
    assert_eq!(a.qp.state(), State::ReadyToSend);
}

#[test]
fn responses_that_do_not_fit_are_discarded() {
    let now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    let work = read(&a, &b, 100);
    a.post(1, work);
    a.transmit_all(now);
    let only = Operation::ReadResponseOnly(aeth(Syndrome::Ack { credits: 0 }));
    a.inject(now, 0xff_fffe, only, &[1; 99]);
    a.inject(
        now,
        0xff_fffe,
        Operation::AtomicAcknowledge(aeth(Syndrome::Ack { credits: 0 }), 1),
        &[],
    );
    assert_eq!(a.qp.counters().bad_responses, 2);
    a.inject(now, 0xff_fffe, only, &[1; 100]);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    // A reserved syndrome means nothing to us.
    a.post(2, write(b"x", b.remote(0)));
    a.transmit_all(now);
    a.inject(
        now,
        0xff_ffff,
        Operation::Acknowledge(aeth(Syndrome::Reserved(0xe0))),
        &[],
    );
    assert_eq!(a.qp.counters().stale_responses, 1);
    assert_eq!(a.completions(), []);
}

#[test]
fn a_sequence_nak_goes_back_to_the_missing_packet() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let bytes = pattern(1000);
    a.post(1, write(&bytes, b.remote(0)));
    let packets = a.transmit_all(now);
    b.take(now, &packets[0]);
    b.take(now, &packets[2]);
    b.take(now, &packets[3]);
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    assert!(is_nak(&answers[0], Nak::SequenceError));
    assert_eq!(psn(&answers[0]), 0xff_ffff);
    a.take(now, &answers[0]);
    // A second one says nothing new.
    a.take(now, &answers[0]);
    assert_eq!(a.qp.counters().sequence_naks_received, 1);
    let again = a.transmit_all(now);
    assert_eq!(
        again.iter().map(|bytes| psn(bytes)).collect::<Vec<_>>(),
        [0xff_ffff, 0, 1]
    );
    assert_eq!(a.qp.counters().retransmitted, 3);
    for bytes in again {
        b.take(now, &bytes);
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    assert_eq!(b.memory()[..1000], bytes);
}

#[test]
fn sequence_naks_without_progress_take_the_retries() {
    let now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    a.post(1, write(&pattern(1000), b.remote(0)));
    for _ in 0..4 {
        assert_eq!(a.qp.state(), State::ReadyToSend);
        a.transmit_all(now);
        a.inject(now, 0xff_fffe, nak(Nak::SequenceError), &[]);
    }
    assert_eq!(a.statuses(), [(1, Status::RetriesExceeded)]);
}

#[test]
fn receiver_not_ready_waits_as_long_as_asked() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    a.post(1, send(b"hello"));
    exchange(now, &mut a, &mut b);
    assert_eq!(a.qp.poll_timeout(), Some(now + RNR_WAIT));
    b.post_receive(1, 0, 10);
    a.qp.handle_timeout(now + RNR_WAIT / 2);
    assert_eq!(a.transmit(now), None);
    a.qp.handle_timeout(now + RNR_WAIT);
    exchange(now + RNR_WAIT, &mut a, &mut b);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    assert_eq!(b.statuses(), [(1, Status::Success)]);
    assert_eq!(
        (
            a.qp.counters().rnr_naks_received,
            b.qp.counters().rnr_naks_sent
        ),
        (1, 1)
    );
}

#[test]
fn receiver_not_ready_has_retries_of_its_own() {
    for (rnr_retries, ends) in [(2, true), (7, false)] {
        let mut now = Instant::now();
        let setup = Setup {
            rnr_retries,
            retries: 0,
            ..Setup::default()
        };
        let (mut a, mut b) = connected(setup);
        a.post(1, send(b"hello"));
        for _ in 0..2 {
            exchange(now, &mut a, &mut b);
            now += RNR_WAIT;
            a.qp.handle_timeout(now);
            assert_eq!(a.qp.state(), State::ReadyToSend);
        }
        for _ in 0..20 {
            exchange(now, &mut a, &mut b);
            now += RNR_WAIT;
            a.qp.handle_timeout(now);
        }
        let expected = ends.then_some((1, Status::RnrRetriesExceeded));
        assert_eq!(a.statuses(), Vec::from_iter(expected));
    }
}

#[test]
fn progress_gives_the_rnr_retries_back() {
    let mut now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    for id in 0..3 {
        a.post(id, send(b"hello"));
    }
    for id in 0..3 {
        for _ in 0..3 {
            exchange(now, &mut a, &mut b);
            now += RNR_WAIT;
            a.qp.handle_timeout(now);
        }
        b.post_receive(id, 0, 10);
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [0, 1, 2].map(|id| (id, Status::Success)));
}

/// The receiver was ready after all, and said so while the requester waited.
#[test]
fn the_ack_clock_stands_still_while_the_requester_waits() {
    let now = Instant::now();
    let (mut a, _) = connected(Setup::default());
    a.post(1, send(b"one"));
    a.post(2, send(b"two"));
    a.transmit_all(now);
    let not_ready = Operation::Acknowledge(aeth(Syndrome::RnrNak { timer: 12 }));
    a.inject(now, 0xff_fffe, not_ready, &[]);
    a.inject(now, 0xff_fffe, ACK, &[]);
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    a.qp.handle_timeout(now + RNR_WAIT);
    let numbers: Vec<u32> = a
        .transmit_all(now + RNR_WAIT)
        .iter()
        .map(|bytes| psn(bytes))
        .collect();
    assert_eq!(numbers, [0xff_ffff]);
    assert_eq!(a.qp.poll_timeout(), Some(now + RNR_WAIT + TIMEOUT));
}

#[test]
fn fatal_naks_end_the_request_with_their_status() {
    let now = Instant::now();
    for (reason, status) in [
        (Nak::InvalidRequest, Status::RemoteInvalidRequest),
        (Nak::RemoteAccess, Status::RemoteAccess),
        (Nak::RemoteOperational, Status::RemoteOperational),
    ] {
        let (mut a, b) = connected(Setup::default());
        for id in 1..=4 {
            a.post(id, write(b"x", b.remote(0)));
        }
        a.post_receive(5, 0, 1);
        a.transmit_all(now);
        // The NAK of the second acknowledges the first.
        a.inject(now, 0xff_ffff, nak(reason), &[]);
        let flushed = |id| (id, Status::Flushed);
        assert_eq!(
            a.statuses(),
            [
                (1, Status::Success),
                (2, status),
                flushed(3),
                flushed(4),
                flushed(5)
            ]
        );
        assert_eq!(a.qp.state(), State::Error);
        assert_eq!(a.transmit(now), None);
    }
}

#[test]
fn without_an_acknowledgement_everything_goes_out_again_until_the_retries_end() {
    let mut now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    a.post(1, write(&pattern(600), b.remote(0)));
    a.post(2, send(b"x"));
    for round in 0..4 {
        let numbers: Vec<u32> = a.transmit_all(now).iter().map(|bytes| psn(bytes)).collect();
        assert_eq!(numbers, [0xff_fffe, 0xff_ffff, 0, 1]);
        assert_eq!(a.qp.counters().timeouts, round);
        assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT));
        now += TIMEOUT;
        a.qp.handle_timeout(now - Duration::from_nanos(1));
        assert_eq!(a.transmit(now), None);
        a.qp.handle_timeout(now);
    }
    assert_eq!(
        a.statuses(),
        [(1, Status::RetriesExceeded), (2, Status::Flushed)]
    );
}

/// Seven retries wait 255 times the first time-out in all, and progress makes the clock quick again.
#[test]
fn with_backing_off_each_time_out_is_twice_the_one_before() {
    let mut now = Instant::now();
    let setup = Setup {
        retries: 7,
        backs_off: true,
        ..Setup::default()
    };
    let (mut a, b) = connected(setup);
    a.post(1, write(&pattern(600), b.remote(0)));
    a.transmit_all(now);
    for doublings in 0..3 {
        assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT * (1 << doublings)));
        now += TIMEOUT * (1 << doublings);
        a.qp.handle_timeout(now);
        a.transmit_all(now);
    }
    a.inject(now, 0xff_fffe, ACK, &[]);
    let progress = now;
    for doublings in 0..8 {
        assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT * (1 << doublings)));
        now += TIMEOUT * (1 << doublings);
        a.qp.handle_timeout(now);
        a.transmit_all(now);
    }
    assert_eq!(now - progress, 255 * TIMEOUT);
    assert_eq!(a.statuses(), [(1, Status::RetriesExceeded)]);
}

#[test]
fn progress_gives_the_retries_back() {
    let mut now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    a.post(1, write(&pattern(256 * 20), b.remote(0)));
    a.transmit_all(now);
    for number in 0..10 {
        for _ in 0..3 {
            now += TIMEOUT;
            a.qp.handle_timeout(now);
            a.transmit_all(now);
        }
        a.inject(now, number, ACK, &[]);
        assert_eq!(a.qp.state(), State::ReadyToSend);
        assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT));
    }
}

#[test]
fn an_acknowledgement_moves_past_what_waits_to_go_out_again() {
    let now = Instant::now();
    let (mut a, b) = connected(Setup::default());
    a.post(1, write(&pattern(1000), b.remote(0)));
    a.transmit_all(now);
    a.qp.handle_timeout(now + TIMEOUT);
    a.inject(now, 0, ACK, &[]);
    let numbers: Vec<u32> = a.transmit_all(now).iter().map(|bytes| psn(bytes)).collect();
    assert_eq!(numbers, [1]);
}

#[test]
fn local_memory_must_be_there() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let source = Source::Memory(a.local(LENGTH - 10, 11));
    let immediate = None;
    a.post(1, send(b"before"));
    a.post(2, Work::Send { source, immediate });
    a.transmit_all(now);
    assert_eq!(
        a.statuses(),
        [(1, Status::Flushed), (2, Status::LocalProtection)]
    );

    // Where an answer goes is looked at when it comes.
    let (mut c, _) = connected(Setup::default());
    let (into, remote) = (c.local(LENGTH - 10, 11), b.remote(0));
    c.post(1, Work::Read { into, remote });
    exchange(now, &mut c, &mut b);
    assert_eq!(c.statuses(), [(1, Status::LocalProtection)]);
}
