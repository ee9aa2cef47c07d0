//! RDMA fails, and is tried again until it works.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ringway_link::{
    Event, MessageKey, Sink, Transport as _,
    rdma::{AckTimeout, RdmaSettings},
};
use ringway_sys::Staging;

use crate::{
    breakable::{Break, Way},
    end::LIMIT,
    pair::{Pair, buffers, key, same},
    relay::Path,
};

/// Failures are noticed within a quarter of a second, and RDMA is tried again soon.
fn quickly(settings: &mut RdmaSettings) {
    // 1 ms.
    settings.ack_timeout = AckTimeout::new(8);
    settings.first_retry = Duration::from_millis(20);
    settings.longest_retry = Duration::from_millis(100);
}

/// Nothing says so but that nothing is acknowledged any more.
#[test]
fn a_path_that_dies_silently_is_left_for_tcp_and_used_again_when_it_is_mended() {
    static PATH: Path = Path::new();
    let mut pair = Pair::with(Way::Along(&PATH), quickly);
    let (out, into) = buffers();
    let mut op = 0;
    let mut round = |pair: &mut Pair| {
        into.iter()
            .for_each(|into| into.memory().write(&[0; 100_000]));
        let before = PATH.carried.load(Ordering::Relaxed);
        pair.round(op, &out, &into);
        assert!(into.iter().all(|into| same(into, &out)), "operation {op}");
        op += 1;
        let carried = PATH.carried.load(Ordering::Relaxed) - before;
        [0, 1].map(|own| (pair.ranks[own].reaches(1 - own), carried))
    };
    for _ in 0..4 {
        let deadline = Instant::now() + LIMIT;
        // One that has begun stays on TCP: the next goes over RDMA, with more than 100 KB in both directions.
        while !round(&mut pair)
            .iter()
            .all(|&(reaches, carried)| reaches && carried > 200_000)
        {
            assert!(Instant::now() < deadline, "RDMA is not used again");
        }
        PATH.is_cut.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(round(&mut pair), [(false, 0); 2]);
        }
        PATH.is_cut.store(false, Ordering::Relaxed);
    }
}

/// Its messages are at the receiver by TCP, and nobody names it any more.
#[test]
fn an_operation_that_its_sender_has_ended_before_it_began_at_the_receiver_comes_through() {
    static PATH: Path = Path::new();
    let mut pair = Pair::with(Way::Along(&PATH), quickly);
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    PATH.is_cut.store(true, Ordering::Relaxed);
    pair.round(1, &out, &into);
    assert!(!pair.ranks[0].reaches(1));
    let (src, place) = (out.memory().slice(0..8), into[1].memory().slice(0..8));
    pair.ranks[0].begin(1, 2, 7);
    pair.ranks[0].send(1, key(2, 0), src, 0).unwrap();
    pair.until(|pair| !pair.events[0].is_empty());
    assert!(matches!(pair.events[0][..], [Event::Sent { .. }]));
    pair.events[0].clear();
    pair.ranks[0].cancel(1, 2);
    PATH.is_cut.store(false, Ordering::Relaxed);
    pair.until(|pair| pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
    place.write(&[0; 8]);
    pair.ranks[1].begin(1, 2, 7);
    pair.ranks[1]
        .recv(0, key(2, 0), Sink::Place(place))
        .unwrap();
    pair.until(|pair| !pair.events[1].is_empty());
    assert!(matches!(pair.events[1][..], [Event::Received { .. }]));
    pair.events[1].clear();
    pair.ranks[1].cancel(1, 2);
    pair.round(3, &out, &into);
    assert!(into.iter().all(|into| same(into, &out)));
}

/// The greetings of each attempt fail, then the messages after it.
#[test]
fn what_fails_in_the_middle_of_a_handshake_is_tried_again() {
    for (rank, is_done) in [(0, false), (1, true)] {
        let mut pair = Pair::with(Way::Straight, quickly);
        let (out, into) = buffers();
        let mut op = 0;
        for at in 0..12 {
            *pair.breaks[rank].lock().unwrap() = Some(Break { at, is_done });
            let deadline = Instant::now() + LIMIT;
            loop {
                into.iter()
                    .for_each(|into| into.memory().write(&[0; 100_000]));
                pair.round(op, &out, &into);
                let whole = into.iter().all(|into| same(into, &out));
                assert!(whole, "rank {rank}, request {at}, operation {op}");
                op += 1;
                let is_broken = pair.breaks[rank].lock().unwrap().is_none();
                if is_broken && pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0) {
                    break;
                }
                assert!(Instant::now() < deadline, "RDMA is not used again");
            }
        }
    }
}

