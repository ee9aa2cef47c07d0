//! Ranks of a world in one thread, polled in turn.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Event, Identity, InterfaceFilter, JobId, LinkError, Listener, MessageKey, PeerAddress,
    Sink, Transport,
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::{Memory, Staging};

pub(crate) const GROUP: u64 = 3;
pub(crate) const FINGERPRINT: u32 = 0xf00d;

/// Small enough that few bytes reach every limit.
pub(crate) fn small() -> TcpSettings {
    TcpSettings {
        eager_limit: 1000,
        window: 4000,
        connect_timeout: Duration::from_secs(10),
        ..TcpSettings::default()
    }
}

pub(crate) struct Node {
    pub(crate) tcp: TcpTransport,
    pub(crate) sent: Vec<(usize, MessageKey)>,
    /// With the bytes of views, as they were at the event.
    pub(crate) received: HashMap<(usize, MessageKey), Vec<u8>>,
    pub(crate) mismatches: Vec<(usize, u32, u32)>,
    pub(crate) lost: Vec<LinkError>,
}

impl Node {
    pub(crate) fn new(tcp: TcpTransport) -> Self {
        Self {
            tcp,
            sent: Vec::new(),
            received: HashMap::new(),
            mismatches: Vec::new(),
            lost: Vec::new(),
        }
    }

    pub(crate) fn poll(&mut self) -> bool {
        let mut events = Vec::new();
        let moved = self.tcp.poll(Instant::now(), &mut events);
        for event in events {
            match event {
                Event::Sent { peer, key } => self.sent.push((peer, key)),
                Event::Received { peer, key, view } => {
                    let mut bytes = vec![0; view.len()];
                    view.read(&mut bytes);
                    let before = self.received.insert((peer, key), bytes);
                    assert!(before.is_none(), "{key} came twice");
                }
                Event::Mismatch {
                    peer, op, theirs, ..
                } => self.mismatches.push((peer, op, theirs)),
                Event::Lost { error, .. } => self.lost.push(error),
            }
        }
        moved
    }

    pub(crate) fn begin(&mut self, op: u32) {
        self.tcp.begin(GROUP, op, FINGERPRINT);
    }

    pub(crate) fn send(&mut self, peer: usize, key: MessageKey, src: Memory) {
        self.tcp.send(peer, key, src, 0).unwrap();
    }

    pub(crate) fn recv(&mut self, peer: usize, key: MessageKey, sink: Sink) {
        self.tcp.recv(peer, key, sink).unwrap();
    }
}

pub(crate) fn key(op: u32, message: u32) -> MessageKey {
    MessageKey {
        group: GROUP,
        op,
        lane: 1,
        message,
        slice: 0,
    }
}

/// Listeners of a world, and what they publish.
pub(crate) fn listeners(ranks: usize) -> (Vec<Arc<Listener>>, Vec<PeerAddress>) {
    let job = JobId::from_name("tcp tests");
    let start = |rank| {
        let identity = Identity::new(job, ranks, rank);
        Arc::new(Listener::start(&Bind::default(), identity).unwrap())
    };
    let listeners: Vec<_> = (0..ranks).map(start).collect();
    let publish = |l: &Arc<Listener>| l.address(&InterfaceFilter::default()).unwrap();
    let addresses = listeners.iter().map(publish).collect();
    (listeners, addresses)
}

pub(crate) fn world(ranks: usize, settings: &TcpSettings) -> Vec<Node> {
    let (listeners, addresses) = listeners(ranks);
    let transport = |l| TcpTransport::new(l, addresses.clone(), settings.clone()).unwrap();
    listeners
        .into_iter()
        .map(transport)
        .map(Node::new)
        .collect()
}

/// Polls all ranks once. Whether anything moved.
pub(crate) fn poll_all(nodes: &mut [Node]) -> bool {
    nodes
        .iter_mut()
        .fold(false, |moved, node| node.poll() | moved)
}

/// Polls all ranks until `done`.
pub(crate) fn drive(nodes: &mut [Node], mut done: impl FnMut(&[Node]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done(nodes) {
        let moved = poll_all(nodes);
        if !moved {
            assert!(Instant::now() < deadline, "stuck: {:?}", nodes[0].lost);
            std::thread::yield_now();
        }
    }
}

/// Memory with a pattern that depends on `seed`.
pub(crate) fn filled(len: usize, seed: u64) -> Staging {
    let buffer = Staging::new(len);
    buffer.memory().write(&pattern(len, seed));
    buffer
}

pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn bytes(memory: Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}
