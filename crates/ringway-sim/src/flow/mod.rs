//! A network of flows that share links fairly.
//!
//! Messages of a pair of ranks and a stream follow each other over one *connection*, which has one path (ECMP) and, while
//! it has something to send, its max-min fair share of every link of it. A message leaves at that rate, and its last byte
//! arrives the path's latency later. Shares are computed anew when connections begin or end to send, and only for those that
//! share links with these, directly or through others.
//!
//! What it does not have: slow start and the time that congestion control takes to come to its shares, queues, losses,
//! packet headers. Each is a reason for real times to be longer. [`Packets`](crate::Packets) has them.

mod share;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use ringway_fabric::{Fabric, Port, Routes};
use ringway_plan::{KeyMap, Rank};

pub use share::max_min;

use crate::{
    network::{Message, Network, Passage},
    scenario::Scenario,
    simulation::Paths,
    time::{Moment, Time},
    world::World,
};
use share::{Lists, Sharing};

/// Messages between two ranks that keep their order and share a path.
#[derive(Debug)]
struct Connection {
    ends: (Port, Port),
    /// What switches hash.
    flow: u64,
    /// Its sender, receiver and stream, unless it is of others.
    key: Option<(Rank, Rank, u32)>,
    /// Resources that it takes, see [`Flows::capacity`].
    path: Vec<u32>,
    latency: Time,
    /// The rate of its narrowest resource.
    alone: f64,
    queue: VecDeque<Message>,
    /// Bytes of the first message that have not left.
    left: f64,
    begun: Moment,
    /// When the message before left.
    last: Moment,
    /// Bytes per second.
    rate: f64,
    /// When `left` was so.
    updated: Time,
    /// Whether it is among those of its resources.
    active: bool,
    /// Of traffic of others, which always has something to send: the resource that is its demand.
    demand: Option<u32>,
    /// Tells its latest entry in [`Flows::ends`].
    turn: u32,
}

/// Resources that a connection takes, and what follows from these.
struct Way {
    path: Vec<u32>,
    latency: Time,
    alone: f64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Flows<'a> {
    fabric: &'a Fabric,
    world: &'a World,
    routes: Routes,
    seed: u64,
    paths: Paths,
    /// By resource, bytes per second: two for each link, as [`ringway_fabric::Hop::index`] counts; then each rank's way
    /// out and in within its host; then the demand of each background flow.
    capacity: Vec<f64>,
    /// The same where nothing is down.
    full: Vec<f64>,
    connections: Vec<Connection>,
    index: KeyMap<(Rank, Rank, u32), u32>,
    /// By resource: the connections that send over it.
    active: Vec<Vec<u32>>,
    /// Connections that began or ended to send since shares were computed.
    changed: Vec<u32>,
    /// Resources whose capacity changed since.
    altered: Vec<u32>,
    now: Time,
    /// When connections will have sent their first message.
    ends: BinaryHeap<Reverse<(Time, u32, u32)>>,
    passages: VecDeque<Passage>,
    carried: Vec<f64>,
    scratch: Scratch,
}

/// Memory that is used again.
#[derive(Debug, Default)]
struct Scratch {
    sharing: Sharing,
    /// By resource and connection: its number in the component.
    resource: Vec<u32>,
    connection: Vec<u32>,
    resources: Vec<u32>,
    connections: Vec<u32>,
    /// In the component's numbers: what resources have, which connections they carry, and the ways of these.
    rates: Vec<f64>,
    carry: Lists,
    ways: Lists,
    shares: Vec<f64>,
}

const NONE: u32 = u32::MAX;

