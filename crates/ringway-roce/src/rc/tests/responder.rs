//! The responder's table, a test for a line.

use super::*;
use crate::wire::{AtomicEth, Reth};

/// The PSN that a fresh responder expects.
const FIRST: u32 = 0xff_fffe;

fn reth(end: &End, offset: usize, length: u32) -> Reth {
    Reth {
        address: BASE + offset as u64,
        key: end.key,
        length,
    }
}

fn add(end: &End, offset: u64) -> Operation {
    Operation::FetchAdd(AtomicEth {
        address: BASE + offset,
        key: end.key,
        swap_or_add: 5,
        compare: 0,
    })
}

#[test]
fn a_repeated_send_is_acknowledged_but_not_carried_out() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    b.post_receive(1, 0, 10);
    b.post_receive(2, 10, 10);
    b.inject(now, FIRST, Operation::SendOnly, b"one");
    b.inject(
        now,
        FIRST + 1,
        Operation::WriteOnly(reth(&b, 100, 3)),
        b"abc",
    );
    assert_eq!(b.transmit_all(now).len(), 1);
    b.inject(now, FIRST, Operation::SendOnly, b"one");
    b.inject(
        now,
        FIRST + 1,
        Operation::WriteOnly(reth(&b, 100, 3)),
        b"xyz",
    );
    assert_eq!(b.statuses(), [(1, Status::Success)]);
    assert_eq!(&b.memory()[100..103], b"abc");
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    assert!(is_ack(&answers[0]));
    assert_eq!(psn(&answers[0]), FIRST + 1);
    assert_eq!(b.qp.counters().duplicate_requests, 2);
}

#[test]
fn a_repeated_read_is_answered_from_where_it_asks() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    b.fill(0, &pattern(1000));
    b.inject(now, FIRST, Operation::ReadRequest(reth(&b, 0, 1000)), &[]);
    assert_eq!(b.transmit_all(now).len(), 4);
    // From the third packet on, whose PSN is 0.
    b.inject(now, 0, Operation::ReadRequest(reth(&b, 512, 488)), &[]);
    let answers = b.transmit_all(now);
    let parts: Vec<_> = answers
        .iter()
        .map(|bytes| Packet::parse(bytes).unwrap())
        .collect();
    assert_eq!(parts.len(), 2);
    assert!(matches!(
        parts[0].operation,
        Operation::ReadResponseFirst(_)
    ));
    assert!(matches!(parts[1].operation, Operation::ReadResponseLast(_)));
    assert_eq!(parts[0].bth.psn.get(), 0);
    assert_eq!(
        [parts[0].payload, parts[1].payload].concat(),
        pattern(1000)[512..]
    );
    // A repetition that asks for something else is a forgery.
    b.inject(now, 0, Operation::ReadRequest(reth(&b, 512, 489)), &[]);
    b.inject(now, 0, Operation::ReadRequest(reth(&b, 0, 488)), &[]);
    assert_eq!(b.transmit(now), None);
    assert_eq!(b.qp.counters().unknown_duplicates, 2);
    // The responder expects what comes after the whole READ.
    b.inject(now, 2, Operation::WriteOnly(reth(&b, 0, 0)), &[]);
    assert!(is_ack(&b.transmit(now).unwrap()));
}

#[test]
fn a_repeated_read_is_answered_before_later_ones() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = Operation::ReadRequest(reth(&b, 0, 600));
    b.inject(now, FIRST, request, &[]);
    assert_eq!(b.transmit_all(now).len(), 3);
    b.inject(now, 1, request, &[]);
    b.inject(now, FIRST, request, &[]);
    let numbers: Vec<u32> = b.transmit_all(now).iter().map(|bytes| psn(bytes)).collect();
    assert_eq!(numbers, [FIRST, FIRST + 1, 0, 1, 2, 3]);
}

#[test]
fn a_read_that_is_being_answered_starts_again() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    b.inject(now, FIRST, Operation::ReadRequest(reth(&b, 0, 1000)), &[]);
    for _ in 0..3 {
        b.transmit(now).unwrap();
    }
    b.inject(
        now,
        FIRST + 1,
        Operation::ReadRequest(reth(&b, 256, 744)),
        &[],
    );
    // This far the answer hasn't got yet.
    b.inject(now, 1, Operation::ReadRequest(reth(&b, 768, 232)), &[]);
    let numbers: Vec<u32> = b.transmit_all(now).iter().map(|bytes| psn(bytes)).collect();
    assert_eq!(numbers, [FIRST + 1, 0, 1]);
}

