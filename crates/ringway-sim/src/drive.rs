//! The ranks: their programs, executors and processors, driven over a network.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use ringway_fabric::{Fabric, Routes};
use ringway_plan::{Action, ActionId, Executor, KeyMap, Rank};

use crate::{
    error::SimError,
    network::{Message, Network, Passage},
    packet::PacketReport,
    program::{Act, Operation},
    scenario::Scenario,
    simulation::Manner,
    time::{Moment, Time},
    trace::{Kind, Record},
    world::World,
};

/// Operation, from, to, lane, message, slice.
type Key = (u32, Rank, Rank, u16, u32, u32);

/// A rank's part in an operation.
#[derive(Clone, Copy)]
struct Part {
    operation: u32,
    rank: Rank,
}

/// One side of a message that has started.
#[derive(Clone, Copy)]
struct Half {
    id: ActionId,
    since: Moment,
    /// Of a send: its number among the rank's.
    number: u64,
}

/// A message of which both sides have started.
#[derive(Clone, Copy)]
struct Flight {
    operation: u32,
    from: Rank,
    to: Rank,
    sent: ActionId,
    wanted: ActionId,
    /// Bytes that both sides cast, of a message that goes in half its width.
    cast: usize,
}

impl Flight {
    const fn part(&self, rank: Rank) -> Part {
        Part {
            operation: self.operation,
            rank,
        }
    }
}

#[derive(Clone, Copy)]
enum Event {
    /// A message has come that its receiver has to cast.
    Comes {
        part: Part,
        id: ActionId,
        bytes: usize,
    },
    /// An action of a rank is done.
    Done { part: Part, id: ActionId },
    /// A rank has computed what its program says.
    Computed { rank: Rank },
    /// Both sides of a message have started.
    Meets { flight: Flight, message: Message },
    /// The sender has spent its overhead.
    Leaves { message: Message },
}

/// What happens when: a number orders what happens at the same time. The heap has the events' places only, which are quick to move.
#[derive(Default)]
struct Agenda {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    events: Vec<Option<(Moment, Event)>>,
    free: Vec<u32>,
}

impl Agenda {
    fn push(&mut self, order: u64, moment: Moment, event: Event) {
        let event = Some((moment, event));
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = event;
                place
            }
            None => {
                self.events.push(event);
                self.events.len() as u32 - 1
            }
        };
        self.heap.push(Reverse((moment.at, order, place)));
    }

    /// When the next event is.
    fn next(&self) -> Option<Time> {
        self.heap.peek().map(|due| due.0.0)
    }

    /// The next event, if it is due by `now`.
    fn pop(&mut self, now: Time) -> Option<(Moment, Event)> {
        self.next().filter(|&at| at <= now)?;
        let Reverse((_, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place as usize].take()
    }
}

/// What a rank is like.
#[derive(Clone, Copy)]
struct Nature {
    host: usize,
    overhead: Time,
    /// Bytes per second.
    reduce: f64,
}

/// What the fabric does at a time.
enum Change {
    Link { link: usize, share: f64 },
    Reroute,
}

pub(crate) struct Drive<'a, N> {
    fabric: &'a Fabric,
    network: N,
    operations: &'a [Operation<'a>],
    acts: &'a [Act],
    manner: Manner,
    /// By rank, how many acts are behind it, and the operation that it waits for.
    passed: Vec<usize>,
    waiting: Vec<Option<u32>>,
    /// By operation and rank, while it is under way.
    executors: Vec<Vec<Option<Box<Executor>>>>,
    /// By operation, the first rank's executor as it was compiled, where ranks may share it, until all are done.
    models: Vec<Option<Executor>>,
    natures: Vec<Nature>,
    /// When each rank's processor, and its posting of messages, is free.
    processors: Vec<Moment>,
    posting: Vec<Moment>,
    halves: KeyMap<Key, Half>,
    flights: KeyMap<u32, Flight>,
    events: Agenda,
    count: u64,
    sends: Vec<u64>,
    /// How many ranks are not at the end of their program, and the last that happened.
    undone: usize,
    end: Moment,
    /// By operation: when the first rank started it, how many are not at its end, and when the last one was.
    spans: Vec<(Option<Time>, usize, Time)>,
    changes: VecDeque<(Time, Change)>,
    down: Vec<usize>,
    /// Numbers of messages and reductions, and their records if these are kept.
    numbers: u32,
    records: Option<Vec<Record>>,
    messages: u64,
}

