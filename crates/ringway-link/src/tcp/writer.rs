//! The sending side of a stream: frames in the order they go out, payloads straight from user memory.

use std::{collections::VecDeque, io, os::fd::BorrowedFd};

use ringway_sys::{
    Memory,
    socket::{self, Gather, Moved},
};

use super::{
    buffers::{Buffer, Buffers, OverLimit},
    frame::{Frame, HEADER, Tag},
};
use crate::MessageKey;

/// Payloads up to this size are copied behind their header, which is cheaper than to gather two parts.
const COPIED: usize = 512;

/// A message on its way out.
#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER],
    key: MessageKey,
    payload: Payload,
    priority: u8,
    /// Whether it is sent against credit.
    unasked: bool,
}

#[derive(Debug)]
enum Payload {
    /// The user's memory, which gets a `Sent`.
    Memory(Memory),
    /// The rest of a cancelled message: nobody waits for it, but the receiver counts on its bytes.
    Owned { buffer: Buffer, skipped: usize },
}

impl Outgoing {
    fn len(&self) -> usize {
        HEADER
            + match &self.payload {
                Payload::Memory(memory) => memory.len(),
                Payload::Owned { buffer, skipped } => skipped + buffer.memory().len(),
            }
    }

    /// The payload from `at` on.
    fn payload_from(&self, at: usize) -> Memory {
        let (memory, at) = match &self.payload {
            Payload::Memory(memory) => (*memory, at),
            Payload::Owned { buffer, skipped } => (buffer.memory(), at.saturating_sub(*skipped)),
        };
        memory.slice(at..memory.len())
    }
}

/// What became of a message that was given to [`Writer::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// It is in the socket's buffer, whole.
    Sent,
    /// It waits.
    Queued,
}

/// Writes frames.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Headers without payload, encoded; they overtake messages.
    control: Vec<u8>,
    /// How much of `control` is sent.
    control_sent: usize,
    queue: VecDeque<Outgoing>,
    /// How much of the first of the queue is sent, header included.
    head_sent: usize,
    /// Payload bytes in the queue.
    backlog: usize,
}

