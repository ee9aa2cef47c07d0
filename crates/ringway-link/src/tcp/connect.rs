//! Connections: how they are made, watched and lost.
//!
//! Of two ranks the higher one connects, so that they never cross. Either may need the connection first: a
//! rank that waits for a message from a higher one waits for its connection too, which comes when the higher one
//! looks at the operation that both take part in.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Interest, socket::path_state};
use socket2::{SockRef, TcpKeepalive};

use super::{
    TcpSettings, TcpTransport, Token,
    frame::{Frame, HEADER},
    peer::{Bulk, State, Stream},
    reader::Reader,
    writer::Writer,
};
use crate::{Arrival, Event, LinkError, Purpose, Session};

/// How often deadlines and silent hosts are looked for.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// What is read at once from a stream of short messages, beyond what has a place.
const AHEAD: usize = 16 << 10;

/// What the kernel takes of a stream beyond what it may send at once (`TCP_NOTSENT_LOWAT`, tcp(7)): nothing can overtake it there. With less of
/// it two hosts also move more: 1.2 GB/s of 10 Gbit/s, without a bound 0.9 to 1.0 (16 and 64 MiB in a lab of two hosts).
const UNSENT: u32 = 128 << 10;

impl TcpTransport {
    /// Connects to a peer, if that has not begun.
    pub(super) fn connect(&mut self, peer: Rank) {
        if !matches!(self.peers[peer].state, State::Idle) {
            return;
        }
        let began = Instant::now();
        let deadline = began + self.settings.connect_timeout;
        self.peers[peer].state = State::Connecting { began, deadline };
        if self.dials(peer) {
            self.listener
                .dial(self.addresses[peer].clone(), Purpose::Data, 0, deadline);
        }
    }

    /// Whether this rank is the one that connects to the peer.
    pub(super) const fn dials(&self, peer: Rank) -> bool {
        self.own > peer
    }

    /// Asks for streams for long messages, which go over the first one until then.
    pub(super) fn ask_for_bulk(&mut self, peer: Rank) {
        let count = self.settings.streams;
        if count == 0 || self.peers[peer].bulk != Bulk::None {
            return;
        }
        if self.dials(peer) {
            self.dial_bulk(peer, count);
        } else {
            self.peers[peer].bulk = Bulk::Asked;
            self.control(peer, Frame::Streams(count));
        }
    }

    pub(super) fn dial_bulk(&mut self, peer: Rank, count: usize) {
        self.peers[peer].bulk = Bulk::Asked;
        let deadline = Instant::now() + self.settings.connect_timeout;
        let count = count
            .min(self.settings.streams)
            .min(TcpSettings::MAX_STREAMS);
        for index in (1..=u16::MAX).take(count) {
            self.listener
                .dial(self.addresses[peer].clone(), Purpose::Data, index, deadline);
        }
    }

