//! Selective retransmission: losses worked out by hand, and any losses compared with go-back-N.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const SELECTIVE: Setup = Setup {
    selective: true,
    ..Setup::USUAL
};

/// The PSN that is so many after the first.
const fn nth(index: u32) -> u32 {
    Psn::new(SELECTIVE.psn).plus(index).get()
}

/// The one WRITE has ended well, and what it wrote is there.
fn assert_written(a: &mut End, b: &End, bytes: &[u8]) {
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    assert_eq!(b.memory()[..bytes.len()], *bytes);
}

fn psns(packets: &[Vec<u8>]) -> Vec<u32> {
    packets.iter().map(|bytes| psn(bytes)).collect()
}

/// Hands over all packets but those with these indices, and returns what the receiver answers.
fn deliver(now: Instant, packets: &[Vec<u8>], lost: &[usize], to: &mut End) -> Vec<Vec<u8>> {
    let arrive = |index: &usize| !lost.contains(index);
    for index in (0..packets.len()).filter(arrive) {
        to.take(now, &packets[index]);
    }
    to.transmit_all(now)
}

/// The PSN and the bits of a selective acknowledgement.
fn held(bytes: &[u8]) -> (u32, u64) {
    let packet = Packet::parse(bytes).unwrap();
    assert!(matches!(
        packet.operation,
        Operation::SelectiveAcknowledge(_)
    ));
    let (low, high) = packet.payload.split_first_chunk::<8>().unwrap();
    assert_eq!(high, [0; 24]);
    (packet.bth.psn.get(), u64::from_le_bytes(*low))
}

/// A WRITE of so many packets, under way.
fn writing(now: Instant, packets: usize, setup: Setup) -> (End, End, Vec<u8>, Vec<Vec<u8>>) {
    let (mut a, b) = connected(setup);
    let bytes = pattern(256 * packets);
    a.post(1, write(&bytes, b.remote(0)));
    let sent = a.transmit_all(now);
    (a, b, bytes, sent)
}

#[test]
fn of_six_packets_only_the_lost_second_goes_again() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(now, 6, SELECTIVE);
    let answers = deliver(now, &sent, &[1], &mut b);
    assert_eq!(answers.len(), 1);
    assert_eq!(held(&answers[0]), (nth(1), 0b1111));
    assert_eq!((b.qp.counters().kept, b.memory()[256]), (4, 0));
    assert_eq!((a.qp.footprint(), b.qp.footprint()), (0, 256 * 256));
    a.take(now, &answers[0]);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(1)]);
    exchange_from(now, &again, &mut a, &mut b);
    assert_written(&mut a, &b, &bytes);
    let counters = a.qp.counters();
    assert_eq!(
        (counters.retransmitted, counters.selective_acks_received),
        (1, 1)
    );
}

#[test]
fn without_room_the_lost_one_goes_again_and_then_what_was_dropped() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(now, 6, SELECTIVE);
    b.qp.limit_growth(256 * 256 - 1);
    let answers = deliver(now, &sent, &[1], &mut b);
    assert_eq!(held(&answers[0]), (nth(1), 0));
    assert_eq!((b.qp.counters().kept, b.qp.footprint()), (0, 0));
    a.take(now, &answers[0]);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(1)]);
    // Each that was dropped is answered like this; the repetition is under way.
    a.take(now, &answers[0]);
    assert!(a.transmit_all(now).is_empty());
    exchange_from(now, &again, &mut a, &mut b);
    assert_written(&mut a, &b, &bytes);
    let counters = a.qp.counters();
    assert_eq!((counters.retransmitted, counters.timeouts), (5, 0));
}

