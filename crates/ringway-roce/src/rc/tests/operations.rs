//! Every operation, of all lengths that matter, on a wire that loses nothing.

use super::*;

#[test]
fn messages_of_all_lengths_arrive() {
    let now = Instant::now();
    for mtu in Mtu::ALL {
        let setup = Setup {
            mtu,
            ..Setup::default()
        };
        let (mut a, mut b) = connected(setup);
        let full = mtu.bytes() as usize;
        for length in [0, 1, 3, full - 1, full, full + 1, 2 * full, 3 * full + 5] {
            let bytes = pattern(length);
            a.fill(0, &bytes);
            for immediate in [None, Some(0x1234_5678)] {
                for source in [inline(&bytes), Source::Memory(a.local(0, length))] {
                    b.fill(0, &vec![0xee; length + 1]);
                    b.post_receive(7, 0, length);
                    a.post(1, Work::Send { source, immediate });
                    exchange(now, &mut a, &mut b);
                    let done = Done::Receive {
                        length: length as u32,
                        immediate,
                    };
                    let status = Status::Success;
                    assert_eq!(
                        b.completions(),
                        [Completion {
                            id: 7,
                            status,
                            done
                        }]
                    );
                    assert_eq!(
                        a.completions(),
                        [Completion {
                            id: 1,
                            status,
                            done: Done::Send
                        }]
                    );
                    assert_eq!(b.memory()[..length], bytes);
                    assert_eq!(b.memory()[length], 0xee);

                    b.fill(0, &vec![0xee; length + 1]);
                    let remote = b.remote(0);
                    a.post(
                        2,
                        Work::Write {
                            source,
                            remote,
                            immediate,
                        },
                    );
                    if immediate.is_some() {
                        b.post_receive(8, 0, 0);
                    }
                    exchange(now, &mut a, &mut b);
                    let done = immediate.map(|immediate| Completion {
                        id: 8,
                        status,
                        done: Done::ReceiveWrite {
                            length: length as u32,
                            immediate,
                        },
                    });
                    assert_eq!(b.completions(), Vec::from_iter(done));
                    assert_eq!(
                        a.completions(),
                        [Completion {
                            id: 2,
                            status,
                            done: Done::Write
                        }]
                    );
                    assert_eq!(b.memory()[..length], bytes);
                    assert_eq!(b.memory()[length], 0xee);
                }
            }
            a.fill(0, &vec![0xee; length + 1]);
            let (into, remote) = (a.local(0, length), b.remote(0));
            a.post(3, Work::Read { into, remote });
            exchange(now, &mut a, &mut b);
            assert_eq!(a.statuses(), [(3, Status::Success)]);
            assert_eq!(a.memory()[..length], bytes);
            assert_eq!(a.memory()[length], 0xee);
        }
        assert_eq!(a.qp.counters().retransmitted, 0);
        assert_eq!(a.qp.poll_timeout(), None);
    }
}

#[test]
fn atomics_return_the_number_before() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    b.fill(8, &41u64.to_ne_bytes());
    let remote = b.remote(8);
    let (add, wrong, right) = (a.local(0, 8), a.local(8, 8), a.local(16, 8));
    a.post(
        1,
        Work::FetchAdd {
            into: add,
            remote,
            add: 1,
        },
    );
    a.post(
        2,
        Work::CompareSwap {
            into: wrong,
            remote,
            compare: 41,
            swap: 7,
        },
    );
    a.post(
        3,
        Work::CompareSwap {
            into: right,
            remote,
            compare: 42,
            swap: 7,
        },
    );
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [1, 2, 3].map(|id| (id, Status::Success)));
    let numbers: Vec<u8> = [41u64, 42, 42]
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    assert_eq!(a.memory()[..24], numbers);
    assert_eq!(b.memory()[8..16], 7u64.to_ne_bytes());
}

#[test]
fn only_signaled_successes_are_reported() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    for (id, signaled) in [(1, false), (2, true), (3, false)] {
        let work = write(b"x", b.remote(0));
        let solicited = false;
        a.qp.post_send(&SendRequest {
            id,
            work,
            signaled,
            solicited,
        })
        .unwrap();
    }
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [(2, Status::Success)]);
}

#[test]
fn the_last_packet_of_a_solicited_message_says_so() {
    let now = Instant::now();
    let (mut a, _) = connected(Setup::default());
    let bytes = pattern(600);
    let (work, signaled, solicited) = (send(&bytes), true, true);
    a.qp.post_send(&SendRequest {
        id: 1,
        work,
        signaled,
        solicited,
    })
    .unwrap();
    let packets = a.transmit_all(now);
    let flags = packets
        .iter()
        .map(|bytes| Packet::parse(bytes).unwrap().bth);
    let flags: Vec<_> = flags.map(|bth| (bth.solicited, bth.ack_request)).collect();
    // The second PSN of the pair's is 0xff_ffff, the third 0: a multiple of a quarter of the window.
    assert_eq!(flags, [(false, false), (false, false), (true, true)]);
}

#[test]
fn one_acknowledgement_answers_many_messages() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    for id in 0..10 {
        a.post(id, write(b"x", b.remote(0)));
    }
    for bytes in a.transmit_all(now) {
        b.take(now, &bytes);
    }
    let answers = b.transmit_all(now);
    assert_eq!(answers.len(), 1);
    let Operation::Acknowledge(Aeth { msn, .. }) = operation(&answers[0]) else {
        panic!("no acknowledgement");
    };
    assert_eq!(msn, Psn::new(10));
    a.take(now, &answers[0]);
    assert_eq!(a.statuses().len(), 10);
}

#[test]
fn answers_and_requests_take_turns() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let (into, remote) = (a.local(0, 1000), b.remote(0));
    a.post(1, Work::Read { into, remote });
    let request = a.transmit(now).unwrap();
    b.take(now, &request);
    b.post(1, write(&pattern(1000), a.remote(5000)));
    let is_write = |bytes: &Vec<u8>| {
        matches!(
            operation(bytes),
            Operation::WriteFirst(_) | Operation::WriteMiddle | Operation::WriteLast
        )
    };
    let kinds: Vec<bool> = b.transmit_all(now).iter().map(is_write).collect();
    assert_eq!(kinds, [true, false].repeat(4));
}

#[test]
fn both_directions_at_once() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup::default());
    let (from_a, from_b) = (pattern(5000), pattern(7001));
    a.post(1, write(&from_a, b.remote(0)));
    b.post(1, write(&from_b, a.remote(0)));
    let (into, remote) = (a.local(20_000, 5000), b.remote(0));
    a.post(2, Work::Read { into, remote });
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses(), [1, 2].map(|id| (id, Status::Success)));
    assert_eq!(b.statuses(), [(1, Status::Success)]);
    assert_eq!(a.memory()[..7001], from_b);
    assert_eq!(a.memory()[20_000..25_000], from_a);
}
