//! What two ranks tell each other over TCP before they use RDMA: three notes in each direction, each of a fixed length. After
//! a failure all is said again, in the next round, whose number is the slice of the notes' keys.
//!
//! | bytes | note, little-endian |
//! |---|---|
//! | 0 | version |
//! | 1 | 1: yes |
//! | 2 | queue pairs, of an offer that is a yes |
//! | 3 | length of the reason, of a no |
//! | 4..8 | longest short message in bytes |
//! | 8..10 | short messages that may wait |
//! | 10..12 | frames that may wait |
//! | 12..14 | long messages that may arrive unseen, for each data channel |
//! | 14 | 1: the sender measures, if it is the lower rank |
//! | 15 | zero |
//! | 16..20 | key of the memory that greetings are written to |
//! | 20..28 | its address |
//! | 28.. | addresses of the queue pairs; or the reason, UTF-8 |
//!
//! In a no, byte 1 is 3 if it is for ever, and in a verdict 2 if RDMA works and TCP was measured to be faster. One that is a yes has in bytes 2..4 how many of its sender's operations stay on TCP, and from byte 28 on each of them: its
//! group in 8 bytes, its number in 4. A fourth note tells later that RDMA has failed, or that its sender takes its verdict back: it is a no, with its reason, and in bytes 4.. it has the number of
//! requests that had ended on each queue pair of its sender's, modulo 2^16. Byte 1 is 4 in it if its sender leaves.

use super::MAX_CHANNELS;
use crate::{
    MessageKey,
    rdma::{Address, Key, Remote},
    session::codec::{Reader, Truncated},
};

/// The group of the notes, which no communicator has: those count from 0, and point-to-point messages have the top bit set.
pub(super) const GROUP: u64 = u64::MAX >> 1;

/// The bytes of a note before the addresses or the reason.
const HEAD: usize = 28;

/// The most operations that a verdict names.
pub(super) const MOST_OPERATIONS: usize = 80;

/// The bytes of a note: a short message of TCP's, which comes to who has not asked for it.
pub(super) const NOTE: usize = HEAD + MOST_OPERATIONS * OPERATION;

const OPERATION: usize = 12;

const _: () = assert!(HEAD + MAX_CHANNELS * Address::LEN <= NOTE);

/// The longest reason in bytes.
const REASON: usize = u8::MAX as usize;

const VERSION: u8 = 5;

/// Byte 1 of a no: neither yes nor "it does not work"; "it never will"; and "it is needed no more".
const CHOICE: u8 = 2;
const NEVER: u8 = 3;
const LEAVING: u8 = 4;

/// Which note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// This side's queue pairs, or why it has none.
    Offer = 0,
    /// They are connected to the peer's, or not.
    Connected = 1,
    /// The peer was heard on all of them, or not.
    Verdict = 2,
    /// They were used, and one has failed, or this side leaves; or it takes back its verdict, which the peer's hasn't followed.
    Broken = 3,
    /// One has failed since this side's verdict, while the peer measures.
    Fault = 4,
}

impl Stage {
    /// How many there are.
    pub(super) const COUNT: usize = 5;
}

impl Stage {
    /// The key of this note in a round.
    pub(super) const fn key(self, round: u32) -> MessageKey {
        MessageKey {
            group: GROUP,
            op: 0,
            lane: 0,
            message: self as u32,
            slice: round,
        }
    }

    pub(super) const fn of(message: u32) -> Option<Self> {
        match message {
            0 => Some(Self::Offer),
            1 => Some(Self::Connected),
            2 => Some(Self::Verdict),
            3 => Some(Self::Broken),
            4 => Some(Self::Fault),
            _ => None,
        }
    }
}

/// What a side takes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The longest short message in bytes.
    pub(super) eager_limit: u32,
    /// How many of these may wait for their receive.
    pub(super) eager: u16,
    /// How many frames may wait to be looked at.
    pub(super) frames: u16,
    /// How many long messages may have arrived on a data channel without having been looked at.
    pub(super) data: u16,
    /// Where greetings are written to, each of one full packet.
    pub(super) greetings: Remote,
    /// The lower of two ranks measures RDMA and TCP before it gives its verdict.
    pub(super) measures: bool,
    /// The queue pairs: the one for frames, then those for data.
    pub(super) addresses: Vec<Address>,
}

/// A note: yes, with terms if it is an offer; or no, and why.
pub(super) type Note = Result<Option<Terms>, String>;