/// A question with several answers, of which the first is lost or not, and one with one.
#[test]
fn without_room_a_lost_question_goes_again_and_then_what_was_dropped() {
    let now = Instant::now();
    for (packets, answer_lost) in [(3, false), (3, true), (1, false)] {
        let (mut a, mut b) = connected(SELECTIVE);
        b.qp.limit_growth(0);
        b.fill(0, &pattern(600));
        let length = 200 * packets;
        let (into, remote) = (a.local(0, length), b.remote(0));
        a.post(1, Work::Read { into, remote });
        for id in 2..5 {
            a.post(id, write(b"x", b.remote(2000)));
        }
        let sent = a.transmit_all(now);
        let answers = deliver(now, &sent, &[0], &mut b);
        assert_eq!(held(&answers[0]), (nth(0), 0));
        a.take(now, &answers[0]);
        let again = a.transmit_all(now);
        assert_eq!(psns(&again), [nth(0)]);
        a.take(now, &answers[0]);
        assert!(a.transmit_all(now).is_empty());
        let answers = deliver(now, &again, &[], &mut b);
        for answer in &answers[usize::from(answer_lost)..] {
            a.take(now, answer);
        }
        exchange(now, &mut a, &mut b);
        let expected = [1, 2, 3, 4].map(|id| (id, Status::Success));
        assert_eq!(a.statuses(), expected);
        assert_eq!(a.memory()[..length], pattern(600)[..length]);
        let counters = a.qp.counters();
        let again = 4 + u64::from(answer_lost);
        assert_eq!((counters.retransmitted, counters.timeouts), (again, 0));
    }
}

#[test]
fn without_room_what_is_lost_after_a_lost_answer_goes_again_with_the_question() {
    let now = Instant::now();
    let (mut a, mut b) = connected(SELECTIVE);
    b.qp.limit_growth(0);
    b.fill(0, &pattern(600));
    let (into, remote) = (a.local(0, 600), b.remote(0));
    a.post(1, Work::Read { into, remote });
    for id in 2..5 {
        a.post(id, write(b"x", b.remote(2000)));
    }
    let sent = a.transmit_all(now);
    let answers = deliver(now, &sent, &[1], &mut b);
    let report = answers.last().unwrap();
    assert_eq!((answers.len(), held(report)), (4, (nth(3), 0)));
    a.take(now, report);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(0), nth(3)]);
    exchange_from(now, &again, &mut a, &mut b);
    let expected = [1, 2, 3, 4].map(|id| (id, Status::Success));
    assert_eq!(a.statuses(), expected);
    assert_eq!(a.memory()[..600], pattern(600));
    let counters = a.qp.counters();
    assert_eq!((counters.retransmitted, counters.timeouts), (4, 0));
}

fn exchange_from(now: Instant, packets: &[Vec<u8>], a: &mut End, b: &mut End) {
    for bytes in deliver(now, packets, &[], b) {
        a.take(now, &bytes);
    }
    exchange(now, a, b);
}

#[test]
fn two_gaps_are_told_at_once() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(now, 8, SELECTIVE);
    let answers = deliver(now, &sent, &[0, 3, 4], &mut b);
    assert_eq!(answers.len(), 1);
    assert_eq!(held(&answers[0]), (nth(0), 0b111_0011));
    a.take(now, &answers[0]);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(0), nth(3), nth(4)]);
    // The first of them closes one gap, and the other is told of again.
    let answers = deliver(now, &again[..1], &[], &mut b);
    assert_eq!(held(&answers[0]), (nth(3), 0b1110));
    exchange_from(now, &again[1..], &mut a, &mut b);
    assert_written(&mut a, &b, &bytes);
    assert_eq!(a.qp.counters().retransmitted, 3);
}

#[test]
fn a_repetition_that_is_lost_shows_by_what_was_sent_after_it() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(
        now,
        6,
        Setup {
            window: 4,
            ..SELECTIVE
        },
    );
    assert_eq!(sent.len(), 4);
    for answer in deliver(now, &sent, &[1], &mut b) {
        a.take(now, &answer);
    }
    // The repetition, and as the window has moved by one, a new packet.
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(1), nth(4)]);
    let answers = deliver(now, &again, &[0], &mut b);
    assert_eq!(held(&answers[0]), (nth(1), 0b111));
    a.take(now, &answers[0]);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(1)]);
    exchange_from(now, &again, &mut a, &mut b);
    assert_written(&mut a, &b, &bytes);
    assert_eq!(a.qp.counters().timeouts, 0);
}

