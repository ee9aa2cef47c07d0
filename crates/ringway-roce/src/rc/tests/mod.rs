//! Two queue pairs on a table, and a wire between them that a test can cut.

mod congestion;
mod lossy;
mod operations;
mod requester;
mod responder;
mod selective;
mod states;

use std::{
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    Access, Key, Psn,
    dcqcn::Parameters,
    timer::{AckTimeout, RnrTimer},
    wire::{Aeth, Bth, MAX_OVERHEAD, Nak, Syndrome},
};

/// Where each end's region begins.
const BASE: u64 = 0x10_0000;
const LENGTH: usize = 64 << 10;
/// 4.096 µs · 2^10, the usual.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 10);
/// Code 12.
const RNR_WAIT: Duration = Duration::from_micros(640);

/// One end: a queue pair and its memory.
struct End {
    qp: QueuePair,
    domain: ProtectionDomain<Vec<u8>>,
    key: Key,
    address: IpAddr,
}

/// What a pair of ends is made with.
#[derive(Clone, Copy)]
struct Setup {
    mtu: Mtu,
    window: u32,
    read_window: u32,
    depth: u8,
    resources: u8,
    /// The code of the ACK time-out.
    timeout: u8,
    retries: u8,
    backs_off: bool,
    rnr_retries: u8,
    access: Access,
    /// The first PSN, just before the numbers start again at 0.
    psn: u32,
    selective: bool,
    congestion: Option<Parameters>,
}

impl Setup {
    /// Go-back-N, with a first PSN from which numbers soon wrap around.
    const USUAL: Self = Self {
        mtu: Mtu::M256,
        window: 64,
        read_window: 1 << 20,
        depth: 4,
        resources: 4,
        timeout: 10,
        retries: 3,
        backs_off: false,
        rnr_retries: 3,
        access: Access::ALL,
        psn: 0xff_fffe,
        selective: false,
        congestion: None,
    };
}

impl Default for Setup {
    fn default() -> Self {
        Self::USUAL
    }
}

impl End {
    fn new(index: u8, setup: Setup) -> Self {
        let mut domain = ProtectionDomain::new();
        let key = domain
            .register(Key(0x0100), vec![0; LENGTH], BASE, Access::ALL)
            .unwrap();
        let qp = QueuePair::new(Attributes {
            number: number_of(index),
            access: setup.access,
            send_queue: 128,
            inline: LENGTH,
            receive_queue: 128,
            congestion: setup.congestion,
        });
        Self {
            qp,
            domain,
            key,
            address: address_of(index),
        }
    }

    fn receive_with(&mut self, peer: u8, setup: Setup) {
        self.qp
            .receive_with(receive_attributes(1 - peer, peer, setup))
            .unwrap();
    }

    fn send_with(&mut self, setup: Setup) {
        self.qp.send_with(send_attributes(setup)).unwrap();
    }

    /// The next packet that this end sends.
    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut out = vec![0xee; 4096 + MAX_OVERHEAD];
        let sent = self.qp.poll_transmit(now, &self.domain, &mut out)?;
        out.truncate(sent.length);
        Some(out)
    }

    /// All that this end sends now.
    fn transmit_all(&mut self, now: Instant) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.transmit(now)).collect()
    }

    /// Takes a packet from the other end.
    fn take(&mut self, now: Instant, bytes: &[u8]) {
        self.take_from(now, self.peer_address(), Packet::parse(bytes).unwrap());
    }

    fn take_from(&mut self, now: Instant, from: IpAddr, packet: Packet<'_>) {
        let arrival = Arrival {
            from: SocketAddr::new(from, ROCE_PORT),
            congestion_experienced: false,
            packet,
        };
        self.qp.handle_packet(now, &arrival, &mut self.domain);
    }

    fn peer_address(&self) -> IpAddr {
        if self.address == address_of(0) {
            address_of(1)
        } else {
            address_of(0)
        }
    }

    /// Takes a packet that no queue pair made.
    fn inject(&mut self, now: Instant, psn: u32, operation: Operation, payload: &[u8]) {
        let mut bth = Bth::new(self.qp.number(), Psn::new(psn));
        bth.ack_request = true;
        let packet = Packet {
            bth,
            operation,
            payload,
        };
        let mut bytes = Vec::new();
        packet.emit(&flow(0, 1), &mut bytes);
        self.take(now, &bytes);
    }

    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.qp.poll_completion()).collect()
    }

    fn statuses(&mut self) -> Vec<(u64, Status)> {
        let completions = self.completions();
        completions
            .iter()
            .map(|done| (done.id, done.status))
            .collect()
    }

    fn memory(&self) -> &[u8] {
        self.domain.region(self.key).unwrap()
    }

    fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.domain
            .write(self.key, BASE + offset as u64, bytes, Access::NONE)
            .unwrap();
    }

    fn local(&self, offset: usize, length: usize) -> Local {
        Local {
            key: self.key,
            address: BASE + offset as u64,
            length: length as u32,
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            key: self.key,
            address: BASE + offset as u64,
        }
    }

    fn post(&mut self, id: u64, work: Work<'_>) {
        self.qp
            .post_send(&SendRequest {
                id,
                work,
                signaled: true,
                solicited: false,
            })
            .unwrap();
    }

    fn post_receive(&mut self, id: u64, offset: usize, length: usize) {
        let into = self.local(offset, length);
        self.qp.post_receive(ReceiveRequest { id, into }).unwrap();
    }
}

