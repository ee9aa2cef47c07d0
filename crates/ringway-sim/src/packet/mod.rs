//! A network of packets: queues, pauses, marks, losses, and the protocol that answers them.
//!
//! Every message between hosts is cut into packets by the queue pairs of `ringway-roce` ([`connection`]), which also number,
//! acknowledge, pace (DCQCN) and resend them. Switches store a packet and forward it: it waits in the egress queue of its next
//! link, one for data and one for notifications, which go first. All queues of a switch share its buffer. A packet leaves
//! the buffer when it begins to be sent. NICs have no queue but for answers: whoever may send takes turns, packet by packet, and
//! nobody is asked while the link pauses. Messages within a host are no packets; they are flows ([`Flows`]).
//!
//! Pause frames take the link's latency and the time of their own 84 bytes; what the other end has begun to send, it
//! ends. A pause lasts until it is taken back (in networks it is renewed until then).
//!
//! What it does not have: packets of TCP and of other priorities, errors on links, NICs whose hosts cannot keep up,
//! frames cut through before they are whole (a switch that cuts through is quicker by a frame's time, 84 ns at 400 Gbit/s).

mod agenda;
mod connection;
mod nic;
mod pool;
mod port;
mod settings;
mod switch;
mod ways;

use std::collections::{HashMap, VecDeque};

use ringway_fabric::{Fabric, NodeId, Port as NicPort, Routes};
use ringway_plan::Rank;
use ringway_roce::{
    rc::Counters,
    wire::{Bth, ICRC_LEN},
};

pub use port::{Pause, PortCounts};
pub use settings::{FlowControl, Marking, PacketSettings};

use crate::{
    error::SimError,
    flow::Flows,
    network::{Message, Network, Passage},
    scenario::Scenario,
    time::Time,
    world::World,
};
use agenda::{Agenda, Event};
use connection::{Common, Connection, LONGEST};
use pool::{NONE, Pool};
use port::Port;
use settings::Thresholds;
use ways::Ways;

/// Around a RoCE packet: UDP, IPv4, Ethernet with its check sequence, preamble and the gap between frames.
const AROUND: u64 = 8 + 20 + 14 + 4 + 20;

/// What a packet that neither begins nor ends a message has besides its payload: the base header, its CRC, and what is around.
const HEADERS: u64 = Bth::LEN as u64 + ICRC_LEN as u64 + AROUND;

/// What the first and the last packet of a message have besides: where it goes, and immediate data.
const FRAMING: u64 = 16 + 4;

/// Messages of the traffic of others have so many packets.
const FOREIGN_PACKETS: u64 = 16;

/// What others have under way at most, in messages: beyond, their traffic gives way.
const FOREIGN_MESSAGES: usize = 64;

/// How long nothing may happen to the packets of ranks, at least, while those of others go on: far longer than any queue.
const QUIET: Time = Time(1_000_000_000_000);

#[derive(Debug)]
struct Node {
    /// Bytes that wait in it.
    used: u64,
    thresholds: Option<Thresholds>,
}

/// Traffic of others.
#[derive(Debug)]
struct Foreign {
    connection: u32,
    /// Of each message, and the time between two.
    bytes: u64,
    interval: Time,
}

/// What the network did besides carrying messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketReport {
    /// By [`ringway_fabric::Hop::index`].
    pub ports: Vec<PortCounts>,
    /// When links paused, in the order of ends, if records are kept.
    pub pauses: Vec<Pause>,
    /// Congestion notifications that receivers sent.
    pub notifications: u64,
    /// Packets that senders sent again.
    pub resent: u64,
    /// Times that a sender waited for an acknowledgement in vain.
    pub timeouts: u64,
    /// Events that were computed.
    pub events: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Packets<'a> {
    fabric: &'a Fabric,
    world: &'a World,
    settings: PacketSettings,
    seed: u64,
    routes: Routes,
    /// Messages within hosts.
    local: Flows<'a>,
    /// By hop, bytes per second where nothing is down.
    full: Vec<f64>,
    ports: Vec<Port>,
    nodes: Vec<Node>,
    ways: Ways,
    pool: Pool,
    agenda: Agenda,
    connections: Vec<Connection>,
    index: HashMap<(Rank, Rank, u32), u32>,
    common: Common,
    foreign: Vec<Foreign>,
    now: Time,
    /// When something last happened to packets of ranks.
    stirred: Time,
    /// How long that may be ago: [`QUIET`], or longer where buffers take long to empty.
    quiet: Time,
    passages: VecDeque<Passage>,
    carried: Vec<f64>,
    failure: Option<SimError>,
    /// The last random number.
    random: u64,
    pauses: Option<Vec<Pause>>,
}

