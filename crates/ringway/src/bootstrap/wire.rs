//! The rendezvous protocol: what ranks say to rank 0 on the master port, and what it answers.
//!
//! One connection carries one request and one answer. Each is a frame: a header of 16 bytes (magic, version, kind,
//! length of the body), then the body. What is no frame is known by its first wrong byte.

use std::time::Duration;

use ringway_link::PeerAddress;
use ringway_plan::Rank;

use super::{
    HostId, Member,
    codec::{Malformed, Reader, Writer},
    detect::MOST_RANKS,
};

/// First bytes of every frame; not text, so that no text protocol begins alike.
const MAGIC: [u8; 4] = [0x92, b'R', b'W', b'Y'];

/// Of the protocol, not of the software. Ranks of different versions do not meet.
pub(super) const VERSION: u16 = 2;

/// Of the software, for people.
pub(super) const SOFTWARE: &str = env!("CARGO_PKG_VERSION");

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 16;

/// Bytes of a request's body, at most.
pub(super) const MOST_REQUEST: usize = MOST_VALUE + 1024;

/// Bytes of a value in the store, at most.
pub(super) const MOST_VALUE: usize = 1 << 20;

/// Bytes of a key of the store, at most.
pub(super) const MOST_KEY: usize = 512;

/// Bytes of a member's description, at most: 64 addresses and names.
pub(super) const MOST_MEMBER: usize = 4096;

/// Bytes of a job's name, at most.
pub(super) const MOST_JOB: usize = 256;

/// Bytes of a reason or note, at most.
const MOST_TEXT: usize = 2048;

/// Bytes of a host's name, at most.
const MOST_HOST: usize = 255;

/// Bytes of an encoded address, at most.
const MOST_ADDRESS: usize = 2048;

/// What a rank says about itself to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) software: String,
    pub(super) job: String,
    pub(super) size: usize,
    pub(super) member: Member,
}

/// From a rank to the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// I am here; tell me all members when they are.
    Join { join: Join, wait: Duration },
    /// Leave a value.
    Set { key: String, value: Vec<u8> },
    /// The value, when it is there.
    Get { key: String, wait: Duration },
}

/// From the rendezvous to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// No value within the wait.
    Absent,
    /// It is done.
    Done,
    /// Somebody else is that rank.
    Duplicate { first: String },
    /// These have not come within the wait.
    Missing { ranks: Vec<Rank>, note: String },
    /// No, and why.
    Refused { reason: String },
    /// The value.
    Value(Vec<u8>),
    /// All have come: who they are, by number.
    World(Vec<Member>),
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoFrame {
    #[error("the bytes are of another protocol (they begin with \"{}\")", .0.escape_ascii())]
    Foreign(Vec<u8>),
    #[error(
        "it speaks version {0} of the rendezvous protocol, this one {VERSION} (Ringway {SOFTWARE}): install the same \
         Ringway everywhere"
    )]
    Version(u16),
    #[error("the frame's body has {0} bytes, more than any")]
    TooLong(usize),
    #[error("the frame is broken: {0}")]
    Broken(#[from] Malformed),
}

/// How many bytes the frame has that begins with `bytes`: [`HEADER`] until the header is there.
///
/// # Errors
/// If no frame begins so, or its body is longer than `most`.
pub(super) fn frame_len(bytes: &[u8], most: usize) -> Result<usize, NoFrame> {
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Err(NoFrame::Foreign(bytes[..bytes.len().min(8)].to_vec()));
    }
    if bytes.len() < HEADER {
        return Ok(HEADER);
    }
    let mut header = Reader::new(&bytes[MAGIC.len()..HEADER]);
    let (version, _kind, body) = (header.u16()?, header.u16()?, header.number()?);
    if version != VERSION {
        return Err(NoFrame::Version(version));
    }
    if body > most {
        return Err(NoFrame::TooLong(body));
    }
    if header.u32()? != 0 {
        return Err(Malformed::Wrong("reserved bytes are not zero").into());
    }
    Ok(HEADER + body)
}

