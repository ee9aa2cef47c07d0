//! Which is faster to a peer, RDMA or TCP: measured for each pair of ranks when they first need each other.
//!
//! The lower rank of the two measures, once it has heard the peer, and the peer has said that it has heard this rank; then it
//! gives its own verdict. The peer answers. First a packet goes there and back by RDMA, several times; then a stream of messages,
//! twice; then the same by TCP. What goes by RDMA is written where greetings are.

use std::{
    fmt,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::Staging;

use super::{
    NOTES, RdmaTransport,
    exchange::{self, Stage},
    link::{Link, PING, PONG, PROBE_ROOM, STREAM},
    peer::Route,
};
use crate::{MessageKey, Sink, Transport as _};

/// How often a packet goes there and back; the least time counts.
const PINGS: u32 = 8;

/// The bytes of such a message over TCP: a packet's.
const PING_BYTES: usize = 4096;

/// The messages of a stream.
const STREAM_MESSAGES: u32 = 8;

/// How many streams there are; the least time counts, as the first makes things ready.
const STREAMS: u32 = 2;

/// RDMA is used if it takes at most so many times what TCP does, in the geometric mean of the time of a packet and of a
/// stream. A NIC frees the processor, so it need not be faster; in software it takes more of it than TCP.
const NIC_TOLERANCE: f64 = 1.1;
const SOFTWARE_TOLERANCE: f64 = 0.8;

/// What messages over TCP are for, as their keys say; notes have lower numbers.
const TCP_PING: u32 = 16;
const TCP_PONG: u32 = 17;
const TCP_STREAM: u32 = 18;

/// What is measured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    RdmaPing,
    RdmaStream,
    TcpPing,
    TcpStream,
}

/// What was measured of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    /// A packet, there and back.
    ping: Duration,
    /// A stream, until it has arrived.
    stream: Duration,
}

impl Figures {
    const NONE: Self = Self {
        ping: Duration::MAX,
        stream: Duration::MAX,
    };
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = PROBE_ROOM * STREAM_MESSAGES as usize;
        let rate = bytes as f64 / self.stream.as_secs_f64() / 1e9;
        write!(f, "{:.1?} and {rate:.2} GB/s", self.ping)
    }
}

/// A measurement under way.
#[derive(Debug)]
pub(super) struct Measurement {
    step: Step,
    /// How often it was measured.
    done: u32,
    began: Instant,
    rdma: Figures,
    tcp: Figures,
}

impl Measurement {
    const fn new(now: Instant) -> Self {
        Self {
            step: Step::RdmaPing,
            done: 0,
            began: now,
            rdma: Figures::NONE,
            tcp: Figures::NONE,
        }
    }

    /// Takes a time, and goes on. Whether there is something left to measure.
    fn measured(&mut self, took: Duration) -> bool {
        let (figure, often, next) = match self.step {
            Step::RdmaPing => (&mut self.rdma.ping, PINGS, Some(Step::RdmaStream)),
            Step::RdmaStream => (&mut self.rdma.stream, STREAMS, Some(Step::TcpPing)),
            Step::TcpPing => (&mut self.tcp.ping, PINGS, Some(Step::TcpStream)),
            Step::TcpStream => (&mut self.tcp.stream, STREAMS, None),
        };
        *figure = took.min(*figure);
        self.done += 1;
        if self.done < often {
            return true;
        }
        self.done = 0;
        self.step = next.unwrap_or(self.step);
        next.is_some()
    }

    fn prefers_rdma(&self, tolerance: f64) -> bool {
        let ratio = |of: fn(&Figures) -> Duration| {
            of(&self.rdma).as_secs_f64() / of(&self.tcp).as_secs_f64().max(1e-9)
        };
        (ratio(|it| it.ping) * ratio(|it| it.stream)).sqrt() <= tolerance
    }
}

impl RdmaTransport {
    /// Whether RDMA to a peer is to be measured by this side before it is used.
    pub(super) fn wants_to_measure(&self, peer: Rank) -> bool {
        self.settings.measures && self.own < peer && !self.peers[peer].is_measured
    }