#[test]
fn a_lost_end_takes_one_time_out_and_two_packets_to_find_out_the_rest() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(now, 6, SELECTIVE);
    // What it has to say is lost, too.
    deliver(now, &sent, &[3, 4, 5], &mut b);
    let later = now + TIMEOUT;
    a.qp.handle_timeout(later);
    // It isn't known what came. The oldest was there already; the latest shows the gap before it.
    let again = a.transmit_all(later);
    assert_eq!(psns(&again), [nth(0), nth(5)]);
    let answers = deliver(later, &again, &[], &mut b);
    assert_eq!(held(answers.last().unwrap()), (nth(3), 0b10));
    for answer in &answers {
        a.take(later, answer);
    }
    let again = a.transmit_all(later);
    assert_eq!(psns(&again), [nth(3), nth(4)]);
    exchange_from(later, &again, &mut a, &mut b);
    assert_written(&mut a, &b, &bytes);
}

/// Its process was at other things, and what it acknowledges then are not the repetitions.
#[test]
fn a_slow_responder_is_sent_little_for_nothing() {
    let now = Instant::now();
    let (mut a, mut b, bytes, sent) = writing(now, 40, SELECTIVE);
    let later = now + TIMEOUT;
    a.qp.handle_timeout(later);
    assert_eq!(psns(&a.transmit_all(later)), [nth(0), nth(39)]);
    for half in sent.chunks(20) {
        for answer in deliver(later, half, &[], &mut b) {
            a.take(later, &answer);
        }
        assert_eq!(a.transmit_all(later), Vec::<Vec<u8>>::new());
    }
    assert_written(&mut a, &b, &bytes);
    assert_eq!(a.qp.counters().retransmitted, 2);
}

#[test]
fn who_waits_for_a_receive_keeps_what_follows() {
    let now = Instant::now();
    let (mut a, mut b) = connected(SELECTIVE);
    for id in 0..3 {
        a.post(id, send(b"abc"));
    }
    let sent = a.transmit_all(now);
    let answers = deliver(now, &sent, &[], &mut b);
    assert_eq!(answers.len(), 1);
    assert!(is_rnr_nak(&answers[0]));
    a.take(now, &answers[0]);
    assert_eq!(a.transmit(now), None);
    // The first is ready, the third isn't yet.
    b.post_receive(0, 0, 8);
    b.post_receive(1, 8, 8);
    let later = now + RNR_WAIT;
    a.qp.handle_timeout(later);
    let again = a.transmit_all(later);
    assert_eq!(psns(&again), [nth(0)]);
    let answers = deliver(later, &again, &[], &mut b);
    assert!(is_rnr_nak(answers.last().unwrap()));
    assert_eq!(psn(answers.last().unwrap()), nth(2));
    for answer in &answers {
        a.take(later, answer);
    }
    assert_eq!(a.statuses().len(), 2);
    b.post_receive(2, 16, 8);
    let later = later + RNR_WAIT;
    a.qp.handle_timeout(later);
    exchange(later, &mut a, &mut b);
    assert_eq!(a.statuses(), [(2, Status::Success)]);
    let received: Vec<u64> = b.completions().iter().map(|done| done.id).collect();
    assert_eq!(received, [0, 1, 2]);
}

