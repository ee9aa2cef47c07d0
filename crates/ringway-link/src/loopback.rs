//! A transport between endpoints in one process: for tests of the engine and of the middleware, and the
//! shortest complete example of [`Transport`].
//!
//! All endpoints of a world share one lock, under which messages are copied, so that a call that cancels an
//! operation returns with nothing of it going on. A message whose receive has not been posted is
//! buffered as long as the pair of ranks has room; else it stays in the sender's memory until the receive
//! comes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Memory, Segment, SegmentError, Signal};

use crate::{Event, LinkError, MessageKey, Sink, Transport};

/// How a world of loopback endpoints behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackOptions {
    /// Bytes that are buffered between two ranks in one direction, for messages without a receive. Messages
    /// without bytes are always buffered.
    pub buffer_bytes: usize,
    /// What [`Transport::slice_bytes`] answers.
    pub slice_bytes: usize,
}

impl Default for LoopbackOptions {
    fn default() -> Self {
        Self {
            buffer_bytes: 64 << 10,
            slice_bytes: 128 << 10,
        }
    }
}

/// How many ended operations an endpoint remembers, to tell a late message from an early one.
const REMEMBERED: usize = 1024;

/// One rank's endpoint. Dropping it without [`Transport::close`] looks like a crash to the others.
#[derive(Debug)]
pub struct Loopback {
    rank: Rank,
    options: LoopbackOptions,
    world: Arc<Mutex<World>>,
    signal: Arc<Signal>,
}

#[derive(Debug)]
struct World {
    endpoints: Vec<Endpoint>,
}

/// What the world knows of one rank.
#[derive(Debug)]
struct Endpoint {
    signal: Arc<Signal>,
    armed: bool,
    gone: Option<Gone>,
    events: VecDeque<Event>,
    /// Fingerprints of the operations begun.
    begun: HashMap<(u64, u32), u32>,
    ended: VecDeque<(u64, u32)>,
    /// Operations and peers of which a mismatch was reported.
    mismatched: HashSet<(u64, u32, Rank)>,
    /// Receives without a message, by sender.
    posted: HashMap<(Rank, MessageKey), Sink>,
    /// Messages without a receive, by sender.
    waiting: HashMap<(Rank, MessageKey), Waiting>,
    /// Views that were shown and not given back.
    views: HashMap<(Rank, MessageKey), Segment>,
    /// Buffers that were used, for use again.
    spare: Vec<Segment>,
    /// Bytes of all buffers.
    in_use: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Left,
    Dropped,
}

/// A message without a receive.
#[derive(Debug)]
struct Waiting {
    fingerprint: Option<u32>,
    len: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// In the sender's memory.
    There(Memory),
    /// In a buffer of the receiver.
    Here(Segment),
    /// No bytes.
    None,
}

impl Loopback {
    /// The endpoints of a world of `ranks`, by rank.
    ///
    /// # Errors
    /// If the process or the system has no file descriptors left (`ulimit -n`).
    pub fn world(ranks: usize, options: LoopbackOptions) -> std::io::Result<Vec<Self>> {
        let mut signals = Vec::with_capacity(ranks);
        for _ in 0..ranks {
            signals.push(Arc::new(Signal::new()?));
        }
        let endpoints = signals
            .iter()
            .map(|signal| Endpoint::new(Arc::clone(signal)))
            .collect();
        let world = Arc::new(Mutex::new(World { endpoints }));
        let endpoint = |(rank, signal)| Self {
            rank,
            options,
            world: Arc::clone(&world),
            signal,
        };
        Ok(signals.into_iter().enumerate().map(endpoint).collect())
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // A panic under the lock is a failed test; what the world holds is plain data all the same.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, how: Gone) {
        let mut world = self.lock();
        if world.endpoints[self.rank].gone.is_some() {
            return;
        }
        world.endpoints[self.rank].gone = Some(how);
        let lost = how.error(self.rank);
        for (rank, other) in world.endpoints.iter_mut().enumerate() {
            if rank == self.rank {
                continue;
            }
            // What lies in memory of this rank must not be read any more.
            other
                .waiting
                .retain(|&(from, _), w| from != self.rank || !matches!(w.bytes, Bytes::There(_)));
            if other.gone.is_none() {
                other.tell(Event::Lost {
                    peer: self.rank,
                    error: lost.clone(),
                });
            }
        }
        let own = &mut world.endpoints[self.rank];
        own.posted.clear();
        own.waiting.clear();
    }
}

