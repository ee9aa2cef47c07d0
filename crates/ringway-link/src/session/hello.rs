//! The messages of a handshake, as bytes.
//!
//! Each begins with a prefix of 16 bytes that no version changes, so that any two versions can at least tell each
//! other apart. All numbers are little-endian.
//!
//! | bytes | prefix |
//! |---|---|
//! | 0..8 | magic, no text and no TLS |
//! | 8..10 | protocol version |
//! | 10 | kind of message |
//! | 11 | authentication: 0 is none, the only one so far |
//! | 12..14 | bytes that follow the prefix, at most [`MAX_BODY`] |
//! | 14..16 | zeros |
//!
//! | bytes | body of a hello and of a welcome |
//! |---|---|
//! | 0..16 | job |
//! | 16..20 | ranks in the world |
//! | 20..24 | rank of the sender |
//! | 24..28 | rank of the receiver |
//! | 28..30 | stream index |
//! | 30 | purpose |
//! | 31 | zero |
//! | 32..40 | nonce of the sender's process |
//! | 40..48 | nonce of the process that the sender wants, 0 for any |
//!
//! A refusal's body is a reason (one byte) and text in UTF-8. A commit has none.

use super::{
    JobId, Purpose,
    codec::{Reader, Truncated},
};

/// The version of the protocol that this library speaks.
pub const VERSION: u16 = 1;

/// The most bytes after the prefix.
pub const MAX_BODY: usize = 240;

pub(crate) const PREFIX: usize = 16;
const MAGIC: [u8; 8] = *b"\x93RINGWAY";
const HELLO_BODY: usize = 48;

/// Who sends a hello and whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job.
    pub job: JobId,
    /// The number of ranks in the world.
    pub world: u32,
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Which of several connections for it.
    pub index: u16,
    /// The sender's process.
    pub nonce: u64,
    /// The receiver's process, or 0 for any.
    pub wanted: u64,
}

/// Why a hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It speaks another version.
    Version,
    /// It belongs to another job.
    Job,
    /// It has another number of ranks, or a rank outside of them.
    World,
    /// It looks for another rank: the address is not what it took it for.
    Rank,
    /// It looks for another process of this rank.
    Process,
    /// Another process has said that it is this rank.
    Duplicate,
}

impl Reason {
    const ALL: [Self; 6] = [
        Self::Version,
        Self::Job,
        Self::World,
        Self::Rank,
        Self::Process,
        Self::Duplicate,
    ];

    const fn code(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Job => 2,
            Self::World => 3,
            Self::Rank => 4,
            Self::Process => 5,
            Self::Duplicate => 6,
        }
    }
}

/// A message of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// From the side that connected: this one is chosen out of several.
    Commit,
    /// From the side that connects.
    Hello(Hello),
    /// The answer if not: the connection is closed.
    Refusal {
        /// Why, for the program.
        reason: Reason,
        /// Why, for people: what was expected and what was found.
        text: String,
    },
    /// The answer if all is as expected.
    Welcome(Hello),
}

/// Why bytes are no greeting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGreeting {
    /// They are of another protocol.
    #[error("expected a Ringway hello, got {0}")]
    Foreign(String),
    /// They are of another version of this one.
    #[error(
        "expected protocol version {VERSION}, got version {0}: install the same Ringway everywhere"
    )]
    Version(u16),
    /// They are broken.
    #[error("broken handshake: {0}")]
    Broken(&'static str),
}

impl From<Truncated> for NoGreeting {
    fn from(_: Truncated) -> Self {
        Self::Broken("the message ends early")
    }
}

