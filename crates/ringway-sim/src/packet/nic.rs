//! Hosts' ends: who sends next, what is answered, and what becomes of messages.

use ringway_fabric::{Hop, NodeId, Port as NicPort};
use ringway_plan::Rank;

use super::{
    FOREIGN_MESSAGES, Foreign, Packets,
    agenda::Event,
    connection::{Connection, Outcome, Path},
};
use crate::{
    error::SimError,
    flow::hash,
    network::{Message, Passage},
    time::{Moment, Time},
};

impl Packets<'_> {
    /// A new connection: of two ranks and a stream, or of others.
    pub(super) fn connect(
        &mut self,
        ends: (NicPort, NicPort),
        words: [u64; 3],
        ranks: Option<(Rank, Rank)>,
    ) -> u32 {
        let flows = (
            hash(self.seed, words),
            hash(self.seed, [words[1], words[0], words[2]]),
        );
        let line_rate = self
            .fabric
            .links_of(NodeId(ends.0.host))
            .get(ends.0.nic)
            .map_or(f64::INFINITY, |l| self.full[2 * l.0]);
        let mut connection = Connection::new(ends, flows, ranks, &self.settings, line_rate);
        connection.path = self.path(ends, flows);
        self.connections.push(connection);
        self.connections.len() as u32 - 1
    }

    /// The ways of a connection by the present routes; `None` if there are none.
    pub(super) fn path(
        &mut self,
        (from, to): (NicPort, NicPort),
        flows: (u64, u64),
    ) -> Option<Path> {
        let there = self.routes.path(self.fabric, from, to, flows.0)?;
        let back = self.routes.path(self.fabric, to, from, flows.1)?;
        let hops = there.iter().map(|hop| hop.index());
        let rates = hops.clone().map(|hop| self.full[hop]);
        let alone = rates.clone().fold(f64::INFINITY, f64::min);
        let latency = hops.map(|hop| self.ports[hop].latency.0).sum();
        let index = |hop: &Hop| hop.index() as u32;
        let (out, answers) = (index(there.first()?), index(back.first()?));
        Some(Path {
            there: self.ways.add(there.iter().map(index).collect()),
            back: self.ways.add(back.iter().map(index).collect()),
            out,
            answers,
            latency: Time(latency),
            forwarding: rates.map(f64::recip).sum::<f64>() - alone.recip(),
            alone,
        })
    }

    pub(super) fn connection(&mut self, message: &Message) -> u32 {
        let key = (message.from, message.to, message.stream);
        if let Some(&number) = self.index.get(&key) {
            return number;
        }
        let places = [message.from, message.to].map(|rank| self.world.place(rank).port());
        let words = [key.0 as u64, key.1 as u64, u64::from(key.2)];
        let number = self.connect(places.into(), words, Some((key.0, key.1)));
        self.index.insert(key, number);
        number
    }

    /// The next packet of a connection whose NIC is free; if it has none, it is asked again when that changes.
    pub(super) fn request(&mut self, number: u32) -> Option<u32> {
        let connection = &mut self.connections[number as usize];
        let packet = connection.next_request(number, self.now, &mut self.common);
        connection.ready = packet.is_some();
        self.set_clock(number);
        packet.map(|packet| self.pool.add(packet))
    }

    /// Sees to it that the connection's clock is looked at in time. It moves with every acknowledgement, so that it is not set
    /// back but looked at again.
    pub(super) fn set_clock(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        if let Some(at) = connection.clock(&self.common)
            && connection.wakes.is_none_or(|wakes| at < wakes)
        {
            connection.wakes = Some(at);
            self.agenda.add(at.max(self.now), Event::Wake(number));
        }
    }

    pub(super) fn wake(&mut self, number: u32, at: Time) {
        let connection = &mut self.connections[number as usize];
        if connection
            .wakes
            .is_none_or(|wakes| wakes.max(self.now) != at)
        {
            return;
        }
        connection.wakes = None;
        if connection.clock(&self.common).is_some_and(|due| due <= at) {
            connection.run_out(at, &self.common);
            self.acknowledge(number);
        }
        self.set_clock(number);
    }

    /// The sender may have something to send.
    pub(super) fn make_ready(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        if let Some(path) = connection.path {
            if !std::mem::replace(&mut connection.ready, true) {
                self.ports[path.out as usize].ready.push_back(number);
            }
            self.stir(path.out);
        }
    }

    /// A packet is at its end.
    pub(super) fn deliver(&mut self, number: u32) {
        let packet = self.pool.remove(number);
        let connection = &mut self.connections[packet.connection as usize];
        if packet.backwards {
            connection.take_answer(&packet, self.now, &mut self.common);
            self.acknowledge(packet.connection);
            return;
        }
        let outcome = connection.take_request(&packet, self.now, &mut self.common);
        if let Some(Outcome::Arrived(id, begun, at)) = outcome
            && connection.ranks.is_some()
        {
            self.passages.push_back(Passage::Arrives { id, begun, at });
        }
        let Some(hop) = connection.path.map(|path| path.answers) else {
            return;
        };
        let connection = &mut self.connections[packet.connection as usize];
        let mut some = false;
        while let Some(answer) =
            connection.next_answer(packet.connection, self.now, &mut self.common)
        {
            let answer = self.pool.add(answer);
            self.ports[hop as usize].push(answer, &mut self.pool);
            some = true;
        }
        if some {
            self.stir(hop);
        }
    }

    /// The sender has heard something, or a clock of its has run out.
    pub(super) fn acknowledge(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        let ranks = connection.ranks;
        while let Some(done) = connection.acknowledged(self.now) {
            match (done, ranks) {
                (Ok(Outcome::Free(id, at)), Some(_)) => {
                    self.passages.push_back(Passage::Free { id, at });
                }
                (Err(status), _) if self.failure.is_none() => {
                    let (from, to) = connection.ends;
                    self.failure = Some(SimError::Connection {
                        at: self.now.to_string(),
                        from: self.fabric.node_name(NodeId(from.host)),
                        to: self.fabric.node_name(NodeId(to.host)),
                        status: status.to_string(),
                    });
                }
                _ => {}
            }
        }
        self.make_ready(number);
    }

    /// Others have a message more to send, unless what they have is not through.
    pub(super) fn more(&mut self, number: u32) {
        let &Foreign {
            connection,
            bytes,
            interval,
        } = &self.foreign[number as usize];
        let since = Moment {
            at: self.now,
            ..Moment::START
        };
        let others = &mut self.connections[connection as usize];
        if others.waiting() < FOREIGN_MESSAGES {
            others.push(number, bytes, since);
            self.make_ready(connection);
        }
        self.agenda
            .add(self.now.after(interval), Event::More(number));
    }
}
