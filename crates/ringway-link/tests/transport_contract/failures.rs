//! That operations end, agree or fail, and that peers are missed, as promised.

use std::time::{Duration, Instant};

use ringway_link::{LinkError, Sink};
use ringway_sys::Staging;

use super::worlds::{GROUP, Make, SLICE, bytes, drive, filled, key, pattern, settle};

pub(crate) fn a_cancelled_operation_leaves_memory_alone(make: Make) {
    let mut nodes = make(2);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let out = filled(SLICE, 1);
    let into: Vec<Staging> = (0..20).map(|m| filled(SLICE, 100 + m)).collect();
    for (m, into) in into.iter().enumerate() {
        nodes[1].place(0, key(0, m as u32, 0), into);
    }
    nodes[1].transport.cancel(GROUP, 0);
    for m in 0..20 {
        nodes[0].send(1, key(0, m, 0), &out);
    }
    settle(&mut nodes);
    // What was not taken yet is the sender's again.
    nodes[0].transport.cancel(GROUP, 0);
    out.memory().write(&pattern(SLICE, 2));
    settle(&mut nodes);
    for (m, into) in into.iter().enumerate() {
        assert_eq!(bytes(into.memory()), pattern(SLICE, 100 + m));
    }
    assert!(nodes[1].received.is_empty() && nodes.iter().all(|node| node.lost.is_empty()));
}

pub(crate) fn late_messages_of_a_cancelled_operation_are_dropped(make: Make) {
    let mut nodes = make(2);
    for op in 0..30 {
        nodes.iter_mut().for_each(|node| node.begin(op));
        let (out, into) = (filled(900, op as usize), Staging::new(900));
        // One that is received, and some that come when their receiver has ended the operation.
        nodes[1].place(0, key(op, 0, 0), &into);
        nodes[0].send(1, key(op, 0, 0), &out);
        drive(&mut nodes, |nodes| nodes[1].received.len() == 1);
        nodes[1].transport.cancel(GROUP, op);
        for m in 1..4 {
            nodes[0].send(1, key(op, m, 0), &out);
        }
        for _ in 0..10 {
            nodes.iter_mut().for_each(|node| {
                node.poll();
            });
        }
        nodes[0].transport.cancel(GROUP, op);
        assert_eq!(bytes(into.memory()), pattern(900, op as usize));
        nodes[1].received.clear();
        assert!(
            nodes
                .iter()
                .all(|node| node.lost.is_empty() && node.mismatches.is_empty())
        );
    }
}

pub(crate) fn other_fingerprints_are_a_mismatch_once_whoever_begins_first(make: Make) {
    for sender_first in [true, false] {
        let mut nodes = make(2);
        let src = filled(100, 1);
        if !sender_first {
            nodes[1].transport.begin(GROUP, 0, 8);
        }
        nodes[0].begin(0);
        nodes[0].send(1, key(0, 0, 0), &src);
        nodes[0].send(1, key(0, 1, 0), &src);
        settle(&mut nodes);
        if sender_first {
            assert!(nodes[1].mismatches.is_empty());
            nodes[1].transport.begin(GROUP, 0, 8);
        }
        drive(&mut nodes, |nodes| !nodes[1].mismatches.is_empty());
        nodes[1].view(0, key(0, 2, 0), 100);
        nodes[0].send(1, key(0, 2, 0), &src);
        settle(&mut nodes);
        assert_eq!(nodes[1].mismatches, [(0, 0, 7)]);
        assert!(nodes[1].received.is_empty() && nodes[1].lost.is_empty());
    }
}

