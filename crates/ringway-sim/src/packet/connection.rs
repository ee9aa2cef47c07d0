//! The two ends of a connection: queue pairs of `ringway-roce`, in virtual time.
//!
//! A message is an RDMA WRITE with immediate data: the receiver hears of it when its last byte is there, the sender may use
//! its memory again when that is acknowledged. Nothing is left out of the protocol but the bytes themselves: there is no
//! memory behind the addresses, and no payload in packets.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ringway_fabric::Port;
use ringway_plan::Rank;
use ringway_roce::{
    Access, Key, ProtectionDomain, Psn, Qpn, Region,
    rc::{
        Arrival, Attributes, Class, Completion, Counters, Local, QueuePair, ReceiveAttributes,
        ReceiveRequest, Remote, SendAttributes, SendRequest, Source, Status, Work,
    },
    timer::RnrTimer,
    wire::{self, Flow, MAX_OVERHEAD, Operation, ROCE_PORT},
};

use super::{AROUND, FRAMING, HEADERS, PacketSettings, pool::Packet};
use crate::time::{Moment, Time};

/// Packets that may be under way, of which every quarter asks for an acknowledgement: 4 MiB of the largest. Enough for any
/// path that is not paused, and lost packets cost no more than that.
const WINDOW: NonZeroU32 = NonZeroU32::MIN.saturating_add(1023);

/// How many messages a queue pair has at a time.
const POSTED: usize = 64;

/// The longest message: a WRITE has up to 2^31 bytes, and fewer than 2^23 packets.
pub(super) const LONGEST: usize = 1 << 30;

/// Room for the largest packet.
const LARGEST: usize = 4096 + MAX_OVERHEAD;

const KEY: Key = Key(0);

const NOTHING: Local = Local {
    key: KEY,
    address: 0,
    length: 0,
};

/// What every payload is.
static ZEROS: [u8; 4096] = [0; 4096];

/// Memory that is not there.
#[derive(Debug)]
pub(super) struct Nowhere;

impl Region for Nowhere {
    fn len(&self) -> u64 {
        1 << 32
    }

    fn read(&self, _: u64, _: &mut [u8]) {}

    fn write(&mut self, _: u64, _: &[u8]) {}

    fn fetch_add(&mut self, _: u64, _: u64) -> u64 {
        0
    }

    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> u64 {
        0
    }
}

/// What all connections have in common.
#[derive(Debug)]
pub(super) struct Common {
    domain: ProtectionDomain<Nowhere>,
    /// The beginning of virtual time. Which instant it is makes no difference: only differences count.
    start: Instant,
    out: Box<[u8; LARGEST]>,
}

impl Common {
    pub(super) fn new() -> Self {
        let mut domain = ProtectionDomain::new();
        // Of an empty domain no key is taken, and the region ends before the last address.
        let _ = domain.register(KEY, Nowhere, 0, Access::ALL);
        Self {
            domain,
            start: Instant::now(),
            out: Box::new([0; LARGEST]),
        }
    }

    /// The protocol's clocks count nanoseconds.
    fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_nanos(time.0 / 1000)
    }

    fn time(&self, instant: Instant) -> Time {
        instant.saturating_duration_since(self.start).into()
    }
}

/// A message that its receiver, or its sender, has not done with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Under {
    pub(super) id: u32,
    pub(super) bytes: u64,
    pub(super) since: Moment,
    pub(super) begun: Moment,
    pub(super) arrived: Option<Moment>,
}

/// The ways of a connection's packets: where each begins in [`super::ways::Ways`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) there: u32,
    pub(super) back: u32,
    /// The NICs' hops, which are the first of each.
    pub(super) out: u32,
    pub(super) answers: u32,
    pub(super) latency: Time,
    /// Seconds for each byte over all hops, but for the narrowest.
    pub(super) forwarding: f64,
    /// The rate of the narrowest.
    pub(super) alone: f64,
}

/// Messages between two ranks, or of others, that keep their order and share a path.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: (Port, Port),
    /// What switches hash, of packets and of answers.
    pub(super) flows: (u64, u64),
    /// Whose it is, to be named; of others, none.
    pub(super) ranks: Option<(Rank, Rank)>,
    pub(super) path: Option<Path>,
    sender: Box<QueuePair>,
    receiver: Box<QueuePair>,
    mtu: u64,
    /// Of the sender's NIC, in bytes per second.
    line_rate: f64,
    messages: VecDeque<Under>,
    /// Of these: posted, and wholly sent once.
    posted: usize,
    sent: usize,
    /// When the message before was wholly sent.
    last: Moment,
    /// Whether it stands in its NIC's queue of those that may have something to send.
    pub(super) ready: bool,
    /// When its clock is looked at next.
    pub(super) wakes: Option<Time>,
}

