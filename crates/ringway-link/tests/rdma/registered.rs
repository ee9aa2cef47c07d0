//! User memory that is registered: nothing is copied, and it is left alone when an operation has ended, whatever the peer does.

use std::{
    sync::mpsc::{self, TryRecvError},
    time::{Duration, Instant},
};

use ringway_link::{Event, Sink, Transport};
use ringway_sys::{Memory, Staging};

use crate::{
    breakable::Way,
    end::LIMIT,
    pair::{Pair, buffers, key, same},
};

/// Longer than all that may be under way at once.
const LONG: usize = 2 << 20;

fn filled(len: usize, byte: u8) -> Staging {
    let staging = Staging::new(len);
    staging.memory().write(&vec![byte; len]);
    staging
}

fn bytes(memory: Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}

/// Two ranks that reach each other, with their first messages behind them.
fn pair(cancel_patience: Duration) -> Pair {
    let mut pair = Pair::with(Way::Straight, |settings| {
        settings.cancel_patience = cancel_patience;
    });
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    assert!(pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
    pair
}

/// The second rank is to receive a message from the first.
fn post(pair: &mut Pair, src: &Staging, into: &Staging) {
    let sink = Sink::Place(into.memory());
    pair.ranks[1].recv(0, key(1, 0), sink).unwrap();
    pair.ranks[0].send(1, key(1, 0), src.memory(), 0).unwrap();
}

/// And it receives it, whole.
fn exchange(pair: &mut Pair, src: &Staging, into: &Staging) {
    post(pair, src, into);
    pair.until(|pair| pair.events.iter().all(|events| events.len() == 1));
    assert!(same(src, into));
}

/// The second rank receives a long message from the first, and some of it is there: both in memory that is registered, or of which
/// nothing was said.
fn half_way(pair: &mut Pair, src: &Staging, into: &Staging, registered: bool) {
    let memories = [src.memory(), into.memory()];
    for (rank, memory) in pair.ranks.iter_mut().zip(memories) {
        if registered {
            rank.register(memory).unwrap();
        }
        rank.begin(1, 1, 7);
    }
    post(pair, src, into);
    let (first, last) = (
        into.memory().slice(0..1),
        into.memory().slice(LONG - 1..LONG),
    );
    let before = bytes(first);
    pair.until(|_| bytes(first) != before);
    assert_eq!(bytes(last), before, "all of it has come already");
}

fn poll_for(pair: &mut Pair, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        pair.poll();
    }
}

#[test]
fn long_messages_are_sent_from_and_received_into_registered_memory() {
    let mut pair = pair(Duration::from_millis(20));
    let (src, into) = (filled(LONG, 5), filled(LONG, 0));
    let before = [0, 1].map(|own| pair.ranks[own].memory_in_use());
    pair.ranks[0].register(src.memory()).unwrap();
    pair.ranks[1].register(into.memory()).unwrap();
    for (own, rank) in pair.ranks.iter_mut().enumerate() {
        rank.begin(1, 1, 7);
        let made = rank.registered();
        assert_eq!((made.bytes, made.regions), (LONG, 1), "rank {own}");
    }
    exchange(&mut pair, &src, &into);
    // No buffer was needed.
    assert_eq!([0, 1].map(|own| pair.ranks[own].memory_in_use()), before);
    for (rank, memory) in pair.ranks.iter_mut().zip([&src, &into]) {
        rank.cancel(1, 1);
        rank.deregister(memory.memory());
        assert_eq!(rank.registered().regions, 0);
    }
}

/// Registering costs a device in software nothing.
#[test]
fn in_software_long_messages_are_not_copied_though_nothing_is_registered() {
    let mut pair = pair(Duration::from_millis(20));
    let (src, into) = (filled(LONG, 5), filled(LONG, 0));
    let before = [0, 1].map(|own| pair.ranks[own].memory_in_use());
    for rank in &mut pair.ranks {
        rank.begin(1, 1, 7);
    }
    exchange(&mut pair, &src, &into);
    assert_eq!([0, 1].map(|own| pair.ranks[own].memory_in_use()), before);
    for rank in &mut pair.ranks {
        rank.cancel(1, 1);
        assert_eq!(rank.registered().regions, 0);
    }
}

