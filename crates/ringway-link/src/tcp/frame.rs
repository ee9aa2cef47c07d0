//! What goes over a stream: frames, each a header of 40 bytes, some with a payload.
//!
//! | bytes | header, little-endian |
//! |---|---|
//! | 0..2 | magic |
//! | 2 | kind |
//! | 3 | zero |
//! | 4..8 | fingerprint of the operation |
//! | 8..16 | group |
//! | 16..20 | operation |
//! | 20..24 | message |
//! | 24..28 | slice |
//! | 28..30 | lane |
//! | 30..32 | zeros |
//! | 32..40 | length: of the payload; of the message that is announced or granted; bytes of credit |
//!
//! A welcome has the window in place of the length, and the eager limit in bytes 24..28. What a frame does not
//! need is zero.

use crate::MessageKey;

/// The bytes of a header.
pub const HEADER: usize = 40;

const MAGIC: [u8; 2] = *b"Rw";

/// Names a message in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Which message.
    pub key: MessageKey,
    /// What the sender of the frame takes its operation for.
    pub fingerprint: u32,
    /// The bytes of the message.
    pub len: usize,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message waits until it is granted.
    Announce(Tag),
    /// So many more bytes may be sent without being asked for.
    Credit(usize),
    /// A message that was granted; the payload follows.
    Data(Tag),
    /// A message that was not asked for; the payload follows.
    Eager(Tag),
    /// The sender of the frame leaves: this is its last frame.
    Goodbye,
    /// There is a place for a message: send it.
    Grant(Tag),
    /// The sender of the frame goes to sleep, and waits for messages of the tag's operation, of which it has told
    /// nothing yet: so ranks that wait for each other in different operations learn of it.
    Waits(Tag),
    /// The sender of the frame asks for so many streams for large messages.
    Streams(usize),
    /// The first frame in each direction.
    Welcome {
        /// The longest message that may be sent without being asked for.
        eager_limit: usize,
        /// The bytes that may be sent so until credit comes back.
        window: usize,
    },
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// They do not begin as one.
    #[error("a frame does not begin with its magic bytes")]
    Magic,
    /// No version of the protocol has this kind.
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    /// A field has a value that it cannot have.
    #[error("a frame has a bad {0}")]
    Field(&'static str),
}

impl Frame {
    /// The message that it is about, if it is about one.
    #[inline]
    pub const fn tag(&self) -> Option<&Tag> {
        match self {
            Self::Announce(tag)
            | Self::Data(tag)
            | Self::Eager(tag)
            | Self::Grant(tag)
            | Self::Waits(tag) => Some(tag),
            Self::Credit(_) | Self::Goodbye | Self::Streams(_) | Self::Welcome { .. } => None,
        }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        match *self {
            Self::Announce(tag) => with_tag(1, &tag),
            Self::Credit(bytes) => plain(2, 0, bytes),
            Self::Data(tag) => with_tag(3, &tag),
            Self::Eager(tag) => with_tag(4, &tag),
            Self::Goodbye => plain(5, 0, 0),
            Self::Grant(tag) => with_tag(6, &tag),
            Self::Streams(count) => plain(7, 0, count),
            Self::Waits(tag) => with_tag(9, &tag),
            Self::Welcome {
                eager_limit,
                window,
            } => plain(8, u32::try_from(eager_limit).unwrap_or(u32::MAX), window),
        }
    }