/// What a packet did at the end of its way.
pub(super) enum Outcome {
    /// A message is wholly there: its id, when it began and when it arrived.
    Arrived(u32, Moment, Moment),
    /// Its sender knows, by then.
    Free(u32, Moment),
}

impl Connection {
    /// Two queue pairs, each other's peers. `line_rate` is of the sender's NIC, in bytes per second.
    pub(super) fn new(
        ends: (Port, Port),
        flows: (u64, u64),
        ranks: Option<(Rank, Rank)>,
        settings: &PacketSettings,
        line_rate: f64,
    ) -> Self {
        let pair = |mine: u8, peer: u8, most: (usize, usize)| {
            let mut pair = QueuePair::new(Attributes {
                number: number(mine),
                access: Access::ALL,
                send_queue: most.0,
                inline: 0,
                receive_queue: most.1,
                congestion: settings.congestion(line_rate),
            });
            // A new queue pair can be connected.
            let _ = pair.receive_with(ReceiveAttributes {
                peer: number(peer),
                flow: Flow {
                    addresses: wire::Addresses::V4 {
                        source: address(mine),
                        destination: address(peer),
                        identification: 0,
                        fragment: 0,
                    },
                    source_port: ROCE_PORT,
                    destination_port: ROCE_PORT,
                },
                mtu: settings.mtu,
                first_psn: Psn::new(0),
                responder_resources: 1,
                rnr_timer: RnrTimer::USUAL,
                selective: false,
            });
            let _ = pair.send_with(SendAttributes {
                first_psn: Psn::new(0),
                timeout: settings.timeout,
                retries: 7,
                backs_off: false,
                rnr_retries: 7,
                initiator_depth: 1,
                window: WINDOW,
                read_window: WINDOW,
            });
            Box::new(pair)
        };
        Self {
            ends,
            flows,
            ranks,
            path: None,
            sender: pair(SENDER, RECEIVER, (POSTED, 0)),
            receiver: pair(RECEIVER, SENDER, (0, POSTED)),
            mtu: u64::from(settings.mtu.bytes()),
            line_rate,
            messages: VecDeque::new(),
            posted: 0,
            sent: 0,
            last: Moment::START,
            ready: false,
            wakes: None,
        }
    }