    /// A handshake is done.
    pub(super) fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Session(session) => {
                let peer = session.peer;
                if let Err(why) = self.attach(session) {
                    tracing::warn!(rank = peer, "dropped a connection: {why}");
                }
            }
            Arrival::Failed {
                peer,
                index: 0,
                error,
            } => self.lose(peer, error),
            // Long messages go over the first stream then.
            Arrival::Failed { peer, index, error } => {
                tracing::warn!(rank = peer, "no stream {index} for long messages: {error}");
            }
        }
    }

    fn attach(&mut self, session: Session) -> Result<(), String> {
        let (rank, first) = (session.peer, session.index == 0);
        let Some(peer) = self.peers.get(rank).filter(|_| rank != self.own) else {
            return Err("the world has no such rank".into());
        };
        let expected = match &peer.state {
            State::Idle | State::Connecting { .. } => first,
            State::Greeting | State::Ready => {
                !first && peer.streams.len() <= TcpSettings::MAX_STREAMS
            }
            State::Lost(_) => false,
        };
        if !expected {
            return Err(format!("stream {} is not expected", session.index));
        }
        let wanted = self.addresses[rank].nonce;
        if wanted != 0 && wanted != session.nonce {
            return Err("it comes from another process than the one published".into());
        }
        self.prepare(&session, peer.is_remote)
            .map_err(|error| error.to_string())?;
        let at = self.peers[rank].streams.len();
        let token = Token::Stream { rank, at }.encode();
        self.set
            .add(&session.stream, token, Interest::Read)
            .map_err(|error| error.to_string())?;
        // Streams for long messages are read to the end of a message, so that all of it goes where it belongs.
        let reader = Reader::new(if first { AHEAD } else { HEADER });
        let mut writer = Writer::default();
        if first {
            let TcpSettings {
                eager_limit,
                window,
                ..
            } = self.settings;
            writer.control(Frame::Welcome {
                eager_limit,
                window,
            });
            for frame in self.peers[rank].early.drain(..) {
                writer.control(frame);
            }
            self.peers[rank].state = State::Greeting;
        }
        let socket = session.stream;
        let stream = Stream {
            socket,
            reader,
            writer,
            token,
            watches_room: false,
            ended: false,
        };
        self.peers[rank].streams.push(stream);
        self.peers[rank].bulk = if first {
            self.peers[rank].bulk
        } else {
            Bulk::Asked
        };
        self.soil(rank);
        Ok(())
    }

    fn prepare(&self, session: &Session, is_remote: bool) -> std::io::Result<()> {
        let socket = SockRef::from(&session.stream);
        if let Some(bytes) = self.settings.socket_buffers {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        match &self.settings.congestion {
            Some(name) => socket.set_tcp_congestion(name.as_bytes())?,
            // Within a host nothing is lost, and there is no queue to keep short: a control that paces, as BBR does,
            // only costs timers and waits. Reno is in every kernel; where it is not allowed, the system's has to do.
            None if !is_remote => drop(socket.set_tcp_congestion(b"reno")),
            None => {}
        }
        if is_remote {
            socket.set_tcp_notsent_lowat(UNSENT)?;
            // Finds a dead host while nothing is sent to it; `watch` finds it while something is.
            let keepalive = TcpKeepalive::new()
                .with_time(Duration::from_secs(1))
                .with_interval(Duration::from_secs(1))
                .with_retries(2);
            socket.set_tcp_keepalive(&keepalive)?;
        }
        Ok(())
    }

    /// A peer has closed a stream.
    pub(super) fn ended(&mut self, rank: Rank, at: usize) {
        let stream = &mut self.peers[rank].streams[at];
        let cut = stream.reader.is_within_body();
        stream.ended = true;
        let _ = self.set.remove(&stream.socket);
        if at > 0 && !self.peers[rank].leaving {
            self.hear_out(rank);
        }
        let peer = &self.peers[rank];
        if matches!(peer.state, State::Lost(_)) {
            return;
        }
        if !peer.leaving {
            let detail = if cut {
                "in the middle of a message"
            } else {
                "end of stream"
            };
            self.lose(
                rank,
                LinkError::Closed {
                    peer: rank,
                    detail: detail.into(),
                },
            );
        } else if peer.streams.iter().all(|stream| stream.ended) {
            self.lose(rank, LinkError::Left { peer: rank });
        }
    }

    /// Reads the first stream to where it has no more, or has a goodbye: a peer that leaves says so there before it
    /// closes any stream.
    pub(super) fn hear_out(&mut self, rank: Rank) {
        while !self.peers[rank].leaving && self.pump(rank, 0) {}
    }

    /// A peer is gone. Whoever leaves while nobody needs it is no event.
    pub(super) fn lose(&mut self, rank: Rank, error: LinkError) {
        let peer = &mut self.peers[rank];
        if matches!(peer.state, State::Lost(_)) {
            return;
        }
        peer.streams.clear();
        peer.early.clear();
        let needed = peer.is_needed() || !matches!(error, LinkError::Left { .. });
        peer.state = State::Lost(error.clone());
        if needed {
            self.events.push(Event::Lost { peer: rank, error });
        }
    }

    /// Looks for deadlines that have passed and for hosts that do not answer.
    pub(super) fn tick(&mut self, now: Instant) {
        self.next_tick = now + TICK;
        for rank in 0..self.peers.len() {
            match self.peers[rank].state {
                State::Connecting { began, deadline } if now >= deadline && !self.dials(rank) => {
                    let error = LinkError::Unreachable {
                        peer: rank,
                        waited: now - began,
                        tried: "nothing, as the higher rank is the one that connects".into(),
                        remedy: format!(
                            "check that rank {rank} still runs and that no firewall keeps it from port {} of this host",
                            self.listener.port()
                        ),
                    };
                    self.lose(rank, error);
                }
                State::Greeting | State::Ready => self.watch(rank, now),
                _ => {}
            }
        }
    }

    /// Looks whether the peer's host acknowledges what it was sent. The kernel's own limit (`TCP_USER_TIMEOUT`) is no
    /// use: it also ends connections to a living host whose process has not read for a while.
    fn watch(&mut self, rank: Rank, now: Instant) {
        let peer = &mut self.peers[rank];
        if !peer.is_remote {
            return;
        }
        let unanswered = peer.streams.iter().any(|stream| {
            path_state(&stream.socket)
                .is_ok_and(|path| path.in_flight > 0 && path.retransmits > 0 || path.probes > 1)
        });
        if !unanswered {
            peer.unanswered = None;
            return;
        }
        // It began up to a tick ago.
        let since = *peer.unanswered.get_or_insert(now);
        let silent = now - since + TICK;
        if silent >= self.settings.silence {
            let detail = format!("its host has not answered for {silent:.1?}");
            self.lose(rank, LinkError::Closed { peer: rank, detail });
        }
    }

    /// Has the epoll set tell when there is room to write for what waits.
    pub(super) fn watch_room(&mut self) {
        for &rank in &self.dirty {
            for stream in &mut self.peers[rank].streams {
                if stream.writer.is_empty() || stream.watches_room || stream.ended {
                    continue;
                }
                // If it fails, the next write of the stream does too, and says why.
                stream.watches_room = self
                    .set
                    .modify(stream.socket.as_fd(), stream.token, Interest::ReadWrite)
                    .is_ok();
            }
        }
    }
}
