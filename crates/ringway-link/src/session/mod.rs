//! Sessions: connections whose two ends know each other.
//!
//! A connection begins with a handshake. The side that connects sends a hello: who it is, whom it wants,
//! what for. The other side checks it and answers with a welcome that says the same of itself, or with a refusal
//! that says why, or, to bytes of another protocol, with nothing. The connecting side may have several addresses
//! under way at once; it commits to the first that is welcomed by the right process and drops the rest, and only a
//! committed connection is handed out on either side. So an address that leads elsewhere (a bridge with the same
//! address on every host, a recycled port) never wins, whatever answers there.
//!
//! What is checked: protocol version, job, size of the world, both ranks, and the processes' nonces, so that
//! neither a second process of a rank nor a forgotten one of an earlier run gets in.

mod accept;
pub(crate) mod codec;
mod dial;
mod greeter;
mod hello;

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    net::{SocketAddr, TcpStream},
};

use ringway_plan::Rank;

pub(crate) use accept::{Accepting, Register, Verdict};
pub(crate) use dial::{Dial, Progress};
pub use hello::{Greeting, Hello, MAX_BODY, NoGreeting, Reason, VERSION};

/// Tells jobs apart that could reach each other's ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId(pub [u8; 16]);

impl JobId {
    /// The id of a job by name: all that makes it unique, such as the scheduler's id and the number of the
    /// restart. Equal on every rank, and no secret.
    pub fn from_name(name: &str) -> Self {
        // FNV-1a with 128 bits: the same on every machine and in every version, which std's hashers are not.
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        for byte in name.bytes() {
            hash =
                (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        Self(hash.to_le_bytes())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

/// Who this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job.
    pub job: JobId,
    /// The number of ranks in the world.
    pub world: usize,
    /// This process's rank.
    pub rank: Rank,
    /// This process, among all that are or were this rank; never 0.
    pub nonce: u64,
}

impl Identity {
    /// An identity with a fresh nonce.
    pub fn new(job: JobId, world: usize, rank: Rank) -> Self {
        // std seeds its hasher from the operating system's randomness.
        let nonce = RandomState::new().build_hasher().finish().max(1);
        Self {
            job,
            world,
            rank,
            nonce,
        }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Bootstrap, heartbeats, failure news.
    Control,
    /// Messages of collectives.
    Data,
}

impl Purpose {
    const fn code(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Data => 2,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            _ => None,
        }
    }
}

/// A connection whose other end is known.
#[derive(Debug)]
pub struct Session {
    /// The connection: non-blocking, without Nagle's delay.
    pub stream: TcpStream,
    /// The rank at the other end.
    pub peer: Rank,
    /// The process at the other end.
    pub nonce: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// Which of several for it.
    pub index: u16,
    /// The address of the other end.
    pub remote: SocketAddr,
}