impl<'a> Flows<'a> {
    /// The network between the ranks of `world`, with the hosts that are slow and the traffic of others that `scenario` has.
    /// `seed` gives connections their UDP source ports: another seed, other collisions.
    pub fn new(fabric: &'a Fabric, world: &'a World, scenario: &Scenario, seed: u64) -> Self {
        let both = fabric.links().iter().flat_map(|link| {
            // A link is as slow as the slower of its ends.
            let share = [link.a, link.b].map(|n| scenario.share(n.0));
            let rate = link.rate * share[0].min(share[1]);
            [rate, rate]
        });
        let mut full: Vec<f64> = both.collect();
        for rank in 0..world.ranks() {
            let host = world.place(rank).host;
            let local = fabric.host(host).map_or(0.0, |kind| kind.local.rate);
            full.extend([local * scenario.share(host); 2]);
        }
        full.extend(scenario.background.iter().map(|b| b.rate));
        let mut flows = Self {
            fabric,
            world,
            routes: Routes::new(fabric),
            seed,
            paths: Paths::new(),
            active: vec![Vec::new(); full.len()],
            carried: vec![0.0; 2 * fabric.links().len()],
            capacity: full.clone(),
            full,
            connections: Vec::new(),
            index: KeyMap::default(),
            changed: Vec::new(),
            altered: Vec::new(),
            now: Time::default(),
            ends: BinaryHeap::new(),
            passages: VecDeque::new(),
            scratch: Scratch::default(),
        };
        for (i, background) in scenario.background.iter().enumerate() {
            let port = |host| Port { host, nic: 0 };
            let ends = (port(background.from), port(background.to));
            let flow = hash(
                seed,
                [background.from as u64, background.to as u64, !(i as u64)],
            );
            let demand = 2 * fabric.links().len() + 2 * world.ranks() + i;
            let number = flows.connect(ends, flow, None, Some(demand as u32));
            flows.changed.push(number);
        }
        flows
    }

