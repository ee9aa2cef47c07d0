//! Messages of all lengths, posted in all orders.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringway_link::{
    Sink, Transport,
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

use crate::{
    proxy::{Chop, through},
    world::{Node, bytes, drive, filled, key, listeners, pattern, poll_all, small, world},
};

/// A message of a test, and the order in which its two ends post it.
#[derive(Clone, Debug)]
struct Message {
    from: usize,
    to: usize,
    op: u32,
    len: usize,
    view: bool,
    send_at: u16,
    recv_at: u16,
}

fn messages(ranks: usize) -> impl Strategy<Value = Vec<Message>> {
    let len = prop_oneof![
        Just(0_usize),
        1_usize..100,
        450_usize..600,
        990_usize..1010,
        1000_usize..30_000,
        Just(200_000_usize),
    ];
    let message = (
        0..ranks,
        1..ranks,
        0_u32..3,
        len,
        any::<bool>(),
        any::<u16>(),
        any::<u16>(),
    )
        .prop_map(
            move |(from, distance, op, len, view, send_at, recv_at)| Message {
                from,
                to: (from + distance) % ranks,
                op,
                len,
                view,
                send_at,
                recv_at,
            },
        );
    proptest::collection::vec(message, 1..40)
}

/// Posts and moves all messages, and checks that each arrives once, whole, where it belongs.
fn exchange(nodes: &mut [Node], messages: &[Message], polls_between: usize) {
    let number = |at: usize| key(messages[at].op, at as u32);
    let out: Vec<_> = messages
        .iter()
        .zip(0..)
        .map(|(m, seed)| filled(m.len, seed))
        .collect();
    let into: Vec<_> = messages.iter().map(|m| Staging::new(m.len)).collect();
    for node in &mut *nodes {
        (0..3).for_each(|op| node.begin(op));
    }
    // Both ends' posts, in the order of their times.
    let mut posts: Vec<(u16, bool, usize)> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        posts.push((message.send_at, true, at));
        posts.push((message.recv_at, false, at));
    }
    posts.sort_unstable();
    for (_, is_send, at) in posts {
        let Message {
            from,
            to,
            len,
            view,
            ..
        } = messages[at];
        if is_send {
            nodes[from].send(to, number(at), out[at].memory());
        } else {
            let sink = if view {
                Sink::View(len)
            } else {
                Sink::Place(into[at].memory())
            };
            nodes[to].recv(from, number(at), sink);
        }
        for _ in 0..polls_between {
            poll_all(nodes);
        }
    }
    drive(nodes, |nodes| {
        nodes
            .iter()
            .map(|node| node.received.len() + node.sent.len())
            .sum::<usize>()
            == 2 * messages.len()
            || nodes.iter().any(|node| !node.lost.is_empty())
    });
    for node in &*nodes {
        assert!(node.lost.is_empty(), "{:?}", node.lost);
        assert!(node.mismatches.is_empty());
    }
    for (at, message) in messages.iter().enumerate() {
        assert!(nodes[message.from].sent.contains(&(message.to, number(at))));
        let view = &nodes[message.to].received[&(message.from, number(at))];
        let expected = pattern(message.len, at as u64);
        let got = if message.view {
            view.clone()
        } else {
            bytes(into[at].memory())
        };
        assert!(
            got == expected,
            "message {at} of {} bytes differs",
            message.len
        );
        nodes[message.to].tcp.release(message.from, number(at));
    }
    for node in nodes {
        (0..3).for_each(|op| node.tcp.cancel(crate::world::GROUP, op));
        (node.sent, node.received) = Default::default();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_once_and_whole(
        rounds in proptest::collection::vec((messages(3), 0_usize..3), 1..3),
        streams in 0_usize..3,
    ) {
        let mut nodes = world(3, &TcpSettings { streams, ..small() });
        for (messages, polls_between) in &rounds {
            exchange(&mut nodes, messages, *polls_between);
        }
    }

    #[test]
    fn chopped_bytes_make_whole_messages(
        messages in messages(2),
        pieces in proptest::collection::vec(prop_oneof![1_usize..60, 1000_usize..9000], 1..8),
        streams in 0_usize..2,
    ) {
        // Of 1-byte pieces the long messages would take too long.
        let pieces = [pieces, vec![20_000; 2]].concat();
        let (listeners, mut addresses) = listeners(2);
        let chop = Chop { pieces, pause_every: 7, cut_after: None };
        addresses[0] = through(&addresses[0], &chop);
        let settings = TcpSettings { streams, ..small() };
        let mut nodes: Vec<_> = listeners
            .into_iter()
            .map(|l| Node::new(TcpTransport::new(l, addresses.clone(), settings.clone()).unwrap()))
            .collect();
        exchange(&mut nodes, &messages, 1);
    }
}

