//! The transport over software devices: who goes which way, and what happens when a queue pair fails. What all transports
//! promise is in `transport_contract`.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Event, Identity, InterfaceFilter, JobId, LinkError, Listener, MessageKey, PeerAddress,
    Sink, Transport,
    rdma::{RdmaSettings, RdmaTransport, SoftwareDevice, SoftwareOptions},
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

use crate::{
    allocations,
    breakable::{Breakable, Way},
    end::LIMIT,
    relay::Faults,
};

struct Pair {
    ranks: [RdmaTransport; 2],
    fails: Arc<AtomicBool>,
    events: [Vec<Event>; 2],
}

impl Pair {
    /// Two ranks, of which the first reaches the second in this way.
    fn new(way: Way) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let ranks = listeners().map(|(listener, addresses)| {
            let rank = listener.rank();
            let settings = TcpSettings::default();
            let tcp = TcpTransport::new(listener, addresses, settings).unwrap();
            let options = SoftwareOptions {
                ip: Ipv4Addr::LOCALHOST.into(),
                roce_port: false,
            };
            let device = SoftwareDevice::open(&options).unwrap();
            let device = match rank {
                0 => Breakable::new(device, Way::Straight, fails.clone()),
                _ => Breakable::new(device, way, Arc::default()),
            };
            let settings = RdmaSettings {
                proof_timeout: match way {
                    Way::Straight => LIMIT,
                    _ => Duration::from_millis(300),
                },
                ..RdmaSettings::default()
            };
            RdmaTransport::new(tcp, Ok(Box::new(device)), settings).unwrap()
        });
        Self {
            ranks,
            fails,
            events: Default::default(),
        }
    }

    fn poll(&mut self) {
        for (rank, events) in self.ranks.iter_mut().zip(&mut self.events) {
            rank.poll(Instant::now(), events);
        }
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "{:?}", self.events);
            self.poll();
        }
    }

    /// Messages in both directions, of which one is looked at.
    fn round(&mut self, op: u32, out: &Staging, into: &[Staging; 2]) {
        for (own, into) in into.iter().enumerate() {
            self.ranks[own].begin(1, op, 7);
            for (message, len) in [(0, 8), (1, 3000), (2, 100_000)] {
                let key = key(op, message);
                let sink = match message {
                    1 => Sink::View(len),
                    _ => Sink::Place(into.memory().slice(0..len)),
                };
                self.ranks[own].recv(1 - own, key, sink).unwrap();
                let src = out.memory().slice(0..len);
                self.ranks[own].send(1 - own, key, src, 0).unwrap();
            }
        }
        self.until(|pair| pair.events.iter().all(|events| events.len() == 6));
        for own in 0..2 {
            for event in self.events[own].drain(..) {
                match event {
                    Event::Received { peer, key, .. } => self.ranks[own].release(peer, key),
                    Event::Sent { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            self.ranks[own].cancel(1, op);
        }
    }
}

/// The listeners of two ranks, each with the addresses of both.
fn listeners() -> [(Arc<Listener>, Vec<PeerAddress>); 2] {
    let job = JobId::from_name("rdma transport");
    let listeners = [0, 1].map(|rank| {
        let identity = Identity::new(job, 2, rank);
        Arc::new(Listener::start(&Bind::default(), identity).unwrap())
    });
    let publish = |l: &Arc<Listener>| l.address(&InterfaceFilter::default()).unwrap();
    let addresses: Vec<_> = listeners.iter().map(publish).collect();
    listeners.map(|listener| (listener, addresses.clone()))
}

fn key(op: u32, message: u32) -> MessageKey {
    MessageKey {
        group: 1,
        op,
        lane: 0,
        message,
        slice: 0,
    }
}

fn buffers() -> (Staging, [Staging; 2]) {
    let out = Staging::new(100_000);
    let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
    out.memory().write(&bytes);
    (out, [(); 2].map(|()| Staging::new(100_000)))
}

fn same(a: &Staging, b: &Staging) -> bool {
    let [mut x, mut y] = [(); 2].map(|()| vec![0; 100_000]);
    a.memory().read(&mut x);
    b.memory().read(&mut y);
    x == y
}

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

#[test]
fn a_queue_pair_that_fails_loses_the_peer_and_says_why() {
    let mut pair = Pair::new(Way::Straight);
    let (out, into) = buffers();
    pair.round(0, &out, &into);
    pair.fails.store(true, Ordering::Relaxed);
    pair.until(|pair| !pair.events[0].is_empty());
    let [Event::Lost { peer: 1, error }] = &pair.events[0][..] else {
        panic!("{:?}", pair.events[0]);
    };
    assert!(matches!(error, LinkError::Rdma { peer: 1, .. }), "{error}");
    assert!(error.to_string().contains("vendor's code 0x81"), "{error}");
    pair.ranks[0].begin(1, 1, 7);
    let refused = pair.ranks[0].send(1, key(1, 0), out.memory(), 0);
    assert!(matches!(refused, Err(LinkError::Rdma { .. })));
}

#[test]
fn once_it_runs_it_takes_no_memory_from_the_system() {
    let mut pair = Pair::new(Way::Straight);
    let (out, into) = buffers();
    // So many ended operations are remembered, in a table that grows until then.
    let warm = 5000;
    for op in 0..warm {
        pair.round(op, &out, &into);
    }
    let before = allocations::count();
    for op in warm..warm + 100 {
        pair.round(op, &out, &into);
    }
    assert_eq!(allocations::count() - before, 0);
}
