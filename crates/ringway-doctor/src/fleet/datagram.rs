//! The datagrams by which the wire between two hosts is measured: a head of numbers, and as many bytes behind it as they are
//! to be long; and what the end that answers counts of them. No IO, no clock.

use std::collections::VecDeque;

/// `RWD`, and the format.
const MAGIC: [u8; 4] = *b"RWD\x01";

/// The length of the head, in bytes.
pub const HEAD: usize = 56;

/// Trains that are counted at a time, the last ones.
const TRAINS: usize = 64;

/// What is asked, or answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// An answer, not a question.
    pub answer: bool,
    /// It is one of a numbered train, and is counted.
    pub counted: bool,
    /// The type of service that the answer is to be marked with; in an answer, that with which the question came.
    pub tos: u8,
    /// The length that the answer is to have, in bytes of payload.
    pub length: u16,
    /// Who is asked: a number that only the right host knows.
    pub token: u64,
    /// Which train it belongs to.
    pub train: u64,
    /// Its number in it.
    pub number: u64,
    /// How many of the train have come.
    pub arrived: u64,
    /// How many of them came after a later one.
    pub reordered: u64,
    /// The time of day where it was sent, in nanoseconds since 1970.
    pub time: u64,
}

impl Message {
    /// As bytes, `length` of them at least.
    pub fn encode(&self, length: usize) -> Vec<u8> {
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
    pub fn decode(bytes: &[u8]) -> Option<Self> {
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

/// What has come of the last trains.
#[derive(Debug)]
pub struct Trains {
    /// The number that questions for this host have.
    token: u64,
    last: VecDeque<Train>,
}

#[derive(Debug, Default)]
struct Train {
    name: u64,
    arrived: u64,
    reordered: u64,
    /// One more than the highest number that has come.
    next: u64,
}

impl Trains {
    /// Of the host that `token` is the number of.
    pub const fn new(token: u64) -> Self {
        Self {
            token,
            last: VecDeque::new(),
        }
    }

    /// Counts a datagram that came with a type of service at a time of day, in nanoseconds since 1970. Returns the question and
    /// the answer to it; none if it is no question for this host.
    pub fn answer(&mut self, bytes: &[u8], tos: u8, time: u64) -> Option<(Message, Message)> {
        let asked = Message::decode(bytes).filter(|it| it.token == self.token && !it.answer)?;
        let train = self.train(asked.train)?;
        if asked.counted {
            train.arrived += 1;
            train.reordered += u64::from(asked.number < train.next);
            train.next = train.next.max(asked.number.saturating_add(1));
        }
        let answer = Message {
            answer: true,
            tos,
            arrived: train.arrived,
            reordered: train.reordered,
            time,
            ..asked
        };
        Some((asked, answer))
    }

    /// The train of that name, a new one if it is none of the last.
    fn train(&mut self, name: u64) -> Option<&mut Train> {
        if self.last.iter().all(|train| train.name != name) {
            self.last.truncate(TRAINS - 1);
            self.last.push_front(Train {
                name,
                ..Train::default()
            });
        }
        self.last.iter_mut().find(|train| train.name == name)
    }
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

    #[test]
    fn trains_are_counted_each_by_itself_and_strangers_are_not_answered() {
        let mut trains = Trains::new(7);
        let mut ask = |token, train, number| {
            let asked = Message {
                counted: true,
                token,
                train,
                number,
                ..Message::default()
            };
            let (_, answer) = trains.answer(&asked.encode(0), 106, 5)?;
            assert_eq!((answer.tos, answer.time), (106, 5));
            // An answer is none to be answered, or two hosts would talk for ever.
            assert_eq!(trains.answer(&answer.encode(0), 0, 0), None);
            Some((answer.arrived, answer.reordered))
        };
        assert_eq!(ask(8, 1, 0), None);
        let numbers = [0, 2, 1, u64::MAX, 3];
        let counts: Vec<_> = numbers.map(|number| ask(7, 1, number)).to_vec();
        assert_eq!(counts, [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)].map(Some));
        assert_eq!(ask(7, 2, 0), Some((1, 0)));
        // The oldest are forgotten.
        for train in 3..3 + TRAINS as u64 {
            assert_eq!(ask(7, train, 0), Some((1, 0)));
        }
        assert_eq!(ask(7, 1, 0), Some((1, 0)));
    }
}