#[test]
fn a_repeated_atomic_gets_the_kept_result() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let operation_of = |end: &mut End| {
        let bytes = end.transmit(now).unwrap();
        operation(&bytes)
    };
    let request = add(&b, 0);
    for (number, before) in [
        (FIRST, 0),
        (FIRST, 0),
        (FIRST + 1, 5),
        (FIRST, 0),
        (FIRST + 1, 5),
    ] {
        b.inject(now, number, request, &[]);
        assert!(
            matches!(operation_of(&mut b), Operation::AtomicAcknowledge(_, found) if found == before)
        );
    }
    assert_eq!(b.memory()[..8], 10u64.to_ne_bytes());
    // Another operation with the same number is a forgery.
    let other = add(&b, 8);
    b.inject(now, FIRST, other, &[]);
    assert_eq!(b.transmit(now), None);
    assert_eq!(b.qp.counters().unknown_duplicates, 1);
}

#[test]
fn as_many_answers_are_kept_as_there_are_resources() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = add(&b, 0);
    for number in 0..5 {
        b.inject(now, Psn::new(FIRST).plus(number).get(), request, &[]);
        assert_eq!(b.transmit_all(now).len(), 1);
    }
    b.inject(now, FIRST, request, &[]);
    assert_eq!(b.transmit(now), None);
    b.inject(now, FIRST + 1, request, &[]);
    assert_eq!(b.transmit_all(now).len(), 1);
    assert_eq!(b.qp.counters().unknown_duplicates, 1);
}

#[test]
fn more_reads_than_resources_are_refused() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = Operation::ReadRequest(reth(&b, 0, 1));
    for number in 0..5 {
        b.inject(now, Psn::new(FIRST).plus(number).get(), request, &[]);
    }
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 5);
    assert!(is_nak(&answers[4], Nak::InvalidRequest));
    assert_eq!(b.qp.state(), State::Error);
}

#[test]
fn a_gap_is_refused_once() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = Operation::WriteOnly(reth(&b, 0, 1));
    b.inject(now, FIRST + 1, request, b"2");
    b.inject(now, 0, request, b"3");
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    assert!(is_nak(&answers[0], Nak::SequenceError));
    assert_eq!(psn(&answers[0]), FIRST);
    b.inject(now, FIRST, request, b"1");
    assert!(is_ack(&b.transmit(now).unwrap()));
    b.inject(now, 0, request, b"3");
    assert!(is_nak(&b.transmit(now).unwrap(), Nak::SequenceError));
    assert_eq!(b.qp.counters().out_of_sequence, 3);
    assert_eq!(b.memory()[0], b'1');
}

#[test]
fn a_refusal_that_is_not_sent_yet_is_withdrawn() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = Operation::WriteOnly(reth(&b, 0, 1));
    b.inject(now, FIRST + 1, request, b"2");
    b.inject(now, FIRST, request, b"1");
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    assert!(is_ack(&answers[0]));
}

#[test]
fn without_a_receive_the_message_waits() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    b.inject(now, FIRST, Operation::SendOnly, b"hello");
    assert!(is_rnr_nak(&b.transmit(now).unwrap()));
    // Nothing is said of what comes after it.
    b.inject(now, FIRST + 1, Operation::SendOnly, b"later");
    assert_eq!(b.transmit(now), None);
    let with_immediate = Operation::WriteOnlyImmediate(reth(&b, 0, 5), 9);
    b.inject(now, FIRST, with_immediate, b"hello");
    assert!(is_rnr_nak(&b.transmit(now).unwrap()));
    assert_eq!(b.memory()[..5], [0; 5]);
    b.post_receive(1, 0, 0);
    b.inject(now, FIRST, with_immediate, b"hello");
    assert!(is_ack(&b.transmit(now).unwrap()));
    assert_eq!(&b.memory()[..5], b"hello");
    assert_eq!(b.statuses(), [(1, Status::Success)]);
}

#[test]
fn without_a_receive_only_the_last_packet_of_a_write_waits() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let bytes = pattern(600);
    let (source, remote, immediate) = (inline(&bytes), b.remote(0), Some(1));
    a.post(
        1,
        Work::Write {
            source,
            remote,
            immediate,
        },
    );
    exchange(now, &mut a, &mut b);
    assert_eq!(b.memory()[..512], pattern(600)[..512]);
    assert_eq!(b.memory()[512..600], [0; 88]);
    b.post_receive(1, 0, 0);
    a.qp.handle_timeout(now + RNR_WAIT);
    assert_eq!(a.qp.counters().retransmitted, 0);
    exchange(now, &mut a, &mut b);
    assert_eq!(a.qp.counters().retransmitted, 1);
    assert_eq!(b.memory()[..600], pattern(600));
    assert_eq!(b.statuses(), [(1, Status::Success)]);
}

