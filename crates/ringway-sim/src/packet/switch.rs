//! Links and switches: what is sent next, what waits, what is marked, paused and lost.

use super::{
    Marking, Packets,
    agenda::Event,
    pool::{NONE, Packet},
    port::{CONTROL, DATA, Pause},
};
use crate::time::Time;

/// Ethernet's shortest frame, with preamble and gap.
const PAUSE_FRAME: u32 = 84;

impl Packets<'_> {
    /// Something may be sent that could not before.
    pub(super) fn stir(&mut self, hop: u32) {
        let port = &mut self.ports[hop as usize];
        if port.expected {
            return;
        }
        if port.busy > self.now {
            port.expected = true;
            self.agenda.add(port.busy, Event::Free(hop));
        } else {
            self.serve(hop);
        }
    }

    /// A hop is free: sends the next packet over it, if there is one.
    pub(super) fn serve(&mut self, hop: u32) {
        if self.ports[hop as usize].rate == 0.0 {
            return;
        }
        let Some(number) = self.next_packet(hop) else {
            return;
        };
        let packet = &mut self.pool[number];
        let port = &mut self.ports[hop as usize];
        port.busy = self.now.after(port.takes(packet.wire));
        self.agenda
            .add(port.busy.after(port.latency), Event::Arrive(number));
        port.expected = port.has_work();
        if port.expected {
            self.agenda.add(port.busy, Event::Free(hop));
        }
        let counts = &mut port.counts;
        counts.packets += 1;
        counts.wire_bytes += u64::from(packet.wire);
        counts.notifications += u64::from(packet.control);
        if packet.resent {
            counts.resent += 1;
            counts.resent_bytes += u64::from(packet.payload);
        }
        if !packet.foreign {
            self.carried[hop as usize] += f64::from(packet.payload);
            self.stirred = self.now;
        }
        packet.way += 1;
        let came_by = std::mem::replace(&mut packet.ingress, hop);
        if came_by != NONE {
            let (wire, control) = (packet.wire, packet.control);
            self.give_back(came_by, wire, control);
        }
    }

    /// What a hop sends next.
    pub(super) fn next_packet(&mut self, hop: u32) -> Option<u32> {
        let port = &mut self.ports[hop as usize];
        if let Some(number) = port.queues[CONTROL].pop(&self.pool) {
            return Some(number);
        }
        if port.paused.is_some() {
            return None;
        }
        port.own_turn = !port.own_turn;
        if (!port.own_turn || port.ready.is_empty())
            && let Some(number) = port.queues[DATA].pop(&self.pool)
        {
            return Some(number);
        }
        while let Some(connection) = self.ports[hop as usize].ready.pop_front() {
            if let Some(number) = self.request(connection) {
                self.ports[hop as usize].ready.push_back(connection);
                return Some(number);
            }
        }
        self.ports[hop as usize].queues[DATA].pop(&self.pool)
    }

    /// A packet comes to a switch, and waits for its next hop if there is room.
    pub(super) fn forward(&mut self, number: u32, next: u32) {
        let packet = &mut self.pool[number];
        let wire = u64::from(packet.wire);
        let ingress = packet.ingress as usize;
        let node = &mut self.nodes[self.ports[ingress].to as usize];
        let free = self.settings.buffer - node.used;
        let queue = self.ports[next as usize].queues[DATA].bytes;
        let bounded = node.thresholds.is_none() && !packet.control;
        // Packets keep to the way that they began on. If they waited for what was given up, the link that they came over
        // would pause for ever.
        let is_given_up = self.ports[next as usize].given_up;
        if is_given_up || wire > free || bounded && queue + wire > free {
            self.ports[next as usize].counts.dropped += 1;
            self.pool.remove(number);
            return;
        }
        node.used += wire;
        if !packet.control {
            if let Some(marking) = self.settings.marking
                && marks(marking, queue, &mut self.random)
            {
                packet.marked = true;
                self.ports[next as usize].counts.marked += 1;
            }
            let port = &mut self.ports[ingress];
            port.held += wire;
            if let Some(thresholds) = node.thresholds
                && !port.stopped
                && port.held > thresholds.xoff
            {
                port.stopped = true;
                let at = self.now.after(self.pause_delay(ingress));
                self.agenda.add(at, Event::Pause(ingress as u32));
            }
        }
        self.ports[next as usize].push(number, &mut self.pool);
        self.stir(next);
    }

    /// A packet that came over a hop waits no more at its far end.
    pub(super) fn give_back(&mut self, came_by: u32, wire: u32, control: bool) {
        let port = &mut self.ports[came_by as usize];
        let node = &mut self.nodes[port.to as usize];
        node.used -= u64::from(wire);
        if control {
            return;
        }
        port.held -= u64::from(wire);
        if let Some(thresholds) = node.thresholds
            && port.stopped
            && port.held <= thresholds.xon
        {
            port.stopped = false;
            let at = self.now.after(self.pause_delay(came_by as usize));
            self.agenda.add(at, Event::Resume(came_by));
        }
    }

    /// How long the far end of a hop takes to tell the near one.
    pub(super) fn pause_delay(&self, hop: usize) -> Time {
        let back = hop ^ 1;
        let takes = Time::of_bytes(f64::from(PAUSE_FRAME), self.full[back]);
        takes.after(self.ports[back].latency)
    }

    pub(super) fn pause(&mut self, hop: u32) {
        let port = &mut self.ports[hop as usize];
        if port.paused.is_none() {
            port.paused = Some(self.now);
            port.counts.pauses += 1;
        }
    }

    pub(super) fn resume(&mut self, hop: u32) {
        let port = &mut self.ports[hop as usize];
        if let Some(begun) = port.paused.take() {
            port.counts.paused = port.counts.paused.after(self.now.since(begun));
            if let Some(pauses) = &mut self.pauses {
                pauses.push(Pause {
                    hop: hop as usize,
                    begun,
                    ended: self.now,
                });
            }
        }
        self.stir(hop);
    }

    /// What waits for links that are down is lost, and what comes for them: their switches have given them up.
    pub(super) fn flush(&mut self) {
        for hop in 0..self.ports.len() {
            let port = &mut self.ports[hop];
            port.given_up = port.rate == 0.0;
            if !port.given_up {
                continue;
            }
            for class in [CONTROL, DATA] {
                while let Some(number) = self.ports[hop].queues[class].pop(&self.pool) {
                    self.ports[hop].counts.dropped += 1;
                    let Packet {
                        ingress,
                        wire,
                        control,
                        ..
                    } = self.pool.remove(number);
                    if ingress != NONE {
                        self.give_back(ingress, wire, control);
                    }
                }
            }
        }
    }
}

/// Whether a packet is marked that finds so many bytes in its queue.
fn marks(marking: Marking, queue: u64, random: &mut u64) -> bool {
    if queue <= marking.from {
        return false;
    }
    if queue > marking.full {
        return true;
    }
    let range = (marking.full - marking.from).max(1) as f64;
    let chance = marking.chance * (queue - marking.from) as f64 / range;
    // SplitMix64, see `ringway_fabric::Routes`: 53 bits of it are a number from 0 to 1.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64) < chance
}