#[test]
fn a_read_waits_for_its_turn_and_a_lost_answer_repeats_nothing_else() {
    let now = Instant::now();
    let (mut a, mut b) = connected(SELECTIVE);
    b.fill(0, &pattern(600));
    a.post(1, write(b"first", b.remote(1000)));
    let (into, remote) = (a.local(0, 600), b.remote(0));
    a.post(2, Work::Read { into, remote });
    a.post(3, write(b"x", b.remote(2000)));
    let sent = a.transmit_all(now);
    assert_eq!(psns(&sent), [nth(0), nth(1), nth(4)]);
    let answers = deliver(now, &sent, &[0], &mut b);
    assert_eq!(answers.len(), 1);
    assert_eq!(held(&answers[0]), (nth(0), 0b1001));
    a.take(now, &answers[0]);
    // All three are carried out now, and the second of the READ's answers gets lost.
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(0)]);
    let answers = deliver(now, &again, &[], &mut b);
    for index in (0..answers.len()).filter(|index| psn(&answers[*index]) != nth(2)) {
        a.take(now, &answers[index]);
    }
    assert_eq!(a.statuses(), [(1, Status::Success)]);
    let again = a.transmit_all(now);
    assert_eq!(psns(&again), [nth(2)]);
    assert!(matches!(operation(&again[0]), Operation::ReadRequest(_)));
    exchange_from(now, &again, &mut a, &mut b);
    assert_eq!(a.statuses(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(a.memory()[..600], pattern(600));
    assert_eq!(b.qp.counters().duplicate_requests, 1);
}

/// Of what came after a lost answer, too early, nothing was kept: all of it is asked for again without a time-out.
#[test]
fn discarded_answers_are_asked_for_again() {
    let now = Instant::now();
    let setup = Setup {
        read_window: 4,
        ..SELECTIVE
    };
    // In pieces of two packets, of which the second has one or two; and each in a READ of its own.
    for lengths in [&[600][..], &[1024], &[256, 256], &[600, 256]] {
        let (mut a, mut b) = connected(setup);
        b.fill(0, &pattern(1024));
        for (id, length) in lengths.iter().enumerate() {
            let (into, remote) = (a.local(0, *length), b.remote(0));
            a.post(id as u64, Work::Read { into, remote });
        }
        let sent = a.transmit_all(now);
        let answers = deliver(now, &sent, &[], &mut b);
        assert!(answers.len() > 1);
        for answer in &answers[1..] {
            a.take(now, answer);
        }
        exchange(now, &mut a, &mut b);
        let expected: Vec<_> = (0..lengths.len() as u64)
            .map(|id| (id, Status::Success))
            .collect();
        assert_eq!(a.statuses(), expected, "{lengths:?}");
        let longest = lengths[0];
        assert_eq!(a.memory()[..longest], pattern(1024)[..longest]);
    }
}

#[test]
fn no_more_is_sent_ahead_than_is_kept() {
    let now = Instant::now();
    let (mut a, mut b) = connected(Setup {
        window: 300,
        ..SELECTIVE
    });
    for id in 0..2 {
        a.post(id, write(&pattern(200 * 256), b.remote(0)));
    }
    let sent = a.transmit_all(now);
    assert_eq!(sent.len(), 256);
    for answer in deliver(now, &sent, &[0], &mut b) {
        a.take(now, &answer);
    }
    assert_eq!(b.qp.counters().kept, 255);
    exchange(now, &mut a, &mut b);
    assert_eq!(a.statuses().len(), 2);
    assert_eq!(a.qp.counters().retransmitted, 1);
}

/// Nor is a packet kept that is longer than any may be.
#[test]
fn what_cannot_be_is_not_kept() {
    let now = Instant::now();
    let (_, mut b) = connected(SELECTIVE);
    b.inject(now, nth(2), Operation::SendMiddle, &[0; 257]);
    b.inject(now, nth(256), Operation::SendMiddle, &[0; 256]);
    assert_eq!(b.qp.counters().kept, 0);
    // The same packet twice counts once.
    b.inject(now, nth(255), Operation::SendMiddle, &[0; 256]);
    b.inject(now, nth(255), Operation::SendMiddle, &[0; 256]);
    assert_eq!(b.qp.counters().kept, 1);
}

#[test]
fn who_has_not_agreed_takes_no_selective_acknowledgement() {
    let now = Instant::now();
    let (mut a, _, _, sent) = writing(now, 6, Setup::default());
    assert_eq!(sent.len(), 6);
    let selective = Operation::SelectiveAcknowledge(aeth(Syndrome::Nak(Nak::SequenceError)));
    a.inject(now, nth(1), selective, &[0xff; 32]);
    assert_eq!(a.qp.counters().stale_responses, 1);
    assert_eq!(a.transmit(now), None);
}

/// An end whose round trips take 10 µs, and the next WRITE of so many packets under way.
fn writing_with_round_trip(now: Instant, packets: usize) -> (End, End, Vec<u8>, Vec<Vec<u8>>) {
    writing_after_one(now, packets, SELECTIVE)
}

fn writing_after_one(
    now: Instant,
    packets: usize,
    setup: Setup,
) -> (End, End, Vec<u8>, Vec<Vec<u8>>) {
    let (mut a, mut b, _, sent) = writing(now, 1, setup);
    let answers = deliver(now, &sent, &[], &mut b);
    a.take(now + Duration::from_micros(10), &answers[0]);
    a.completions();
    let bytes = pattern(256 * packets);
    a.post(1, write(&bytes, b.remote(0)));
    let sent = a.transmit_all(now);
    (a, b, bytes, sent)
}

/// What the probe waits after so short a round trip.
const PROBE_WAIT: Duration = Duration::from_millis(1);

#[test]
fn a_probe_finds_a_lost_end_without_a_time_out() {
    let now = Instant::now();
    for lost in [&[5][..], &[4, 5], &[3, 4, 5], &[0, 1, 2, 3, 4, 5]] {
        let (mut a, mut b, bytes, sent) = writing_with_round_trip(now, 6);
        for answer in deliver(now, &sent, lost, &mut b) {
            a.take(now, &answer);
        }
        exchange(now, &mut a, &mut b);
        assert_eq!(a.statuses(), [], "{lost:?}");
        assert_eq!(a.qp.poll_timeout(), Some(now + PROBE_WAIT), "{lost:?}");
        let later = now + PROBE_WAIT;
        a.qp.handle_timeout(later);
        let probe = a.transmit_all(later);
        assert_eq!(psns(&probe), [nth(6)], "{lost:?}");
        exchange_from(later, &probe, &mut a, &mut b);
        assert_written(&mut a, &b, &bytes);
        let counters = a.qp.counters();
        let found = (counters.probes, counters.timeouts, counters.retransmitted);
        assert_eq!(found, (1, 0, lost.len() as u64), "{lost:?}");
        assert_eq!(a.qp.poll_timeout(), None);
    }
}

/// A report of what was dropped doesn't say whether that was sent before the repetition or after. The time-out may be off.
#[test]
fn without_room_a_probe_repeats_what_was_lost_again() {
    let start = Instant::now();
    for (timeout, lost_again) in [(10, 1), (0, 1), (0, 5)] {
        let setup = Setup {
            timeout,
            ..SELECTIVE
        };
        let (mut a, mut b, bytes, sent) = writing_after_one(start, 6, setup);
        b.qp.limit_growth(0);
        let mut now = start;
        for answer in deliver(now, &sent, &[0], &mut b) {
            a.take(now, &answer);
        }
        assert_eq!(psns(&a.transmit_all(now)), [nth(1)]);
        a.post(2, write(b"last", b.remote(4000)));
        let mut sent = a.transmit_all(now);
        assert_eq!(psns(&sent), [nth(7)]);
        for _ in 0..lost_again {
            let answers = deliver(now, &sent[sent.len() - 1..], &[], &mut b);
            assert_eq!(held(&answers[0]), (nth(1), 0));
            a.take(now, &answers[0]);
            assert!(a.transmit_all(now).is_empty());
            now += PROBE_WAIT;
            assert_eq!(a.qp.poll_timeout(), Some(now));
            a.qp.handle_timeout(now);
            sent = a.transmit_all(now);
            assert_eq!(psns(&sent), [nth(1), nth(7)]);
        }
        exchange_from(now, &sent, &mut a, &mut b);
        assert_eq!(a.statuses(), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(b.memory()[..bytes.len()], *bytes);
        let counters = a.qp.counters();
        assert_eq!((counters.probes, counters.timeouts), (lost_again, 0));
        assert_eq!(a.qp.poll_timeout(), None);
    }
}

/// Nor does it take a retry: only silence after the time-out does.
#[test]
fn one_probe_goes_until_the_peer_is_heard() {
    let now = Instant::now();
    let (mut a, b, _, _) = writing_with_round_trip(now, 6);
    let mut later = now + PROBE_WAIT;
    a.qp.handle_timeout(later);
    assert_eq!(psns(&a.transmit_all(later)), [nth(6)]);
    for expected in 1..=u64::from(SELECTIVE.retries) {
        later = a.qp.poll_timeout().unwrap();
        assert_eq!(later, now + TIMEOUT * expected as u32);
        a.qp.handle_timeout(later);
        assert_eq!(psns(&a.transmit_all(later)), [nth(1), nth(6)]);
        let counters = a.qp.counters();
        assert_eq!((counters.probes, counters.timeouts), (1, expected));
    }
    // It is heard again, and what follows is probed for again.
    a.post(2, write(b"last", b.remote(4000)));
    let sent = a.transmit_all(later);
    assert_eq!(psns(&sent), [nth(7)]);
    let probe = a.qp.poll_timeout().unwrap();
    assert_eq!(probe, later + TIMEOUT);
    a.inject(later, nth(3), ACK, &[]);
    assert_eq!(a.qp.poll_timeout(), Some(later + PROBE_WAIT));
    a.qp.handle_timeout(later + PROBE_WAIT);
    assert_eq!(psns(&a.transmit_all(later)), [nth(7)]);
}

#[test]
fn nothing_is_probed_that_may_wait() {
    let now = Instant::now();
    // No round trip is known.
    let (a, _, _, _) = writing(now, 6, SELECTIVE);
    assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT));
    // The receiver isn't ready.
    let (mut a, mut b, _, _) = writing_with_round_trip(now, 1);
    exchange(now, &mut a, &mut b);
    a.post(2, send(b"abc"));
    let sent = a.transmit_all(now);
    for answer in deliver(now, &sent, &[], &mut b) {
        a.take(now, &answer);
    }
    a.qp.handle_timeout(now + RNR_WAIT);
    assert_eq!(a.qp.counters().probes, 0);
    // The peer isn't one of Ringway's.
    let (mut a, mut b, _, _) = writing(now, 1, Setup::default());
    exchange(now, &mut a, &mut b);
    a.post(2, write(b"abc", b.remote(0)));
    a.transmit_all(now);
    assert_eq!(a.qp.poll_timeout(), Some(now + TIMEOUT));
}

