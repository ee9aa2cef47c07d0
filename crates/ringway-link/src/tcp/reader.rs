//! The receiving side of a stream: cuts bytes into frames, and puts payloads where they belong.

use std::{io, os::fd::BorrowedFd};

use ringway_sys::{
    Memory,
    socket::{self, Moved, Scatter},
};

use super::{
    buffers::Buffer,
    frame::{BadFrame, Frame, HEADER, Tag},
};

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Target {
    /// Nowhere: nobody wants it any more.
    Discard,
    /// Into the user's memory.
    Place(Memory),
    /// Into a buffer.
    Staged(Buffer),
}

/// A payload on its way in.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) tag: Tag,
    /// Whether it was sent against credit.
    pub(super) eager: bool,
    pub(super) target: Target,
    filled: usize,
}

impl Body {
    pub(super) const fn new(tag: Tag, eager: bool, target: Target) -> Self {
        Self {
            tag,
            eager,
            target,
            filled: 0,
        }
    }

    const fn left(&self) -> usize {
        self.tag.len - self.filled
    }

    /// Where the rest goes, if anywhere.
    fn rest(&self) -> Option<Memory> {
        let memory = match &self.target {
            Target::Discard => return None,
            Target::Place(memory) => *memory,
            Target::Staged(buffer) => buffer.memory(),
        };
        Some(memory.slice(self.filled..self.tag.len))
    }
}

/// What a stream has brought.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing more, for now.
    Blocked,
    /// A payload, complete.
    Body(Body),
    /// The other side has closed.
    End,
    /// A header. If a payload follows it, [`Reader::expect`] has to say where it goes before the next step.
    Frame(Frame),
}

/// Why a stream cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Box<[u8]>,
    /// The bytes of the buffer that are not used yet.
    start: usize,
    end: usize,
    body: Option<Body>,
    /// The last read brought less than there was room for, so that the next would most likely bring nothing.
    drained: bool,
}

impl Reader {
    /// A reader that reads up to `ahead` bytes at once beyond what it has a place for.
    pub(super) fn new(ahead: usize) -> Self {
        let buffer = vec![0; ahead.max(HEADER)].into();
        Self {
            buffer,
            start: 0,
            end: 0,
            body: None,
            drained: false,
        }
    }

    /// The bytes that it takes.
    pub(super) fn footprint(&self) -> usize {
        self.buffer.len()
    }

    /// Says where the payload of the last header goes.
    pub(super) fn expect(&mut self, body: Body) {
        self.body = Some(body);
    }

    /// The payload on its way in.
    pub(super) const fn body(&mut self) -> Option<&mut Body> {
        self.body.as_mut()
    }

    /// Whether a payload is on its way in.
    pub(super) const fn is_within_body(&self) -> bool {
        self.body.is_some()
    }

    /// Forgets that the socket had no more: from now on it is asked again.
    pub(super) const fn refresh(&mut self) {
        self.drained = false;
    }

    /// The next thing that the stream brings.
    #[inline]
    pub(super) fn step(&mut self, socket: BorrowedFd<'_>) -> Result<Step, ReadError> {
        loop {
            if let Some(mut body) = self.body.take() {
                self.fill(&mut body);
                if body.left() == 0 {
                    return Ok(Step::Body(body));
                }
                self.body = Some(body);
            } else if let Some((header, _)) =
                self.buffer[self.start..self.end].split_first_chunk::<HEADER>()
            {
                let frame = Frame::decode(header)?;
                self.start += HEADER;
                return Ok(Step::Frame(frame));
            }
            if self.drained {
                return Ok(Step::Blocked);
            }
            match self.read(socket)? {
                Moved::Bytes(_) => {}
                Moved::Blocked => return Ok(Step::Blocked),
                Moved::End => return Ok(Step::End),
            }
        }
    }

    /// Moves bytes of the payload from the buffer to where they go.
    fn fill(&mut self, body: &mut Body) {
        let take = body.left().min(self.end - self.start);
        if take > 0 {
            if let Some(rest) = body.rest() {
                rest.write(&self.buffer[self.start..self.start + take]);
            }
            body.filled += take;
            self.start += take;
        }
    }

    /// Reads, past the buffer if the rest of a payload has a place.
    fn read(&mut self, socket: BorrowedFd<'_>) -> io::Result<Moved> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = self.buffer.len() - self.end;
        let place = self.body.as_ref().and_then(Body::rest);
        let (moved, asked, placed) = match place {
            // The buffer is empty: `fill` took all.
            Some(place) => {
                let mut parts = Scatter::default();
                parts.memory(place);
                parts.bytes(&mut self.buffer[self.end..]);
                (parts.recv(socket)?, place.len() + room, place.len())
            }
            None => (socket::recv(socket, &mut self.buffer[self.end..])?, room, 0),
        };
        if let Moved::Bytes(bytes) = moved {
            let placed = bytes.min(placed);
            if let Some(body) = &mut self.body {
                body.filled += placed;
            }
            self.end += bytes - placed;
            self.drained = bytes < asked;
        }
        Ok(moved)
    }
}