pub(super) fn encode(note: &Note) -> [u8; NOTE] {
    let mut bytes = [0; NOTE];
    bytes[0] = VERSION;
    match note {
        Ok(terms) => {
            bytes[1] = 1;
            let Some(terms) = terms else {
                return bytes;
            };
            let addresses = &terms.addresses[..terms.addresses.len().min(MAX_CHANNELS)];
            bytes[2] = u8::try_from(addresses.len()).unwrap_or(0);
            bytes[4..8].copy_from_slice(&terms.eager_limit.to_le_bytes());
            bytes[8..10].copy_from_slice(&terms.eager.to_le_bytes());
            bytes[10..12].copy_from_slice(&terms.frames.to_le_bytes());
            bytes[12..14].copy_from_slice(&terms.data.to_le_bytes());
            bytes[14] = u8::from(terms.measures);
            bytes[16..20].copy_from_slice(&terms.greetings.key.0.to_le_bytes());
            bytes[20..28].copy_from_slice(&terms.greetings.address.to_le_bytes());
            for (into, address) in bytes[HEAD..].chunks_exact_mut(Address::LEN).zip(addresses) {
                into.copy_from_slice(&address.encode());
            }
        }
        Err(reason) => {
            let end = reason.floor_char_boundary(REASON);
            bytes[3] = u8::try_from(end).unwrap_or(u8::MAX);
            bytes[HEAD..HEAD + end].copy_from_slice(&reason.as_bytes()[..end]);
        }
    }
    bytes
}