fn frame(kind: u16, body: &Writer) -> Vec<u8> {
    let mut frame = Writer {
        bytes: MAGIC.to_vec(),
    };
    frame.u16(VERSION);
    frame.u16(kind);
    frame.number(body.bytes.len());
    frame.u32(0);
    frame.bytes.extend_from_slice(&body.bytes);
    frame.bytes
}

/// The kind and the body of a whole frame.
fn open(frame: &[u8], most: usize) -> Result<(u16, Reader<'_>), NoFrame> {
    match frame_len(frame, most)? {
        len if len == frame.len() => {}
        len if len > frame.len() => return Err(Malformed::Early.into()),
        _ => return Err(Malformed::Late.into()),
    }
    let kind = u16::from_le_bytes([frame[6], frame[7]]);
    Ok((kind, Reader::new(&frame[HEADER..])))
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        let kind = match self {
            Self::Join { join, wait } => {
                write_wait(&mut body, *wait);
                join.write(&mut body);
                1
            }
            Self::Set { key, value } => {
                body.text(key, MOST_KEY);
                body.bytes(value);
                2
            }
            Self::Get { key, wait } => {
                write_wait(&mut body, *wait);
                body.text(key, MOST_KEY);
                3
            }
        };
        frame(kind, &body)
    }

    pub(super) fn decode(frame: &[u8]) -> Result<Self, NoFrame> {
        let (kind, mut body) = open(frame, MOST_REQUEST)?;
        let request = match kind {
            1 => {
                let wait = read_wait(&mut body)?;
                Self::Join {
                    join: Join::read(&mut body)?,
                    wait,
                }
            }
            2 => Self::Set {
                key: body.text(MOST_KEY)?,
                value: body.bytes(MOST_VALUE)?.to_vec(),
            },
            3 => {
                let wait = read_wait(&mut body)?;
                Self::Get {
                    key: body.text(MOST_KEY)?,
                    wait,
                }
            }
            _ => return Err(Malformed::Wrong("a request of an unknown kind").into()),
        };
        body.end()?;
        Ok(request)
    }
}

impl Reply {
    /// Bytes of the longest body of a reply to a rank of a world of `size`.
    pub(super) const fn most(size: usize) -> usize {
        let world = (size + 1) * (MOST_MEMBER + 4);
        if world > MOST_VALUE + 1024 {
            world
        } else {
            MOST_VALUE + 1024
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        let kind = match self {
            Self::Absent => 1,
            Self::Done => 2,
            Self::Duplicate { first } => {
                body.text(first, MOST_TEXT);
                3
            }
            Self::Missing { ranks, note } => {
                body.number(ranks.len());
                ranks.iter().for_each(|&rank| body.number(rank));
                body.text(note, MOST_TEXT);
                4
            }
            Self::Refused { reason } => {
                body.text(reason, MOST_TEXT);
                5
            }
            Self::Value(value) => {
                body.bytes(value);
                6
            }
            Self::World(members) => {
                body.number(members.len());
                members
                    .iter()
                    .for_each(|member| write_member(&mut body, member));
                7
            }
        };
        frame(kind, &body)
    }

    /// A reply to a rank of a world of `size`.
    pub(super) fn decode(frame: &[u8], size: usize) -> Result<Self, NoFrame> {
        let (kind, mut body) = open(frame, Self::most(size))?;
        let counted = |count: usize| {
            if count > size {
                Err(Malformed::Wrong("more ranks than the world has"))
            } else {
                Ok(count)
            }
        };
        let reply = match kind {
            1 => Self::Absent,
            2 => Self::Done,
            3 => Self::Duplicate {
                first: body.text(MOST_TEXT)?,
            },
            4 => {
                let count = counted(body.number()?)?;
                let ranks = (0..count)
                    .map(|_| body.number())
                    .collect::<Result<_, _>>()?;
                Self::Missing {
                    ranks,
                    note: body.text(MOST_TEXT)?,
                }
            }
            5 => Self::Refused {
                reason: body.text(MOST_TEXT)?,
            },
            6 => Self::Value(body.bytes(MOST_VALUE)?.to_vec()),
            7 => {
                let count = counted(body.number()?)?;
                let mut members = Vec::with_capacity(count);
                for rank in 0..count {
                    let member = read_member(&mut body)?;
                    if member.rank != rank {
                        return Err(Malformed::Wrong("members are not in order").into());
                    }
                    members.push(member);
                }
                Self::World(members)
            }
            _ => return Err(Malformed::Wrong("a reply of an unknown kind").into()),
        };
        body.end()?;
        Ok(reply)
    }
}

impl Join {
    fn write(&self, body: &mut Writer) {
        body.text(&self.software, MOST_HOST);
        body.text(&self.job, MOST_JOB);
        body.number(self.size);
        write_member(body, &self.member);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            software: body.text(MOST_HOST)?,
            job: body.text(MOST_JOB)?,
            size: body.number()?,
            member: read_member(body)?,
        })
    }

    /// As a value for an external store.
    pub(super) fn to_value(&self) -> Vec<u8> {
        Request::Join {
            join: self.clone(),
            wait: Duration::ZERO,
        }
        .encode()
    }

    /// From a value of an external store.
    pub(super) fn from_value(value: &[u8]) -> Result<Self, NoFrame> {
        match Request::decode(value)? {
            Request::Join { join, .. } => Ok(join),
            _ => Err(Malformed::Wrong("another message than a rank's description").into()),
        }
    }
}