#[test]
fn a_cancelled_receive_is_left_alone_by_a_peer_that_has_stopped() {
    for registered in [true, false] {
        let mut pair = pair(Duration::from_millis(20));
        let (src, into) = (filled(LONG, 5), filled(LONG, 0));
        half_way(&mut pair, &src, &into, registered);
        // The first rank is not polled meanwhile, as if it were stopped.
        let began = Instant::now();
        pair.ranks[1].cancel(1, 1);
        assert!(began.elapsed() < LIMIT / 10);
        into.memory().write(&vec![9; LONG]);
        // It goes on, and would write the rest.
        poll_for(&mut pair, Duration::from_millis(300));
        assert!(bytes(into.memory()).iter().all(|byte| *byte == 9));
        let received = |event: &Event| matches!(event, Event::Received { .. });
        assert!(!pair.events[1].iter().any(received));
        // And nobody is lost: what comes next goes over TCP.
        pair.ranks[0].cancel(1, 1);
        pair.events = Default::default();
        let (out, small) = buffers();
        pair.round(2, &out, &small);
        assert!(small.iter().all(|small| same(small, &out)));
    }
}

#[test]
fn a_cancelled_receive_is_left_alone_by_a_peer_that_is_gone() {
    for registered in [true, false] {
        let mut pair = pair(Duration::from_millis(20));
        let (src, into) = (filled(LONG, 5), filled(LONG, 0));
        half_way(&mut pair, &src, &into, registered);
        let [first, mut second] = pair.ranks;
        drop(first);
        second.cancel(1, 1);
        into.memory().write(&vec![9; LONG]);
        let until = Instant::now() + Duration::from_millis(200);
        let mut events = Vec::new();
        while Instant::now() < until {
            second.poll(Instant::now(), &mut events);
        }
        assert!(bytes(into.memory()).iter().all(|byte| *byte == 9));
        assert!(
            matches!(events[..], [Event::Lost { peer: 0, .. }]),
            "{events:?}"
        );
    }
}

#[test]
fn a_peer_that_answers_is_not_cut_off() {
    for registered in [true, false] {
        let mut pair = pair(LIMIT);
        let (src, into) = (filled(LONG, 5), filled(LONG, 0));
        half_way(&mut pair, &src, &into, registered);
        let [mut first, mut second] = pair.ranks;
        // The first polls in a thread of its own, and so ends what it has begun.
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut events = Vec::new();
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                first.poll(Instant::now(), &mut events);
            }
            (first, events)
        });
        second.cancel(1, 1);
        into.memory().write(&vec![9; LONG]);
        std::thread::sleep(Duration::from_millis(50));
        drop(stop);
        let (first, events) = thread.join().unwrap();
        assert!(first.reaches(1) && second.reaches(0));
        assert!(
            matches!(events[..], [Event::Sent { peer: 1, .. }]),
            "{events:?}"
        );
        assert!(bytes(into.memory()).iter().all(|byte| *byte == 9));
    }
}

#[test]
fn a_cancelled_send_is_never_taken_for_whole() {
    for registered in [true, false] {
        let mut pair = pair(Duration::from_millis(20));
        let (src, into) = (filled(LONG, 5), filled(LONG, 0));
        half_way(&mut pair, &src, &into, registered);
        pair.ranks[0].cancel(1, 1);
        // It is the user's again, and is used for something else.
        src.memory().write(&vec![6; LONG]);
        if registered {
            pair.ranks[0].deregister(src.memory());
        }
        assert_eq!(pair.ranks[0].registered().regions, 0);
        poll_for(&mut pair, Duration::from_millis(300));
        let received = |event: &Event| matches!(event, Event::Received { .. });
        assert!(!pair.events[1].iter().any(received));
        assert!(!bytes(into.memory()).contains(&6));
    }
}

#[test]
fn memory_that_is_given_up_in_the_middle_of_a_message_stays_until_its_end() {
    let mut pair = pair(Duration::from_millis(20));
    let (src, into) = (filled(LONG, 5), filled(LONG, 0));
    half_way(&mut pair, &src, &into, true);
    for (rank, memory) in pair.ranks.iter_mut().zip([&src, &into]) {
        rank.deregister(memory.memory());
        assert_eq!(rank.registered().regions, 1);
    }
    pair.until(|pair| pair.events.iter().all(|events| events.len() == 1));
    assert!(same(&src, &into));
    for rank in &mut pair.ranks {
        rank.cancel(1, 1);
        assert_eq!(rank.registered().regions, 0);
    }
}
