//! A rank of a host that is killed at any instant of its messages: the others lose it and nothing else, soon, and what
//! they received before is whole.
//!
//! The ranks are processes: this test binary again, told by the environment which rank it is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod ranks;

use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

use ringway_link::{
    Event, MessageKey, Sink, Transport,
    shm::{
        Geometry, HostIdentity, HostSegment, Offer, SegmentSizes, SlotOptions, SlotTransport, fetch,
    },
};
use ringway_sys::{Epoll, Interest, Memory, Staging};

use ranks::{READY, own, ready, start};

const RANKS: usize = 3;
/// Messages to each peer in an operation: to fill every slot, and more.
const COUNT: u32 = 12;
/// Of every way to travel: in the line, in a slot, and, from the arena, by reference.
const SIZES: [usize; 5] = [0, 20, 900, 4096, 4096];
/// What a survivor exits with if it lost rank k.
const LOST: i32 = 40;
/// How soon a death must be known.
const SOON: Duration = Duration::from_secs(2);

fn transport(rank: usize, name: &str) -> (std::sync::Arc<HostSegment>, SlotTransport) {
    let identity = HostIdentity {
        job: [6; 16],
        world: RANKS,
        ranks: (0..RANKS).collect(),
    };
    // Few of everything: every limit is reached all the time.
    let geometry = Geometry::new(4, 4, 4096);
    let deadline = Instant::now() + Duration::from_secs(30);
    let segment = if rank == 0 {
        let sizes = SegmentSizes {
            control: 1,
            slots: geometry.area_bytes(),
            staging: 1,
            arena: 1 << 20,
        };
        let segment = HostSegment::create(identity, sizes).unwrap();
        let offer = Offer::bind(name).unwrap();
        offer.serve(&segment, deadline, &mut |_| None).unwrap();
        segment
    } else {
        let descriptors = fetch(name, &identity, rank, deadline, &mut || None).unwrap();
        HostSegment::join(descriptors, identity, rank).unwrap()
    };
    let options = SlotOptions {
        geometry,
        memory_limit: 1 << 20,
    };
    let transport = SlotTransport::new(segment.clone(), options).unwrap();
    (segment, transport)
}

const fn key(op: u32, message: u32) -> MessageKey {
    MessageKey {
        group: 0,
        op,
        lane: 0,
        message,
        slice: 0,
    }
}

fn size(message: u32) -> usize {
    SIZES[message as usize % SIZES.len()]
}

/// What rank `from` sends as a message: each byte of it tells them apart.
fn pattern(from: usize, op: u32, message: u32) -> Vec<u8> {
    let seed = from as u32 * 89 + op * 7 + message * 31;
    (0..size(message) as u32)
        .map(|i| (seed + i * 3) as u8)
        .collect()
}

fn check(memory: Memory, from: usize, key: MessageKey) {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    assert_eq!(
        bytes,
        pattern(from, key.op, key.message),
        "from rank {from}, {key}"
    );
}

/// Exchanges messages with all others for ever, sleeping in between; every one is checked. The rank that was lost.
fn work(rank: usize, name: &str) -> usize {
    let (segment, mut transport) = transport(rank, name);
    let set = Epoll::new().unwrap();
    set.add(transport.fd(), 0, Interest::Read).unwrap();
    let others: Vec<usize> = (0..RANKS).filter(|&other| other != rank).collect();
    let arena = segment
        .user_arena()
        .allocate(4096 * COUNT as usize)
        .unwrap();
    let private = Staging::new(4096 * COUNT as usize);
    let into = others.iter().map(|_| Staging::new(4096 * COUNT as usize));
    let into: Vec<Staging> = into.collect();
    for op in 0.. {
        transport.begin(0, op, 7);
        let mut left = 2 * others.len() * COUNT as usize;
        for message in 0..COUNT {
            let memory = if message.is_multiple_of(2) {
                &arena.memory()
            } else {
                &private.memory()
            };
            let start = 4096 * message as usize;
            let src = memory.slice(start..start + size(message));
            src.write(&pattern(rank, op, message));
            for (&peer, into) in others.iter().zip(&into) {
                if transport.send(peer, key(op, message), src, 0).is_err() {
                    return peer;
                }
                // The last to be sent are asked for first.
                let message = COUNT - 1 - message;
                let start = 4096 * message as usize;
                let place = into.memory().slice(start..start + size(message));
                let sink = if message.is_multiple_of(3) {
                    Sink::View(place.len())
                } else {
                    Sink::Place(place)
                };
                if transport.recv(peer, key(op, message), sink).is_err() {
                    return peer;
                }
            }
        }
        let began = Instant::now();
        while left > 0 {
            let mut events = Vec::new();
            let moved = transport.poll(Instant::now(), &mut events);
            for event in events {
                match event {
                    Event::Sent { .. } => left -= 1,
                    Event::Received { peer, key, view } => {
                        left -= 1;
                        let start = 4096 * key.message as usize;
                        let at = others.iter().position(|&other| other == peer).unwrap();
                        let place = into[at].memory().slice(start..start + size(key.message));
                        check(
                            if key.message.is_multiple_of(3) {
                                view
                            } else {
                                place
                            },
                            peer,
                            key,
                        );
                        transport.release(peer, key);
                    }
                    Event::Lost { peer, error } => {
                        assert_eq!(error.peer(), peer);
                        return peer;
                    }
                    Event::Mismatch { .. } => panic!("all call the same"),
                }
            }
            if !moved && left > 0 {
                if transport.arm() {
                    set.wait(&mut Vec::new(), Some(SOON)).unwrap();
                }
                transport.disarm();
            }
            assert!(began.elapsed() < 2 * SOON, "rank {rank} waits for ever");
        }
        transport.cancel(0, op);
        if op == 3 {
            println!("{READY}");
        }
    }
    unreachable!("the loop has no end")
}

/// Not a test: a rank, when the environment says so.
#[test]
fn rank() {
    let Some((rank, name)) = own() else { return };
    let lost = work(rank, &name);
    // Not dropped: the others are to see what the first victim leaves behind, not that this one has gone as well.
    std::process::exit(LOST + lost as i32);
}

#[test]
fn survivors_of_a_killed_rank_lose_it_and_nothing_else() {
    for attempt in 0..40_u64 {
        let name = format!("ringway-slots-kill-{}-{attempt}", std::process::id());
        let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, &name)).collect();
        let victim = attempt as usize % RANKS;
        ranks.iter_mut().for_each(ready);
        // Into the middle of any message.
        thread::sleep(Duration::from_micros(attempt * 7919 % 5000));
        ranks[victim].kill().unwrap();
        let killed = Instant::now();
        for (rank, child) in ranks.iter_mut().enumerate() {
            let status = child.wait().unwrap();
            if rank != victim {
                let lost = status.code().unwrap_or(0) - LOST;
                // The first survivor that sees it ends, too, and may be what the second sees.
                assert!(
                    (0..RANKS as i32).contains(&lost) && lost != rank as i32,
                    "rank {rank} ended with {status}"
                );
            }
        }
        assert!(killed.elapsed() < 2 * SOON, "{:?}", killed.elapsed());
    }
}