impl<'a> Packets<'a> {
    /// The longest message.
    pub const LONGEST: usize = LONGEST;

    /// The network between the ranks of `world`, with the hosts that are slow and the traffic of others that `scenario` has.
    /// `seed` gives connections their UDP source ports, the same as on the level of flows, and decides who is marked. With
    /// `record`, pauses are kept.
    pub fn new(
        fabric: &'a Fabric,
        world: &'a World,
        scenario: &Scenario,
        settings: PacketSettings,
        seed: u64,
        record: bool,
    ) -> Result<Self, SimError> {
        settings.check()?;
        let mut ports = Vec::with_capacity(2 * fabric.links().len());
        for link in fabric.links() {
            let rate = link.rate * scenario.share(link.a.0).min(scenario.share(link.b.0));
            for to in [link.b, link.a] {
                ports.push(Port::new(to.0 as u32, rate, link.latency.into()));
            }
        }
        let mut nodes = Vec::with_capacity(fabric.nodes());
        for node in (0..fabric.nodes()).map(NodeId) {
            let thresholds = match fabric.forwards(node) {
                true => settings.thresholds(fabric, node)?,
                false => None,
            };
            nodes.push(Node {
                used: 0,
                thresholds,
            });
        }
        let within = Scenario {
            slow: scenario.slow.clone(),
            ..Scenario::default()
        };
        let narrowest = ports.iter().map(|p| p.rate).fold(f64::INFINITY, f64::min);
        let mut packets = Self {
            fabric,
            world,
            settings,
            seed,
            routes: Routes::new(fabric),
            local: Flows::new(fabric, world, &within, seed),
            full: ports.iter().map(|p| p.rate).collect(),
            carried: vec![0.0; ports.len()],
            ports,
            nodes,
            ways: Ways::default(),
            pool: Pool::default(),
            agenda: Agenda::default(),
            connections: Vec::new(),
            index: HashMap::new(),
            common: Common::new(),
            foreign: Vec::new(),
            now: Time::default(),
            stirred: Time::default(),
            quiet: QUIET.max(Time::of_bytes(16.0 * settings.buffer as f64, narrowest)),
            passages: VecDeque::new(),
            failure: None,
            random: seed,
            pauses: record.then(Vec::new),
        };
        for (i, background) in scenario.background.iter().enumerate() {
            let port = |host| NicPort { host, nic: 0 };
            let ends = (port(background.from), port(background.to));
            let words = [background.from as u64, background.to as u64, !(i as u64)];
            let connection = packets.connect(ends, words, None);
            let bytes = FOREIGN_PACKETS * u64::from(settings.mtu.bytes());
            packets.foreign.push(Foreign {
                connection,
                bytes,
                interval: Time::of_bytes(bytes as f64, background.rate),
            });
            packets.agenda.add(Time::default(), Event::More(i as u32));
        }
        Ok(packets)
    }

    /// A packet is at the far end of a hop.
    fn arrive(&mut self, number: u32) {
        let packet = &self.pool[number];
        match self.ways.hop(packet.way) {
            NONE => self.deliver(number),
            next => self.forward(number, next),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Free(hop) => {
                self.ports[hop as usize].expected = false;
                self.serve(hop);
            }
            Event::Resume(hop) => self.resume(hop),
            Event::Pause(hop) => self.pause(hop),
            Event::Arrive(packet) => self.arrive(packet),
            Event::Wake(connection) => self.wake(connection, self.now),
            Event::More(number) => self.more(number),
        }
    }
}

