//! Two ranks in this process that use RDMA.

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Event, Identity, InterfaceFilter, JobId, Listener, MessageKey, PeerAddress, Sink,
    Transport,
    rdma::{RdmaSettings, RdmaTransport, SoftwareDevice, SoftwareOptions},
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

use crate::{
    breakable::{Breakable, Breaks, Way},
    end::LIMIT,
};

pub(crate) struct Pair {
    pub(crate) ranks: [RdmaTransport; 2],
    /// By rank.
    pub(crate) breaks: [Breaks; 2],
    pub(crate) events: [Vec<Event>; 2],
}

impl Pair {
    /// Two ranks, of which the first reaches the second in this way.
    pub(crate) fn new(way: Way) -> Self {
        Self::with(way, |_| {})
    }

    /// The same, with other settings.
    pub(crate) fn with(way: Way, adjust: impl Fn(&mut RdmaSettings)) -> Self {
        Self::among(listeners(), way, adjust)
    }

    /// The same, with other addresses for TCP.
    pub(crate) fn among(
        listeners: [(Arc<Listener>, Vec<PeerAddress>); 2],
        way: Way,
        adjust: impl Fn(&mut RdmaSettings),
    ) -> Self {
        let breaks: [Breaks; 2] = Default::default();
        let ranks = listeners.map(|(listener, addresses)| {
            let rank = listener.rank();
            let way = if rank == 0 { Way::Straight } else { way };
            open((listener, addresses), way, breaks[rank].clone(), &adjust)
        });
        Self {
            ranks,
            breaks,
            events: Default::default(),
        }
    }

    pub(crate) fn poll(&mut self) {
        for (rank, events) in self.ranks.iter_mut().zip(&mut self.events) {
            rank.poll(Instant::now(), events);
        }
    }

    pub(crate) fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "{:?}", self.events);
            self.poll();
        }
    }

    /// Messages in both directions, of which one is looked at.
    pub(crate) fn round(&mut self, op: u32, out: &Staging, into: &[Staging; 2]) {
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

/// A rank that reaches others in this way.
pub(crate) fn open(
    (listener, addresses): (Arc<Listener>, Vec<PeerAddress>),
    way: Way,
    breaks: Breaks,
    adjust: impl Fn(&mut RdmaSettings),
) -> RdmaTransport {
    let tcp = TcpTransport::new(listener, addresses, TcpSettings::default()).unwrap();
    let options = SoftwareOptions {
        ip: Ipv4Addr::LOCALHOST.into(),
        roce_port: false,
    };
    let device = SoftwareDevice::open(&options).unwrap();
    let device = Breakable::new(device, way, breaks);
    let mut settings = RdmaSettings {
        proof_timeout: match way {
            Way::Straight => LIMIT,
            _ => Duration::from_millis(300),
        },
        // Not in a test that looks at what follows a failure.
        first_retry: LIMIT,
        ..RdmaSettings::default()
    };
    adjust(&mut settings);
    RdmaTransport::new(tcp, Ok(Box::new(device)), settings).unwrap()
}

/// The listeners of as many ranks, each with the addresses of all.
pub(crate) fn listeners<const RANKS: usize>() -> [(Arc<Listener>, Vec<PeerAddress>); RANKS] {
    let job = JobId::from_name("rdma transport");
    let listeners = std::array::from_fn::<_, RANKS, _>(|rank| {
        let identity = Identity::new(job, RANKS, rank);
        Arc::new(Listener::start(&Bind::default(), identity).unwrap())
    });
    let publish = |l: &Arc<Listener>| l.address(&InterfaceFilter::default()).unwrap();
    let addresses: Vec<_> = listeners.iter().map(publish).collect();
    listeners.map(|listener| (listener, addresses.clone()))
}

pub(crate) fn key(op: u32, message: u32) -> MessageKey {
    MessageKey {
        group: 1,
        op,
        lane: 0,
        message,
        slice: 0,
    }
}

pub(crate) fn buffers() -> (Staging, [Staging; 2]) {
    let out = Staging::new(100_000);
    let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
    out.memory().write(&bytes);
    (out, [(); 2].map(|()| Staging::new(100_000)))
}

pub(crate) fn same(a: &Staging, b: &Staging) -> bool {
    let [mut x, mut y] = [a, b].map(|it| vec![0; it.memory().len()]);
    a.memory().read(&mut x);
    b.memory().read(&mut y);
    x == y
}