/// Breaks a pair's next request, and has a round of messages find that out. However long the round takes, RDMA is tried again in
/// vain until it is over.
fn fail(pair: &mut Pair, op: u32, out: &Staging, into: &[Staging; 2]) {
    let of_peer = pair.breaks[1].clone();
    of_peer.lacks_memory.store(true, Ordering::Relaxed);
    let is_done = false;
    *pair.breaks[0].lock().unwrap() = Some(Break { at: 0, is_done });
    pair.round(op, out, into);
    assert!(!pair.ranks[0].reaches(1));
    of_peer.lacks_memory.store(false, Ordering::Relaxed);
}

/// The peer stops at each point of the handshake, also where it has only its verdict left to give.
#[test]
fn a_new_message_does_not_wait_for_a_peer_that_computes_while_rdma_is_tried_again() {
    let (out, into) = buffers();
    for polls in 0..24 {
        let mut pair = Pair::with(Way::Straight, |settings| {
            settings.first_retry = Duration::from_millis(5);
        });
        pair.round(0, &out, &into);
        fail(&mut pair, 1, &out, &into);
        let posted = |pair: &Pair| pair.breaks[1].posted.load(Ordering::Relaxed);
        let before = posted(&pair);
        // Its greetings.
        pair.until(|pair| posted(pair) >= before + 3);
        for _ in 0..polls {
            pair.poll();
        }
        // From now on it computes. The first rank learns all that it can, and then wants to send.
        let mut events = Vec::new();
        let mut first_alone = |pair: &mut Pair, most: Duration, count| {
            let until = Instant::now() + most;
            // Where RDMA is back already, the message goes that way, and the peer has to work for it.
            while events.len() < count && !pair.ranks[0].reaches(1) && Instant::now() < until {
                pair.ranks[0].poll(Instant::now(), &mut events);
            }
            events.len()
        };
        first_alone(&mut pair, Duration::from_millis(2), 1);
        pair.ranks[0].begin(1, 2, 7);
        let src = out.memory().slice(0..8);
        pair.ranks[0].send(1, key(2, 0), src, 0).unwrap();
        let is_sent = first_alone(&mut pair, Duration::from_secs(2), 1) == 1;
        assert!(is_sent || pair.ranks[0].reaches(1), "after {polls} polls");
        let place = into[1].memory().slice(0..8);
        place.write(&[0; 8]);
        pair.ranks[1].begin(1, 2, 7);
        let sink = Sink::Place(place);
        pair.ranks[1].recv(0, key(2, 0), sink).unwrap();
        pair.until(|pair| !pair.events[1].is_empty());
        let mut bytes = [0; 8];
        place.read(&mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7]);
        pair.until(|pair| is_sent || !pair.events[0].is_empty());
        for own in 0..2 {
            pair.events[own].clear();
            pair.ranks[own].cancel(1, 2);
        }
        // When it is back, so is RDMA.
        pair.until(|pair| pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
        pair.round(3, &out, &into);
        assert!(into.iter().all(|into| same(into, &out)));
    }
}

/// A verdict names only what has messages between the two: it has room for 80.
#[test]
fn operations_with_others_do_not_keep_rdma_from_being_used_again() {
    let mut pair = Pair::with(Way::Straight, quickly);
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    for op in 0..200 {
        pair.ranks[0].begin(5, op, 7);
    }
    fail(&mut pair, 1, &out, &into);
    pair.until(|pair| pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
}

#[test]
fn a_device_that_has_failed_as_a_whole_is_left_alone_by_both() {
    let mut pair = Pair::with(Way::Straight, |settings| {
        settings.first_retry = Duration::from_millis(1);
        settings.longest_retry = Duration::from_millis(1);
    });
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    let asked = |pair: &Pair, rank: usize| pair.breaks[rank].asked.load(Ordering::Relaxed);
    let before = asked(&pair, 0);
    pair.breaks[0].is_fatal.store(true, Ordering::Relaxed);
    for op in 1..20 {
        pair.round(op, &out, &into);
        assert!(into.iter().all(|into| same(into, &out)));
    }
    let wait = |pair: &mut Pair| {
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            pair.poll();
        }
        asked(pair, 1)
    };
    // The peer tries once more, and is told.
    let of_peer = wait(&mut pair);
    assert_eq!(wait(&mut pair), of_peer);
    assert_eq!(asked(&pair, 0), before);
    assert!(!pair.ranks[0].reaches(1) && !pair.ranks[1].reaches(0));
}

