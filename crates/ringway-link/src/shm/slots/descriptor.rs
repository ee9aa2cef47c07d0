//! One cache line of a ring: a message's name, and its bytes or where they lie; or a word about the
//! traffic.

use crate::MessageKey;

/// Words of a descriptor: one cache line.
pub(super) const WORDS: usize = 8;

/// Up to this many bytes travel in the descriptor itself.
pub(super) const INLINE_BYTES: usize = 24;

/// The bytes of a short message.
pub(super) type Inline = [u8; INLINE_BYTES];

const INLINE: u64 = 1;
const SLOT: u64 = 2;
const REFERENCE: u64 = 3;
const ANNOUNCE: u64 = 4;
const STARVED: u64 = 5;
const RELIEVED: u64 = 6;
const WAITS: u64 = 7;

/// What a line of a ring says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) key: MessageKey,
    /// Of the operation, as the writer sees it.
    pub(super) fingerprint: u32,
    /// Bytes of the message.
    pub(super) len: usize,
    pub(super) body: Body,
}

/// What a line is about: for messages, where their bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// The writer awaits the other side's message of this key.
    Announce,
    /// In the descriptor, the first ones.
    Inline(Inline),
    /// At `offset` of the sender's registered memory, until the ticket is given back.
    Reference { ticket: u8, offset: u64 },
    /// Ends [`Body::Starved`]. No key.
    Relieved,
    /// At the start of the slot of this number, until it is given back.
    Slot(u8),
    /// The writer has messages that it can send only once they are announced. No key.
    Starved,
    /// The writer goes to sleep, and awaits messages of this operation: what it takes it for can be compared, though
    /// neither side may ever send any.
    Waits,
}

impl Descriptor {
    /// The words, the first of them for the message at `position`: see [`stamp`].
    pub(super) fn encode(&self, position: u64) -> [u64; WORDS] {
        let (kind, ticket, [a, b, c]) = match self.body {
            Body::Inline(bytes) => (INLINE, 0, inline_words(&bytes)),
            Body::Slot(ticket) => (SLOT, ticket, [0; 3]),
            Body::Reference { ticket, offset } => (REFERENCE, ticket, [offset, 0, 0]),
            Body::Announce => (ANNOUNCE, 0, [0; 3]),
            Body::Starved => (STARVED, 0, [0; 3]),
            Body::Relieved => (RELIEVED, 0, [0; 3]),
            Body::Waits => (WAITS, 0, [0; 3]),
        };
        let MessageKey {
            group,
            op,
            lane,
            message,
            slice,
        } = self.key;
        [
            stamp(position) | kind << 24 | u64::from(ticket) << 16 | u64::from(lane),
            group,
            u64::from(op) << 32 | u64::from(self.fingerprint),
            u64::from(message) << 32 | u64::from(slice),
            self.len as u64,
            a,
            b,
            c,
        ]
    }

    /// What [`Descriptor::encode`] made, or what is wrong with the words.
    pub(super) fn decode(words: &[u64; WORDS]) -> Result<Self, String> {
        let [first, group, second, third, len, a, b, c] = *words;
        let ticket = (first >> 16) as u8;
        let body = match first >> 24 & 0xff {
            INLINE if len <= INLINE_BYTES as u64 => Body::Inline(inline_bytes([a, b, c])),
            INLINE => {
                return Err(format!(
                    "{len} bytes in a descriptor that holds {INLINE_BYTES}"
                ));
            }
            SLOT => Body::Slot(ticket),
            REFERENCE => Body::Reference { ticket, offset: a },
            ANNOUNCE => Body::Announce,
            STARVED => Body::Starved,
            RELIEVED => Body::Relieved,
            WAITS => Body::Waits,
            kind => {
                return Err(format!(
                    "a descriptor of kind {kind}, expected {INLINE} to {WAITS}"
                ));
            }
        };
        Ok(Self {
            key: MessageKey {
                group,
                op: (second >> 32) as u32,
                lane: first as u16,
                message: (third >> 32) as u32,
                slice: third as u32,
            },
            fingerprint: second as u32,
            len: len as usize,
            body,
        })
    }
}

/// The high half of a descriptor's first word: says that the line holds the message at this
/// position of the ring. It is one more than the position, so that memory of zeros holds none. Two
/// positions that share a line never share a stamp, as there are fewer than 2^32 lines.
pub(super) const fn stamp(position: u64) -> u64 {
    position.wrapping_add(1) << 32
}

fn inline_words(bytes: &Inline) -> [u64; 3] {
    let word = |i: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
        u64::from_ne_bytes(word)
    };
    [word(0), word(1), word(2)]
}

fn inline_bytes(words: [u64; 3]) -> Inline {
    let mut bytes = [0; INLINE_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// What is to hold for all words that a peer may write: reading them does not panic, and what reads writes and reads
/// back as the same.
#[cfg(any(test, fuzzing))]
pub(super) fn check(words: &[u64; WORDS]) {
    if let Ok(descriptor) = Descriptor::decode(words) {
        if let Body::Inline(_) = descriptor.body {
            assert!(descriptor.len <= INLINE_BYTES);
        }
        let again = descriptor.encode(words[0] >> 32);
        assert_eq!(Descriptor::decode(&again), Ok(descriptor));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptors() -> impl Strategy<Value = Descriptor> {
        let key =
            any::<(u64, u32, u16, u32, u32)>().prop_map(|(group, op, lane, message, slice)| {
                MessageKey {
                    group,
                    op,
                    lane,
                    message,
                    slice,
                }
            });
        let body = prop_oneof![
            any::<Inline>().prop_map(Body::Inline),
            any::<u8>().prop_map(Body::Slot),
            Just(Body::Announce),
            Just(Body::Starved),
            Just(Body::Relieved),
            Just(Body::Waits),
            any::<(u8, u64)>().prop_map(|(ticket, offset)| Body::Reference { ticket, offset }),
        ];
        (key, any::<u32>(), any::<usize>(), body).prop_map(|(key, fingerprint, len, body)| {
            let len = if let Body::Inline(_) = body {
                len % (INLINE_BYTES + 1)
            } else {
                len
            };
            Descriptor {
                key,
                fingerprint,
                len,
                body,
            }
        })
    }

    proptest! {
        #[test]
        fn round_trip(descriptor in descriptors(), position in any::<u64>()) {
            let words = descriptor.encode(position);
            prop_assert_eq!(words[0] >> 32 << 32, stamp(position));
            prop_assert_eq!(Descriptor::decode(&words), Ok(descriptor));
        }

        #[test]
        fn garbage_is_an_error_or_a_message_that_fits(words in any::<[u64; WORDS]>(), kind in 0_u64..9) {
            check(&words);
            let mut likely = words;
            likely[0] = likely[0] & !(0xff << 24) | kind << 24;
            check(&likely);
        }
    }
}