/// More messages than credit, none of which is received until all are sent: those without credit are announced.
#[test]
fn messages_beyond_the_window_wait_and_others_pass_them() {
    let mut nodes = world(2, &small());
    nodes.iter_mut().for_each(|node| node.begin(0));
    let count = 100;
    let out: Vec<_> = (0..count).map(|m| filled(500, m)).collect();
    for (m, buffer) in (0..).zip(&out) {
        nodes[0].send(1, key(0, m), buffer.memory());
    }
    // The higher rank is the one that connects.
    nodes[1].tcp.connect_all();
    drive(&mut nodes, |nodes| !nodes[0].sent.is_empty());
    for _ in 0..1000 {
        poll_all(&mut nodes);
    }
    let sent = nodes[0].sent.len();
    assert!(
        0 < sent && sent < 10,
        "{sent} sent of a window of 4000 bytes"
    );
    let held = nodes[1].tcp.memory_in_use();
    // Backwards: the last, without credit, first.
    for m in (0..count as u32).rev() {
        let into = Staging::new(500);
        nodes[1].recv(0, key(0, m), Sink::Place(into.memory()));
        drive(&mut nodes, |nodes| {
            nodes[1].received.contains_key(&(0, key(0, m)))
        });
        assert_eq!(bytes(into.memory()), pattern(500, m.into()));
    }
    // Buffers are kept for the next messages; none has been added for those that waited.
    assert!(nodes[1].tcp.memory_in_use() <= held);
    // Credit has come back: short messages go at once again.
    for _ in 0..1000 {
        poll_all(&mut nodes);
    }
    nodes[0].sent.clear();
    nodes[0].send(1, key(0, 1000), out[0].memory());
    drive(&mut nodes, |nodes| nodes[0].sent.len() == 1);
}

/// Of messages that wait for the same peer the more urgent go first.
#[test]
fn urgent_messages_overtake_those_that_wait() {
    let mut nodes = world(
        2,
        &TcpSettings {
            streams: 0,
            ..small()
        },
    );
    nodes.iter_mut().for_each(|node| node.begin(0));
    let out = filled(4 << 20, 1);
    let into: Vec<_> = (0..8).map(|_| Staging::new(4 << 20)).collect();
    for m in 0..8 {
        let sink = Sink::Place(into[m as usize].memory());
        nodes[1].recv(0, key(0, m), sink);
        nodes[0]
            .tcp
            .send(1, key(0, m), out.memory(), m as u8)
            .unwrap();
    }
    let mut order = Vec::new();
    drive(&mut nodes, |nodes| {
        order.clear();
        order.extend(nodes[0].sent.iter().map(|(_, key)| key.message));
        order.len() == 8
    });
    // The first of a batch of grants goes out at once, before the others are read.
    let rest: Vec<_> = order.iter().copied().skip(1).collect();
    assert!(rest.is_sorted_by(|a, b| a > b), "{order:?}");
}

#[test]
fn two_streams_for_long_messages_are_both_used() {
    let mut nodes = world(
        2,
        &TcpSettings {
            streams: 2,
            ..small()
        },
    );
    for op in 0..20 {
        nodes.iter_mut().for_each(|node| node.begin(op));
        let (out, into) = (
            filled(300_000, 5),
            [Staging::new(300_000), Staging::new(300_000)],
        );
        for m in 0..2 {
            nodes[0].recv(1, key(op, m), Sink::Place(into[m as usize].memory()));
            nodes[1].send(0, key(op, m), out.memory());
        }
        drive(&mut nodes, |nodes| {
            nodes[0].received.len() == 2 && nodes[1].sent.len() == 2
        });
        assert_eq!(bytes(into[1].memory()), pattern(300_000, 5));
        nodes.iter_mut().for_each(|node| {
            (node.sent, node.received) = Default::default();
            node.tcp.cancel(crate::world::GROUP, op);
        });
    }
}

/// Messages that have all the credit and wait behind a long one leave it to a more urgent one, and go when they are asked for.
#[test]
fn credit_goes_to_the_most_urgent_of_those_that_wait() {
    let alone = TcpSettings {
        streams: 0,
        ..small()
    };
    let mut nodes = world(2, &alone);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let long = filled(20 << 20, 1);
    let place = Staging::new(20 << 20);
    nodes[1].recv(0, key(0, 100), Sink::Place(place.memory().slice(0..1)));
    nodes[0].send(1, key(0, 100), long.memory().slice(0..1));
    drive(&mut nodes, |nodes| !nodes[1].received.is_empty());
    nodes[0].sent.clear();
    nodes[1].recv(0, key(0, 0), Sink::Place(place.memory()));
    nodes[1].poll();
    nodes[0].send(1, key(0, 0), long.memory());
    // It is granted, and the socket takes only a part, as nobody reads.
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        nodes[0].poll();
    }
    // Four of 500 bytes are what is left of a window of 4000; the fifth waits to be asked for.
    let short: Vec<_> = (0..7).map(|m| filled(500, m)).collect();
    for m in 1..6 {
        nodes[0].send(1, key(0, m), short[m as usize].memory());
    }
    let urgent = short[6].memory();
    nodes[0].tcp.send(1, key(0, 6), urgent, 5).unwrap();
    drive(&mut nodes, |nodes| nodes[0].sent.len() == 5);
    let order: Vec<_> = nodes[0].sent.iter().map(|(_, key)| key.message).collect();
    assert_eq!(order, [0, 6, 1, 2, 3]);
    for m in 1..7 {
        let into = Staging::new(500);
        nodes[1].recv(0, key(0, m), Sink::Place(into.memory()));
        drive(&mut nodes, |nodes| {
            nodes[1].received.contains_key(&(0, key(0, m)))
        });
        assert_eq!(bytes(into.memory()), pattern(500, m.into()));
    }
    assert_eq!(bytes(place.memory()), bytes(long.memory()));
}