/// What [`Drive::run`] comes to.
pub(crate) struct End {
    pub(crate) end: Moment,
    pub(crate) messages: u64,
    pub(crate) carried: Vec<f64>,
    pub(crate) records: Vec<Record>,
    pub(crate) operations: Vec<(Time, Option<Time>)>,
    pub(crate) packets: Option<PacketReport>,
}

impl<'a, N: Network> Drive<'a, N> {
    pub(crate) fn new(
        fabric: &'a Fabric,
        world: &World,
        scenario: &Scenario,
        network: N,
        (operations, acts): (&'a [Operation<'a>], &'a [Act]),
        manner: Manner,
    ) -> Self {
        let n = world.ranks();
        let nature = |rank| {
            let host = world.place(rank).host;
            let (overhead, reduce) = match fabric.host(host) {
                Some(kind) => (kind.overhead, kind.reduce * scenario.share(host)),
                None => Default::default(),
            };
            Nature {
                host,
                overhead: overhead.into(),
                reduce,
            }
        };
        let mut changes: Vec<(Time, Change)> = scenario
            .changes
            .iter()
            .flat_map(|change| {
                let (link, share) = (change.link, change.share);
                let later = change.at + scenario.reroute_after;
                [
                    (change.at.into(), Change::Link { link, share }),
                    (later.into(), Change::Reroute),
                ]
            })
            .collect();
        changes.sort_by_key(|c| c.0);
        Self {
            fabric,
            network,
            operations,
            acts,
            manner,
            passed: vec![0; n],
            waiting: vec![None; n],
            executors: vec![vec![None; n]; operations.len()],
            models: vec![None; operations.len()],
            natures: (0..n).map(nature).collect(),
            processors: vec![Moment::START; n],
            posting: vec![Moment::START; n],
            halves: KeyMap::default(),
            flights: KeyMap::default(),
            events: Agenda::default(),
            count: 0,
            sends: vec![0; n],
            undone: n,
            end: Moment::START,
            spans: vec![(None, n, Time::default()); operations.len()],
            changes: changes.into(),
            down: Vec::new(),
            numbers: 0,
            records: manner.record.then(Vec::new),
            messages: 0,
        }
    }

    /// Runs all ranks to their end.
    pub(crate) fn run(mut self) -> Result<End, SimError> {
        let mut now = Time::default();
        for rank in 0..self.passed.len() {
            self.go_on(rank, Moment::START);
        }
        loop {
            // All that ranks do at a time, before the network goes on.
            while let Some((moment, event)) = self.events.pop(now) {
                self.handle(moment, event);
            }
            if self.undone == 0 {
                break;
            }
            let due = self.events.next();
            let change = self.changes.front().map(|c| c.0);
            let is_still = due.is_none() && change.is_none() && self.network.stands_still();
            let next = [due, self.network.next(), change];
            let next = next.into_iter().flatten().min();
            let Some(next) = next.filter(|_| !is_still) else {
                return Err(self.stalled(now));
            };
            now = next;
            while self.changes.front().is_some_and(|c| c.0 <= now) {
                if let Some((_, change)) = self.changes.pop_front() {
                    self.change(now, change);
                }
            }
            while let Some(passage) = self.network.poll(now) {
                self.passed(passage);
            }
            if let Some(failure) = self.network.failure() {
                return Err(failure);
            }
        }
        Ok(End {
            packets: self.network.report(),
            end: self.end,
            messages: self.messages,
            carried: self.network.carried().to_vec(),
            records: self.records.unwrap_or_default(),
            operations: self
                .spans
                .into_iter()
                .map(|(begin, left, end)| (begin.unwrap_or_default(), (left == 0).then_some(end)))
                .collect(),
        })
    }

    fn handle(&mut self, now: Moment, event: Event) {
        match event {
            Event::Done { part, id } => self.done(part, id, now),
            Event::Computed { rank } => self.go_on(rank, now),
            Event::Comes { part, id, bytes } => self.work(part, id, bytes, now),
            Event::Meets { flight, message } => {
                let now = match flight.cast {
                    0 => now,
                    bytes => self.occupy(flight.from, bytes, now),
                };
                let posting = &mut self.posting[flight.from];
                let start = now.or_later(*posting);
                *posting = start.latency(self.natures[flight.from].overhead);
                let since = *posting;
                self.flights.insert(message.id, flight);
                self.at(
                    since,
                    Event::Leaves {
                        message: Message { since, ..message },
                    },
                );
            }
            Event::Leaves { message } => {
                self.messages += 1;
                self.network.send(message);
            }
        }
    }