    pub(super) fn begin_measurement(&mut self, now: Instant, peer: Rank) {
        let until = now + self.settings.proof_timeout;
        self.peers[peer].route = Route::Measuring { until };
        self.peers[peer].measurement = Some(Measurement::new(now));
        self.begin_probes(peer);
        self.send_probe(peer);
    }

    /// Probes over TCP have an operation of their own, so that it can be ended in the middle.
    fn begin_probes(&mut self, peer: Rank) {
        let op = self.probes(peer);
        self.peers[peer].probes = Some(op);
        self.tcp.begin(exchange::GROUP, op, NOTES);
    }

    /// Forgets what is left of the probes: a message that is waited for would have TCP look for it at every poll.
    pub(super) fn end_probes(&mut self, peer: Rank) {
        self.peers[peer].measurement = None;
        if let Some(op) = self.peers[peer].probes.take() {
            self.tcp.cancel(exchange::GROUP, op);
        }
    }

    /// The operation of the probes to a peer in this round, the same on both sides. A rank's pairs have different sums; notes have
    /// operation 0.
    fn probes(&self, peer: Rank) -> u32 {
        let pair = (self.own + peer) as u32 % (1 << 20);
        1 + ((self.peers[peer].round % 2048) << 20 | pair)
    }

    fn send_probe(&mut self, peer: Rank) {
        let op = self.probes(peer);
        let state = &mut self.peers[peer];
        let (Some(measurement), Some(link), Ok(device)) =
            (&mut state.measurement, &mut state.link, &mut self.device)
        else {
            return;
        };
        measurement.began = Instant::now();
        let (step, done) = (measurement.step, measurement.done);
        match step {
            Step::RdmaPing => {
                let sent = link.probe(&mut **device, PING);
                self.checked(peer, sent);
            }
            Step::RdmaStream => {
                let sent = (0..STREAM_MESSAGES).try_for_each(|_| link.probe(&mut **device, STREAM));
                self.checked(peer, sent);
            }
            Step::TcpPing => {
                let pong = self
                    .tcp
                    .recv(peer, key(op, TCP_PONG, done), Sink::View(PING_BYTES));
                self.check(peer, pong);
                self.send_over_tcp(peer, TCP_PING, done, PING_BYTES);
            }
            Step::TcpStream => {
                let number = PINGS + done;
                let pong = self
                    .tcp
                    .recv(peer, key(op, TCP_PONG, number), Sink::View(PING_BYTES));
                self.check(peer, pong);
                for at in 0..STREAM_MESSAGES {
                    self.send_over_tcp(peer, TCP_STREAM, done * STREAM_MESSAGES + at, PROBE_ROOM);
                }
            }
        }
    }

    fn send_over_tcp(&mut self, peer: Rank, what: u32, number: u32, len: usize) {
        let probe = self.probe.get_or_insert_with(|| Staging::new(PROBE_ROOM));
        let memory = probe.memory().slice(0..len);
        let key = key(self.probes(peer), what, number);
        let sent = self.tcp.send(peer, key, memory, u8::MAX);
        self.check(peer, sent);
    }

    /// Gets ready to answer a peer that measures.
    pub(super) fn expect_probes(&mut self, peer: Rank) {
        self.begin_probes(peer);
        let op = self.probes(peer);
        let pings = (0..PINGS).map(|number| (key(op, TCP_PING, number), PING_BYTES));
        let streams =
            (0..STREAMS * STREAM_MESSAGES).map(|number| (key(op, TCP_STREAM, number), PROBE_ROOM));
        for (key, len) in pings.chain(streams) {
            let posted = self.tcp.recv(peer, key, Sink::View(len));
            self.check(peer, posted);
        }
    }

    /// A probe has come by RDMA.
    pub(super) fn probe_came(&mut self, peer: Rank, code: u32) {
        match code {
            PING => {
                let state = &mut self.peers[peer];
                if let (Some(link), Ok(device)) = (&mut state.link, &mut self.device) {
                    let sent = link.probe(&mut **device, PONG);
                    self.checked(peer, sent);
                }
            }
            PONG => self.probe_ended(peer, Step::RdmaPing),
            _ => {}
        }
    }

