//! The ranks of a world in this process, over each transport.

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Event, Identity, InterfaceFilter, JobId, LinkError, Listener, Loopback, LoopbackOptions,
    MessageKey, Sink, Transport,
    rdma::{Device, RdmaSettings, RdmaTransport, SoftwareDevice, SoftwareOptions, Verbs},
    shm::{Geometry, HostIdentity, HostSegment, SegmentSizes, SlotOptions, SlotTransport},
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::{Memory, Staging};
use ringway_verbs::{Library, gid::Wish};

/// Makes a world of so many ranks.
pub(crate) type Make = fn(usize) -> Vec<Node>;

/// The longest message in one piece, over all transports: little, so that little traffic reaches every limit.
pub(crate) const SLICE: usize = 4096;

/// A rank, and what its transport has told.
pub(crate) struct Node {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) sent: Vec<(usize, MessageKey)>,
    /// In their order, with the bytes of views.
    pub(crate) received: Vec<(usize, MessageKey, Vec<u8>)>,
    pub(crate) mismatches: Vec<(usize, u32, u32)>,
    pub(crate) lost: Vec<LinkError>,
}

impl Node {
    fn new(transport: Box<dyn Transport>) -> Self {
        Self {
            transport,
            sent: Vec::new(),
            received: Vec::new(),
            mismatches: Vec::new(),
            lost: Vec::new(),
        }
    }