    /// The frame whose header is `bytes`.
    ///
    /// # Errors
    /// If they are none.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, BadFrame> {
        if bytes[..2] != MAGIC {
            return Err(BadFrame::Magic);
        }
        if bytes[3] != 0 || bytes[30..32] != [0, 0] {
            return Err(BadFrame::Field("reserved byte"));
        }
        let len = u64::from_le_bytes(field(bytes, 32));
        // No range of memory is longer.
        let len = isize::try_from(len)
            .map_err(|_| BadFrame::Field("length"))?
            .unsigned_abs();
        let tag = Tag {
            key: MessageKey {
                group: u64::from_le_bytes(field(bytes, 8)),
                op: u32::from_le_bytes(field(bytes, 16)),
                message: u32::from_le_bytes(field(bytes, 20)),
                slice: u32::from_le_bytes(field(bytes, 24)),
                lane: u16::from_le_bytes(field(bytes, 28)),
            },
            fingerprint: u32::from_le_bytes(field(bytes, 4)),
            len,
        };
        let frame = match bytes[2] {
            1 => Self::Announce(tag),
            2 => Self::Credit(len),
            3 => Self::Data(tag),
            4 => Self::Eager(tag),
            5 => Self::Goodbye,
            6 => Self::Grant(tag),
            7 => Self::Streams(len),
            8 => Self::Welcome {
                eager_limit: usize::try_from(tag.key.slice)
                    .map_err(|_| BadFrame::Field("eager limit"))?,
                window: len,
            },
            9 => Self::Waits(tag),
            other => return Err(BadFrame::Kind(other)),
        };
        match frame {
            Self::Announce(_)
            | Self::Data(_)
            | Self::Eager(_)
            | Self::Grant(_)
            | Self::Waits(_) => Ok(frame),
            // What it does not use is zero: nothing hides in a frame.
            _ if frame.encode() == *bytes => Ok(frame),
            _ => Err(BadFrame::Field("unused byte")),
        }
    }
}

#[inline]
fn field<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

#[inline]
fn with_tag(kind: u8, tag: &Tag) -> [u8; HEADER] {
    let mut bytes = plain(kind, tag.key.slice, tag.len);
    bytes[4..8].copy_from_slice(&tag.fingerprint.to_le_bytes());
    bytes[8..16].copy_from_slice(&tag.key.group.to_le_bytes());
    bytes[16..20].copy_from_slice(&tag.key.op.to_le_bytes());
    bytes[20..24].copy_from_slice(&tag.key.message.to_le_bytes());
    bytes[28..30].copy_from_slice(&tag.key.lane.to_le_bytes());
    bytes
}

#[inline]
fn plain(kind: u8, slice: u32, len: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..2].copy_from_slice(&MAGIC);
    bytes[2] = kind;
    bytes[24..28].copy_from_slice(&slice.to_le_bytes());
    bytes[32..40].copy_from_slice(&u64::try_from(len).unwrap_or(u64::MAX).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let tag = (
            any::<[u32; 4]>(),
            any::<u64>(),
            any::<u16>(),
            0..=isize::MAX as usize,
        )
            .prop_map(
                |([op, message, slice, fingerprint], group, lane, len)| Tag {
                    key: MessageKey {
                        group,
                        op,
                        lane,
                        message,
                        slice,
                    },
                    fingerprint,
                    len,
                },
            );
        (0..9, tag).prop_map(|(kind, tag)| match kind {
            0 => Frame::Announce(tag),
            1 => Frame::Credit(tag.len),
            2 => Frame::Data(tag),
            3 => Frame::Eager(tag),
            4 => Frame::Goodbye,
            5 => Frame::Grant(tag),
            6 => Frame::Streams(tag.len),
            7 => Frame::Waits(tag),
            _ => Frame::Welcome {
                eager_limit: tag.key.slice as usize,
                window: tag.len,
            },
        })
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(frame in frame()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            frame in frame(), at in 0..HEADER, value: u8,
        ) {
            let mut bytes = frame.encode();
            bytes[at] = value;
            if let Ok(other) = Frame::decode(&bytes) {
                prop_assert_eq!(other.encode(), bytes);
            }
        }
    }

    #[test]
    fn lengths_beyond_memory_are_refused() {
        let mut bytes = Frame::Credit(1).encode();
        bytes[39] = 0x80;
        assert_eq!(Frame::decode(&bytes), Err(BadFrame::Field("length")));
    }
}
