//! Ranks that sleep between messages, each in a thread of its own.

use std::time::{Duration, Instant};

use ringway_link::{Sink, Transport};
use ringway_sys::{Epoll, Interest, Staging};

use crate::world::{FINGERPRINT, Node, drive, filled, key, poll_all, small, world};

/// Sleeps until the transport has something, as the engine does.
fn sleep(node: &mut Node) {
    if node.tcp.arm() {
        let set = Epoll::new().unwrap();
        set.add(node.tcp.fd(), 0, Interest::Read).unwrap();
        let mut ready = Vec::new();
        set.wait(&mut ready, Some(Duration::from_secs(5))).unwrap();
        assert!(!ready.is_empty(), "nothing wakes the sleeper");
    }
    node.tcp.disarm();
}

fn until(node: &mut Node, done: impl Fn(&Node) -> bool) {
    loop {
        node.poll();
        if done(node) {
            return;
        }
        sleep(node);
    }
}

/// Short ones, long ones and ones beyond the window: no wake-up is lost in either direction.
#[test]
fn sleepers_are_woken() {
    let nodes = world(2, &small());
    let rank = |(own, mut node): (usize, Node)| {
        move || {
            for (op, len) in (0..).zip([4, 4, 900, 5000, 3_000_000, 4, 1_000_000].repeat(20)) {
                let peer = 1 - own;
                let (out, into) = (filled(len, 1), Staging::new(len));
                node.begin(op);
                if own == 0 {
                    node.recv(peer, key(op, 0), Sink::Place(into.memory()));
                    node.send(peer, key(op, 0), out.memory());
                } else {
                    // Sleeps with its message announced at most.
                    node.send(peer, key(op, 0), out.memory());
                    node.poll();
                    node.recv(peer, key(op, 0), Sink::Place(into.memory()));
                }
                until(&mut node, |node| {
                    node.sent.len() == 1 && node.received.len() == 1
                });
                (node.sent, node.received) = Default::default();
                node.tcp.cancel(crate::world::GROUP, op);
            }
            node
        }
    };
    let threads: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|part| std::thread::spawn(rank(part)))
        .collect();
    // Both are kept until both are done.
    let nodes: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(nodes.iter().all(|node| node.lost.is_empty()));
}

/// Armed with nothing expected, the descriptor stays silent; what a peer then sends makes it readable.
#[test]
fn an_idle_transport_sleeps_until_something_comes() {
    let mut nodes = world(2, &small());
    nodes.iter_mut().for_each(|node| node.tcp.connect_all());
    nodes.iter_mut().for_each(|node| node.begin(0));
    let out = filled(4, 1);
    nodes[0].send(1, key(0, 0), out.memory());
    nodes[1].recv(0, key(0, 0), Sink::View(4));
    drive(&mut nodes, |nodes| {
        nodes[1].received.len() == 1 && nodes[0].sent.len() == 1
    });
    let quiet = |node: &mut Node| {
        let set = Epoll::new().unwrap();
        set.add(node.tcp.fd(), 0, Interest::Read).unwrap();
        let mut ready = Vec::new();
        set.wait(&mut ready, Some(Duration::from_millis(400)))
            .unwrap();
        ready.is_empty()
    };
    assert!(nodes[1].tcp.arm());
    let began = Instant::now();
    assert!(
        quiet(&mut nodes[1]),
        "nothing is expected, nothing has come"
    );
    assert!(began.elapsed() >= Duration::from_millis(400));
    nodes[0].send(1, key(0, 1), out.memory());
    nodes[0].poll();
    assert!(!quiet(&mut nodes[1]));
    assert!(
        !nodes[1].tcp.arm(),
        "with something there, there is no sleep"
    );
    nodes[1].tcp.disarm();
    nodes[1].recv(0, key(0, 1), Sink::View(4));
    drive(&mut nodes, |nodes| nodes[1].received.len() == 2);
}

/// A long message whose receiver is not asked for anything is announced before the sender sleeps, so that ranks that
/// disagree learn of it.
#[test]
fn a_long_message_that_nobody_asks_for_shows_a_mismatch() {
    let mut nodes = world(2, &small());
    nodes[0].begin(0);
    nodes[1].tcp.begin(crate::world::GROUP, 0, 0xbad);
    let out = filled(100_000, 1);
    nodes[0].send(1, key(0, 0), out.memory());
    nodes[1].tcp.connect_all();
    let deadline = Instant::now() + Duration::from_secs(10);
    while nodes[1].mismatches.is_empty() && Instant::now() < deadline {
        poll_all(&mut nodes);
        nodes[0].tcp.arm();
        nodes[0].tcp.disarm();
    }
    assert_eq!(nodes[1].mismatches, [(0, 0, FINGERPRINT)]);
}
