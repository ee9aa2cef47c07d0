//! Peers that disagree, leave, die or lie.

use super::*;

#[test]
fn different_lengths_are_an_error_of_the_receiver() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(100, 1);
    ranks[0].send(1, key(1, 0), src.memory(), 0).unwrap();
    ranks[1].recv(0, key(1, 0), Sink::View(99)).unwrap();
    let Event::Lost { peer: 0, error } = next(&mut ranks[1]) else {
        panic!("not lost")
    };
    assert!(
        matches!(
            error,
            LinkError::Length {
                expected: 99,
                got: 100,
                ..
            }
        ),
        "{error}"
    );
    assert!(ranks[1].send(0, key(1, 0), src.memory(), 0).is_err());
}

#[test]
fn different_fingerprints_are_reported_once_whoever_begins_first() {
    let mut ranks = mesh(2, small());
    let src = buffer(100, 1);
    ranks[0].begin(0, 1, 10);
    ranks[0].send(1, key(1, 0), src.memory(), 0).unwrap();
    ranks[0].send(1, key(1, 1), src.memory(), 0).unwrap();
    assert!(poll(&mut ranks[1]).is_empty());
    ranks[1].begin(0, 1, 11);
    let event = next(&mut ranks[1]);
    assert!(
        matches!(
            event,
            Event::Mismatch {
                peer: 0,
                group: 0,
                op: 1,
                theirs: 10
            }
        ),
        "{event:?}"
    );
    ranks[1].send(0, key(1, 7), src.memory(), 0).unwrap();
    let (mut mismatches, mut sent) = (0, 0);
    for _ in 0..10 {
        for event in poll(&mut ranks[0]) {
            match event {
                Event::Mismatch {
                    peer: 1,
                    group: 0,
                    op: 1,
                    theirs: 11,
                } => mismatches += 1,
                Event::Sent { .. } => sent += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((mismatches, sent), (1, 2));
    // Their slots came back.
    assert_eq!(ranks[1].links[0].as_ref().unwrap().peer.held_slots(), 0);
}

#[test]
fn a_cancelled_operation_leaves_nothing_behind() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
        rank.begin(0, 2, 0);
    }
    let arena = ranks[0].host.user_arena().allocate(8192).unwrap();
    let src = buffer(4096, 1);
    for message in 0..20 {
        ranks[0].send(1, key(1, message), src.memory(), 0).unwrap();
    }
    ranks[0].send(1, key(1, 20), arena.memory(), 0).unwrap();
    let target = buffer(4096, 7);
    ranks[1]
        .recv(0, key(1, 0), Sink::Place(target.memory()))
        .unwrap();
    ranks[1].recv(0, key(1, 1), Sink::View(4096)).unwrap();
    ranks[1].cancel(0, 1);
    ranks[0].cancel(0, 1);
    for _ in 0..10 {
        assert!(poll(&mut ranks[0]).is_empty() && poll(&mut ranks[1]).is_empty());
    }
    assert_eq!(bytes(target.memory()), pattern(4096, 7));
    assert!(ranks[0].up().all(|link| link.peer.outbox().is_done()));
    // The next operation has all the tickets.
    for message in 0..3 {
        ranks[0].send(1, key(2, message), src.memory(), 0).unwrap();
        assert_sent(&next(&mut ranks[0]), 1, key(2, message));
    }
}

#[test]
fn memory_that_its_owner_took_back_is_not_believed() {
    for view_first in [false, true] {
        let mut ranks = mesh(2, small());
        for rank in &mut ranks {
            rank.begin(0, 1, 0);
        }
        let arena = ranks[0].host.user_arena().allocate(8192).unwrap();
        ranks[0].send(1, key(1, 0), arena.memory(), 0).unwrap();
        if view_first {
            ranks[1].recv(0, key(1, 0), Sink::View(8192)).unwrap();
            assert_received(&next(&mut ranks[1]), 0, key(1, 0));
            ranks[0].cancel(0, 1);
            ranks[1].release(0, key(1, 0));
        } else {
            ranks[0].cancel(0, 1);
            let target = buffer(8192, 0);
            ranks[1]
                .recv(0, key(1, 0), Sink::Place(target.memory()))
                .unwrap();
        }
        let Event::Lost { peer: 0, error } = next(&mut ranks[1]) else {
            panic!("not lost")
        };
        assert!(matches!(error, LinkError::Cancelled { .. }), "{error}");
    }
}

#[test]
fn who_leaves_in_good_order_is_missed_only_if_needed() {
    let mut ranks = mesh(3, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(4096, 1);
    let [mut leaver, mut needs, mut not] = <[_; 3]>::try_from(ranks).unwrap();
    leaver.send(1, key(1, 0), src.memory(), 0).unwrap();
    leaver.send(2, key(1, 0), src.memory(), 0).unwrap();
    needs.recv(0, key(1, 0), Sink::View(4096)).unwrap();
    needs.recv(0, key(1, 1), Sink::View(4096)).unwrap();
    leaver.close(Duration::from_secs(1));
    drop(leaver);
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(poll(&mut needs));
    }
    assert_received(&events[0], 0, key(1, 0));
    assert!(
        matches!(
            events[1],
            Event::Lost {
                peer: 0,
                error: LinkError::Left { .. }
            }
        ),
        "{events:?}"
    );
    for _ in 0..3 {
        std::thread::sleep(LOOK_EVERY);
        assert!(poll(&mut not).is_empty());
    }
    // What it had sent can still be had.
    not.recv(0, key(1, 0), Sink::View(4096)).unwrap();
    assert_received(&next(&mut not), 0, key(1, 0));
    not.release(0, key(1, 0));
    assert!(matches!(
        not.send(0, key(1, 2), src.memory(), 0),
        Err(LinkError::Left { peer: 0 })
    ));
}

#[test]
fn who_is_dropped_has_crashed() {
    let mut ranks = mesh(2, small());
    drop(ranks.remove(0));
    let Event::Lost { peer: 0, error } = next(&mut ranks[0]) else {
        panic!("not lost")
    };
    assert!(matches!(error, LinkError::Closed { .. }), "{error}");
}

#[test]
fn garbage_is_a_protocol_error_and_nothing_else() {
    use proptest::{prelude::*, test_runner::TestRunner};

    let strategy =
        proptest::collection::vec((0..600usize, prop_oneof![any::<u64>(), 0..300u64]), 1..30);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(60));
    runner
        .run(&strategy, |scribbles| {
            let mut ranks = mesh(2, small());
            for rank in &mut ranks {
                rank.begin(0, 1, 0);
            }
            let host = Arc::clone(&ranks[0].host);
            let arena = host.user_arena().allocate(8192).unwrap();
            let src = buffer(3000, 1);
            for (i, (at, word)) in scribbles.into_iter().enumerate() {
                let message = i as u32;
                for (from, to) in [(0, 1), (1, 0)] {
                    let _ = ranks[from].recv(to, key(1, message), Sink::View(3000));
                    let src = if i % 3 == 0 && from == 0 {
                        arena.memory()
                    } else {
                        src.memory()
                    };
                    let _ = ranks[from].send(to, key(1, message), src, 0);
                }
                // Into the rings of both directions and what ranks say of themselves, as a broken
                // process would.
                let area = [host.slots(0, 1), host.slots(1, 0), host.slots(0, 0)][at % 3];
                area.slice(8 * (at / 3)..8 * (at / 3) + 8)
                    .write(&word.to_ne_bytes());
                for rank in &mut ranks {
                    for event in poll(rank) {
                        match event {
                            Event::Received { peer, key, view } => {
                                bytes(view);
                                rank.release(peer, key);
                            }
                            Event::Lost { .. } | Event::Sent { .. } | Event::Mismatch { .. } => {}
                        }
                    }
                    rank.arm();
                    rank.disarm();
                }
            }
            Ok(())
        })
        .unwrap();
}
