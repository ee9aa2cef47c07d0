//! The transport over software devices: who goes which way, and what happens when a queue pair fails. What all transports
//! promise is in `transport_contract`.

use std::{net::Ipv4Addr, time::Instant};

use ringway_link::{
    Event, Sink, Transport,
    rdma::{RdmaSettings, RdmaTransport, SoftwareDevice, SoftwareOptions},
    tcp::{TcpSettings, TcpTransport},
};

use crate::{
    allocations,
    breakable::{Break, Breaks, Way},
    end::LIMIT,
    pair::{Pair, buffers, key, listeners, open, same},
    relay::Faults,
};

#[test]
fn peers_that_reach_each_other_use_rdma() {
    let mut pair = Pair::new(Way::Straight);
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    assert!(pair.ranks[0].reaches(1) && pair.ranks[1].reaches(0));
    assert!(into.iter().all(|into| same(into, &out)));
}

#[test]
fn peers_that_do_not_use_tcp_both() {
    let mut pair = Pair::new(Way::Nowhere);
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    assert!(!pair.ranks[0].reaches(1) && !pair.ranks[1].reaches(0));
    assert!(into.iter().all(|into| same(into, &out)));
}

/// Small packets pass, those of the agreed MTU do not.
#[test]
fn a_path_that_swallows_full_packets_proves_nothing() {
    let longest = |longest| {
        Way::Relayed(Faults {
            longest,
            ..Faults::NONE
        })
    };
    // An RDMA WRITE Only with immediate data of 4,096 bytes, its headers of 12, 16 and 4, and the CRC.
    let full = 4096 + 12 + 16 + 4 + 4;
    let (out, into) = buffers();
    for (longest, reaches) in [(longest(full), true), (longest(full - 1), false)] {
        let mut pair = Pair::new(longest);
        pair.round(0, &out, &into);
        assert_eq!(
            [0, 1].map(|own| pair.ranks[own].reaches(1 - own)),
            [reaches; 2]
        );
        assert!(into.iter().all(|into| same(into, &out)));
    }
}

/// Its settings are others: it answers no offer.
#[test]
fn a_peer_that_knows_only_tcp_is_reached_over_tcp() {
    let [(listener, addresses), (other, _)] = listeners();
    let tcp = |listener| {
        let settings = TcpSettings::default();
        TcpTransport::new(listener, addresses.clone(), settings).unwrap()
    };
    let settings = RdmaSettings::default();
    let options = SoftwareOptions {
        ip: Ipv4Addr::LOCALHOST.into(),
        roce_port: false,
    };
    let device = SoftwareDevice::open(&options).unwrap();
    let rdma = RdmaTransport::new(tcp(listener), Ok(Box::new(device)), settings).unwrap();
    let mut ranks: [Box<dyn Transport>; 2] = [Box::new(rdma), Box::new(tcp(other))];
    let (out, into) = buffers();
    // Short ones, and long ones, which are granted first.
    for (op, len) in [(0, 8), (1, 100_000)] {
        for (own, rank) in ranks.iter_mut().enumerate() {
            rank.begin(1, op, 7);
            let sink = Sink::Place(into[own].memory().slice(0..len));
            rank.recv(1 - own, key(op, 0), sink).unwrap();
            let src = out.memory().slice(0..len);
            rank.send(1 - own, key(op, 0), src, 0).unwrap();
        }
        let deadline = Instant::now() + LIMIT;
        let mut events = [Vec::new(), Vec::new()];
        while events.iter().any(|events| events.len() < 2) {
            assert!(Instant::now() < deadline, "{events:?}");
            for (rank, events) in ranks.iter_mut().zip(&mut events) {
                rank.poll(Instant::now(), events);
            }
        }
    }
    assert!(into.iter().all(|into| same(into, &out)));
}