/// A READ's question or an answer of it.
#[test]
fn a_probe_asks_for_lost_answers_again() {
    let now = Instant::now();
    for lost in [&[0, 1, 2][..], &[2], &[1, 2]] {
        let (mut a, mut b, _, sent) = writing_with_round_trip(now, 1);
        exchange_from(now, &sent, &mut a, &mut b);
        a.completions();
        b.fill(1000, &pattern(600));
        let (into, remote) = (a.local(0, 600), b.remote(1000));
        a.post(3, Work::Read { into, remote });
        let sent = a.transmit_all(now);
        let answers = deliver(now, &sent, &[], &mut b);
        deliver(now, &answers, lost, &mut a);
        a.qp.handle_timeout(now + PROBE_WAIT);
        exchange(now + PROBE_WAIT, &mut a, &mut b);
        assert_eq!(a.statuses(), [(3, Status::Success)], "{lost:?}");
        assert_eq!(a.memory()[..600], pattern(600));
        let counters = a.qp.counters();
        assert_eq!((counters.probes, counters.timeouts), (1, 0), "{lost:?}");
    }
}

#[test]
fn a_selective_requester_takes_no_nonsense() {
    let now = Instant::now();
    let (mut a, _, _, _) = writing(now, 6, SELECTIVE);
    let selective = Operation::SelectiveAcknowledge(aeth(Syndrome::Nak(Nak::SequenceError)));
    a.inject(now, nth(1), selective, &[0xff; 31]);
    assert_eq!(a.qp.counters().bad_responses, 1);
    a.inject(now, nth(1), nak(Nak::SequenceError), &[]);
    a.inject(now, nth(6), selective, &[0xff; 32]);
    assert_eq!(a.qp.counters().stale_responses, 2);
    assert_eq!(a.transmit(now), None);
    // Of packets that were never sent nothing is noted, and the others are taken as there.
    a.inject(now, nth(1), selective, &[0xff; 32]);
    assert_eq!(psns(&a.transmit_all(now)), [nth(1)]);
    assert_eq!(a.statuses(), []);
}