    pub(crate) fn poll(&mut self) -> bool {
        let mut events = Vec::new();
        let moved = self.transport.poll(Instant::now(), &mut events);
        for event in events {
            match event {
                Event::Sent { peer, key } => self.sent.push((peer, key)),
                Event::Received { peer, key, view } => {
                    self.received.push((peer, key, bytes(view)));
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
        self.transport.begin(GROUP, op, 7);
    }

    pub(crate) fn send(&mut self, peer: usize, key: MessageKey, src: &Staging) {
        self.transport.send(peer, key, src.memory(), 0).unwrap();
    }

    pub(crate) fn place(&mut self, peer: usize, key: MessageKey, into: &Staging) {
        let sink = Sink::Place(into.memory());
        self.transport.recv(peer, key, sink).unwrap();
    }

    pub(crate) fn view(&mut self, peer: usize, key: MessageKey, len: usize) {
        self.transport.recv(peer, key, Sink::View(len)).unwrap();
    }
}

pub(crate) fn loopback(ranks: usize) -> Vec<Node> {
    let options = LoopbackOptions {
        buffer_bytes: 4 * SLICE,
        slice_bytes: SLICE,
    };
    let world = Loopback::world(ranks, options).unwrap();
    world.into_iter().map(|t| Node::new(Box::new(t))).collect()
}

pub(crate) fn shm(ranks: usize) -> Vec<Node> {
    let identity = HostIdentity {
        job: [9; 16],
        world: ranks,
        ranks: (0..ranks).collect(),
    };
    let geometry = Geometry::new(8, 4, SLICE);
    let sizes = SegmentSizes {
        control: 1,
        slots: geometry.area_bytes(),
        staging: 1,
        arena: 1 << 20,
    };
    let first = HostSegment::create(identity.clone(), sizes).unwrap();
    let segment = |rank| {
        if rank == 0 {
            return Arc::clone(&first);
        }
        let descriptors = first.descriptors();
        let own = descriptors
            .iter()
            .map(|fd| fd.try_clone_to_owned().unwrap());
        HostSegment::join(own.collect(), identity.clone(), rank).unwrap()
    };
    let options = SlotOptions {
        geometry,
        memory_limit: 1 << 20,
    };
    let transport = |rank| SlotTransport::new(segment(rank), options).unwrap();
    (0..ranks)
        .map(|rank| Node::new(Box::new(transport(rank))))
        .collect()
}

pub(crate) fn tcp(ranks: usize) -> Vec<Node> {
    let world = tcp_transports(ranks);
    world.into_iter().map(|t| Node::new(Box::new(t))).collect()
}

/// Over software devices.
pub(crate) fn rdma(ranks: usize) -> Vec<Node> {
    let options = SoftwareOptions {
        ip: Ipv4Addr::LOCALHOST.into(),
        roce_port: false,
    };
    rdma_over(ranks, |_| Box::new(SoftwareDevice::open(&options).unwrap()))
}

/// Over Linux's rxe through libibverbs: a device and a link for each rank.
pub(crate) fn rxe(ranks: usize) -> Vec<Node> {
    let library = Library::load().unwrap();
    rdma_over(ranks, |rank| {
        let name = format!("rxe{rank}");
        Box::new(Verbs::open(&library, &name, 1, Wish::default()).unwrap())
    })
}

fn rdma_over(ranks: usize, device: impl Fn(usize) -> Box<dyn Device>) -> Vec<Node> {
    let node = |(rank, tcp)| {
        let settings = RdmaSettings {
            eager_limit: 1000,
            eager_messages: 4,
            slice: SLICE,
            ..RdmaSettings::default()
        };
        let rdma = RdmaTransport::new(tcp, Ok(device(rank)), settings).unwrap();
        Node::new(Box::new(rdma))
    };
    let world = tcp_transports(ranks);
    world.into_iter().enumerate().map(node).collect()
}

/// Where every other rank has no device, so that all go over TCP.
pub(crate) fn rdma_without(ranks: usize) -> Vec<Node> {
    let node = |(rank, tcp): (usize, TcpTransport)| {
        let options = SoftwareOptions {
            ip: Ipv4Addr::LOCALHOST.into(),
            roce_port: false,
        };
        let device: Result<Box<dyn Device>, _> = if rank.is_multiple_of(2) {
            Ok(Box::new(SoftwareDevice::open(&options).unwrap()))
        } else {
            Err("no device".to_owned())
        };
        let rdma = RdmaTransport::new(tcp, device, RdmaSettings::default()).unwrap();
        Node::new(Box::new(rdma))
    };
    let world = tcp_transports(ranks);
    world.into_iter().enumerate().map(node).collect()
}

fn tcp_transports(ranks: usize) -> Vec<TcpTransport> {
    let job = JobId::from_name("transport contract");
    let start = |rank| {
        let identity = Identity::new(job, ranks, rank);
        Arc::new(Listener::start(&Bind::default(), identity).unwrap())
    };
    let listeners: Vec<_> = (0..ranks).map(start).collect();
    let publish = |l: &Arc<Listener>| l.address(&InterfaceFilter::default()).unwrap();
    let addresses: Vec<_> = listeners.iter().map(publish).collect();
    let settings = TcpSettings {
        eager_limit: 1000,
        window: 4000,
        slice: SLICE,
        connect_timeout: Duration::from_secs(10),
        ..TcpSettings::default()
    };
    let transport = |listener| {
        let tcp = TcpTransport::new(listener, addresses.clone(), settings.clone());
        let mut tcp = tcp.unwrap();
        tcp.connect_all();
        tcp
    };
    listeners.into_iter().map(transport).collect()
}

pub(crate) const GROUP: u64 = 3;

pub(crate) fn key(op: u32, message: u32, slice: u32) -> MessageKey {
    MessageKey {
        group: GROUP,
        op,
        lane: 1,
        message,
        slice,
    }
}

/// Polls all ranks until `done`.
#[track_caller]
pub(crate) fn drive(nodes: &mut [Node], mut done: impl FnMut(&[Node]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done(nodes) {
        let moved = nodes
            .iter_mut()
            .fold(false, |moved, node| node.poll() | moved);
        if !moved {
            assert!(Instant::now() < deadline, "nothing moves");
            std::thread::yield_now();
        }
    }
}

/// Polls all ranks a while, for what should not come.
pub(crate) fn settle(nodes: &mut [Node]) {
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        if !nodes
            .iter_mut()
            .fold(false, |moved, node| node.poll() | moved)
        {
            std::thread::yield_now();
        }
    }
}

/// Memory with a pattern that depends on `seed`.
pub(crate) fn filled(len: usize, seed: usize) -> Staging {
    let staging = Staging::new(len);
    staging.memory().write(&pattern(len, seed));
    staging
}

pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + i / 251 + seed * 17) as u8)
        .collect()
}

pub(crate) fn bytes(memory: Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}