/// The verdict that is a yes, with the operations, each by group and number, that stay on TCP: at most
/// [`MOST_OPERATIONS`].
pub(super) fn encode_verdict(operations: &[(u64, u32)]) -> [u8; NOTE] {
    let mut bytes = encode(&Ok(None));
    let operations = &operations[..operations.len().min(MOST_OPERATIONS)];
    bytes[2..4].copy_from_slice(&(operations.len() as u16).to_le_bytes());
    for (into, (group, number)) in bytes[HEAD..].chunks_exact_mut(OPERATION).zip(operations) {
        into[..8].copy_from_slice(&group.to_le_bytes());
        into[8..].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The operations of such a verdict.
///
/// # Errors
/// If it can't have as many.
pub(super) fn decode_operations(bytes: &[u8; NOTE]) -> Result<Vec<(u64, u32)>, String> {
    let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    if count > MOST_OPERATIONS {
        return Err(format!(
            "a verdict about {count} operations, where it has room for {MOST_OPERATIONS}"
        ));
    }
    let short = |error: Truncated| error.to_string();
    let mut reader = Reader::new(&bytes[HEAD..]);
    let operations = (0..count).map(|_| Ok((reader.u64()?, reader.u32()?)));
    operations.collect::<Result<_, _>>().map_err(short)
}

/// The verdict that TCP is faster.
pub(super) fn encode_choice(figures: &str) -> [u8; NOTE] {
    let mut bytes = encode(&Err(figures.to_owned()));
    bytes[1] = CHOICE;
    bytes
}

/// Whether a verdict that is a no says so.
pub(super) const fn is_choice(bytes: &[u8; NOTE]) -> bool {
    bytes[1] == CHOICE
}

/// A no that holds for all rounds to come.
pub(super) fn encode_never(reason: &str) -> [u8; NOTE] {
    let mut bytes = encode(&Err(reason.to_owned()));
    bytes[1] = NEVER;
    bytes
}

/// Whether a no is one.
pub(super) const fn is_never(bytes: &[u8; NOTE]) -> bool {
    bytes[1] == NEVER
}

/// The note that RDMA has failed.
pub(super) fn encode_broken(reason: &str, arrived: &[u16; MAX_CHANNELS]) -> [u8; NOTE] {
    let mut bytes = encode(&Err(reason.to_owned()));
    for (into, count) in bytes[4..HEAD].chunks_exact_mut(2).zip(arrived) {
        into.copy_from_slice(&count.to_le_bytes());
    }
    bytes
}

/// The note of a rank that leaves.
pub(super) fn encode_leaving(arrived: &[u16; MAX_CHANNELS]) -> [u8; NOTE] {
    let mut bytes = encode_broken("it has left", arrived);
    bytes[1] = LEAVING;
    bytes
}

/// Whether a note that RDMA has come to an end is of a rank that leaves.
pub(super) const fn is_leaving(bytes: &[u8; NOTE]) -> bool {
    bytes[1] == LEAVING
}

/// The counts of such a note.
pub(super) fn decode_arrived(bytes: &[u8; NOTE]) -> [u16; MAX_CHANNELS] {
    let mut arrived = [0; MAX_CHANNELS];
    for (count, from) in arrived.iter_mut().zip(bytes[4..HEAD].chunks_exact(2)) {
        *count = u16::from_le_bytes([from[0], from[1]]);
    }
    arrived
}

/// Reads a note.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(bytes: &[u8; NOTE], stage: Stage) -> Result<Note, String> {
    let mut reader = Reader::new(bytes);
    let short = |error: Truncated| error.to_string();
    let version = reader.u8().map_err(short)?;
    if version != VERSION {
        return Err(format!(
            "version {version} of a note about RDMA, where this Ringway knows {VERSION}"
        ));
    }
    let yes = reader.u8().map_err(short)?;
    let count = usize::from(reader.u8().map_err(short)?);
    let length = usize::from(reader.u8().map_err(short)?);
    if yes != 1 {
        let reason = bytes[HEAD..].get(..length).unwrap_or_default();
        return Ok(Err(String::from_utf8_lossy(reason).into_owned()));
    }
    if stage != Stage::Offer {
        return Ok(Ok(None));
    }
    let eager_limit = reader.u32().map_err(short)?;
    let [eager, frames, data] = [(); 3].map(|()| reader.u16());
    let measures = reader.u8().map_err(short)? == 1;
    reader.u8().map_err(short)?;
    let greetings = Remote {
        key: Key(reader.u32().map_err(short)?),
        address: reader.u64().map_err(short)?,
    };
    if !(2..=MAX_CHANNELS).contains(&count) {
        return Err(format!("an offer of {count} queue pairs"));
    }
    let addresses = bytes[HEAD..]
        .chunks_exact(Address::LEN)
        .take(count)
        .map(Address::parse)
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    Ok(Ok(Some(Terms {
        eager_limit,
        eager: eager.map_err(short)?,
        frames: frames.map_err(short)?,
        data: data.map_err(short)?,
        greetings,
        measures,
        addresses,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{Mtu, Psn, Qpn};

    fn terms() -> Terms {
        let address = |number| Address {
            ip: "10.0.0.7".parse().unwrap(),
            number: Qpn::new(number),
            first_psn: Psn::new(5),
            mtu: Mtu::M4096,
            traffic_class: 106,
            initiator_depth: 16,
            software: None,
        };
        Terms {
            eager_limit: 8192,
            eager: 32,
            frames: 16,
            data: 64,
            greetings: Remote {
                key: Key(9),
                address: 1 << 40,
            },
            measures: true,
            addresses: vec![address(7), address(8)],
        }
    }

    #[test]
    fn notes_survive_the_wire() {
        let offer: Note = Ok(Some(terms()));
        assert_eq!(decode(&encode(&offer), Stage::Offer), Ok(offer));
        let yes: Note = Ok(None);
        assert_eq!(decode(&encode(&yes), Stage::Verdict), Ok(yes));
        let no: Note = Err("no device".into());
        for stage in [Stage::Offer, Stage::Connected, Stage::Verdict] {
            assert_eq!(decode(&encode(&no), stage), Ok(no.clone()));
        }
    }

    #[test]
    fn the_end_of_queue_pairs_is_told_with_what_had_come() {
        let arrived = std::array::from_fn(|channel| 0xfff0 + channel as u16);
        let bytes = encode_broken("retries exceeded", &arrived);
        assert_eq!(
            decode(&bytes, Stage::Broken),
            Ok(Err("retries exceeded".into()))
        );
        assert_eq!(decode_arrived(&bytes), arrived);
        assert!(!is_leaving(&bytes));
        let bytes = encode_leaving(&arrived);
        assert_eq!(decode(&bytes, Stage::Broken), Ok(Err("it has left".into())));
        assert_eq!(decode_arrived(&bytes), arrived);
        assert!(is_leaving(&bytes));
    }

    #[test]
    fn a_verdict_names_what_stays_on_tcp() {
        let most = (0..).map(|at| (u64::MAX - u64::from(at), at));
        for count in [0, 1, MOST_OPERATIONS] {
            let operations: Vec<_> = most.clone().take(count).collect();
            let mut bytes = encode_verdict(&operations);
            assert_eq!(decode(&bytes, Stage::Verdict), Ok(Ok(None)));
            assert_eq!(decode_operations(&bytes), Ok(operations));
            bytes[2..4].copy_from_slice(&(MOST_OPERATIONS as u16 + 1).to_le_bytes());
            assert!(decode_operations(&bytes).is_err());
        }
    }

    #[test]
    fn a_choice_is_a_no_with_figures() {
        let bytes = encode_choice("TCP 8 µs");
        assert_eq!(decode(&bytes, Stage::Verdict), Ok(Err("TCP 8 µs".into())));
        assert!(is_choice(&bytes) && !is_choice(&encode(&Err("no".into()))));
    }

    #[test]
    fn a_no_says_whether_it_is_for_ever() {
        let bytes = encode_never("no device");
        assert_eq!(decode(&bytes, Stage::Offer), Ok(Err("no device".into())));
        assert!(is_never(&bytes) && !is_never(&encode(&Err("no".into()))));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let bytes = encode(&Err("ä".repeat(NOTE)));
        let Ok(Err(reason)) = decode(&bytes, Stage::Offer) else {
            panic!("no reason");
        };
        assert_eq!(reason, "ä".repeat(REASON / 2));
    }

    #[test]
    fn what_is_no_note_is_refused() {
        let mut bytes = encode(&Ok(Some(terms())));
        bytes[2] = 1;
        let refused = decode(&bytes, Stage::Offer).unwrap_err();
        assert!(refused.contains("1 queue pairs"), "{refused}");
        // An older Ringway's.
        bytes[2] = 2;
        bytes[HEAD] -= 1;
        let refused = decode(&bytes, Stage::Offer).unwrap_err();
        assert!(refused.contains("use the same on all hosts"), "{refused}");
        bytes[0] = 9;
        let refused = decode(&bytes, Stage::Offer).unwrap_err();
        assert!(refused.contains("version 9"), "{refused}");
    }
}