/// Which transmissions of which packet are lost, whenever they take place: so that both ways meet the same losses.
#[derive(Clone, Copy, Debug)]
struct Losses {
    seed: u64,
    per_mille: u64,
}

impl Losses {
    const fn takes(self, psn: u32, transmission: u64) -> bool {
        // splitmix64.
        let mut word = self
            .seed
            .wrapping_add((psn as u64) << 32)
            .wrapping_add(transmission.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % 1000 < self.per_mille
    }
}

/// How many bytes of WRITEs go again over a wire that keeps order and loses requests.
fn sent_again(losses: Losses, lengths: &[usize], setup: Setup) -> Result<usize, TestCaseError> {
    const DELAY: Duration = Duration::from_micros(10);
    let (mut a, mut b) = connected(setup);
    let mut expected = vec![];
    for (id, length) in lengths.iter().enumerate() {
        let bytes: Vec<u8> = (0..*length).map(|i| (i * 7 + id) as u8).collect();
        a.post(id as u64, write(&bytes, b.remote(expected.len())));
        expected.extend(bytes);
    }
    let mut now = Instant::now();
    let mut transmissions = BTreeMap::<u32, u64>::new();
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let mut again = 0;
    loop {
        while let Some((_, bytes)) = there.pop_front_if(|(at, _): &mut (Instant, _)| *at <= now) {
            let bytes: Vec<u8> = bytes;
            b.take(now, &bytes);
        }
        while let Some((_, bytes)) = back.pop_front_if(|(at, _): &mut (Instant, _)| *at <= now) {
            let bytes: Vec<u8> = bytes;
            a.take(now, &bytes);
        }
        a.qp.handle_timeout(now);
        for bytes in a.transmit_all(now) {
            let times = transmissions.entry(psn(&bytes)).or_default();
            *times += 1;
            again += if *times > 1 { bytes.len() } else { 0 };
            if !losses.takes(psn(&bytes), *times) {
                there.push_back((now + DELAY, bytes));
            }
        }
        back.extend(
            b.transmit_all(now)
                .into_iter()
                .map(|bytes| (now + DELAY, bytes)),
        );
        let arrivals = [there.front(), back.front()];
        let arrivals = arrivals.into_iter().flatten().map(|(at, _)| *at);
        match arrivals.chain(a.qp.poll_timeout()).min() {
            Some(next) => now = next.max(now),
            None => break,
        }
    }
    let ended = a.statuses();
    prop_assert_eq!(ended.len(), lengths.len());
    prop_assert!(ended.iter().all(|(_, status)| *status == Status::Success));
    prop_assert!(b.memory()[..expected.len()] == expected);
    Ok(again)
}

fn both(losses: Losses, lengths: &[usize], setup: Setup) -> Result<[usize; 2], TestCaseError> {
    let go_back_n = Setup {
        selective: false,
        ..setup
    };
    Ok([
        sent_again(losses, lengths, setup)?,
        sent_again(losses, lengths, go_back_n)?,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_lost_no_more_goes_again_than_with_go_back_n(
        seed: u64,
        per_mille in 0..400_u64,
        lengths in prop::collection::vec(0..5000_usize, 1..12),
        window in 1..100_u32,
        psn: u32,
    ) {
        let setup = Setup { window, psn, retries: 200, ..SELECTIVE };
        let losses = Losses { seed, per_mille };
        let [selective, go_back_n] = both(losses, &lengths, setup)?;
        prop_assert!(selective <= go_back_n, "{selective} and {go_back_n}");
    }
}

#[test]
fn at_one_and_five_percent_it_is_a_small_part() {
    let setup = Setup {
        retries: 200,
        ..SELECTIVE
    };
    for per_mille in [10, 50] {
        let mut sums = [0; 2];
        for seed in 0..50 {
            let losses = Losses { seed, per_mille };
            let costs = both(losses, &[5000; 12], setup).unwrap();
            for (sum, cost) in sums.iter_mut().zip(costs) {
                *sum += cost;
            }
        }
        let [selective, go_back_n] = sums;
        assert!(
            selective > 0 && selective * 10 < go_back_n,
            "{selective} and {go_back_n} bytes"
        );
    }
}