#[test]
fn a_message_longer_than_the_receive_is_an_error_on_both_sides() {
    let now = Instant::now();
    for length in [11, 300] {
        let (mut a, mut b) = connected(Setup::default());
        b.post_receive(1, 0, length - 1);
        b.post_receive(2, 0, 100);
        a.post(1, send(&pattern(length)));
        exchange(now, &mut a, &mut b);
        assert_eq!(
            b.statuses(),
            [(1, Status::LocalLength), (2, Status::Flushed)]
        );
        assert_eq!(a.statuses(), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!((a.qp.state(), b.qp.state()), (State::Error, State::Error));
    }
}

#[test]
fn a_receive_without_memory_is_the_responders_error() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    b.post_receive(1, LENGTH - 10, 20);
    a.post(1, send(&pattern(11)));
    exchange(now, &mut a, &mut b);
    assert_eq!(b.statuses(), [(1, Status::LocalProtection)]);
    assert_eq!(a.statuses(), [(1, Status::RemoteOperational)]);
}

#[test]
fn a_receive_in_use_is_flushed() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    b.post_receive(1, 0, 1000);
    a.post(1, send(&pattern(1000)));
    let packet = a.transmit(now).unwrap();
    b.take(now, &packet);
    b.qp.fail();
    assert_eq!(b.statuses(), [(1, Status::Flushed)]);
}

#[test]
fn wrong_keys_rights_and_bounds_are_refused() {
    let now = Instant::now();
    let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
    for case in 0..6 {
        let (mut a, mut b) = connected(Setup::default());
        let protected = b
            .domain
            .register(Key(9), vec![0; 64], BASE, read_only)
            .unwrap();
        let (address, key) = (BASE, protected);
        let denied = Remote { key, address };
        let mut unknown = b.remote(0);
        unknown.key = Key(unknown.key.0 ^ 0x5500);
        let into = a.local(0, 8);
        let bytes = pattern(600);
        let work = match case {
            0 => write(b"x", unknown),
            1 => write(b"x", denied),
            2 => write(&bytes, b.remote(LENGTH - 599)),
            3 => Work::Read {
                into,
                remote: b.remote(LENGTH - 7),
            },
            4 => Work::FetchAdd {
                into,
                remote: denied,
                add: 1,
            },
            _ => Work::CompareSwap {
                into,
                remote: b.remote(LENGTH),
                compare: 0,
                swap: 1,
            },
        };
        let before = b.memory().to_vec();
        a.post(1, work);
        exchange(now, &mut a, &mut b);
        assert_eq!(a.statuses(), [(1, Status::RemoteAccess)], "case {case}");
        assert_eq!(b.qp.state(), State::Error);
        assert_eq!(b.memory(), before);
    }
}

#[test]
fn what_the_queue_pair_does_not_allow_is_invalid() {
    let now = Instant::now();
    let setup = Setup {
        access: Access::NONE,
        ..Setup::default()
    };
    for case in 0..3 {
        let (mut a, mut b) = connected(setup);
        let (into, remote) = (a.local(0, 8), b.remote(0));
        a.post(
            1,
            match case {
                0 => write(b"x", remote),
                1 => Work::Read { into, remote },
                _ => Work::FetchAdd {
                    into,
                    remote,
                    add: 1,
                },
            },
        );
        exchange(now, &mut a, &mut b);
        assert_eq!(a.statuses(), [(1, Status::RemoteInvalidRequest)]);
    }
}

#[test]
fn no_bytes_need_no_memory() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let nowhere = Remote {
        key: Key(0),
        address: 1,
    };
    let nothing = Local {
        key: Key(0),
        address: 1,
        length: 0,
    };
    b.qp.post_receive(ReceiveRequest {
        id: 1,
        into: nothing,
    })
    .unwrap();
    let (source, immediate) = (Source::Memory(nothing), None);
    a.post(1, Work::Send { source, immediate });
    a.post(
        2,
        Work::Write {
            source,
            remote: nowhere,
            immediate,
        },
    );
    a.post(
        3,
        Work::Read {
            into: nothing,
            remote: nowhere,
        },
    );
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [1, 2, 3].map(|id| (id, Status::Success)));
}