impl Gone {
    fn error(self, peer: Rank) -> LinkError {
        match self {
            Self::Left => LinkError::Left { peer },
            Self::Dropped => LinkError::Closed {
                peer,
                detail: "its endpoint was dropped".to_owned(),
            },
        }
    }
}

impl Endpoint {
    fn new(signal: Arc<Signal>) -> Self {
        Self {
            signal,
            armed: false,
            gone: None,
            events: VecDeque::new(),
            begun: HashMap::new(),
            ended: VecDeque::new(),
            mismatched: HashSet::new(),
            posted: HashMap::new(),
            waiting: HashMap::new(),
            views: HashMap::new(),
            spare: Vec::new(),
            in_use: 0,
        }
    }

    fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        if self.armed {
            self.signal.raise();
        }
    }

    /// A buffer of at least `len` bytes.
    fn buffer(&mut self, peer: Rank, len: usize) -> Result<Segment, LinkError> {
        if let Some(fits) = self.spare.iter().position(|s| s.memory().len() >= len) {
            return Ok(self.spare.swap_remove(fits));
        }
        let segment = Segment::create("ringway-loopback", len).map_err(|e: SegmentError| {
            LinkError::System {
                peer,
                what: "making a buffer",
                detail: e.to_string(),
            }
        })?;
        self.in_use += segment.memory().len();
        Ok(segment)
    }

    /// Whether a message with this fingerprint fits an operation that was begun here; reports it if not.
    fn agrees(&mut self, peer: Rank, key: MessageKey, theirs: Option<u32>) -> bool {
        let ours = self.begun.get(&(key.group, key.op)).copied();
        let Some(theirs) = theirs.filter(|&theirs| ours.is_some_and(|ours| ours != theirs)) else {
            return true;
        };
        if self.mismatched.insert((key.group, key.op, peer)) {
            self.tell(Event::Mismatch {
                peer,
                group: key.group,
                op: key.op,
                theirs,
            });
        }
        false
    }
}

