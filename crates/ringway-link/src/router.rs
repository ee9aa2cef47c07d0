//! One transport made of several: each peer is reached over one of them.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory};

use crate::{Event, LinkError, MessageKey, RegisterError, RegisteredMemory, Sink, Transport};

/// Names of combinations, kept for ever: there are as many as combinations of transports.
static NAMES: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());

/// A transport that passes each peer's messages to the transport that reaches the peer: shared
/// memory within a host and TCP between hosts, say.
pub struct Router {
    name: &'static str,
    transports: Vec<Box<dyn Transport>>,
    /// By rank: the index of its transport.
    routes: BTreeMap<Rank, usize>,
    /// Over the transports' descriptors.
    epoll: Epoll,
    /// How many transports, the first ones, have been armed.
    armed: usize,
}

impl Router {
    /// Joins transports, each with the peers that it is to reach. A peer that several have goes to
    /// the first.
    ///
    /// # Errors
    /// If the process or the system has no file descriptors left (`ulimit -n`).
    pub fn new(parts: Vec<(Box<dyn Transport>, Vec<Rank>)>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let mut routes = BTreeMap::new();
        let mut transports = Vec::with_capacity(parts.len());
        for (index, (transport, peers)) in parts.into_iter().enumerate() {
            epoll.add(transport.fd(), index as u64, Interest::Read)?;
            for peer in peers {
                routes.entry(peer).or_insert(index);
            }
            transports.push(transport);
        }
        let names: Vec<_> = transports
            .iter()
            .map(|transport| transport.name())
            .collect();
        Ok(Self {
            name: intern(names.join("+")),
            transports,
            routes,
            epoll,
            armed: 0,
        })
    }

    /// The name of the transport that reaches a peer.
    pub fn route(&self, peer: Rank) -> Option<&'static str> {
        Some(self.transports[*self.routes.get(&peer)?].name())
    }

    fn to(&mut self, peer: Rank, key: MessageKey) -> Result<&mut dyn Transport, LinkError> {
        match self.routes.get(&peer) {
            Some(&index) => Ok(&mut *self.transports[index]),
            None => Err(LinkError::Misuse {
                peer,
                key,
                detail: "no transport leads there",
            }),
        }
    }
}

fn intern(name: String) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names
        .entry(name)
        .or_insert_with_key(|name| name.clone().leak())
}

impl Transport for Router {
    /// The names of all, as in `shm+tcp`.
    fn name(&self) -> &'static str {
        self.name
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        for transport in &mut self.transports {
            transport.begin(group, op, fingerprint);
        }
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        self.to(peer, key)?.send(peer, key, src, priority)
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        self.to(peer, key)?.recv(peer, key, sink)
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        // A view without a route cannot have been shown.
        if let Ok(transport) = self.to(peer, key) {
            transport.release(peer, key);
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        for (index, transport) in self.transports.iter_mut().enumerate() {
            let before = events.len();
            moved |= transport.poll(now, events);
            // A peer that another transport reaches is not lost.
            let elsewhere = |event: &mut Event| match event {
                Event::Lost { peer, .. } => self.routes.get(peer) != Some(&index),
                _ => false,
            };
            events.extract_if(before.., elsewhere).for_each(drop);
        }
        moved
    }

    fn arm(&mut self) -> bool {
        self.armed = 0;
        self.transports.iter_mut().all(|transport| {
            self.armed += 1;
            transport.arm()
        })
    }