fn number_of(index: u8) -> Qpn {
    Qpn::new(0x11 + u32::from(index))
}

fn address_of(index: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, index + 1).into()
}

fn flow(from: u8, to: u8) -> Flow {
    Flow::new(address_of(from), address_of(to), ROCE_PORT).unwrap()
}

fn receive_attributes(own: u8, peer: u8, setup: Setup) -> ReceiveAttributes {
    ReceiveAttributes {
        peer: number_of(peer),
        flow: flow(own, peer),
        mtu: setup.mtu,
        first_psn: Psn::new(setup.psn),
        responder_resources: setup.resources,
        rnr_timer: RnrTimer::new(12).unwrap(),
        selective: setup.selective,
    }
}

fn send_attributes(setup: Setup) -> SendAttributes {
    SendAttributes {
        first_psn: Psn::new(setup.psn),
        timeout: AckTimeout::new(setup.timeout).unwrap(),
        retries: setup.retries,
        backs_off: setup.backs_off,
        rnr_retries: setup.rnr_retries,
        initiator_depth: setup.depth,
        window: NonZeroU32::new(setup.window).unwrap(),
        read_window: NonZeroU32::new(setup.read_window).unwrap(),
    }
}

fn connected(setup: Setup) -> (End, End) {
    let (mut a, mut b) = (End::new(0, setup), End::new(1, setup));
    a.receive_with(1, setup);
    b.receive_with(0, setup);
    a.send_with(setup);
    b.send_with(setup);
    (a, b)
}

/// Moves packets until neither end has one.
fn exchange(now: Instant, a: &mut End, b: &mut End) {
    loop {
        let (from_a, from_b) = (a.transmit(now), b.transmit(now));
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        if let Some(bytes) = from_a {
            b.take(now, &bytes);
        }
        if let Some(bytes) = from_b {
            a.take(now, &bytes);
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + length) as u8).collect()
}

const fn inline(bytes: &[u8]) -> Source<'_> {
    Source::Inline(bytes)
}

const fn send(bytes: &[u8]) -> Work<'_> {
    Work::Send {
        source: inline(bytes),
        immediate: None,
    }
}

const fn write(bytes: &[u8], remote: Remote) -> Work<'_> {
    Work::Write {
        source: inline(bytes),
        remote,
        immediate: None,
    }
}

fn operation(bytes: &[u8]) -> Operation {
    Packet::parse(bytes).unwrap().operation
}

fn psn(bytes: &[u8]) -> u32 {
    Packet::parse(bytes).unwrap().bth.psn.get()
}

const fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth {
        syndrome,
        msn: Psn::new(0),
    }
}

const fn nak(nak: Nak) -> Operation {
    Operation::Acknowledge(aeth(Syndrome::Nak(nak)))
}

const ACK: Operation = Operation::Acknowledge(aeth(Syndrome::Ack {
    credits: Syndrome::NO_CREDITS,
}));

fn is_nak(bytes: &[u8], expected: Nak) -> bool {
    matches!(operation(bytes), Operation::Acknowledge(aeth) if aeth.syndrome == Syndrome::Nak(expected))
}

fn is_ack(bytes: &[u8]) -> bool {
    matches!(operation(bytes), Operation::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Ack { .. }))
}

fn is_rnr_nak(bytes: &[u8]) -> bool {
    matches!(operation(bytes), Operation::Acknowledge(aeth) if aeth.syndrome == Syndrome::RnrNak { timer: 12 })
}
