//! Peers that die, leave, stall, give up, or cannot be reached.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, InterfaceFilter, LinkError, Listener, PeerAddress, Sink, Transport,
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

use crate::{
    proxy::{Chop, through},
    world::{GROUP, Node, bytes, drive, filled, key, listeners, pattern, small, world},
};

/// Wherever a connection is cut, both sides learn of it, and nothing arrives in part.
#[test]
fn a_cut_anywhere_is_noticed_by_both_sides() {
    for cut in (0..60)
        .map(|n| n * 7)
        .chain([1000, 1100, 5000, 99_000, 100_100])
    {
        let (listeners, mut addresses) = listeners(2);
        let chop = Chop {
            pieces: vec![4096],
            pause_every: 0,
            cut_after: Some(200 + cut),
        };
        addresses[0] = through(&addresses[0], &chop);
        let settings = TcpSettings {
            connect_timeout: Duration::from_millis(300),
            ..small()
        };
        let mut nodes: Vec<_> = listeners
            .into_iter()
            .map(|l| Node::new(TcpTransport::new(l, addresses.clone(), settings.clone()).unwrap()))
            .collect();
        nodes.iter_mut().for_each(|node| node.begin(0));
        let out = [filled(900, 1), filled(100_000, 2)];
        let into = [0; 4].map(|_| Staging::new(100_000));
        for (rank, node) in nodes.iter_mut().enumerate() {
            for m in 0..2 {
                let src = &out[m as usize];
                let sink = into[rank * 2 + m as usize]
                    .memory()
                    .slice(0..src.memory().len());
                node.recv(1 - rank, key(0, m), Sink::Place(sink));
                node.send(1 - rank, key(0, m), src.memory());
            }
        }
        drive(&mut nodes, |nodes| {
            nodes.iter().all(|node| !node.lost.is_empty())
        });
        for (rank, node) in nodes.iter().enumerate() {
            for (_, key) in node.received.keys() {
                let expected = &out[key.message as usize];
                let len = expected.memory().len();
                let got = into[rank * 2 + key.message as usize].memory().slice(0..len);
                assert_eq!(bytes(got), bytes(expected.memory()));
            }
        }
    }
}

#[test]
fn a_killed_process_is_noticed_at_once_and_not_taken_for_one_that_left() {
    for (how, left) in [("kill", false), ("leave", true), ("exit", false)] {
        let (listeners, mut addresses) = listeners(2);
        let mut child = child(&addresses[0], how);
        addresses[1].nonce = 0;
        let listener = listeners.into_iter().next().unwrap();
        let mut node = [Node::new(
            TcpTransport::new(listener, addresses, small()).unwrap(),
        )];
        node[0].begin(0);
        // It sends one message, and never the second.
        node[0].recv(1, key(0, 0), Sink::View(100));
        node[0].recv(1, key(0, 1), Sink::View(50_000));
        drive(&mut node, |node| !node[0].received.is_empty());
        let began = Instant::now();
        if how == "kill" {
            child.kill().unwrap();
        }
        drive(&mut node, |node| !node[0].lost.is_empty());
        assert!(began.elapsed() < Duration::from_secs(1));
        let error = &node[0].lost[0];
        assert_eq!(
            matches!(error, LinkError::Left { peer: 1 }),
            left,
            "{how}: {error}"
        );
        assert_eq!(
            matches!(error, LinkError::Closed { peer: 1, .. }),
            !left,
            "{how}: {error}"
        );
        let again = node[0].tcp.recv(1, key(0, 2), Sink::View(10));
        assert!(again.is_err(), "a lost peer stays lost");
        child.wait().unwrap();
    }
}

/// This test in another process, as rank 1.
fn child(rank0: &PeerAddress, how: &str) -> Child {
    let hex: String = rank0
        .encode()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "faults::as_the_other_process", "--nocapture"])
        .env("RINGWAY_TEST_RANK0", hex)
        .env("RINGWAY_TEST_HOW", how)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn as_the_other_process() {
    let Ok(hex) = env::var("RINGWAY_TEST_RANK0") else {
        return;
    };
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let rank0 = PeerAddress::decode(&(0..hex.len()).step_by(2).map(byte).collect::<Vec<_>>());
    let (other, _) = listeners(2);
    let listener = std::sync::Arc::clone(&other[1]);
    let own = listener.address(&InterfaceFilter::default()).unwrap();
    let mut node =
        Node::new(TcpTransport::new(listener, vec![rank0.unwrap(), own], small()).unwrap());
    node.begin(0);
    let out = filled(100, 1);
    node.send(0, key(0, 0), out.memory());
    let mut nodes = [node];
    drive(&mut nodes, |nodes| nodes[0].sent.len() == 1);
    match env::var("RINGWAY_TEST_HOW").unwrap().as_str() {
        "leave" => nodes[0].tcp.close(Duration::from_secs(5)),
        "exit" => {}
        _ => std::thread::sleep(Duration::from_secs(30)),
    }
}