    /// Messages that are not acknowledged.
    pub(super) fn waiting(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn push(&mut self, id: u32, bytes: u64, since: Moment) {
        self.messages.push_back(Under {
            id,
            bytes,
            since,
            begun: since,
            arrived: None,
        });
        self.post();
    }

    /// Hands messages to the queue pairs, as many as they take.
    fn post(&mut self) {
        while let Some(message) = self
            .messages
            .get(self.posted)
            .filter(|_| self.posted < POSTED)
        {
            let receive = ReceiveRequest {
                id: u64::from(message.id),
                into: NOTHING,
            };
            let request = SendRequest {
                id: u64::from(message.id),
                work: Work::Write {
                    source: Source::Memory(Local {
                        length: message.bytes as u32,
                        ..NOTHING
                    }),
                    remote: Remote {
                        key: KEY,
                        address: 0,
                    },
                    immediate: Some(message.id),
                },
                signaled: true,
                solicited: false,
            };
            // They have room for it unless they have failed, and then the failure is what counts.
            if self.receiver.post_receive(receive).is_err()
                || self.sender.post_send(&request).is_err()
            {
                return;
            }
            self.posted += 1;
        }
    }

    /// The sender's next packet, if it may send one now.
    pub(super) fn next_request(
        &mut self,
        number: u32,
        now: Time,
        common: &mut Common,
    ) -> Option<Packet> {
        let before = self.sender.counters().retransmitted;
        let packet = transmit(&mut self.sender, number, now, common)?;
        let resent = self.sender.counters().retransmitted > before;
        let (first, last) = match packet.operation {
            Operation::WriteFirst(_) => (true, false),
            Operation::WriteLastImmediate(_) => (false, true),
            Operation::WriteOnlyImmediate(..) => (true, true),
            _ => (false, false),
        };
        let path = self.path?;
        if let Some(message) = self.messages.get_mut(self.sent).filter(|_| !resent) {
            if first {
                message.begun = message.since.or_later(self.last);
            }
            if last {
                let wire = on_the_wire(message.bytes, self.mtu);
                let ideal = Time::of_bytes(wire as f64, path.alone);
                let end = now.after(Time::of_bytes(f64::from(packet.wire), self.line_rate));
                self.last = Moment {
                    cause: Some(message.id),
                    ..message.begun.transfer(ideal, end)
                };
                self.sent += 1;
            }
        }
        Some(Packet {
            way: path.there,
            resent,
            foreign: self.ranks.is_none(),
            ..packet
        })
    }

    /// A packet for the receiver. What it answers is [`Connection::next_answer`]'s; tells of the message that is there.
    pub(super) fn take_request(
        &mut self,
        packet: &Packet,
        now: Time,
        common: &mut Common,
    ) -> Option<Outcome> {
        take(&mut self.receiver, SENDER, packet, now, common);
        let done = self.receiver.poll_completion()?;
        let id = done.id as u32;
        let at = self
            .messages
            .iter()
            .take_while(|m| m.arrived.is_some())
            .count();
        let message = self.messages.get_mut(at).filter(|m| m.id == id)?;
        let path = self.path?;
        let wire = on_the_wire(message.bytes, self.mtu);
        // Hops work on packets at once; what the last one takes on all but the narrowest comes on top.
        let forwarded = Time((f64::from(packet.wire) * path.forwarding * 1e12) as u64);
        let took = now.since(message.begun.at);
        let latency = path.latency.after(forwarded).min(took);
        let arrived = Moment {
            cause: Some(id),
            ..message
                .begun
                .latency(latency)
                .transfer(Time::of_bytes(wire as f64, path.alone), now)
        };
        message.arrived = Some(arrived);
        Some(Outcome::Arrived(id, message.begun, arrived))
    }

    /// The receiver's next packet: an acknowledgement or a notification.
    pub(super) fn next_answer(
        &mut self,
        number: u32,
        now: Time,
        common: &mut Common,
    ) -> Option<Packet> {
        let packet = transmit(&mut self.receiver, number, now, common)?;
        Some(Packet {
            way: self.path?.back,
            backwards: true,
            foreign: self.ranks.is_none(),
            ..packet
        })
    }

    /// A packet for the sender.
    pub(super) fn take_answer(&mut self, packet: &Packet, now: Time, common: &mut Common) {
        take(&mut self.sender, RECEIVER, packet, now, common);
    }

    /// A message that its sender knows to be there, or why the connection is broken.
    pub(super) fn acknowledged(&mut self, now: Time) -> Option<Result<Outcome, Status>> {
        let done: Completion = self.sender.poll_completion()?;
        if done.status != Status::Success {
            return Some(Err(done.status));
        }
        let message = self.messages.pop_front()?;
        self.posted -= 1;
        self.sent = self.sent.saturating_sub(1);
        self.post();
        let arrived = message.arrived.unwrap_or(message.begun);
        let free = Moment {
            cause: Some(message.id),
            ..arrived.latency(now.since(arrived.at))
        };
        Some(Ok(Outcome::Free(message.id, free)))
    }

    /// When a clock of the sender runs out.
    pub(super) fn clock(&self, common: &Common) -> Option<Time> {
        self.sender.poll_timeout().map(|at| common.time(at))
    }

    /// Lets clocks run out that have.
    pub(super) fn run_out(&mut self, now: Time, common: &Common) {
        self.sender.handle_timeout(common.instant(now));
    }

    /// Of both ends.
    pub(super) fn counters(&self) -> [&Counters; 2] {
        [self.sender.counters(), self.receiver.counters()]
    }
}

/// Bytes on the wire of a message, each packet once.
const fn on_the_wire(bytes: u64, mtu: u64) -> u64 {
    let packets = if bytes == 0 { 1 } else { bytes.div_ceil(mtu) };
    bytes.next_multiple_of(4) + packets * HEADERS + FRAMING
}

const SENDER: u8 = 2;
const RECEIVER: u8 = 3;

const fn number(end: u8) -> Qpn {
    Qpn::new(end as u32)
}

const fn address(end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, end)
}

fn transmit(
    pair: &mut QueuePair,
    connection: u32,
    now: Time,
    common: &mut Common,
) -> Option<Packet> {
    let instant = common.instant(now);
    let sent = pair.poll_transmit(instant, &common.domain, &mut common.out[..])?;
    let parsed = wire::Packet::parse(&common.out[..sent.length]).ok()?;
    let payload = parsed.payload.len() as u32;
    let wire = sent.length as u64 + AROUND;
    Some(Packet {
        wire: wire as u32,
        payload,
        control: sent.class == Class::Notification,
        ..Packet::new(connection, parsed.bth, parsed.operation)
    })
}

fn take(pair: &mut QueuePair, from: u8, packet: &Packet, now: Time, common: &mut Common) {
    let arrival = Arrival {
        from: SocketAddr::new(IpAddr::V4(address(from)), ROCE_PORT),
        congestion_experienced: packet.marked,
        packet: wire::Packet {
            bth: packet.bth,
            operation: packet.operation,
            payload: &ZEROS[..packet.payload as usize],
        },
    };
    pair.handle_packet(common.instant(now), &arrival, &mut common.domain);
}