    /// With paths that are known, in place of those that the hash would give.
    #[must_use]
    pub fn with_paths(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// A new connection: of two ranks and a stream, or of others.
    fn connect(
        &mut self,
        ends: (Port, Port),
        flow: u64,
        key: Option<(Rank, Rank, u32)>,
        demand: Option<u32>,
    ) -> u32 {
        let number = self.connections.len() as u32;
        let mut connection = Connection {
            ends,
            flow,
            key,
            path: Vec::new(),
            latency: Time::default(),
            alone: 0.0,
            queue: VecDeque::new(),
            left: 0.0,
            begun: Moment::START,
            last: Moment::START,
            rate: 0.0,
            updated: Time::default(),
            active: false,
            demand,
            turn: 0,
        };
        let way = match key {
            Some((from, to, _)) if ends.0.host == ends.1.host => {
                let base = 2 * self.fabric.links().len();
                let path = vec![(base + 2 * from) as u32, (base + 2 * to + 1) as u32];
                let kind = self.fabric.host(ends.0.host);
                Some(Way {
                    latency: kind.map_or_else(Time::default, |k| k.local.latency.into()),
                    alone: self.narrowest(&path),
                    path,
                })
            }
            _ => self.way(&connection),
        };
        // Without a way it waits for one.
        if let Some(way) = way {
            connection.path = way.path;
            (connection.latency, connection.alone) = (way.latency, way.alone);
        }
        self.connections.push(connection);
        self.scratch.connection.push(NONE);
        number
    }

    /// The way of a connection between hosts by the present routes; `None` if there is none.
    fn way(&self, connection: &Connection) -> Option<Way> {
        let (from, to) = connection.ends;
        let known = connection.key.and_then(|key| self.paths.get(&key));
        let hops = match known {
            Some(hops) => hops.clone(),
            None => self.routes.path(self.fabric, from, to, connection.flow)?,
        };
        let links = hops.iter().map(|hop| &self.fabric.links()[hop.link]);
        let latency: std::time::Duration = links.map(|l| l.latency).sum();
        let mut path: Vec<u32> = hops.iter().map(|hop| hop.index() as u32).collect();
        path.extend(connection.demand);
        Some(Way {
            alone: self.narrowest(&path),
            latency: latency.into(),
            path,
        })
    }

    fn narrowest(&self, path: &[u32]) -> f64 {
        let full = path.iter().map(|&r| self.full[r as usize]);
        full.fold(f64::INFINITY, f64::min)
    }

    fn connection(&mut self, message: &Message) -> u32 {
        let key = (message.from, message.to, message.stream);
        if let Some(&number) = self.index.get(&key) {
            return number;
        }
        let places = (self.world.place(message.from), self.world.place(message.to));
        let words = [
            message.from as u64,
            message.to as u64,
            u64::from(message.stream),
        ];
        let flow = hash(self.seed, words);
        let number = self.connect((places.0.port(), places.1.port()), flow, Some(key), None);
        self.index.insert(key, number);
        number
    }

    /// Begins with the first message of a connection's queue; those without bytes leave at once.
    fn begin(&mut self, number: u32) {
        loop {
            let connection = &mut self.connections[number as usize];
            let Some(message) = connection.queue.front() else {
                self.changed.push(number);
                return;
            };
            connection.begun = message.since.or_later(connection.last);
            if message.bytes > 0 {
                connection.left = message.bytes as f64;
                connection.updated = self.now;
                match connection.active {
                    true => self.schedule(number),
                    false => self.changed.push(number),
                }
                return;
            }
            self.leave(number);
        }
    }

    /// The first message of a connection has left now.
    fn leave(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        let Some(message) = connection.queue.pop_front() else {
            return;
        };
        let ideal = Time::of_bytes(message.bytes as f64, connection.alone);
        let left = connection.begun.transfer(ideal, self.now);
        let left = Moment {
            cause: Some(message.id),
            ..left
        };
        connection.last = left;
        for &resource in &connection.path {
            if let Some(carried) = self.carried.get_mut(resource as usize) {
                *carried += message.bytes as f64;
            }
        }
        let id = message.id;
        self.passages.push_back(Passage::Arrives {
            id,
            begun: connection.begun,
            at: left.latency(connection.latency),
        });
        self.passages.push_back(Passage::Free { id, at: left });
    }

    /// Notes when a connection's first message will have left, at its rate.
    fn schedule(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        connection.turn += 1;
        if connection.rate > 0.0 && !connection.queue.is_empty() {
            let takes = Time::of_bytes(connection.left, connection.rate);
            let end = connection.updated.after(takes);
            self.ends.push(Reverse((end, number, connection.turn)));
        }
    }

    /// Brings the shares up to date with the connections that send.
    fn settle(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let mut roots: Vec<u32> = std::mem::take(&mut self.altered);
        for &number in &changed {
            let connection = &mut self.connections[number as usize];
            let sends = connection.demand.is_some() || !connection.queue.is_empty();
            if sends == connection.active {
                continue;
            }
            connection.active = sends;
            for &resource in &connection.path {
                let list = &mut self.active[resource as usize];
                match sends {
                    true => list.push(number),
                    false => list.retain(|&c| c != number),
                }
            }
            roots.extend(&connection.path);
            if !sends {
                connection.rate = 0.0;
                connection.turn += 1;
            }
        }
        if !roots.is_empty() {
            self.share(&roots);
        }
    }

    /// Computes the shares of all connections that share resources with `roots`, directly or through others.
    fn share(&mut self, roots: &[u32]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resource.resize(self.capacity.len(), NONE);
        scratch.resources.clear();
        scratch.connections.clear();
        let mut visit = |resource: u32, resources: &mut Vec<u32>| {
            let number = &mut scratch.resource[resource as usize];
            if *number == NONE {
                *number = resources.len() as u32;
                resources.push(resource);
            }
        };
        for &resource in roots {
            visit(resource, &mut scratch.resources);
        }
        let mut next = 0;
        while let Some(&resource) = scratch.resources.get(next) {
            next += 1;
            for &number in &self.active[resource as usize] {
                let seen = &mut scratch.connection[number as usize];
                if *seen != NONE {
                    continue;
                }
                *seen = scratch.connections.len() as u32;
                scratch.connections.push(number);
                for &resource in &self.connections[number as usize].path {
                    visit(resource, &mut scratch.resources);
                }
            }
        }
        // In a component, resources and connections have numbers of its own.
        scratch.rates.clear();
        scratch.carry.clear();
        for &resource in &scratch.resources {
            scratch.rates.push(self.capacity[resource as usize]);
            let active = self.active[resource as usize].iter();
            let numbers = active.map(|&c| scratch.connection[c as usize]);
            scratch.carry.push(numbers);
        }
        scratch.ways.clear();
        for &number in &scratch.connections {
            let path = self.connections[number as usize].path.iter();
            let numbers = path.map(|&r| scratch.resource[r as usize]);
            scratch.ways.push(numbers);
        }
        scratch.shares.clear();
        scratch.shares.resize(scratch.connections.len(), 0.0);
        scratch.sharing.fill(
            &scratch.rates,
            &scratch.carry,
            &scratch.ways,
            &mut scratch.shares,
        );
        for (&number, &rate) in scratch.connections.iter().zip(&scratch.shares) {
            let connection = &mut self.connections[number as usize];
            // Who has a rate has an end already.
            if connection.rate == rate {
                continue;
            }
            let span = self.now.since(connection.updated).seconds();
            connection.left = (connection.left - connection.rate * span).max(0.0);
            connection.updated = self.now;
            connection.rate = rate;
            self.schedule(number);
        }
        for &resource in &scratch.resources {
            scratch.resource[resource as usize] = NONE;
        }
        for &number in &scratch.connections {
            scratch.connection[number as usize] = NONE;
        }
        self.scratch = scratch;
    }
}

impl Network for Flows<'_> {
    fn send(&mut self, message: Message) {
        self.now = message.since.at;
        let number = self.connection(&message);
        let queue = &mut self.connections[number as usize].queue;
        queue.push_back(message);
        if queue.len() == 1 {
            self.begin(number);
        }
    }