/// Neither sends: what they take the operation for goes along when they go to sleep.
pub(crate) fn two_that_wait_in_different_operations_both_learn_of_it(make: Make) {
    for len in [4, SLICE] {
        let mut nodes = make(3);
        for (rank, node) in nodes.iter_mut().enumerate() {
            // The third agrees with the first.
            node.transport.begin(GROUP, 5, 70 + rank as u32 % 2);
        }
        nodes[0].view(1, key(5, 0, 0), len);
        nodes[1].view(0, key(5, 0, 0), len);
        nodes[0].view(2, key(5, 0, 0), len);
        nodes[2].view(0, key(5, 1, 0), len);
        let deadline = Instant::now() + Duration::from_secs(10);
        while nodes[..2].iter().any(|node| node.mismatches.is_empty()) {
            assert!(Instant::now() < deadline, "{len} bytes: they wait for ever");
            for node in &mut nodes {
                node.poll();
                node.transport.arm();
                node.transport.disarm();
            }
        }
        settle(&mut nodes);
        assert_eq!(nodes[0].mismatches, [(1, 5, 71)]);
        assert_eq!(nodes[1].mismatches, [(0, 5, 70)]);
        assert!(nodes[2].mismatches.is_empty());
    }
}

pub(crate) fn a_message_of_another_length_is_an_error_of_its_receiver(make: Make) {
    for len in [100, SLICE] {
        let mut nodes = make(2);
        nodes.iter_mut().for_each(|node| node.begin(0));
        let src = filled(len, 1);
        nodes[1].view(0, key(0, 0, 0), len - 1);
        nodes[0].send(1, key(0, 0, 0), &src);
        drive(&mut nodes, |nodes| {
            nodes.iter().any(|node| !node.lost.is_empty())
        });
        let told = |error: &LinkError| {
            let LinkError::Length { expected, got, .. } = *error else {
                return false;
            };
            (expected, got) == (len - 1, len)
        };
        assert!(nodes.iter().any(|node| node.lost.iter().any(told)));
        assert!(nodes[1].received.is_empty());
    }
}

pub(crate) fn a_peer_that_is_gone_is_lost_once(make: Make) {
    let mut nodes = make(3);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let (src, into) = (filled(100, 1), Staging::new(100));
    // A message, so that there is a connection.
    for rank in [0, 1] {
        nodes[rank].send(2, key(0, 0, 0), &src);
        nodes[2].place(rank, key(0, 0, 0), &into);
    }
    drive(&mut nodes, |nodes| nodes[2].received.len() == 2);
    nodes[0].view(2, key(0, 1, 0), 100);
    let gone = nodes.pop();
    drop(gone);
    drive(&mut nodes, |nodes| {
        nodes.iter().all(|node| !node.lost.is_empty())
    });
    settle(&mut nodes);
    for node in &mut nodes {
        assert_eq!(node.lost.len(), 1, "{:?}", node.lost);
        assert_eq!(node.lost[0].peer(), 2);
        assert!(
            matches!(node.lost[0], LinkError::Closed { .. }),
            "{:?}",
            node.lost
        );
        assert!(
            node.transport
                .send(2, key(0, 2, 0), src.memory(), 0)
                .is_err()
        );
        assert!(node.transport.recv(2, key(0, 3, 0), Sink::View(1)).is_err());
    }
    // The two that are left go on.
    nodes[0].send(1, key(0, 4, 0), &src);
    nodes[1].view(0, key(0, 4, 0), 100);
    drive(&mut nodes, |nodes| nodes[1].received.len() == 1);
}

pub(crate) fn who_leaves_is_not_taken_for_a_crash(make: Make) {
    let mut nodes = make(2);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let src = filled(100, 1);
    nodes[0].view(1, key(0, 0, 0), 100);
    nodes[1].send(0, key(0, 0, 0), &src);
    drive(&mut nodes, |nodes| {
        nodes[0].received.len() == 1 && nodes[1].sent.len() == 1
    });
    let leaver = nodes.pop();
    let leaves = std::thread::spawn(move || {
        let mut leaver = leaver.unwrap();
        leaver.transport.close(Duration::from_secs(5));
    });
    while !leaves.is_finished() {
        nodes[0].poll();
    }
    leaves.join().unwrap();
    settle(&mut nodes);
    let _ = nodes[0].transport.recv(1, key(0, 1, 0), Sink::View(1));
    settle(&mut nodes);
    assert!(
        nodes[0]
            .lost
            .iter()
            .all(|error| matches!(error, LinkError::Left { .. })),
        "{:?}",
        nodes[0].lost
    );
}