/// What a rank sent before it left is received after.
#[test]
fn messages_of_a_rank_that_left_are_received() {
    let mut nodes = world(2, &small());
    nodes.iter_mut().for_each(|node| node.begin(0));
    let (short, long) = (filled(300, 1), filled(500_000, 2));
    let into = Staging::new(500_000);
    nodes[0].recv(1, key(0, 1), Sink::Place(into.memory()));
    nodes[1].send(0, key(0, 0), short.memory());
    nodes[1].send(0, key(0, 1), long.memory());
    drive(&mut nodes, |nodes| nodes[1].sent.len() == 2);
    let mut leaver = nodes.pop().unwrap();
    let closing = std::thread::spawn(move || leaver.tcp.close(Duration::from_secs(5)));
    drive(&mut nodes, |nodes| nodes[0].received.len() == 1);
    closing.join().unwrap();
    for _ in 0..1000 {
        nodes[0].poll();
    }
    assert!(
        nodes[0].lost.is_empty(),
        "nobody needs it: {:?}",
        nodes[0].lost
    );
    nodes[0].recv(1, key(0, 0), Sink::View(300));
    drive(&mut nodes, |nodes| nodes[0].received.len() == 2);
    assert_eq!(nodes[0].received[&(1, key(0, 0))], pattern(300, 1));
    assert_eq!(bytes(into.memory()), pattern(500_000, 2));
    let error = nodes[0]
        .tcp
        .recv(1, key(0, 5), Sink::View(300))
        .unwrap_err();
    assert!(matches!(error, LinkError::Left { peer: 1 }), "{error}");
}

/// An operation that is given up in the middle, on either side or both: its memory is left alone, and the next
/// operation is whole.
#[test]
fn given_up_in_the_middle() {
    for (sender_gives_up, receiver_gives_up) in [(true, false), (false, true), (true, true)] {
        for streams in [0, 1] {
            // Buffers of the system are small, so that most of a message is on neither side yet.
            let socket_buffers = Some(128 << 10);
            let mut nodes = world(
                2,
                &TcpSettings {
                    streams,
                    socket_buffers,
                    ..small()
                },
            );
            let len = 2 << 20;
            let (out, into) = (filled(len, 1), Staging::new(len));
            // It may hold what an earlier test left there.
            into.memory().slice(0..4096).write(&[0; 4096]);
            for op in 0..2 {
                nodes.iter_mut().for_each(|node| node.begin(op));
            }
            nodes[0].recv(1, key(0, 0), Sink::Place(into.memory()));
            nodes[0].recv(1, key(0, 1), Sink::View(len));
            nodes[1].send(0, key(0, 0), out.memory());
            nodes[1].send(0, key(0, 1), out.memory());
            // Part of the first is there.
            drive(&mut nodes, |_| {
                let mut tail = [0];
                into.memory().slice(100..101).read(&mut tail);
                tail[0] == pattern(101, 1)[100]
            });
            assert!(nodes[0].received.is_empty() && nodes[1].sent.is_empty());
            if receiver_gives_up {
                nodes[0].tcp.cancel(GROUP, 0);
            }
            if sender_gives_up {
                nodes[1].tcp.cancel(GROUP, 0);
                out.memory().write(&vec![0xee; len]);
            }
            let untouched = pattern(len, 9);
            if receiver_gives_up {
                into.memory().write(&untouched);
            }
            // The next operation goes over the same streams.
            let (next, place) = (filled(200_000, 3), Staging::new(200_000));
            nodes[0].recv(1, key(1, 0), Sink::Place(place.memory()));
            nodes[1].send(0, key(1, 0), next.memory());
            nodes[1].send(0, key(1, 1), next.memory().slice(0..10));
            nodes[0].recv(1, key(1, 1), Sink::View(10));
            drive(&mut nodes, |nodes| {
                nodes[0].received.contains_key(&(1, key(1, 0)))
                    && nodes[0].received.contains_key(&(1, key(1, 1)))
            });
            assert_eq!(bytes(place.memory()), pattern(200_000, 3));
            if receiver_gives_up {
                assert!(
                    bytes(into.memory()) == untouched,
                    "memory of a cancelled receive changed"
                );
            } else {
                // The half that was sent is followed by the right rest, not by what the memory holds now.
                drive(&mut nodes, |nodes| {
                    nodes[0].received.contains_key(&(1, key(0, 0)))
                });
                assert!(bytes(into.memory()) == pattern(len, 1));
                nodes[0].tcp.cancel(GROUP, 0);
            }
            if !sender_gives_up {
                nodes[1].tcp.cancel(GROUP, 0);
            }
            nodes.iter_mut().for_each(|node| node.tcp.cancel(GROUP, 1));
            drive(&mut nodes, |nodes| {
                nodes.iter().all(|n| n.tcp.memory_in_use() < 100_000)
            });
            assert!(nodes.iter().all(|node| node.lost.is_empty()));
        }
    }
}