fn write_wait(body: &mut Writer, wait: Duration) {
    body.u32(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
}

fn read_wait(body: &mut Reader<'_>) -> Result<Duration, Malformed> {
    Ok(Duration::from_millis(body.u32()?.into()))
}

fn write_member(body: &mut Writer, member: &Member) {
    body.number(member.rank);
    body.text(&member.host, MOST_HOST);
    body.u64(member.host_id.0);
    body.u32(member.pid);
    body.bytes(&member.address.encode());
    body.u8(member.has_nic.into());
}

fn read_member(body: &mut Reader<'_>) -> Result<Member, Malformed> {
    let rank = body.number()?;
    if rank >= MOST_RANKS {
        return Err(Malformed::Wrong("a rank beyond all that a world can have"));
    }
    let (host, host_id, pid) = (body.text(MOST_HOST)?, HostId(body.u64()?), body.u32()?);
    let address = PeerAddress::decode(body.bytes(MOST_ADDRESS)?)
        .map_err(|_| Malformed::Wrong("a rank's address is broken"))?;
    if address.rank != rank {
        return Err(Malformed::Wrong("a rank has the address of another"));
    }
    let has_nic = match body.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Malformed::Wrong("a rank neither has RDMA devices nor none")),
    };
    Ok(Member {
        rank,
        host,
        host_id,
        pid,
        address,
        has_nic,
    })
}

