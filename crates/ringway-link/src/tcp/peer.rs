//! What the transport knows of a peer, and its streams.

use std::{
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

use super::{frame::Frame, reader::Reader, writer::Writer};
use crate::{LinkError, MessageKey};

/// How far the connection to a peer is.
#[derive(Debug)]
pub(super) enum State {
    /// Nobody has needed it yet.
    Idle,
    /// It is being made.
    Connecting { began: Instant, deadline: Instant },
    /// The first stream is there; the peer's welcome is not.
    Greeting,
    /// Messages flow.
    Ready,
    /// It is gone.
    Lost(LinkError),
}

/// The streams for long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bulk {
    /// There are none, and none are on the way.
    None,
    /// There are some, or they are on the way.
    Asked,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) token: u64,
    /// The epoll set tells when there is room to write.
    pub(super) watches_room: bool,
    /// The peer has closed it.
    pub(super) ended: bool,
}

impl Stream {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: State,
    /// The first carries all but long messages; the others only those.
    pub(super) streams: Vec<Stream>,
    pub(super) bulk: Bulk,
    /// Control frames from before there is a stream.
    pub(super) early: Vec<Frame>,
    /// The longest message that it takes unasked.
    pub(super) eager_limit: usize,
    /// Bytes that may still be sent to it unasked.
    pub(super) credit: usize,
    /// Bytes of our window that it has used and that are not given back to it.
    pub(super) used: usize,
    /// Those of them that are free again.
    pub(super) owed: usize,
    /// Receives posted from it and not complete.
    pub(super) posted: usize,
    /// Those of them that it was told of.
    pub(super) granted: usize,
    /// Messages to it that are not sent.
    pub(super) unsent: usize,
    /// Its announcements and grants that have no counterpart here yet.
    pub(super) strays: usize,
    /// Messages that wait for its welcome, in order.
    pub(super) backlog: Vec<MessageKey>,
    /// Messages that wait for a grant and are not announced.
    pub(super) unannounced: Vec<MessageKey>,
    /// The group of the first message that it has sent, announced, granted or waited for.
    pub(super) first_group: Option<u64>,
    /// It has said goodbye.
    pub(super) leaving: bool,
    /// Its host may die without ours: it is another one.
    pub(super) is_remote: bool,
    /// Since when its host has not acknowledged what was sent.
    pub(super) unanswered: Option<Instant>,
    /// Whether it is in the transport's list of peers to be asked at each poll.
    pub(super) is_hot: bool,
    /// Whether it is in the transport's list of peers with something to write.
    pub(super) is_dirty: bool,
}

impl Peer {
    pub(super) const fn new(is_remote: bool) -> Self {
        Self {
            state: State::Idle,
            streams: Vec::new(),
            bulk: Bulk::None,
            early: Vec::new(),
            eager_limit: 0,
            credit: 0,
            used: 0,
            owed: 0,
            posted: 0,
            granted: 0,
            unsent: 0,
            strays: 0,
            backlog: Vec::new(),
            unannounced: Vec::new(),
            first_group: None,
            leaving: false,
            is_remote,
            unanswered: None,
            is_hot: false,
            is_dirty: false,
        }
    }

    /// Whether messages to or from it are under way.
    pub(super) const fn is_needed(&self) -> bool {
        self.posted > 0 || self.unsent > 0
    }

    /// Whether something waits to be written.
    pub(super) fn has_output(&self) -> bool {
        self.streams.iter().any(|stream| !stream.writer.is_empty())
    }

    /// The bytes that its buffers take.
    pub(super) fn footprint(&self) -> usize {
        let stream = |s: &Stream| s.reader.footprint() + s.writer.footprint() + size_of::<Stream>();
        self.streams.iter().map(stream).sum()
    }
}
