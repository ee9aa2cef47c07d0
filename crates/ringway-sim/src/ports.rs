//! A network of latency and bandwidth: every NIC, and every GPU within its host, sends one message at a time and receives
//! one at a time, at its own rate; what lies between adds latency and is never full.
//!
//! The model of the textbook's formulas, and of [`ringway_plan::predict`]. It knows no shared links: changes of links and
//! routes mean nothing to it.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use ringway_fabric::{Fabric, NodeId, Routes};
use ringway_plan::{KeyMap, Rank};

use crate::{
    network::{Message, Network, Passage},
    scenario::Scenario,
    time::{Moment, Time},
    world::World,
};

/// What is between two ranks.
#[derive(Clone, Copy, Debug)]
struct Way {
    out: u32,
    into: u32,
    latency: Time,
    /// Bytes per second.
    rate: f64,
    /// Its first and last hop, where it has any.
    hops: Option<(u32, u32)>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Ports<'a> {
    fabric: &'a Fabric,
    world: &'a World,
    scenario: &'a Scenario,
    routes: Routes,
    ways: KeyMap<(Rank, Rank), Option<Way>>,
    /// The number of each NIC that is used, and of each rank within its host (NIC `None`).
    ports: HashMap<(usize, Option<usize>, usize), u32>,
    /// When each port has sent, and received, what it must so far.
    sending: Vec<Moment>,
    receiving: Vec<Moment>,
    /// Messages that begin: when, in which order, from when on, on which way.
    starts: BinaryHeap<Reverse<(Time, u64)>>,
    started: KeyMap<u64, (Message, Moment, Way)>,
    /// Messages that leave.
    ends: BinaryHeap<Reverse<(Time, u64)>>,
    leaving: KeyMap<u64, (Passage, Passage)>,
    /// The end of a message whose arrival has been told.
    free: Option<Passage>,
    count: u64,
    carried: Vec<f64>,
}

impl<'a> Ports<'a> {
    /// The network between the ranks of `world`, with the hosts that are slow in `scenario`.
    pub fn new(fabric: &'a Fabric, world: &'a World, scenario: &'a Scenario) -> Self {
        Self {
            fabric,
            world,
            scenario,
            routes: Routes::new(fabric),
            ways: KeyMap::default(),
            ports: HashMap::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            starts: BinaryHeap::new(),
            started: KeyMap::default(),
            ends: BinaryHeap::new(),
            leaving: KeyMap::default(),
            free: None,
            count: 0,
            carried: vec![0.0; 2 * fabric.links().len()],
        }
    }

    fn port(&mut self, key: (usize, Option<usize>, usize)) -> u32 {
        let next = self.sending.len() as u32;
        let port = *self.ports.entry(key).or_insert(next);
        if port == next {
            self.sending.push(Moment::START);
            self.receiving.push(Moment::START);
        }
        port
    }

    fn way(&mut self, from: Rank, to: Rank) -> Option<Way> {
        if let Some(way) = self.ways.get(&(from, to)) {
            return *way;
        }
        let (a, b) = (self.world.place(from), self.world.place(to));
        let share = |host| self.scenario.share(host);
        let way = if a.host == b.host {
            let kind = self.fabric.host(a.host)?;
            let (latency, rate) = (kind.local.latency, kind.local.rate * share(a.host));
            Some((latency, rate, None))
        } else {
            let path = self.routes.path(self.fabric, a.port(), b.port(), 0);
            path.and_then(|path| {
                let (first, last) = (path.first()?, path.last()?);
                let links = path.iter().map(|h| &self.fabric.links()[h.link]);
                let latency = links.map(|l| l.latency).sum();
                let rate = |link: usize, host| self.fabric.links()[link].rate * share(host);
                let rate = rate(first.link, a.host).min(rate(last.link, b.host));
                let hops = (first.index() as u32, last.index() as u32);
                Some((latency, rate, Some(hops)))
            })
        };
        let way = way.map(|(latency, rate, hops)| {
            let key = |place: crate::Place, rank| match hops {
                None => (place.host, None, rank),
                // A host that forwards has a port for each link.
                Some((first, last)) if self.fabric.forwards(NodeId(place.host)) => {
                    let link = if rank == from { first } else { last };
                    (place.host, Some(link as usize / 2), 0)
                }
                Some(_) => (place.host, Some(place.nic), 0),
            };
            let (out, into) = (key(a, from), key(b, to));
            Way {
                out: self.port(out),
                into: self.port(into),
                latency: latency.into(),
                rate,
                hops,
            }
        });
        self.ways.insert((from, to), way);
        way
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// A message's first byte leaves: what it will meet at the receiver is known now.
    fn start(&mut self, message: Message, begun: Moment, way: Way) {
        let takes = Time::of_bytes(message.bytes as f64, way.rate);
        let left = Moment {
            cause: Some(message.id),
            ..begun.transfer(takes, begun.at.after(takes))
        };
        let reached = begun.latency(way.latency);
        let free = self.receiving[way.into as usize];
        let first = reached.or_later(free);
        let arrives = Moment {
            cause: Some(message.id),
            ..first.transfer(takes, first.at.after(takes))
        };
        self.receiving[way.into as usize] = arrives;
        if let Some((first, last)) = way.hops {
            for hop in [first, last] {
                self.carried[hop as usize] += message.bytes as f64;
            }
        }
        let number = self.number();
        self.ends.push(Reverse((left.at, number)));
        let id = message.id;
        let told = Passage::Arrives {
            id,
            begun,
            at: arrives,
        };
        self.leaving
            .insert(number, (told, Passage::Free { id, at: left }));
    }
}

impl Network for Ports<'_> {
    fn send(&mut self, message: Message) {
        // Without a way the message never leaves.
        let Some(way) = self.way(message.from, message.to) else {
            return;
        };
        let out = way.out as usize;
        let begun = message.since.or_later(self.sending[out]);
        let takes = Time::of_bytes(message.bytes as f64, way.rate);
        self.sending[out] = Moment {
            cause: Some(message.id),
            ..begun.transfer(takes, begun.at.after(takes))
        };
        let number = self.number();
        self.starts.push(Reverse((begun.at, number)));
        self.started.insert(number, (message, begun, way));
    }

    fn next(&mut self) -> Option<Time> {
        let tops = [self.starts.peek(), self.ends.peek()];
        tops.into_iter().flatten().map(|top| top.0.0).min()
    }

    fn poll(&mut self, now: Time) -> Option<Passage> {
        if let Some(free) = self.free.take() {
            return Some(free);
        }
        while let Some(&Reverse((at, number))) = self.starts.peek()
            && at <= now
        {
            self.starts.pop();
            if let Some((message, begun, way)) = self.started.remove(&number) {
                self.start(message, begun, way);
            }
        }
        let &Reverse((at, number)) = self.ends.peek()?;
        if at > now {
            return None;
        }
        self.ends.pop();
        let (arrives, free) = self.leaving.remove(&number)?;
        self.free = Some(free);
        Some(arrives)
    }

    fn set_link(&mut self, _: Time, _: usize, _: f64) {}

    fn reroute(&mut self, _: Time, _: Routes) {}

    fn carried(&self) -> &[f64] {
        &self.carried
    }
}