impl Network for Packets<'_> {
    fn send(&mut self, message: Message) {
        (self.now, self.stirred) = (message.since.at, message.since.at);
        let places = [message.from, message.to].map(|rank| self.world.place(rank).host);
        if places[0] == places[1] {
            self.local.send(message);
            return;
        }
        let number = self.connection(&message);
        let connection = &mut self.connections[number as usize];
        connection.push(message.id, message.bytes, message.since);
        self.make_ready(number);
    }

    fn next(&mut self) -> Option<Time> {
        if !self.passages.is_empty() || self.failure.is_some() {
            return Some(self.now);
        }
        let both = [self.local.next(), self.agenda.next()];
        both.into_iter().flatten().min()
    }

    fn poll(&mut self, now: Time) -> Option<Passage> {
        if let Some(passage) = self.local.poll(now) {
            return Some(passage);
        }
        while self.passages.is_empty() {
            let Some((at, event)) = self.agenda.pop(now) else {
                break;
            };
            self.now = at;
            self.happen(event);
        }
        self.passages.pop_front()
    }

    fn set_link(&mut self, now: Time, link: usize, share: f64) {
        (self.now, self.stirred) = (now, now);
        for hop in [2 * link, 2 * link + 1] {
            let port = &mut self.ports[hop];
            port.rate = self.full[hop] * share;
            port.given_up &= port.rate == 0.0;
            self.stir(hop as u32);
        }
    }

    fn reroute(&mut self, now: Time, routes: Routes) {
        (self.now, self.stirred) = (now, now);
        self.routes = routes;
        for port in &mut self.ports {
            port.ready.clear();
        }
        for number in 0..self.connections.len() {
            let Connection { ends, flows, .. } = self.connections[number];
            let path = self.path(ends, flows);
            let connection = &mut self.connections[number];
            // Without a way it keeps to the one it had, until that is up again or the connection breaks.
            connection.path = path.or(connection.path);
            connection.ready = false;
            self.make_ready(number as u32);
        }
        self.flush();
    }

    fn carried(&self) -> &[f64] {
        &self.carried
    }

    fn failure(&self) -> Option<SimError> {
        self.failure.clone()
    }

    fn stands_still(&mut self) -> bool {
        // Without others' traffic there is then no event more.
        if self.foreign.is_empty() || self.now.since(self.stirred) <= self.quiet {
            return false;
        }
        let mut ranks = self.connections.iter().filter(|c| c.ranks.is_some());
        let goes_on = ranks.any(|c| c.clock(&self.common).is_some())
            || self.local.next().is_some()
            || !self.passages.is_empty()
            || self.failure.is_some();
        if goes_on {
            self.stirred = self.now;
        }
        !goes_on
    }

    fn report(&self) -> Option<PacketReport> {
        let mut ports: Vec<PortCounts> = self.ports.iter().map(|p| p.counts).collect();
        let mut pauses = self.pauses.clone().unwrap_or_default();
        for (hop, port) in self.ports.iter().enumerate() {
            if let Some(begun) = port.paused {
                ports[hop].paused = ports[hop].paused.after(self.now.since(begun));
                let ended = self.now;
                pauses.extend(self.pauses.is_some().then_some(Pause { hop, begun, ended }));
            }
        }
        let sum = |count: fn(&Counters) -> u64| {
            let pairs = self.connections.iter().flat_map(Connection::counters);
            pairs.map(count).sum()
        };
        Some(PacketReport {
            ports,
            pauses,
            notifications: sum(|counts| counts.cnps_sent),
            resent: sum(|counts| counts.retransmitted),
            timeouts: sum(|counts| counts.timeouts),
            events: self.agenda.happened,
        })
    }
}