impl Greeting {
    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(hello) => (1, hello.encode()),
            Self::Welcome(hello) => (2, hello.encode()),
            Self::Refusal { reason, text } => {
                let mut end = text.len().min(MAX_BODY - 1);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let mut body = vec![reason.code()];
                body.extend_from_slice(&text.as_bytes()[..end]);
                (3, body)
            }
            Self::Commit => (4, Vec::new()),
        };
        let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(PREFIX + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind, 0]);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// How many bytes the message has that begins with `bytes`: known as soon as the prefix is complete, and
    /// `PREFIX` until then. What cannot become a greeting any more is refused at its first wrong byte.
    ///
    /// # Errors
    /// If the bytes are of another protocol, of another version, or longer than any message.
    pub fn expected_len(bytes: &[u8]) -> Result<usize, NoGreeting> {
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            return Err(NoGreeting::Foreign(describe(bytes)));
        }
        if bytes.len() < PREFIX {
            return Ok(PREFIX);
        }
        let mut reader = Reader::new(&bytes[MAGIC.len()..]);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(NoGreeting::Version(version));
        }
        let (_kind, _authentication) = (reader.u8()?, reader.u8()?);
        let body = usize::from(reader.u16()?);
        if body > MAX_BODY {
            return Err(NoGreeting::Broken("a message longer than any"));
        }
        Ok(PREFIX + body)
    }

    /// The message that is exactly `bytes`.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoGreeting> {
        if Self::expected_len(bytes)? != bytes.len() {
            return Err(Truncated.into());
        }
        let mut reader = Reader::new(&bytes[MAGIC.len() + 2..]);
        let (kind, authentication) = (reader.u8()?, reader.u8()?);
        let (_len, zeros) = (reader.u16()?, reader.u16()?);
        if authentication != 0 {
            return Err(NoGreeting::Broken(
                "an authentication that this version does not know",
            ));
        }
        if zeros != 0 {
            return Err(NoGreeting::Broken("reserved bytes that are not zero"));
        }
        match kind {
            1 => Ok(Self::Hello(Hello::decode(reader)?)),
            2 => Ok(Self::Welcome(Hello::decode(reader)?)),
            3 => {
                let code = reader.u8()?;
                let reason = Reason::ALL.into_iter().find(|reason| reason.code() == code);
                let reason = reason.ok_or(NoGreeting::Broken("a refusal of an unknown kind"))?;
                Ok(Self::Refusal {
                    reason,
                    text: printable(reader.rest()),
                })
            }
            4 if reader.rest().is_empty() => Ok(Self::Commit),
            4 => Err(NoGreeting::Broken("a commit with a body")),
            _ => Err(NoGreeting::Broken("a message of an unknown kind")),
        }
    }
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HELLO_BODY);
        body.extend_from_slice(&self.job.0);
        body.extend_from_slice(&self.world.to_le_bytes());
        body.extend_from_slice(&self.from.to_le_bytes());
        body.extend_from_slice(&self.to.to_le_bytes());
        body.extend_from_slice(&self.index.to_le_bytes());
        body.extend_from_slice(&[self.purpose.code(), 0]);
        body.extend_from_slice(&self.nonce.to_le_bytes());
        body.extend_from_slice(&self.wanted.to_le_bytes());
        body
    }

    fn decode(mut body: Reader<'_>) -> Result<Self, NoGreeting> {
        let job = JobId(body.array()?);
        let (world, from, to) = (body.u32()?, body.u32()?, body.u32()?);
        let index = body.u16()?;
        let purpose = Purpose::from_code(body.u8()?)
            .ok_or(NoGreeting::Broken("a connection for an unknown purpose"))?;
        if body.u8()? != 0 {
            return Err(NoGreeting::Broken("reserved bytes that are not zero"));
        }
        let (nonce, wanted) = (body.u64()?, body.u64()?);
        if !body.rest().is_empty() {
            return Err(NoGreeting::Broken(
                "a hello with more bytes than this version knows",
            ));
        }
        Ok(Self {
            job,
            world,
            from,
            to,
            purpose,
            index,
            nonce,
            wanted,
        })
    }
}

/// Names what usually knocks at open ports, for the log.
fn describe(bytes: &[u8]) -> String {
    const HTTP: [&[u8]; 7] = [
        b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PRI ",
    ];
    let start = &bytes[..bytes.len().min(8)];
    let what = if HTTP.iter().any(|verb| start.starts_with(verb)) {
        "an HTTP request"
    } else if start.starts_with(&[0x16, 0x03]) {
        "a TLS hello"
    } else if start.starts_with(b"SSH-") {
        "an SSH client"
    } else {
        "other bytes"
    };
    format!("{what} (\"{}\")", start.escape_ascii())
}

/// Foreign text, fit to be logged.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            job: JobId(*b"0123456789abcdef"),
            world: 8,
            from: 3,
            to: 5,
            purpose: Purpose::Data,
            index: 2,
            nonce: 77,
            wanted: 88,
        }
    }

    #[test]
    fn every_message_survives_the_wire() {
        let refusal = |text: String| Greeting::Refusal {
            reason: Reason::World,
            text,
        };
        for greeting in [
            Greeting::Hello(hello()),
            Greeting::Welcome(hello()),
            Greeting::Commit,
            refusal("world of 4 ranks expected, 8 found".into()),
        ] {
            let bytes = greeting.encode();
            assert_eq!(
                Greeting::expected_len(&bytes[..PREFIX]).unwrap(),
                bytes.len()
            );
            assert_eq!(Greeting::decode(&bytes).unwrap(), greeting);
        }
        let long = refusal("ä".repeat(300)).encode();
        assert!(long.len() <= PREFIX + MAX_BODY);
        assert!(matches!(
            Greeting::decode(&long).unwrap(),
            Greeting::Refusal { .. }
        ));
    }

    #[test]
    fn strangers_are_known_by_their_first_bytes() {
        for (bytes, name) in [
            (&b"GET / HTTP/1.1"[..], "HTTP"),
            (b"\x16\x03\x01\x02\x00", "TLS"),
            (b"SSH-2.0-x", "SSH"),
            (b"\x93RINGWAX", "other"),
            (b"x", "other"),
        ] {
            let error = Greeting::expected_len(bytes).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(Greeting::expected_len(b"\x93RI").unwrap(), PREFIX);
    }

    #[test]
    fn other_versions_and_authentications_are_named() {
        let mut bytes = Greeting::Hello(hello()).encode();
        bytes[11] = 1;
        assert!(matches!(
            Greeting::decode(&bytes),
            Err(NoGreeting::Broken(_))
        ));
        bytes[8] = 9;
        assert_eq!(Greeting::decode(&bytes), Err(NoGreeting::Version(9)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Greeting::decode(&bytes);
        }

        #[test]
        fn damaged_greetings_do_not_panic_and_what_decodes_encodes(
            at in 0_usize..64, value in any::<u8>(), kind in 0_usize..2,
        ) {
            let mut bytes =
                [Greeting::Hello(hello()), Greeting::Welcome(hello())][kind].encode();
            bytes[at] = value;
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(greeting.encode(), bytes);
            }
        }
    }
}
