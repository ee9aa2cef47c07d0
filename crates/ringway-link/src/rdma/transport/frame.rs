//! What goes as a SEND: frames, each a header of 64 bytes, one kind with a payload.
//!
//! | bytes | header, little-endian |
//! |---|---|
//! | 0..2 | magic |
//! | 2 | kind |
//! | 3 | zero |
//! | 4..8 | credit that is given back: short messages, frames |
//! | 8..16 | the same, of each data channel: long messages |
//! | 16..20 | fingerprint of the operation |
//! | 20..22 | lane |
//! | 22..24 | zeros |
//! | 24..32 | group |
//! | 32..36 | operation |
//! | 36..40 | message |
//! | 40..44 | slice |
//! | 44..48 | number of the offer |
//! | 48..52 | length of the message |
//! | 52..56 | key of the offered memory |
//! | 56..64 | its address |
//!
//! What a frame does not need is zero.

use super::MAX_CHANNELS;
use crate::{
    MessageKey,
    rdma::{Key, Remote},
    session::codec::{Reader, Truncated},
};

/// The bytes of a header.
pub(super) const HEADER: usize = 64;

const MAGIC: [u8; 2] = *b"Rr";

/// Names a message in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) key: MessageKey,
    /// What the sender of the frame takes its operation for.
    pub(super) fingerprint: u32,
    /// The bytes of the message.
    pub(super) len: u32,
}

/// A frame's header, but for the credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message waits until there is a place for it.
    Announce(Tag),
    /// Nothing but credit.
    Credit,
    /// A short message; the payload follows.
    Eager(Tag),
    /// There is a place for a message.
    Offer {
        tag: Tag,
        number: u32,
        place: Remote,
    },
    /// The operation of an offer has ended at the one who made it: if it isn't used yet, it is wanted back.
    Revoke { key: MessageKey, number: u32 },
    /// An offer that will not be used.
    Unused { number: u32 },
    /// The sender of the frame goes to sleep, and waits for messages of the tag's operation, of which it has told nothing
    /// yet: so ranks that wait for each other in different operations learn of it.
    Waits(Tag),
}

/// So much more may be sent: short messages, frames, and on each data channel long messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    pub(super) eager: u16,
    pub(super) frames: u16,
    pub(super) data: [u8; MAX_CHANNELS - 1],
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("a frame has {0} bytes where its header alone has {HEADER}")]
    Short(usize),
    #[error("a frame does not begin with its magic bytes")]
    Magic,
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    #[error("a frame has a bad reserved or unused byte")]
    Unused,
}

impl Frame {
    /// The bytes on the wire.
    pub(super) fn encode(&self, credit: &Credit) -> [u8; HEADER] {
        let nowhere = Remote {
            key: Key(0),
            address: 0,
        };
        let (kind, tag, number, place) = match *self {
            Self::Announce(tag) => (1, tag, 0, nowhere),
            Self::Credit => (2, NO_TAG, 0, nowhere),
            Self::Eager(tag) => (3, tag, 0, nowhere),
            Self::Offer { tag, number, place } => (4, tag, number, place),
            Self::Revoke { key, number } => (5, Tag { key, ..NO_TAG }, number, nowhere),
            Self::Unused { number } => (6, NO_TAG, number, nowhere),
            Self::Waits(tag) => (7, tag, 0, nowhere),
        };
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = kind;
        bytes[4..6].copy_from_slice(&credit.eager.to_le_bytes());
        bytes[6..8].copy_from_slice(&credit.frames.to_le_bytes());
        bytes[8..16].copy_from_slice(&credit.data);
        bytes[16..20].copy_from_slice(&tag.fingerprint.to_le_bytes());
        bytes[20..22].copy_from_slice(&tag.key.lane.to_le_bytes());
        bytes[24..32].copy_from_slice(&tag.key.group.to_le_bytes());
        bytes[32..36].copy_from_slice(&tag.key.op.to_le_bytes());
        bytes[36..40].copy_from_slice(&tag.key.message.to_le_bytes());
        bytes[40..44].copy_from_slice(&tag.key.slice.to_le_bytes());
        bytes[44..48].copy_from_slice(&number.to_le_bytes());
        bytes[48..52].copy_from_slice(&tag.len.to_le_bytes());
        bytes[52..56].copy_from_slice(&place.key.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&place.address.to_le_bytes());
        bytes
    }