/// What is to hold for all bytes that anybody may send: reading them does not panic, and what reads writes and reads
/// back as the same.
#[cfg(any(test, fuzzing))]
pub(super) fn check(bytes: &[u8], size: usize) {
    let len = frame_len(bytes, MOST_REQUEST);
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(len, Ok(bytes.len()));
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(bytes, size) {
        assert_eq!(Reply::decode(&reply.encode(), size), Ok(reply));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn members() -> impl Strategy<Value = Member> {
        let addresses = vec(any::<[u8; 4]>(), 0..5);
        let names = (
            "[a-z.-]{0,20}",
            any::<u32>(),
            any::<u64>(),
            any::<u16>(),
            addresses,
            any::<bool>(),
        );
        (0..MOST_RANKS, names).prop_map(|(rank, (host, pid, id, port, addresses, has_nic))| {
            let addresses = addresses
                .into_iter()
                .map(|ip| IpAddr::from(Ipv4Addr::from(ip)));
            let address = PeerAddress::at(rank, port, addresses);
            Member {
                rank,
                host,
                host_id: HostId(id),
                pid,
                address,
                has_nic,
            }
        })
    }

    fn requests() -> impl Strategy<Value = Request> {
        let wait = (0_u32..99_999).prop_map(|ms| Duration::from_millis(ms.into()));
        prop_oneof![
            (
                "[0-9.]{0,9}",
                ".{0,9}",
                0_usize..99,
                members(),
                wait.clone()
            )
                .prop_map(|(software, job, size, member, wait)| {
                    let job = job.chars().filter(|c| !c.is_control()).collect();
                    Request::Join {
                        join: Join {
                            software,
                            job,
                            size,
                            member,
                        },
                        wait,
                    }
                }),
            ("[a-z/]{0,20}", vec(any::<u8>(), 0..50))
                .prop_map(|(key, value)| Request::Set { key, value }),
            ("[a-z/]{0,20}", wait).prop_map(|(key, wait)| Request::Get { key, wait }),
        ]
    }

    const SIZE: usize = 5;

    fn replies() -> impl Strategy<Value = Reply> {
        prop_oneof![
            Just(Reply::Absent),
            Just(Reply::Done),
            "[a-z ]{0,40}".prop_map(|first| Reply::Duplicate { first }),
            (vec(0..SIZE, 0..SIZE), "[a-z ]{0,40}")
                .prop_map(|(ranks, note)| Reply::Missing { ranks, note }),
            "[a-z ]{0,40}".prop_map(|reason| Reply::Refused { reason }),
            vec(any::<u8>(), 0..50).prop_map(Reply::Value),
            vec(members(), 0..SIZE).prop_map(|mut members| {
                for (rank, member) in members.iter_mut().enumerate() {
                    member.rank = rank;
                    member.address.rank = rank;
                }
                Reply::World(members)
            }),
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(request in requests()) {
            let bytes = request.encode();
            prop_assert_eq!(frame_len(&bytes[..HEADER], MOST_REQUEST), Ok(bytes.len()));
            for cut in 0..bytes.len() {
                prop_assert!(Request::decode(&bytes[..cut]).is_err());
            }
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
        }

        #[test]
        fn replies_survive_the_wire(reply in replies()) {
            let bytes = reply.encode();
            prop_assert_eq!(Reply::decode(&bytes, SIZE), Ok(reply));
        }

        #[test]
        fn damaged_frames_do_no_harm(
            request in requests(), reply in replies(), at in 0_usize..300, value: u8,
        ) {
            for mut bytes in [request.encode(), reply.encode()] {
                let at = at % bytes.len();
                bytes[at] = value;
                check(&bytes, SIZE);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200), kind in 0_u16..9) {
            check(&bytes, SIZE);
            check(&frame(kind, &Writer { bytes }), SIZE);
        }
    }

    #[test]
    fn strangers_are_known_by_their_first_bytes() {
        assert!(matches!(
            frame_len(b"GET / HT", 99),
            Err(NoFrame::Foreign(_))
        ));
        assert_eq!(frame_len(b"\x92RW", 99), Ok(HEADER));
        let mut bytes = Reply::Done.encode();
        bytes[4] = 9;
        assert_eq!(Reply::decode(&bytes, 1), Err(NoFrame::Version(9)));
        let long = Request::Set {
            key: String::new(),
            value: vec![0; MOST_VALUE],
        }
        .encode();
        assert!(Request::decode(&long).is_ok());
        assert!(matches!(frame_len(&long, 1000), Err(NoFrame::TooLong(_))));
        // More ranks than there are.
        let missing = Reply::Missing {
            ranks: vec![0, 1, 2],
            note: String::new(),
        }
        .encode();
        assert!(Reply::decode(&missing, 3).is_ok());
        assert!(Reply::decode(&missing, 2).is_err());
    }
}