/// Of either side, at the first attempt and at a later one.
#[test]
fn a_lack_of_memory_for_queue_pairs_is_passing() {
    for rank in [0, 1] {
        let mut pair = Pair::with(Way::Straight, quickly);
        let (out, into) = buffers();
        let lacks = |pair: &Pair, lacks| {
            pair.breaks[rank]
                .lacks_memory
                .store(lacks, Ordering::Relaxed);
        };
        lacks(&pair, true);
        pair.round(0, &out, &into);
        let asked = |pair: &Pair| pair.breaks[rank].asked.load(Ordering::Relaxed);
        let before = asked(&pair);
        pair.until(|pair| asked(pair) > before);
        assert!(!pair.ranks[0].reaches(1) && !pair.ranks[1].reaches(0));
        lacks(&pair, false);
        pair.until(|pair| pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
        pair.round(1, &out, &into);
        assert!(into.iter().all(|into| same(into, &out)));
    }
}

/// The bytes of an operation's messages, from either rank: none in one direction in every third.
fn messages(op: u32, from: usize) -> Vec<usize> {
    let lengths = [8, 3000, 100_000, 0, 700];
    let count = 1 + op as usize % 3;
    match (op % 3, from) {
        (1, 1) | (2, 0) => Vec::new(),
        _ => (0..count)
            .map(|at| lengths[(op as usize / 3 + at) % lengths.len()])
            .collect(),
    }
}

fn byte(op: u32, message: usize, from: usize) -> u8 {
    (op as usize * 31 + message * 7 + from * 101) as u8
}

/// An operation of a rank's that has begun: what is to be posted and to come, and the memory that it goes to and from.
struct Running {
    /// Messages, each with its sender.
    unposted: Vec<(usize, usize)>,
    left: usize,
    /// By sender.
    memory: [Vec<Staging>; 2],
}

/// A rank that begins its operations when it likes, and posts their messages one by one.
struct Runner {
    own: usize,
    next: u32,
    running: BTreeMap<u32, Running>,
}

impl Runner {
    fn begin(&mut self, pair: &mut Pair) {
        let op = self.next;
        self.next += 1;
        pair.ranks[self.own].begin(1, op, 7);
        let memory = [0, 1].map(|from| {
            let lengths = messages(op, from).into_iter();
            lengths.map(Staging::new).collect::<Vec<_>>()
        });
        let unposted: Vec<_> = (0..2)
            .flat_map(|from| (0..memory[from].len()).map(move |message| (from, message)))
            .collect();
        let left = unposted.len();
        let running = Running {
            unposted,
            left,
            memory,
        };
        self.running.insert(op, running);
    }

    /// Posts one message of an operation that has some left.
    fn post(&mut self, pair: &mut Pair, which: u64) {
        let own = self.own;
        let waiting = self
            .running
            .iter_mut()
            .filter(|(_, it)| !it.unposted.is_empty());
        let mut waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() {
            return;
        }
        let at = which as usize % waiting.len();
        let (&op, running) = waiting.swap_remove(at);
        let (from, message) = running.unposted.pop().unwrap();
        let key = MessageKey {
            // Both directions have keys of their own.
            lane: from as u16,
            ..key(op, message as u32)
        };
        let memory = running.memory[from][message].memory();
        let transport = &mut pair.ranks[own];
        if from == own {
            memory.write(&vec![byte(op, message, own); memory.len()]);
            transport.send(1 - own, key, memory, 0).unwrap();
        } else {
            let sink = match message {
                1 => Sink::View(memory.len()),
                _ => Sink::Place(memory),
            };
            transport.recv(1 - own, key, sink).unwrap();
        }
    }

    fn poll(&mut self, pair: &mut Pair) {
        let transport = &mut pair.ranks[self.own];
        transport.poll(Instant::now(), &mut pair.events[self.own]);
        for event in pair.events[self.own].drain(..) {
            let op = match event {
                Event::Received { peer, key, view } => {
                    let message = key.message as usize;
                    let memory = match view.len() {
                        0 => self.running[&key.op].memory[peer][message].memory(),
                        _ => view,
                    };
                    let mut bytes = vec![0; memory.len()];
                    memory.read(&mut bytes);
                    let sent = byte(key.op, message, peer);
                    assert_eq!(bytes.len(), messages(key.op, peer)[message]);
                    assert!(bytes.iter().all(|it| *it == sent), "operation {}", key.op);
                    transport.release(peer, key);
                    key.op
                }
                Event::Sent { key, .. } => key.op,
                other => panic!("{other:?}"),
            };
            let running = self.running.get_mut(&op).unwrap();
            running.left -= 1;
            if running.left == 0 {
                transport.cancel(1, op);
                self.running.remove(&op);
            }
        }
    }
}

/// One rank has begun and ended operations that the other hasn't begun, when RDMA fails and when it works again.
#[test]
fn operations_of_ranks_that_are_not_in_step_come_through_whatever_way_they_take() {
    let mut pair = Pair::with(Way::Straight, |settings| {
        quickly(settings);
        settings.first_retry = Duration::from_millis(1);
        settings.longest_retry = Duration::from_millis(2);
    });
    let mut ranks = [0, 1].map(|own| Runner {
        own,
        next: 0,
        running: BTreeMap::new(),
    });
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = move |of: u64| {
        // Marsaglia's xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % of
    };
    let (mut failures, mut recoveries, mut reached) = (0, 0, false);
    let deadline = Instant::now() + LIMIT;
    let last = 4000;
    let (mut steps, mut resting) = (0, 0);
    while ranks
        .iter()
        .any(|it| it.next < last || !it.running.is_empty())
    {
        assert!(
            Instant::now() < deadline,
            "{:?} after {failures} failures",
            ranks.each_ref().map(|it| (it.next, it.running.len()))
        );
        // For a while one of them begins nothing.
        if steps % 256 == 0 {
            resting = chance(3) as usize;
        }
        steps += 1;
        let own = chance(2) as usize;
        let ahead = ranks[own].next.saturating_sub(ranks[1 - own].next);
        let rank = &mut ranks[own];
        let may_begin = rank.next < last && ahead < 24 && rank.running.len() < 16;
        if may_begin && own != resting && chance(4) == 0 {
            rank.begin(&mut pair);
        }
        rank.post(&mut pair, chance(16));
        rank.poll(&mut pair);
        let reaches = pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0);
        let breaks = pair.breaks[own].clone();
        let mut breaks = breaks.lock().unwrap();
        if reaches && !reached {
            recoveries += 1;
        }
        if reaches && breaks.is_none() && chance(50) == 0 {
            failures += 1;
            *breaks = Some(Break {
                at: chance(30) as u32,
                is_done: chance(2) == 0,
            });
        }
        reached = reaches;
    }
    assert!(recoveries > 10, "{recoveries} of {failures} failures");
}