#[test]
fn packets_that_do_not_fit_together_are_invalid() {
    let now = Instant::now();
    let (full, part) = (pattern(256), pattern(100));
    let example = connected(Setup::default()).1;
    let long = reth(&example, 0, 300);
    let cases: Vec<Vec<(Operation, &[u8])>> = vec![
        // Out of place in the message.
        vec![(Operation::SendMiddle, &full)],
        vec![(Operation::SendLast, &part)],
        vec![(Operation::WriteMiddle, &full)],
        vec![(Operation::WriteLastImmediate(1), &part)],
        vec![(Operation::SendFirst, &full), (Operation::SendOnly, &part)],
        vec![(Operation::SendFirst, &full), (Operation::WriteLast, &part)],
        vec![
            (Operation::WriteFirst(long), &full),
            (Operation::SendLast, &part),
        ],
        vec![
            (Operation::WriteFirst(long), &full),
            (Operation::WriteFirst(long), &full),
        ],
        vec![
            (Operation::SendFirst, &full),
            (Operation::ReadRequest(long), &[]),
        ],
        vec![(Operation::SendFirst, &full), (add(&example, 0), &[])],
        // Too short or too long.
        vec![(Operation::SendFirst, &part)],
        vec![
            (Operation::SendFirst, &full),
            (Operation::SendMiddle, &part),
        ],
        vec![(Operation::SendFirst, &full), (Operation::SendLast, &[])],
        vec![(Operation::SendOnly, &[0; 257])],
        vec![(Operation::WriteOnly(long), &part)],
        vec![(Operation::WriteFirst(reth(&example, 0, 200)), &full)],
        vec![
            (Operation::WriteFirst(long), &full),
            (Operation::WriteLast, &part),
        ],
        vec![
            (Operation::WriteFirst(long), &full),
            (Operation::WriteMiddle, &full),
        ],
        // Payload where none belongs, and no alignment.
        vec![(Operation::ReadRequest(long), &part)],
        vec![(add(&example, 0), &part)],
        vec![(add(&example, 4), &[])],
        vec![(Operation::ReadRequest(reth(&example, 0, u32::MAX)), &[])],
    ];
    for case in cases {
        let (_, mut b) = connected(Setup::default());
        b.post_receive(1, 1000, 1000);
        let last = case.len() - 1;
        for (index, (operation, payload)) in case.iter().enumerate() {
            assert_eq!(b.qp.state(), State::ReadyToSend, "{case:?}");
            b.inject(now, FIRST + index as u32, *operation, payload);
            assert_eq!(b.qp.state() == State::Error, index == last, "{case:?}");
        }
        let answers = b.transmit_all(now);
        assert!(
            is_nak(answers.last().unwrap(), Nak::InvalidRequest),
            "{case:?}"
        );
        // The receive has ended, in use or not.
        let statuses = b.statuses();
        assert_eq!(statuses.len(), 1, "{case:?}");
    }
}

#[test]
fn an_answer_whose_memory_goes_away_becomes_a_refusal() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let (into, remote) = (a.local(0, 1000), b.remote(0));
    a.post(1, Work::Read { into, remote });
    let request = a.transmit(now).unwrap();
    b.take(now, &request);
    let first = b.transmit(now).unwrap();
    a.take(now, &first);
    b.domain.deregister(b.key).unwrap();
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    a.take(now, &answers[0]);
    assert_eq!(a.statuses(), [(1, Status::RemoteAccess)]);
    assert_eq!(b.qp.state(), State::Error);
}

#[test]
fn an_answer_before_a_last_nak_still_goes_out() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let (into, remote) = (a.local(0, 600), b.remote(0));
    let mut wrong = remote;
    wrong.key = Key(0);
    a.post(1, Work::Read { into, remote });
    a.post(2, write(b"x", wrong));
    for bytes in a.transmit_all(now) {
        b.take(now, &bytes);
    }
    assert_eq!(b.qp.state(), State::Error);
    exchange(now, &mut a, &mut b);
    assert_eq!(
        a.statuses(),
        [(1, Status::Success), (2, Status::RemoteAccess)]
    );
}

/// However often packets come again: what waits to be sent stays small.
#[test]
fn repetitions_do_not_pile_up() {
    let now = Instant::now();
    let (_, mut b) = connected(Setup::default());
    let request = Operation::WriteOnly(reth(&b, 0, 1));
    let (read, add) = (Operation::ReadRequest(reth(&b, 0, 600)), add(&b, 0));
    b.inject(now, FIRST, request, b"1");
    b.inject(now, FIRST + 1, read, &[]);
    b.inject(now, 2, add, &[]);
    for _ in 0..100 {
        b.inject(now, FIRST, request, b"1");
        b.inject(now, FIRST + 1, read, &[]);
        b.inject(now, 2, add, &[]);
        b.inject(now, 5, request, b"5");
    }
    // The acknowledgement of the first, three parts of the READ, the number, the last acknowledgement, the NAK.
    assert!(b.transmit_all(now).len() <= 7);
}