/// Whenever it happens, on either side, and whether the peer has got the request or not.
#[test]
fn a_queue_pair_that_fails_costs_no_message_and_none_comes_twice() {
    for (rank, is_done) in [(0, false), (0, true), (1, false), (1, true)] {
        for at in 0..24 {
            let mut pair = Pair::new(Way::Straight);
            let (out, into) = buffers();
            for (own, into) in into.iter().enumerate() {
                // One side's in registered memory.
                if own == at as usize % 2 {
                    pair.ranks[own].register(into.memory()).unwrap();
                    pair.ranks[own].register(out.memory()).unwrap();
                }
            }
            let breaks = pair.breaks[rank].clone();
            *breaks.lock().unwrap() = Some(Break { at, is_done });
            for op in 0..6 {
                into.iter()
                    .for_each(|into| into.memory().write(&[0; 100_000]));
                pair.round(op, &out, &into);
                let whole = into.iter().all(|into| same(into, &out));
                assert!(
                    whole,
                    "rank {rank}, request {at}, done: {is_done}, round {op}"
                );
            }
            assert!(
                breaks.lock().unwrap().is_none(),
                "request {at} was never posted"
            );
            assert!(!pair.ranks[0].reaches(1) && !pair.ranks[1].reaches(0));
        }
    }
}

/// The numbers of queue pairs that have failed are given to others.
#[test]
fn a_rank_that_leaves_after_its_queue_pairs_takes_nobody_elses_along() {
    let breaks = Breaks::default();
    let mut ranks = listeners::<3>().map(|it| {
        let breaks = match it.0.rank() {
            0 => breaks.clone(),
            _ => Breaks::default(),
        };
        Some(open(it, Way::Straight, breaks, |_| {}))
    });
    let (out, into) = buffers();
    // A long message to rank 0.
    let message = |ranks: &mut [Option<RdmaTransport>; 3], op, from: usize| {
        let (key, into) = (key(op, 0), into[0].memory());
        into.write(&[0; 100_000]);
        let [Some(first), sender] = ranks.get_disjoint_mut([0, from]).unwrap() else {
            panic!("rank 0 is there");
        };
        let sender = sender.as_mut().unwrap();
        first.begin(1, op, 7);
        sender.begin(1, op, 7);
        first.recv(from, key, Sink::Place(into)).unwrap();
        sender.send(0, key, out.memory(), 0).unwrap();
        let (mut arrived, mut events) = (false, Vec::new());
        let deadline = Instant::now() + LIMIT;
        while !arrived {
            assert!(Instant::now() < deadline, "message {op} from rank {from}");
            first.poll(Instant::now(), &mut events);
            let received = |event| matches!(event, Event::Received { .. });
            arrived = events.drain(..).any(received);
            sender.poll(Instant::now(), &mut events);
            events.clear();
        }
        first.cancel(1, op);
        sender.cancel(1, op);
    };
    message(&mut ranks, 0, 1);
    *breaks.lock().unwrap() = Some(Break {
        at: 0,
        is_done: false,
    });
    message(&mut ranks, 1, 1);
    message(&mut ranks, 2, 1);
    assert!(!ranks[0].as_ref().unwrap().reaches(1));
    message(&mut ranks, 3, 2);
    assert!(ranks[0].as_ref().unwrap().reaches(2));
    // Its end is noticed while nothing else goes on.
    drop(ranks[1].take());
    let (mut lost, mut events) = (false, Vec::new());
    let deadline = Instant::now() + LIMIT;
    while !lost {
        assert!(Instant::now() < deadline, "rank 1 has left");
        for rank in ranks.iter_mut().flatten() {
            rank.poll(Instant::now(), &mut events);
        }
        lost = events
            .drain(..)
            .any(|event| matches!(event, Event::Lost { peer: 1, .. }));
    }
    message(&mut ranks, 4, 2);
    assert!(ranks[0].as_ref().unwrap().reaches(2));
}

#[test]
fn once_it_runs_it_takes_no_memory_from_the_system_and_registers_nothing() {
    let mut pair = Pair::new(Way::Straight);
    let (out, into) = buffers();
    // One direction in registered memory, the other by copies.
    pair.ranks[0].register(out.memory()).unwrap();
    pair.ranks[1].register(into[1].memory()).unwrap();
    // So many ended operations are remembered, in a table that grows until then.
    let warm = 5000;
    for op in 0..warm {
        pair.round(op, &out, &into);
    }
    let registered = [0, 1].map(|own| pair.ranks[own].registered());
    assert!(registered.iter().all(|it| it.regions == 1));
    let before = allocations::count();
    for op in warm..warm + 100 {
        pair.round(op, &out, &into);
    }
    assert_eq!(allocations::count() - before, 0);
    assert_eq!([0, 1].map(|own| pair.ranks[own].registered()), registered);
}
