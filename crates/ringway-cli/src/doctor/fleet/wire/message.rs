//! The datagrams of a probe: a head of numbers, and as many bytes behind it as they are to be long.

/// `RWDF`, and the format.
const MAGIC: [u8; 4] = *b"RWD\x01";

/// The length of the head.
pub(super) const HEAD: usize = 56;

/// Headers of IP and UDP before a datagram's payload.
pub(super) const fn headers(v4: bool) -> usize {
    if v4 { 28 } else { 48 }
}

/// What is asked, or answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// An answer, not a question.
    pub(super) answer: bool,
    /// It is one of a numbered train, and is counted.
    pub(super) counted: bool,
    /// The type of service that the answer is to be marked with; in an answer, that with which the question came.
    pub(super) tos: u8,
    /// The length that the answer is to have, in bytes of payload.
    pub(super) length: u16,
    /// Who is asked: a number that only the right host knows.
    pub(super) token: u64,
    /// Which train it belongs to.
    pub(super) train: u64,
    /// Its number in it.
    pub(super) number: u64,
    /// How many of the train have come.
    pub(super) arrived: u64,
    /// How many of them came after a later one.
    pub(super) reordered: u64,
    /// The time of day where it was sent, in nanoseconds since 1970.
    pub(super) time: u64,
}

impl Message {
    /// As bytes, `length` of them at least.
    pub(super) fn encode(&self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length.max(HEAD));
        bytes.extend(MAGIC);
        bytes.push(u8::from(self.answer) | u8::from(self.counted) << 1);
        bytes.push(self.tos);
        bytes.extend(self.length.to_be_bytes());
        for number in [
            self.token,
            self.train,
            self.number,
            self.arrived,
            self.reordered,
            self.time,
        ] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.resize(length.max(HEAD), 0);
        bytes
    }

    /// From bytes; none if they are something else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        if head[..4] != MAGIC {
            return None;
        }
        let number = |index: usize| {
            let at = 8 + 8 * index;
            head[at..at + 8]
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        Some(Self {
            answer: head[4] & 1 == 1,
            counted: head[4] & 2 == 2,
            tos: head[5],
            length: u16::from_be_bytes([head[6], head[7]]),
            token: number(0),
            train: number(1),
            number: number(2),
            arrived: number(3),
            reordered: number(4),
            time: number(5),
        })
    }
}

/// The time of day, in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let message = Message {
            answer: true,
            counted: false,
            tos: 106,
            length: 8972,
            token: u64::MAX - 1,
            train: 2,
            number: 3,
            arrived: 4,
            reordered: 5,
            time: 1 << 60,
        };
        assert_eq!(message.encode(0).len(), HEAD);
        assert_eq!(message.encode(1000).len(), 1000);
        assert_eq!(Message::decode(&message.encode(1000)), Some(message));
        assert_eq!(Message::decode(&message.encode(0)[..HEAD - 1]), None);
        assert_eq!(Message::decode(&[0; 100]), None);
    }
}