impl World {
    /// Brings a message to its receive, and tells both.
    fn deliver(
        &mut self,
        from: Rank,
        to: Rank,
        key: MessageKey,
        message: Waiting,
        sink: Sink,
    ) -> Result<(), LinkError> {
        let receiver = &mut self.endpoints[to];
        if message.len != sink.len() {
            let (expected, got) = (sink.len(), message.len);
            let error = LinkError::Length {
                peer: from,
                key,
                expected,
                got,
            };
            receiver.tell(Event::Lost { peer: from, error });
            return Ok(());
        }
        let there = matches!(message.bytes, Bytes::There(_));
        let view = match (sink, message.bytes) {
            (Sink::View(_), Bytes::None) | (Sink::Place(_), Bytes::None) => Memory::EMPTY,
            (Sink::Place(place), Bytes::There(src)) => {
                place.copy_from(src);
                Memory::EMPTY
            }
            (Sink::Place(place), Bytes::Here(buffer)) => {
                place.copy_from(buffer.memory().slice(0..message.len));
                receiver.spare.push(buffer);
                Memory::EMPTY
            }
            (Sink::View(len), bytes) => {
                let buffer = match bytes {
                    Bytes::There(src) => {
                        let buffer = receiver.buffer(from, len)?;
                        buffer.memory().slice(0..len).copy_from(src);
                        buffer
                    }
                    Bytes::Here(buffer) => buffer,
                    Bytes::None => unreachable!("matched above"),
                };
                let view = buffer.memory().slice(0..len);
                receiver.views.insert((from, key), buffer);
                view
            }
        };
        receiver.tell(Event::Received {
            peer: from,
            key,
            view,
        });
        if there {
            self.endpoints[from].tell(Event::Sent { peer: to, key });
        }
        Ok(())
    }
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        let mut world = self.lock();
        let own = &mut world.endpoints[self.rank];
        own.begun.insert((group, op), fingerprint);
        let early = own
            .waiting
            .iter()
            .filter(|((_, key), _)| (key.group, key.op) == (group, op));
        let mut early: Vec<_> = early
            .map(|(&(from, key), w)| (from, key, w.fingerprint))
            .collect();
        // Two that only wait for each other send nothing that could be compared.
        for (peer, other) in world.endpoints.iter().enumerate() {
            let theirs = other.begun.get(&(group, op)).copied();
            let waits = |(from, key): &&(Rank, MessageKey)| {
                *from == self.rank && (key.group, key.op) == (group, op)
            };
            let first = other.posted.keys().find(waits);
            early.extend(first.map(|&(_, key)| (peer, key, theirs)));
        }
        let own = &mut world.endpoints[self.rank];
        for (from, key, theirs) in early {
            own.agrees(from, key, theirs);
        }
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        _priority: u8,
    ) -> Result<(), LinkError> {
        let mut world = self.lock();
        let fingerprint = world.endpoints[self.rank]
            .begun
            .get(&(key.group, key.op))
            .copied();
        let receiver = &mut world.endpoints[peer];
        if let Some(gone) = receiver.gone {
            return Err(gone.error(peer));
        }
        if receiver.ended.contains(&(key.group, key.op)) {
            world.endpoints[self.rank].tell(Event::Sent { peer, key });
            return Ok(());
        }
        let agrees = receiver.agrees(self.rank, key, fingerprint);
        let bytes = if src.is_empty() {
            Bytes::None
        } else {
            Bytes::There(src)
        };
        let mut message = Waiting {
            fingerprint,
            len: src.len(),
            bytes,
        };
        if agrees && let Some(sink) = receiver.posted.remove(&(self.rank, key)) {
            if src.is_empty() {
                world.endpoints[self.rank].tell(Event::Sent { peer, key });
            }
            return world.deliver(self.rank, peer, key, message, sink);
        }
        let buffered = receiver
            .waiting
            .iter()
            .filter(|((from, _), _)| *from == self.rank);
        let here = buffered.filter(|(_, w)| matches!(w.bytes, Bytes::Here(_)));
        let room = self.options.buffer_bytes - here.map(|(_, w)| w.len).sum::<usize>();
        if src.len() <= room {
            if !src.is_empty() {
                let buffer = receiver.buffer(self.rank, src.len())?;
                buffer.memory().slice(0..src.len()).copy_from(src);
                message.bytes = Bytes::Here(buffer);
            }
            receiver.waiting.insert((self.rank, key), message);
            world.endpoints[self.rank].tell(Event::Sent { peer, key });
        } else {
            receiver.waiting.insert((self.rank, key), message);
        }
        Ok(())
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        let mut world = self.lock();
        let own = &mut world.endpoints[self.rank];
        let theirs = own.waiting.get(&(peer, key)).map(|w| w.fingerprint);
        match theirs {
            // A message of another operation than this one stays where it is until the operation ends.
            Some(theirs) if !own.agrees(peer, key, theirs) => Ok(()),
            Some(_) => match own.waiting.remove(&(peer, key)) {
                Some(message) => world.deliver(peer, self.rank, key, message, sink),
                None => Ok(()),
            },
            None => match world.endpoints[peer].gone {
                Some(gone) => Err(gone.error(peer)),
                None => {
                    world.endpoints[self.rank].posted.insert((peer, key), sink);
                    // As in `begin`.
                    let ours = world.endpoints[self.rank].begun.get(&(key.group, key.op));
                    let ours = ours.copied();
                    world.endpoints[peer].agrees(self.rank, key, ours);
                    Ok(())
                }
            },
        }
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        let own = &mut self.lock().endpoints[self.rank];
        if let Some(buffer) = own.views.remove(&(peer, key)) {
            own.spare.push(buffer);
        }
    }

    fn poll(&mut self, _now: Instant, events: &mut Vec<Event>) -> bool {
        let own = &mut self.lock().endpoints[self.rank];
        let moved = !own.events.is_empty();
        events.extend(own.events.drain(..));
        moved
    }

    fn arm(&mut self) -> bool {
        let own = &mut self.lock().endpoints[self.rank];
        own.armed = own.events.is_empty();
        own.armed
    }

    fn disarm(&mut self) {
        self.lock().endpoints[self.rank].armed = false;
        self.signal.clear();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        let mut world = self.lock();
        let of_op = |key: &MessageKey| (key.group, key.op) == (group, op);
        let own = &mut world.endpoints[self.rank];
        own.begun.remove(&(group, op));
        own.mismatched.retain(|m| (m.0, m.1) != (group, op));
        own.posted.retain(|(_, key), _| !of_op(key));
        let mut late = Vec::new();
        let mut kept = HashMap::new();
        for ((from, key), message) in mem::take(&mut own.waiting) {
            match message.bytes {
                _ if !of_op(&key) => drop(kept.insert((from, key), message)),
                Bytes::There(_) => late.push((from, key)),
                Bytes::Here(buffer) => own.spare.push(buffer),
                Bytes::None => {}
            }
        }
        own.waiting = kept;
        let (held, kept) = mem::take(&mut own.views)
            .into_iter()
            .partition(|((_, key), _)| of_op(key));
        own.views = kept;
        let held: HashMap<_, _> = held;
        own.spare.extend(held.into_values());
        own.events.retain(|event| match event {
            Event::Sent { key, .. } | Event::Received { key, .. } => !of_op(key),
            Event::Mismatch {
                group: g, op: o, ..
            } => (*g, *o) != (group, op),
            Event::Lost { .. } => true,
        });
        own.ended.push_back((group, op));
        if own.ended.len() > REMEMBERED {
            own.ended.pop_front();
        }
        for (from, key) in late {
            world.endpoints[from].tell(Event::Sent {
                peer: self.rank,
                key,
            });
        }
        for other in &mut world.endpoints {
            let stays = |from, key: &MessageKey, w: &Waiting| {
                from != self.rank || !of_op(key) || !matches!(w.bytes, Bytes::There(_))
            };
            other.waiting.retain(|(from, key), w| stays(*from, key, w));
        }
    }

    fn slice_bytes(&self) -> usize {
        self.options.slice_bytes
    }

    fn memory_in_use(&self) -> usize {
        self.lock().endpoints[self.rank].in_use
    }

    fn close(&mut self, _timeout: Duration) {
        self.leave(Gone::Left);
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.leave(Gone::Dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MessageKey = MessageKey {
        group: 0,
        op: 1,
        lane: 0,
        message: 0,
        slice: 0,
    };

    fn pair(buffer_bytes: usize) -> (Loopback, Loopback) {
        let options = LoopbackOptions {
            buffer_bytes,
            ..LoopbackOptions::default()
        };
        let mut world = Loopback::world(2, options).unwrap();
        let one = world.pop().unwrap();
        (world.pop().unwrap(), one)
    }

    /// Memory with these bytes. The segment must outlive its use.
    fn bytes(content: &[u8]) -> (Segment, Memory) {
        let segment = Segment::create("test", content.len()).unwrap();
        let memory = segment.memory().slice(0..content.len());
        memory.write(content);
        (segment, memory)
    }

    fn content(memory: Memory) -> Vec<u8> {
        let mut content = vec![0; memory.len()];
        memory.read(&mut content);
        content
    }

    fn poll(endpoint: &mut Loopback) -> Vec<Event> {
        let mut events = Vec::new();
        let moved = endpoint.poll(Instant::now(), &mut events);
        assert_eq!(moved, !events.is_empty());
        events
    }

    #[test]
    fn a_message_waits_in_a_buffer_or_at_home() {
        let (_keep, src) = bytes(b"gradient");
        let (_also, dst) = bytes(&[0; 8]);
        for (room, at_once) in [(8, true), (7, false)] {
            let (mut a, mut b) = pair(room);
            a.send(1, KEY, src, 0).unwrap();
            assert_eq!(poll(&mut a).len(), usize::from(at_once));
            b.recv(0, KEY, Sink::Place(dst)).unwrap();
            assert!(matches!(
                poll(&mut b)[..],
                [Event::Received {
                    peer: 0,
                    key: KEY,
                    ..
                }]
            ));
            assert_eq!(content(dst), b"gradient");
            assert_eq!(poll(&mut a).len(), usize::from(!at_once));
            dst.write(&[0; 8]);
        }
    }

    #[test]
    fn views_are_held_until_released() {
        let (_keep, src) = bytes(b"first");
        let (mut a, mut b) = pair(0);
        b.recv(0, KEY, Sink::View(5)).unwrap();
        a.send(1, KEY, src, 0).unwrap();
        let events = poll(&mut b);
        let [Event::Received { view, .. }] = events[..] else {
            panic!("{events:?}")
        };
        src.write(b"other");
        assert_eq!(content(view), b"first");
        let used = b.memory_in_use();
        b.release(0, KEY);
        let next = MessageKey { message: 1, ..KEY };
        b.recv(0, next, Sink::View(5)).unwrap();
        a.send(1, next, src, 0).unwrap();
        assert_eq!(b.memory_in_use(), used, "the buffer is used again");
    }

    #[test]
    fn different_operations_are_told() {
        let (_keep, src) = bytes(b"x");
        let (mut a, mut b) = pair(64);
        a.begin(0, 1, 7);
        a.send(1, KEY, src, 0).unwrap();
        assert!(poll(&mut b).is_empty());
        b.begin(0, 1, 8);
        a.send(1, MessageKey { slice: 1, ..KEY }, src, 0).unwrap();
        let events = poll(&mut b);
        assert!(
            matches!(
                events[..],
                [Event::Mismatch {
                    peer: 0,
                    group: 0,
                    op: 1,
                    theirs: 7
                }]
            ),
            "{events:?}"
        );
        b.recv(0, KEY, Sink::View(1)).unwrap();
        assert!(poll(&mut b).is_empty());
    }

    #[test]
    fn lengths_must_agree() {
        let (_keep, src) = bytes(b"abc");
        let (mut a, mut b) = pair(64);
        a.send(1, KEY, src, 0).unwrap();
        b.recv(0, KEY, Sink::View(4)).unwrap();
        let events = poll(&mut b);
        let [Event::Lost { error, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(error.to_string().contains("3 bytes where 4"), "{error}");
    }

    #[test]
    fn cancel_forgets_both_directions() {
        let (_keep, src) = bytes(b"abc");
        let (mut a, mut b) = pair(0);
        a.send(1, KEY, src, 0).unwrap();
        a.cancel(0, 1);
        b.recv(0, KEY, Sink::View(3)).unwrap();
        assert!(poll(&mut b).is_empty(), "the message was taken back");
        b.cancel(0, 1);
        // Late: the receiver has ended the operation.
        a.send(1, KEY, src, 0).unwrap();
        assert!(matches!(poll(&mut a)[..], [Event::Sent { .. }]));
        assert!(poll(&mut b).is_empty());
    }

    #[test]
    fn leaving_and_crashing_differ() {
        let (mut a, mut b) = pair(64);
        a.close(Duration::ZERO);
        assert!(matches!(
            poll(&mut b)[..],
            [Event::Lost {
                error: LinkError::Left { .. },
                ..
            }]
        ));
        assert!(matches!(
            b.send(0, KEY, Memory::EMPTY, 0),
            Err(LinkError::Left { peer: 0 })
        ));
        let (a, mut b) = pair(64);
        drop(a);
        assert!(matches!(
            poll(&mut b)[..],
            [Event::Lost {
                error: LinkError::Closed { .. },
                ..
            }]
        ));
    }

    #[test]
    fn arming_loses_no_wake_up() {
        let (mut a, mut b) = pair(64);
        let readable = |b: &Loopback| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                b.signal.as_fd(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() == 1
        };
        assert!(b.arm());
        assert!(!readable(&b));
        b.recv(0, KEY, Sink::View(0)).unwrap();
        a.send(1, KEY, Memory::EMPTY, 0).unwrap();
        assert!(readable(&b));
        b.disarm();
        assert!(!readable(&b));
        assert!(!b.arm(), "something has arrived");
        assert_eq!(poll(&mut b).len(), 1);
    }
}
