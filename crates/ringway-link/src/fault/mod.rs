//! Middleware that injects faults: delays, stalls, lost connections, reordered, split and truncated
//! deliveries, on any transport, in a course that a [`FaultPlan`] fixes.
//!
//! Whether chance strikes a message depends on the plan's seed and on the message's name, not on timing, so that a
//! run can be had again.

mod plan;

use std::{
    collections::{HashMap, VecDeque},
    io, mem,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

pub use plan::{BadFaultPlan, FaultPlan};

use plan::{Kind, Point, Rule};
use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Memory, Timer};

use crate::{Event, LinkError, MessageKey, RegisterError, RegisteredMemory, Sink, Transport};

/// How long events wait for company to be reordered with.
const GATHER: Duration = Duration::from_millis(1);

/// A transport with faults.
pub struct Fault {
    inner: Box<dyn Transport>,
    seed: u64,
    rules: Vec<Kind>,
    peers: HashMap<Rank, Peer>,
    /// Sends that are delayed.
    sends: Vec<(Instant, Send)>,
    /// Events that are delayed.
    events: Vec<(Instant, Event)>,
    /// Events to show, and since when the first has waited.
    ready: VecDeque<Event>,
    ready_since: Option<Instant>,
    fresh: Vec<Event>,
    shown: u64,
    timer: Timer,
    readable: Epoll,
}

struct Send {
    peer: Rank,
    key: MessageKey,
    src: Memory,
    priority: u8,
}

/// What has become of a peer.
#[derive(Default)]
struct Peer {
    messages: u64,
    op: Option<u32>,
    messages_of_op: u64,
    state: State,
    truncate: Truncate,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Well,
    Stalled,
    Cut {
        op: u32,
    },
}

/// Whether a message to the peer is to be sent short. One is.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Truncate {
    #[default]
    None,
    Next,
    Done,
}

impl Fault {
    /// Puts the faults of `plan` that concern `rank` on `inner`.
    ///
    /// # Errors
    /// If the process or the system has no file descriptors left (`ulimit -n`).
    pub fn new(inner: Box<dyn Transport>, plan: &FaultPlan, rank: Rank) -> io::Result<Self> {
        let (timer, readable) = (Timer::new()?, Epoll::new()?);
        readable.add(timer.as_fd(), 0, Interest::Read)?;
        readable.add(inner.fd(), 1, Interest::Read)?;
        let mine = |r: &&Rule| r.rank.is_none_or(|only| only == rank);
        Ok(Self {
            inner,
            seed: plan.seed,
            rules: plan
                .rules
                .iter()
                .filter(mine)
                .map(|r| r.fault.clone())
                .collect(),
            peers: HashMap::new(),
            sends: Vec::new(),
            events: Vec::new(),
            ready: VecDeque::new(),
            ready_since: None,
            fresh: Vec::new(),
            shown: 0,
            timer,
            readable,
        })
    }

    /// Counts a message, and sees which faults of its peer begin with it.
    fn touch(&mut self, peer: Rank, key: MessageKey) -> Result<&mut Peer, LinkError> {
        let of = self.peers.entry(peer).or_default();
        if of.op != Some(key.op) {
            of.op = Some(key.op);
            of.messages_of_op = 0;
        }
        for rule in &self.rules {
            match *rule {
                Kind::Truncate { peer: p, at } if p == peer && of.reached(at, key) => {
                    of.truncate = of.truncate.max(Truncate::Next);
                }
                _ if of.state != State::Well => {}
                Kind::Stall { peer: p, at } if p == peer && of.reached(at, key) => {
                    of.state = State::Stalled;
                }
                Kind::Cut { peer: p, at } if p == peer && of.reached(at, key) => {
                    of.state = State::Cut { op: key.op };
                    self.ready.push_back(Event::Lost {
                        peer,
                        error: cut(peer, key.op),
                    });
                }
                _ => {}
            }
        }
        of.messages += 1;
        of.messages_of_op += 1;
        match of.state {
            State::Cut { op } => Err(cut(peer, op)),
            State::Stalled | State::Well => Ok(of),
        }
    }

    /// How long a message is delayed.
    fn delay(&self, peer: Rank, key: MessageKey, way: u64) -> Option<Duration> {
        let mut delay = Duration::ZERO;
        for (i, rule) in self.rules.iter().enumerate() {
            if let Kind::Delay {
                time,
                share,
                peer: only,
            } = *rule
                && only.is_none_or(|only| only == peer)
            {
                let name = [
                    i as u64,
                    way,
                    peer as u64,
                    key.group,
                    key.op.into(),
                    key.lane.into(),
                ];
                let slice = [key.message.into(), key.slice.into()];
                let chance = name.into_iter().chain(slice).fold(self.seed, mix);
                if chance as f64 / u64::MAX as f64 <= share {
                    delay += time;
                }
            }
        }
        (delay > Duration::ZERO).then_some(delay)
    }

    fn forward(&mut self, send: Send) -> Result<(), LinkError> {
        let Send {
            peer,
            key,
            src,
            priority,
        } = send;
        self.inner.send(peer, key, src, priority)
    }

    /// How many events come together before one is shown.
    fn gathered(&self) -> usize {
        let of = |rule: &Kind| match *rule {
            Kind::Reorder { events } => Some(events),
            _ => None,
        };
        self.rules.iter().filter_map(of).max().unwrap_or(1)
    }

    fn split(&self) -> usize {
        let of = |rule: &Kind| match *rule {
            Kind::Split { events } => Some(events),
            _ => None,
        };
        self.rules.iter().filter_map(of).min().unwrap_or(usize::MAX)
    }