    /// Acts of a rank's program, up to one that takes time.
    fn go_on(&mut self, rank: Rank, now: Moment) {
        self.end = self.end.or_later(now);
        while let Some(act) = self.acts.get(self.passed[rank]).copied() {
            if let Act::Wait(operation) = act
                && self.executors[operation][rank].is_some()
            {
                self.waiting[rank] = Some(operation as u32);
                return;
            }
            self.passed[rank] += 1;
            match act {
                Act::Wait(_) => {}
                Act::Start(operation) => {
                    let executor = self.executor(operation, rank);
                    self.executors[operation][rank] = Some(executor.into());
                    self.spans[operation].0.get_or_insert(now.at);
                    let operation = operation as u32;
                    self.poll(Part { operation, rank }, now);
                }
                Act::Compute(time) => {
                    let at = now.at.after(time);
                    return self.at(Moment { at, ..now }, Event::Computed { rank });
                }
            }
        }
        self.undone -= 1;
    }

    /// A rank's part in an operation, compiled once for all ranks where that can be.
    fn executor(&mut self, operation: usize, rank: Rank) -> Executor {
        let model = self.models[operation].as_ref();
        if let Some(turned) = model.and_then(|model| model.turned(rank)) {
            return turned;
        }
        let executor = self.operations[operation].executor(rank, self.manner.slice_bytes);
        if executor.turned(rank).is_some() {
            self.models[operation] = Some(executor.clone());
        }
        executor
    }

    fn done(&mut self, part: Part, id: ActionId, now: Moment) {
        self.end = self.end.or_later(now);
        if let Some(executor) = &mut self.executors[part.operation as usize][part.rank] {
            executor.handle_done(id);
            self.poll(part, now);
        }
        let Part { operation, rank } = part;
        let is_over = self.executors[operation as usize][rank].is_none();
        if is_over && self.waiting[rank].take_if(|it| *it == operation).is_some() {
            self.go_on(rank, now);
        }
    }

    /// What has become of a message.
    fn passed(&mut self, passage: Passage) {
        match passage {
            Passage::Arrives { id, begun, at } => {
                let Some(flight) = self.flights.get(&id) else {
                    return;
                };
                if let Some(records) = &mut self.records {
                    let record = &mut records[id as usize];
                    (record.begun, record.ended) = (begun.at, at.at);
                    record.cause = begun.cause;
                }
                let (part, id_wanted) = (flight.part(flight.to), flight.wanted);
                let wanted = match flight.cast {
                    0 => Event::Done {
                        part,
                        id: id_wanted,
                    },
                    bytes => Event::Comes {
                        part,
                        id: id_wanted,
                        bytes,
                    },
                };
                self.at(caused(at, id), wanted);
            }
            Passage::Free { id, at } => {
                if let Some(flight) = self.flights.remove(&id) {
                    self.done(flight.part(flight.from), flight.sent, caused(at, id));
                }
            }
        }
    }

    /// Starts all that a rank may start now in an operation, which may be over then.
    fn poll(&mut self, part: Part, now: Moment) {
        let Part { operation, rank } = part;
        let Some(mut executor) = self.executors[operation as usize][rank].take() else {
            return;
        };
        while let Some(action) = executor.poll() {
            match action {
                Action::Send {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    src,
                } => {
                    self.sends[rank] += 1;
                    let number = self.sends[rank];
                    let key = (operation, rank, peer, lane, message, slice);
                    self.half(
                        key,
                        src.len,
                        Half {
                            id,
                            since: now,
                            number,
                        },
                        true,
                    );
                }
                Action::Recv {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                } => {
                    let key = (operation, peer, rank, lane, message, slice);
                    self.half(
                        key,
                        dst.len,
                        Half {
                            id,
                            since: now,
                            number: 0,
                        },
                        false,
                    );
                }
                Action::View {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    len,
                    ..
                } => {
                    let key = (operation, peer, rank, lane, message, slice);
                    self.half(
                        key,
                        len,
                        Half {
                            id,
                            since: now,
                            number: 0,
                        },
                        false,
                    );
                }
                Action::Combine { id, dst, .. }
                | Action::Copy { id, dst, .. }
                | Action::Reduce { id, dst, .. } => self.work(part, id, dst.len, now),
            }
        }
        if !executor.is_done() {
            self.executors[operation as usize][rank] = Some(executor);
            return;
        }
        let (_, left, end) = &mut self.spans[operation as usize];
        *left -= 1;
        *end = now.at.max(*end);
        if *left == 0 {
            self.models[operation as usize] = None;
        }
    }