impl Writer {
    /// Whether there is nothing to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.queue.is_empty()
    }

    /// The bytes of messages that wait.
    pub(super) const fn backlog(&self) -> usize {
        self.backlog
    }

    /// Whether messages of another priority wait.
    pub(super) fn mixes(&self, priority: u8) -> bool {
        self.queue.iter().any(|out| out.priority != priority)
    }

    /// The bytes that go before a message of this priority.
    pub(super) fn before(&self, priority: u8) -> usize {
        let ahead = |(at, out): (usize, &Outgoing)| match at {
            0 if self.head_sent > 0 => out.len() - self.head_sent,
            _ if out.priority >= priority => out.len(),
            _ => 0,
        };
        self.queue.iter().enumerate().map(ahead).sum()
    }

    /// Queues a frame without payload.
    #[inline]
    pub(super) fn control(&mut self, frame: Frame) {
        self.control.extend_from_slice(&frame.encode());
    }

    /// Sends a message, or queues what does not fit in the socket: behind those of the same priority, before those of
    /// a lower one.
    #[inline]
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        frame: Frame,
        tag: &Tag,
        payload: Memory,
        priority: u8,
    ) -> io::Result<Given> {
        let header = frame.encode();
        let total = HEADER + payload.len();
        if self.is_empty() {
            let moved = if payload.len() <= COPIED {
                let mut bytes = [0; HEADER + COPIED];
                bytes[..HEADER].copy_from_slice(&header);
                payload.read(&mut bytes[HEADER..total]);
                socket::send(socket, &bytes[..total])?
            } else {
                let mut parts = Gather::default();
                parts.bytes(&header);
                parts.memory(payload);
                parts.send(socket)?
            };
            let sent = if let Moved::Bytes(sent) = moved {
                sent
            } else {
                0
            };
            if sent == total {
                return Ok(Given::Sent);
            }
            self.head_sent = sent;
        }
        // The first may be half sent: none goes before it.
        let fixed = usize::from(self.head_sent > 0).min(self.queue.len());
        let later = self
            .queue
            .range(fixed..)
            .position(|out| out.priority < priority);
        let at = later.map_or(self.queue.len(), |at| fixed + at);
        let payload = Payload::Memory(payload);
        self.queue.insert(
            at,
            Outgoing {
                header,
                key: tag.key,
                payload,
                priority,
                unasked: matches!(frame, Frame::Eager(_)),
            },
        );
        self.backlog += tag.len;
        Ok(Given::Queued)
    }

    /// Takes the last message out of the queue that goes against credit, has less than this priority, and of which nothing is sent.
    pub(super) fn withdraw_unasked(&mut self, below: u8) -> Option<(MessageKey, Memory, u8)> {
        let fixed = usize::from(self.head_sent > 0);
        let lower = |out: &Outgoing| out.unasked && out.priority < below;
        let at = fixed + self.queue.range(fixed..).rposition(lower)?;
        let out = self.queue.remove(at)?;
        let Payload::Memory(memory) = out.payload else {
            unreachable!("only of a message that is half sent the rest is copied")
        };
        self.backlog -= memory.len();
        Some((out.key, memory, out.priority))
    }

    /// Sends what fits in the socket's buffer, and appends the messages that are sent to `sent`. Whether any byte was.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        sent: &mut Vec<MessageKey>,
    ) -> io::Result<bool> {
        let mut moved = false;
        while !self.is_empty() {
            let mut parts = Gather::default();
            let mut messages = self.queue.iter();
            // What is half sent must be finished before anything else, control frames included.
            if self.head_sent > 0
                && let Some(head) = messages.next()
            {
                parts.bytes(head.header.get(self.head_sent..).unwrap_or_default());
                parts.memory(head.payload_from(self.head_sent.saturating_sub(HEADER)));
            }
            parts.bytes(&self.control[self.control_sent..]);
            for message in messages.take(4) {
                parts.bytes(&message.header);
                parts.memory(message.payload_from(0));
            }
            let asked = parts.len();
            let Moved::Bytes(bytes) = parts.send(socket)? else {
                break;
            };
            moved = true;
            self.account(bytes, sent);
            if bytes < asked {
                break;
            }
        }
        Ok(moved)
    }

    /// Takes note of bytes that were sent, in the order in which `flush` gathers them.
    fn account(&mut self, mut bytes: usize, sent: &mut Vec<MessageKey>) {
        if self.head_sent > 0 {
            bytes = self.account_head(bytes, sent);
        }
        if self.head_sent > 0 {
            return;
        }
        let control = bytes.min(self.control.len() - self.control_sent);
        self.control_sent += control;
        bytes -= control;
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
        }
        while bytes > 0 {
            bytes = self.account_head(bytes, sent);
        }
    }

    /// Takes note of bytes of the first message; those that are left over belong to what comes after it.
    fn account_head(&mut self, bytes: usize, sent: &mut Vec<MessageKey>) -> usize {
        let Some(head) = self.queue.front() else {
            unreachable!("the kernel sends no more than it was given")
        };
        let missing = head.len() - self.head_sent;
        if bytes < missing {
            self.head_sent += bytes;
            return 0;
        }
        self.head_sent = 0;
        if let Some(done) = self.queue.pop_front() {
            self.backlog -= done.len() - HEADER;
            if matches!(done.payload, Payload::Memory(_)) {
                sent.push(done.key);
            }
        }
        bytes - missing
    }

    /// Forgets the messages of an operation. Of one that is half sent the rest is copied: the receiver counts on it,
    /// and cannot tell it from other bytes.
    pub(super) fn cancel(
        &mut self,
        group: u64,
        op: u32,
        buffers: &Buffers,
    ) -> Result<(), OverLimit> {
        if self.head_sent > 0
            && let Some(head) = self.queue.front_mut()
            && (head.key.group, head.key.op) == (group, op)
            && let Payload::Memory(memory) = head.payload
        {
            let skipped = self.head_sent.saturating_sub(HEADER);
            let rest = memory.slice(skipped..memory.len());
            let buffer = buffers.take(rest.len())?;
            buffer.memory().copy_from(rest);
            head.payload = Payload::Owned { buffer, skipped };
        }
        let keep_head = self.head_sent > 0;
        let mut first = true;
        let backlog = &mut self.backlog;
        self.queue.retain(|out| {
            let keep = (out.key.group, out.key.op) != (group, op)
                || std::mem::take(&mut first) && keep_head;
            first = false;
            if !keep {
                *backlog -= out.len() - HEADER;
            }
            keep
        });
        Ok(())
    }

    /// The bytes that its queues take, payloads of others not counted.
    pub(super) fn footprint(&self) -> usize {
        self.control.capacity() + self.queue.capacity() * size_of::<Outgoing>()
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    use ringway_sys::Staging;

    use super::*;

    #[test]
    fn what_goes_before_a_message_is_what_is_half_sent_and_of_its_priority() {
        let (socket, _other) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (long, short) = (Staging::new(8 << 20), Staging::new(1000));
        let mut writer = Writer::default();
        let mut send = |memory: &Staging, index: u32, priority: u8| {
            let key = MessageKey {
                group: 1,
                op: index,
                lane: 0,
                message: 0,
                slice: 0,
            };
            let payload = memory.memory();
            let tag = Tag {
                key,
                fingerprint: 0,
                len: payload.len(),
            };
            let given = writer.send(socket.as_fd(), Frame::Data(tag), &tag, payload, priority);
            assert_eq!(given.unwrap(), Given::Queued);
            (writer.mixes(0), writer.before(0), writer.before(5))
        };
        let (mixes, rest, urgent) = send(&long, 0, 0);
        assert!(!mixes && rest == urgent && (1..8 << 20).contains(&rest));
        assert_eq!(send(&short, 1, 0), (false, rest + HEADER + 1000, rest));
        let one = HEADER + 1000;
        assert_eq!(send(&short, 2, 5), (true, rest + 2 * one, rest + one));
    }
}