/// A rank that does not poll for a while is slow, not dead.
#[test]
fn a_rank_that_does_not_read_is_not_lost() {
    let settings = TcpSettings {
        silence: Duration::from_millis(600),
        socket_buffers: Some(128 << 10),
        ..small()
    };
    let (listeners, addresses) = listeners(2);
    // As if on another host, so that it is watched.
    let far = |a: &PeerAddress| PeerAddress {
        network: 1,
        ..a.clone()
    };
    let addresses: Vec<_> = addresses
        .iter()
        .map(|a| PeerAddress {
            addresses: PeerAddress::at(0, 0, [[127, 0, 0, 1].into()]).addresses,
            ..far(a)
        })
        .map(|a| PeerAddress { network: 0, ..a })
        .collect();
    let mut nodes: Vec<_> = listeners
        .into_iter()
        .map(|l| Node::new(TcpTransport::new(l, addresses.clone(), settings.clone()).unwrap()))
        .collect();
    nodes.iter_mut().for_each(|node| node.begin(0));
    let len = 2 << 20;
    let (out, into) = (filled(len, 1), Staging::new(len));
    into.memory().slice(0..4096).write(&[0; 4096]);
    nodes[0].recv(1, key(0, 0), Sink::Place(into.memory()));
    nodes[1].send(0, key(0, 0), out.memory());
    drive(&mut nodes, |_| {
        let mut byte = [0];
        into.memory().slice(1000..1001).read(&mut byte);
        byte[0] == pattern(1001, 1)[1000]
    });
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        nodes[1].poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(nodes[1].lost.is_empty(), "{:?}", nodes[1].lost);
    drive(&mut nodes, |nodes| !nodes[0].received.is_empty());
    assert!(bytes(into.memory()) == pattern(len, 1));
}

#[test]
fn ranks_that_cannot_be_reached_are_named_within_the_deadline() {
    let (all, mut addresses) = listeners(3);
    let gone = Listener::start(&Bind::default(), *all[0].identity()).unwrap();
    addresses[0].port = gone.port();
    drop(gone);
    let settings = TcpSettings {
        connect_timeout: Duration::from_millis(400),
        ..small()
    };
    let tcp = TcpTransport::new(std::sync::Arc::clone(&all[1]), addresses, settings).unwrap();
    let mut nodes = [Node::new(tcp)];
    nodes[0].begin(0);
    // The lower rank does not listen, the higher one does not connect.
    nodes[0].recv(0, key(0, 0), Sink::View(8));
    nodes[0].recv(2, key(0, 0), Sink::View(8));
    let began = Instant::now();
    drive(&mut nodes, |nodes| nodes[0].lost.len() == 2);
    assert!(began.elapsed() < Duration::from_secs(3));
    let mut lost = std::mem::take(&mut nodes[0].lost);
    lost.sort_by_key(LinkError::peer);
    assert!(
        matches!(
            lost[..],
            [
                LinkError::Unreachable { peer: 0, .. },
                LinkError::Unreachable { peer: 2, .. }
            ]
        ),
        "{lost:?}"
    );
    assert!(lost[0].to_string().contains("127.0.0.1"), "{}", lost[0]);
    assert!(
        lost[0].to_string().contains("connection refused"),
        "{}",
        lost[0]
    );
}

#[test]
fn buffers_beyond_the_limit_are_an_error_that_names_the_setting() {
    let settings = TcpSettings {
        memory_limit: 1 << 20,
        ..small()
    };
    let mut nodes = world(2, &settings);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let out = filled(2 << 20, 1);
    nodes[0].recv(1, key(0, 0), Sink::View(2 << 20));
    nodes[1].send(0, key(0, 0), out.memory());
    drive(&mut nodes, |nodes| !nodes[0].lost.is_empty());
    let error = &nodes[0].lost[0];
    assert!(
        matches!(
            error,
            LinkError::MemoryLimit {
                peer: 1,
                limit: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("RINGWAY_MEMORY_LIMIT"));
}

#[test]
fn misuse_is_an_error_and_harms_nothing() {
    let mut nodes = world(2, &small());
    let out = filled(10, 1);
    let misuse = |result: Result<(), LinkError>, about: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, LinkError::Misuse { .. }), "{error}");
        assert!(error.to_string().contains(about), "{error}");
    };
    let tcp = &mut nodes[0].tcp;
    misuse(tcp.send(1, key(0, 0), out.memory(), 0), "not begun");
    tcp.begin(GROUP, 0, 1);
    misuse(tcp.send(0, key(0, 0), out.memory(), 0), "itself");
    misuse(tcp.recv(2, key(0, 0), Sink::View(1)), "no such rank");
    tcp.recv(1, key(0, 0), Sink::View(10)).unwrap();
    misuse(tcp.recv(1, key(0, 0), Sink::View(10)), "before");
    tcp.send(1, key(0, 0), out.memory(), 0).unwrap();
    misuse(tcp.send(1, key(0, 0), out.memory(), 0), "before");
    tcp.release(1, key(0, 7));
    tcp.cancel(GROUP, 9);
}