    fn half(&mut self, key: Key, len: usize, half: Half, sends: bool) {
        let Some(other) = self.halves.remove(&key) else {
            self.halves.insert(key, half);
            return;
        };
        let (sent, wanted) = if sends { (half, other) } else { (other, half) };
        let (operation, from, to, lane, message, slice) = key;
        let since = sent.since.or_later(wanted.since);
        let is_far = self.natures[from].host != self.natures[to].host;
        let is_narrow = is_far && self.operations[operation as usize].is_narrow();
        let (bytes, cast) = match is_narrow {
            true => (len as u64 / 2, len),
            false => (len as u64, 0),
        };
        let id = self.number(Kind::Message { to }, from, bytes);
        let stream = self.manner.streams.of(lane, message, slice);
        let event = Event::Meets {
            flight: Flight {
                operation,
                from,
                to,
                sent: sent.id,
                wanted: wanted.id,
                cast,
            },
            message: Message {
                id,
                from,
                to,
                stream,
                bytes,
                since,
            },
        };
        // Of messages that meet at the same time, a rank sends first what it started first.
        let order = 1 << 63 | sent.number << 20 | from as u64;
        self.events.push(order, since, event);
    }

    /// A reduction, copy or cast, with which an action is done.
    fn work(&mut self, part: Part, id: ActionId, len: usize, now: Moment) {
        let done = self.occupy(part.rank, len, now);
        self.at(done, Event::Done { part, id });
    }

    /// When a rank's processor has worked through so many bytes: it does one thing at a time.
    fn occupy(&mut self, rank: Rank, len: usize, now: Moment) -> Moment {
        let start = now.or_later(self.processors[rank]);
        let takes = Time::of_bytes(len as f64, self.natures[rank].reduce);
        let number = self.number(Kind::Work, rank, len as u64);
        let done = Moment {
            cause: Some(number),
            ..start.reduction(takes)
        };
        if let Some(records) = &mut self.records {
            let record = &mut records[number as usize];
            (record.begun, record.ended) = (start.at, done.at);
            record.cause = start.cause;
        }
        self.processors[rank] = done;
        done
    }

    /// A number for something that takes time, and its record.
    fn number(&mut self, kind: Kind, rank: Rank, bytes: u64) -> u32 {
        let number = self.numbers;
        self.numbers += 1;
        if let Some(records) = &mut self.records {
            records.push(Record {
                kind,
                rank,
                bytes,
                begun: Time::default(),
                ended: Time::default(),
                cause: None,
            });
        }
        number
    }

    fn at(&mut self, moment: Moment, event: Event) {
        self.count += 1;
        self.events.push(self.count, moment, event);
    }

    fn change(&mut self, now: Time, change: Change) {
        match change {
            Change::Link { link, share } => {
                self.down.retain(|&l| l != link);
                if share == 0.0 {
                    self.down.push(link);
                }
                self.network.set_link(now, link, share);
            }
            Change::Reroute => {
                let routes = Routes::without(self.fabric, &self.down);
                self.network.reroute(now, routes);
            }
        }
    }

    /// Who waits for what, when nothing will happen any more.
    fn stalled(&self, now: Time) -> SimError {
        let waits = |executor: &Executor| executor.pending().first().map(ToString::to_string);
        let parts = self.executors.iter().flat_map(|of| of.iter().enumerate());
        let mut under_way = parts.filter_map(|(rank, e)| Some((rank, e.as_ref()?)));
        let first = under_way.find_map(|(rank, e)| Some((rank, waits(e)?)));
        let (rank, what) = first.unwrap_or_default();
        SimError::Stalled {
            at: now.to_string(),
            rank,
            what,
        }
    }
}

/// The same moment, as the end of a message.
const fn caused(moment: Moment, message: u32) -> Moment {
    Moment {
        cause: Some(message),
        ..moment
    }
}