    /// Something that this side has sent by RDMA has arrived.
    pub(super) fn probe_arrived(&mut self, peer: Rank) {
        if self.peers[peer].link.as_ref().is_some_and(Link::is_proven) {
            self.probe_ended(peer, Step::RdmaStream);
        }
    }

    /// A probe has come by TCP.
    pub(super) fn probe_came_by_tcp(&mut self, peer: Rank, key: MessageKey) {
        if self.peers[peer].probes != Some(key.op) {
            return;
        }
        let number = key.slice;
        match key.message {
            TCP_PING => self.send_over_tcp(peer, TCP_PONG, number, PING_BYTES),
            TCP_STREAM if (number + 1).is_multiple_of(STREAM_MESSAGES) => {
                let stream = number / STREAM_MESSAGES;
                self.send_over_tcp(peer, TCP_PONG, PINGS + stream, PING_BYTES);
            }
            TCP_PONG if number < PINGS => self.probe_ended(peer, Step::TcpPing),
            TCP_PONG => self.probe_ended(peer, Step::TcpStream),
            _ => {}
        }
    }

    fn probe_ended(&mut self, peer: Rank, step: Step) {
        let now = Instant::now();
        let state = &mut self.peers[peer];
        let Some(measurement) = &mut state.measurement else {
            return;
        };
        if measurement.step != step || !matches!(state.route, Route::Measuring { .. }) {
            return;
        }
        if measurement.measured(now - measurement.began) {
            // Each has its time: a rank that computes in between polls seldom.
            let until = now + self.settings.proof_timeout;
            state.route = Route::Measuring { until };
            return self.send_probe(peer);
        }
        let figures = format!(
            "a packet there and back, and messages of {} KiB in a row: RDMA {}, TCP {}",
            PROBE_ROOM >> 10,
            measurement.rdma,
            measurement.tcp
        );
        let is_nic = matches!(&self.device, Ok(device) if device.limits().answers_alone);
        let tolerance = if is_nic {
            NIC_TOLERANCE
        } else {
            SOFTWARE_TOLERANCE
        };
        let prefers_rdma = measurement.prefers_rdma(tolerance);
        state.measurement = None;
        state.is_measured = true;
        if prefers_rdma {
            tracing::info!(rank = peer, figures, "RDMA is measured to be fast enough");
            return self.say_yes(now, peer);
        }
        state.prefers_tcp = true;
        let note = exchange::encode_choice(&figures);
        self.tell_bytes(peer, Stage::Verdict, &note);
        self.settle_for_tcp(now, peer, Some(figures));
    }
}

/// The key of a probe over TCP.
const fn key(op: u32, what: u32, number: u32) -> MessageKey {
    MessageKey {
        group: exchange::GROUP,
        op,
        lane: 0,
        message: what,
        slice: number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is decided if one way takes so many microseconds for a packet and a stream, and then the other.
    fn prefers_rdma(rdma: [u64; 2], tcp: [u64; 2]) -> bool {
        let mut measurement = Measurement::new(Instant::now());
        let mut times = Vec::new();
        for [ping, stream] in [rdma, tcp] {
            times.extend([1000 * ping; PINGS as usize - 1]);
            times.extend([ping, 1000 * stream, stream]);
        }
        let last = times.len() - 1;
        for (at, micros) in times.into_iter().enumerate() {
            let more = measurement.measured(Duration::from_micros(micros));
            assert_eq!(more, at < last);
        }
        measurement.prefers_rdma(NIC_TOLERANCE)
    }

    #[test]
    fn rdma_is_used_unless_it_is_clearly_slower() {
        assert!(prefers_rdma([10, 1000], [10, 1000]));
        assert!(prefers_rdma([10, 1000], [30, 400]));
        assert!(prefers_rdma([11, 1080], [10, 1000]));
        assert!(!prefers_rdma([14, 1000], [10, 1000]));
        assert!(!prefers_rdma([10, 1500], [10, 1000]));
        assert!(!prefers_rdma([2, 9000], [10, 1000]));
    }

    #[test]
    fn figures_are_of_what_was_sent() {
        let figures = Figures {
            ping: Duration::from_micros(12),
            stream: Duration::from_micros(1 << 10),
        };
        assert_eq!(figures.to_string(), "12.0µs and 0.51 GB/s");
    }
}