    /// Sorts what the inner transport has to say: dropped, delayed or ready.
    fn sort(&mut self, now: Instant) {
        let mut fresh = mem::take(&mut self.fresh);
        for event in fresh.drain(..) {
            let peer = match &event {
                Event::Sent { peer, .. }
                | Event::Received { peer, .. }
                | Event::Mismatch { peer, .. }
                | Event::Lost { peer, .. } => *peer,
            };
            let state = self.peers.get(&peer).map_or(State::Well, |p| p.state);
            let delay = match event {
                Event::Received { key, .. } => self.delay(peer, key, 1),
                _ => None,
            };
            match (state, delay) {
                (State::Stalled | State::Cut { .. }, _) => {}
                (State::Well, Some(delay)) => self.events.push((now + delay, event)),
                (State::Well, None) => self.ready.push_back(event),
            }
        }
        self.fresh = fresh;
        for (due, event) in mem::take(&mut self.events) {
            match due <= now {
                true => self.ready.push_back(event),
                false => self.events.push((due, event)),
            }
        }
    }

    /// When something is to happen by itself.
    fn due(&self) -> Option<Instant> {
        let sends = self.sends.iter().map(|s| s.0);
        let events = self.events.iter().map(|e| e.0);
        let gathering = self.ready_since.map(|since| since + GATHER);
        sends.chain(events).chain(gathering).min()
    }
}

impl Peer {
    fn reached(&self, at: Point, key: MessageKey) -> bool {
        match at.op {
            None => self.messages >= at.step,
            Some(op) if key.op == op => self.messages_of_op >= at.step,
            Some(op) => key.op > op,
        }
    }
}

fn cut(peer: Rank, op: u32) -> LinkError {
    LinkError::Closed {
        peer,
        detail: format!("cut by the fault plan at operation {op}"),
    }
}

/// One round of a hash (the finaliser of splitmix64).
const fn mix(seed: u64, value: u64) -> u64 {
    let mut z = (seed ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Transport for Fault {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        self.inner.begin(group, op, fingerprint);
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        let of = self.touch(peer, key)?;
        if of.state == State::Stalled {
            return Ok(());
        }
        let mut len = src.len();
        if of.truncate == Truncate::Next {
            of.truncate = Truncate::Done;
            len /= 2;
        }
        let send = Send {
            peer,
            key,
            src: src.slice(0..len),
            priority,
        };
        match self.delay(peer, key, 0) {
            Some(delay) => {
                self.sends.push((Instant::now() + delay, send));
                Ok(())
            }
            None => self.forward(send),
        }
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        match self.touch(peer, key)?.state {
            State::Stalled => Ok(()),
            _ => self.inner.recv(peer, key, sink),
        }
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        self.inner.release(peer, key);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        for (due, send) in mem::take(&mut self.sends) {
            let peer = send.peer;
            let stalled = self
                .peers
                .get(&peer)
                .is_some_and(|p| p.state != State::Well);
            match due <= now {
                false => self.sends.push((due, send)),
                true if stalled => {}
                true => {
                    if let Err(error) = self.forward(send) {
                        self.ready.push_back(Event::Lost { peer, error });
                    }
                }
            }
        }
        let moved = self.inner.poll(now, &mut self.fresh);
        self.sort(now);
        let before = events.len();
        let gathered = self.gathered();
        let waited = self.ready_since.is_some_and(|since| now >= since + GATHER);
        let mut left = self.split();
        while left > 0 && (self.ready.len() >= gathered || waited) {
            self.shown += 1;
            let among = self.ready.len().min(gathered).max(1) as u64;
            let pick = (mix(self.seed, self.shown) % among) as usize;
            let Some(event) = self.ready.remove(pick) else {
                break;
            };
            events.push(event);
            left -= 1;
        }
        self.ready_since = match self.ready.is_empty() {
            true => None,
            false => self
                .ready_since
                .filter(|_| events.len() == before)
                .or(Some(now)),
        };
        moved || events.len() > before
    }

    fn arm(&mut self) -> bool {
        let now = Instant::now();
        if !self.ready.is_empty() {
            self.ready_since.get_or_insert(now);
        }
        let wait = self.due().map(|due| due.saturating_duration_since(now));
        if wait == Some(Duration::ZERO) || self.ready.len() >= self.gathered() {
            return false;
        }
        // A timer that cannot be set makes the caller poll, which is right if not cheap.
        self.timer.set(wait).is_ok() && self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
        let _ = self.timer.set(None);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        let stays = |key: &MessageKey| (key.group, key.op) != (group, op);
        let event_stays = |event: &Event| match event {
            Event::Sent { key, .. } | Event::Received { key, .. } => stays(key),
            Event::Mismatch {
                group: g, op: o, ..
            } => (*g, *o) != (group, op),
            Event::Lost { .. } => true,
        };
        self.sends.retain(|(_, send)| stays(&send.key));
        self.events.retain(|(_, event)| event_stays(event));
        self.ready.retain(event_stays);
        if self.ready.is_empty() {
            self.ready_since = None;
        }
        self.inner.cancel(group, op);
    }

    fn slice_bytes(&self) -> usize {
        self.inner.slice_bytes()
    }

    fn memory_in_use(&self) -> usize {
        self.inner.memory_in_use()
    }

    fn register(&mut self, memory: Memory) -> Result<(), RegisterError> {
        self.inner.register(memory)
    }

    fn deregister(&mut self, memory: Memory) {
        self.inner.deregister(memory);
    }

    fn registered(&self) -> RegisteredMemory {
        self.inner.registered()
    }

    fn close(&mut self, timeout: Duration) {
        self.inner.close(timeout);
    }
}