    fn disarm(&mut self) {
        let armed = std::mem::take(&mut self.armed);
        for transport in &mut self.transports[..armed] {
            transport.disarm();
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        for transport in &mut self.transports {
            transport.cancel(group, op);
        }
    }

    /// The shortest of all: a schedule is cut in slices alike on all ranks.
    fn slice_bytes(&self) -> usize {
        self.transports
            .iter()
            .map(|transport| transport.slice_bytes())
            .min()
            .unwrap_or(usize::MAX)
    }

    fn memory_in_use(&self) -> usize {
        self.transports
            .iter()
            .map(|transport| transport.memory_in_use())
            .sum()
    }

    fn register(&mut self, memory: Memory) -> Result<(), RegisterError> {
        for at in 0..self.transports.len() {
            if let Err(error) = self.transports[at].register(memory) {
                for transport in &mut self.transports[..at] {
                    transport.deregister(memory);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn deregister(&mut self, memory: Memory) {
        for transport in &mut self.transports {
            transport.deregister(memory);
        }
    }

    fn registered(&self) -> RegisteredMemory {
        let all = self.transports.iter().map(|it| it.registered());
        all.fold(RegisteredMemory::default(), |sum, its| sum + its)
    }

    fn close(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for transport in &mut self.transports {
            transport.close(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway_sys::Staging;

    use super::*;
    use crate::{Loopback, LoopbackOptions};

    const fn key(message: u32) -> MessageKey {
        MessageKey {
            group: 0,
            op: 0,
            lane: 0,
            message,
            slice: 0,
        }
    }

    /// Rank 0, which reaches rank 1 over one transport and ranks 1 and 2 over another, and these.
    fn three() -> (Router, Loopback, Loopback) {
        let world = |slice_bytes| {
            let options = LoopbackOptions {
                slice_bytes,
                ..LoopbackOptions::default()
            };
            Loopback::world(3, options).unwrap()
        };
        let (mut near, mut far) = (world(1 << 16), world(1 << 20));
        let parts: Vec<(Box<dyn Transport>, _)> = vec![
            (Box::new(near.remove(0)), vec![1]),
            (Box::new(far.remove(0)), vec![1, 2]),
        ];
        let mut router = Router::new(parts).unwrap();
        let (mut one, mut two) = (near.remove(0), far.remove(1));
        router.begin(0, 0, 1);
        one.begin(0, 0, 1);
        two.begin(0, 0, 1);
        // The ends that nothing goes to are gone, which is no loss.
        drop((near, far));
        assert_eq!(
            (poll(&mut router), poll(&mut one), poll(&mut two)),
            (0, 1, 1)
        );
        (router, one, two)
    }

    fn poll(transport: &mut dyn Transport) -> usize {
        let mut events = Vec::new();
        transport.poll(Instant::now(), &mut events);
        events.len()
    }

    #[test]
    fn each_peer_is_reached_over_its_transport() {
        let (mut router, mut one, mut two) = three();
        assert_eq!(router.name(), "loopback+loopback");
        assert_eq!((router.route(2), router.route(3)), (Some("loopback"), None));
        assert_eq!(router.slice_bytes(), 1 << 16);
        let src = Staging::new(100);
        for (peer, other) in [(1, &mut one), (2, &mut two)] {
            other.recv(0, key(0), Sink::View(100)).unwrap();
            router.send(peer, key(0), src.memory(), 0).unwrap();
            assert_eq!((poll(other), poll(&mut router)), (1, 1));
            other.send(0, key(0), src.memory(), 0).unwrap();
            router.recv(peer, key(0), Sink::View(100)).unwrap();
            assert_eq!(poll(&mut router), 1);
            router.release(peer, key(0));
        }
        assert!(router.recv(3, key(1), Sink::View(100)).is_err());
    }

    #[test]
    fn any_of_them_wakes_the_sleeper() {
        let (mut router, mut one, mut two) = three();
        let src = Staging::new(100);
        let epoll = Epoll::new().unwrap();
        epoll.add(router.fd(), 0, Interest::Read).unwrap();
        for (message, peer, other) in [(0, 1, &mut one), (1, 2, &mut two)] {
            router.recv(peer, key(message), Sink::View(100)).unwrap();
            assert!(router.arm());
            other.send(0, key(message), src.memory(), 0).unwrap();
            let mut ready = Vec::new();
            epoll
                .wait(&mut ready, Some(Duration::from_secs(10)))
                .unwrap();
            assert_eq!(ready, [0]);
            router.disarm();
            assert_eq!(poll(&mut router), 1);
            assert!(router.arm());
            router.disarm();
        }
        // What has come already keeps it from sleeping.
        router.recv(1, key(2), Sink::View(100)).unwrap();
        one.send(0, key(2), src.memory(), 0).unwrap();
        assert!(!router.arm());
        router.disarm();
    }
}