/// Its process is gone before this side knows that a queue pair has failed: no one acknowledges again what had come.
#[test]
fn a_rank_that_leaves_says_what_had_come() {
    for len in [8, 100_000] {
        let mut pair = Pair::new(Way::Straight);
        let (out, into) = buffers();
        pair.round(0, &out, &into);
        assert!(pair.ranks[0].reaches(1));
        let key = key(1, 0);
        pair.ranks.iter_mut().for_each(|rank| rank.begin(1, 1, 7));
        let sink = Sink::Place(into[1].memory().slice(0..len));
        pair.ranks[1].recv(0, key, sink).unwrap();
        let is_done = true;
        *pair.breaks[0].lock().unwrap() = Some(Break { at: 0, is_done });
        let src = out.memory().slice(0..len);
        pair.ranks[0].send(1, key, src, 0).unwrap();
        let deadline = Instant::now() + LIMIT;
        while pair.events[1].is_empty() {
            assert!(Instant::now() < deadline);
            let [sender, receiver] = &mut pair.ranks;
            if pair.breaks[0].lock().unwrap().is_some() {
                sender.poll(Instant::now(), &mut pair.events[0]);
            }
            receiver.poll(Instant::now(), &mut pair.events[1]);
        }
        assert!(matches!(pair.events[1][..], [Event::Received { .. }]));
        pair.ranks[1].close(Duration::from_secs(5));
        while pair.events[0].is_empty() {
            assert!(Instant::now() < deadline);
            pair.ranks[0].poll(Instant::now(), &mut pair.events[0]);
        }
        let told = &pair.events[0];
        assert!(matches!(told[0], Event::Sent { peer: 1, .. }), "{told:?}");
    }
}