    /// The frame whose header begins `bytes`, and the credit that it brings.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, Credit), BadFrame> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(BadFrame::Short(bytes.len()));
        };
        if header[..2] != MAGIC {
            return Err(BadFrame::Magic);
        }
        let short = |_: Truncated| BadFrame::Short(bytes.len());
        let mut reader = Reader::new(&header[4..]);
        let mut credit = Credit {
            eager: reader.u16().map_err(short)?,
            frames: reader.u16().map_err(short)?,
            ..Credit::default()
        };
        for data in &mut credit.data {
            *data = reader.u8().map_err(short)?;
        }
        let fingerprint = reader.u32().map_err(short)?;
        let lane = reader.u16().map_err(short)?;
        reader.u16().map_err(short)?;
        let key = MessageKey {
            group: reader.u64().map_err(short)?,
            op: reader.u32().map_err(short)?,
            lane,
            message: reader.u32().map_err(short)?,
            slice: reader.u32().map_err(short)?,
        };
        let number = reader.u32().map_err(short)?;
        let tag = Tag {
            key,
            fingerprint,
            len: reader.u32().map_err(short)?,
        };
        let place = Remote {
            key: Key(reader.u32().map_err(short)?),
            address: reader.u64().map_err(short)?,
        };
        let frame = match header[2] {
            1 => Self::Announce(tag),
            2 => Self::Credit,
            3 => Self::Eager(tag),
            4 => Self::Offer { tag, number, place },
            5 => Self::Revoke { key, number },
            6 => Self::Unused { number },
            7 => Self::Waits(tag),
            kind => return Err(BadFrame::Kind(kind)),
        };
        // What it does not use is zero: nothing hides in a frame.
        if frame.encode(&credit) != *header {
            return Err(BadFrame::Unused);
        }
        Ok((frame, credit))
    }
}

const NO_TAG: Tag = Tag {
    key: MessageKey {
        group: 0,
        op: 0,
        lane: 0,
        message: 0,
        slice: 0,
    },
    fingerprint: 0,
    len: 0,
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        (0..7, any::<[u32; 7]>(), any::<[u64; 2]>(), any::<u16>()).prop_map(
            |(
                kind,
                [op, message, slice, fingerprint, len, number, key],
                [group, address],
                lane,
            )| {
                let tag = Tag {
                    key: MessageKey {
                        group,
                        op,
                        lane,
                        message,
                        slice,
                    },
                    fingerprint,
                    len,
                };
                let place = Remote {
                    key: Key(key),
                    address,
                };
                match kind {
                    0 => Frame::Announce(tag),
                    1 => Frame::Credit,
                    2 => Frame::Eager(tag),
                    3 => Frame::Offer { tag, number, place },
                    4 => Frame::Revoke {
                        key: tag.key,
                        number,
                    },
                    5 => Frame::Unused { number },
                    _ => Frame::Waits(tag),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(
            frame in frame(), eager: u16, frames: u16, data: [u8; MAX_CHANNELS - 1],
        ) {
            let credit = Credit { eager, frames, data };
            prop_assert_eq!(Frame::decode(&frame.encode(&credit)), Ok((frame, credit)));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            frame in frame(), at in 0..HEADER, value: u8,
        ) {
            let mut bytes = frame.encode(&Credit::default());
            bytes[at] = value;
            if let Ok((other, credit)) = Frame::decode(&bytes) {
                prop_assert_eq!(other.encode(&credit), bytes);
            }
        }
    }

    #[test]
    fn less_than_a_header_is_refused() {
        let bytes = Frame::Credit.encode(&Credit::default());
        assert_eq!(Frame::decode(&bytes[..63]), Err(BadFrame::Short(63)));
    }
}