    fn next(&mut self) -> Option<Time> {
        if !self.passages.is_empty() {
            return Some(self.now);
        }
        self.settle();
        while let Some(&Reverse((end, number, turn))) = self.ends.peek() {
            if self.connections[number as usize].turn == turn {
                return Some(end);
            }
            self.ends.pop();
        }
        None
    }

    fn poll(&mut self, now: Time) -> Option<Passage> {
        self.now = now;
        while self.passages.is_empty() {
            let &Reverse((end, number, turn)) = self.ends.peek()?;
            if end > now {
                break;
            }
            self.ends.pop();
            if self.connections[number as usize].turn == turn {
                self.leave(number);
                self.begin(number);
            }
        }
        self.passages.pop_front()
    }

    fn set_link(&mut self, now: Time, link: usize, share: f64) {
        self.now = now;
        for resource in [2 * link, 2 * link + 1] {
            self.capacity[resource] = self.full[resource] * share;
            self.altered.push(resource as u32);
        }
    }

    fn reroute(&mut self, now: Time, routes: Routes) {
        self.now = now;
        self.routes = routes;
        self.paths.clear();
        for number in 0..self.connections.len() {
            let connection = &self.connections[number];
            if connection.ends.0.host == connection.ends.1.host {
                continue;
            }
            let Some(way) = self.way(connection) else {
                continue;
            };
            let connection = &mut self.connections[number];
            let before = std::mem::replace(&mut connection.path, way.path);
            (connection.latency, connection.alone) = (way.latency, way.alone);
            if connection.path != before && connection.active {
                let span = now.since(connection.updated).seconds();
                connection.left = (connection.left - connection.rate * span).max(0.0);
                connection.updated = now;
                connection.rate = 0.0;
                connection.turn += 1;
                for &resource in &before {
                    self.active[resource as usize].retain(|&c| c as usize != number);
                }
                for &resource in &connection.path {
                    self.active[resource as usize].push(number as u32);
                }
                self.altered.extend(before);
                self.altered.extend(&connection.path);
            }
        }
    }

    fn carried(&self) -> &[f64] {
        &self.carried
    }
}

/// Numbers as one, mixed (FNV-1a over words, as seeds of [`Routes::path`], which mixes again).
pub(crate) fn hash(seed: u64, words: [u64; 3]) -> u64 {
    words
        .into_iter()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, word| {
            (hash ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(29)
        })
}
