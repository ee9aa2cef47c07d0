//! What control threads say to each other, on connections whose two ends know each other.
//!
//! A frame is the length of its body (4 bytes), its kind (1), and the body.

use std::time::Duration;

use ringway_plan::Rank;

use super::{Cause, Failure, activity::Snapshot};
use crate::bootstrap::{Malformed, Reader, Writer};

/// Bytes in front of a body.
const HEADER: usize = 5;

/// Bytes of a body, at most.
const MOST: usize = 16 << 10;

/// Bytes of a text, at most: five of them fit into a body.
const MOST_TEXT: usize = 3 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// From rank 0: the job has failed, and so.
    Failed(Failure),
    /// To rank 0: I have joined the job in full.
    Joined,
    /// From rank 0: this rank has left in good order.
    Left(Rank),
    /// To rank 0: I leave.
    Leaving,
    /// From rank 0: are you there?
    Ping(u32),
    /// To rank 0: yes, and this is what I do.
    Pong {
        number: u32,
        activity: Snapshot,
        since: Duration,
    },
    /// From rank 0: all ranks are connected.
    Ready,
    /// To rank 0: this rank has failed.
    Report { rank: Rank, cause: Cause },
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer {
            bytes: vec![0; HEADER],
        };
        let kind = match self {
            Self::Failed(failure) => {
                write_failure(&mut body, failure);
                1
            }
            Self::Left(rank) => {
                body.number(*rank);
                2
            }
            Self::Leaving => 3,
            Self::Ping(number) => {
                body.u32(*number);
                4
            }
            Self::Pong {
                number,
                activity,
                since,
            } => {
                body.u32(*number);
                body.u64(activity.group);
                body.u64(activity.operation);
                body.u64(activity.step);
                write_duration(&mut body, *since);
                5
            }
            Self::Ready => 6,
            Self::Report { rank, cause } => {
                body.number(*rank);
                write_cause(&mut body, cause);
                7
            }
            Self::Joined => 8,
        };
        let mut bytes = body.bytes;
        let len = u32::try_from(bytes.len() - HEADER).unwrap_or(u32::MAX);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = kind;
        bytes
    }

    /// The message that `bytes` begin with, and its length; none if it is not all there.
    ///
    /// # Errors
    /// If no message begins so.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let mut header = Reader::new(bytes);
        let (Ok(len), Ok(kind)) = (header.number(), header.u8()) else {
            return Ok(None);
        };
        if len > MOST {
            return Err(Malformed::Wrong("a message longer than any"));
        }
        let Some(body) = bytes.get(HEADER..HEADER + len) else {
            return Ok(None);
        };
        let mut body = Reader::new(body);
        let message = match kind {
            1 => Self::Failed(read_failure(&mut body)?),
            2 => Self::Left(body.number()?),
            3 => Self::Leaving,
            4 => Self::Ping(body.u32()?),
            5 => {
                let number = body.u32()?;
                let activity = Snapshot {
                    group: body.u64()?,
                    operation: body.u64()?,
                    step: body.u64()?,
                };
                Self::Pong {
                    number,
                    activity,
                    since: read_duration(&mut body)?,
                }
            }
            6 => Self::Ready,
            7 => Self::Report {
                rank: body.number()?,
                cause: read_cause(&mut body)?,
            },
            8 => Self::Joined,
            _ => return Err(Malformed::Wrong("a message of an unknown kind")),
        };
        body.end()?;
        Ok(Some((message, HEADER + len)))
    }
}

fn write_failure(body: &mut Writer, failure: &Failure) {
    body.number(failure.rank);
    body.u32(failure.pid);
    write_duration(body, failure.since);
    body.text(&failure.host, MOST_TEXT);
    body.text(&failure.operation, MOST_TEXT);
    body.text(&failure.step, MOST_TEXT);
    write_cause(body, &failure.cause);
}

fn read_failure(body: &mut Reader<'_>) -> Result<Failure, Malformed> {
    let (rank, pid, since) = (body.number()?, body.u32()?, read_duration(body)?);
    let (host, operation, step) = (
        body.text(MOST_TEXT)?,
        body.text(MOST_TEXT)?,
        body.text(MOST_TEXT)?,
    );
    Ok(Failure {
        rank,
        host,
        pid,
        cause: read_cause(body)?,
        operation,
        step,
        since,
    })
}

fn write_cause(body: &mut Writer, cause: &Cause) {
    match cause {
        Cause::Aborted { reason } => {
            body.u8(1);
            body.text(reason, MOST_TEXT);
        }
        Cause::Crashed => body.u8(2),
        Cause::Left => body.u8(3),
        Cause::LinkLost { peer, detail } => {
            body.u8(4);
            body.number(*peer);
            body.text(detail, MOST_TEXT);
        }
        Cause::Mismatch {
            other,
            expected,
            found,
        } => {
            body.u8(5);
            body.number(*other);
            body.text(expected, MOST_TEXT);
            body.text(found, MOST_TEXT);
        }
        Cause::Misfit { peer, detail } => {
            body.u8(9);
            body.number(*peer);
            body.text(detail, MOST_TEXT);
        }
        Cause::Silent { silence, known } => {
            body.u8(6);
            write_duration(body, *silence);
            body.text(known, MOST_TEXT);
        }
        Cause::Timeout {
            limit,
            operation,
            awaited,
            set_by,
        } => {
            body.u8(7);
            write_duration(body, *limit);
            body.text(operation, MOST_TEXT);
            body.u8(awaited.is_some().into());
            body.number(awaited.unwrap_or_default());
            body.text(set_by, MOST_TEXT);
        }
        Cause::Unable { detail } => {
            body.u8(10);
            body.text(detail, MOST_TEXT);
        }
        Cause::Unconnected { limit } => {
            body.u8(8);
            write_duration(body, *limit);
        }
    }
}

fn read_cause(body: &mut Reader<'_>) -> Result<Cause, Malformed> {
    Ok(match body.u8()? {
        1 => Cause::Aborted {
            reason: body.text(MOST_TEXT)?,
        },
        2 => Cause::Crashed,
        3 => Cause::Left,
        4 => Cause::LinkLost {
            peer: body.number()?,
            detail: body.text(MOST_TEXT)?,
        },
        5 => Cause::Mismatch {
            other: body.number()?,
            expected: body.text(MOST_TEXT)?,
            found: body.text(MOST_TEXT)?,
        },
        6 => Cause::Silent {
            silence: read_duration(body)?,
            known: body.text(MOST_TEXT)?,
        },
        7 => Cause::Timeout {
            limit: read_duration(body)?,
            operation: body.text(MOST_TEXT)?,
            awaited: {
                let known = body.u8()? > 0;
                Some(body.number()?).filter(|_| known)
            },
            set_by: body.text(MOST_TEXT)?,
        },
        8 => Cause::Unconnected {
            limit: read_duration(body)?,
        },
        9 => Cause::Misfit {
            peer: body.number()?,
            detail: body.text(MOST_TEXT)?,
        },
        10 => Cause::Unable {
            detail: body.text(MOST_TEXT)?,
        },
        _ => return Err(Malformed::Wrong("a cause of an unknown kind")),
    })
}

fn write_duration(body: &mut Writer, duration: Duration) {
    body.u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn read_duration(body: &mut Reader<'_>) -> Result<Duration, Malformed> {
    body.u64().map(Duration::from_nanos)
}

/// What is to hold for all bytes: reading them does not panic, and what reads writes and reads back as the same.
#[cfg(any(test, fuzzing))]
pub(super) fn check(bytes: &[u8]) {
    if let Ok(Some((message, len))) = Message::decode(bytes) {
        assert!(len <= bytes.len());
        let again = message.encode();
        assert_eq!(Message::decode(&again), Ok(Some((message, again.len()))));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn causes() -> impl Strategy<Value = Cause> {
        let text = "[a-z ]{0,40}";
        let time = || any::<u32>().prop_map(|ms| Duration::from_millis(ms.into()));
        prop_oneof![
            text.prop_map(|reason| Cause::Aborted { reason }),
            Just(Cause::Crashed),
            Just(Cause::Left),
            (0_usize..99, text).prop_map(|(peer, detail)| Cause::LinkLost { peer, detail }),
            (0_usize..99, text).prop_map(|(peer, detail)| Cause::Misfit { peer, detail }),
            (0_usize..99, text, text).prop_map(|(other, expected, found)| Cause::Mismatch {
                other,
                expected,
                found
            }),
            (time(), text).prop_map(|(silence, known)| Cause::Silent { silence, known }),
            (time(), text, proptest::option::of(0_usize..99), text).prop_map(
                |(limit, operation, awaited, set_by)| Cause::Timeout {
                    limit,
                    operation,
                    awaited,
                    set_by,
                }
            ),
            text.prop_map(|detail| Cause::Unable { detail }),
            time().prop_map(|limit| Cause::Unconnected { limit }),
        ]
    }

    fn messages() -> impl Strategy<Value = Message> {
        let failure = (0_usize..99, causes(), "[a-z]{1,9}", any::<u32>());
        prop_oneof![
            failure.prop_map(|(rank, cause, host, pid)| Message::Failed(Failure {
                rank,
                host,
                pid,
                cause,
                operation: "all_reduce".into(),
                step: String::new(),
                since: Duration::from_secs(3),
            })),
            (0_usize..99).prop_map(Message::Left),
            Just(Message::Leaving),
            any::<u32>().prop_map(Message::Ping),
            any::<[u32; 4]>().prop_map(|[number, group, operation, step]| Message::Pong {
                number,
                activity: Snapshot {
                    group: group.into(),
                    operation: operation.into(),
                    step: step.into()
                },
                since: Duration::ZERO,
            }),
            Just(Message::Ready),
            Just(Message::Joined),
            (0_usize..99, causes()).prop_map(|(rank, cause)| Message::Report { rank, cause }),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire(message in messages(), more in proptest::collection::vec(any::<u8>(), 0..9)) {
            let mut bytes = message.encode();
            let len = bytes.len();
            for cut in 0..len {
                prop_assert_eq!(Message::decode(&bytes[..cut]), Ok(None));
            }
            bytes.extend(more);
            prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, len))));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0_u8..200, kind in 0_u8..9) {
            check(&bytes);
            let mut framed = vec![len, 0, 0, 0, kind];
            framed.extend(bytes);
            check(&framed);
        }
    }

    #[test]
    fn the_longest_failure_fits() {
        let long = "x".repeat(9999);
        let failure = Failure {
            rank: 1,
            host: long.clone(),
            pid: 1,
            cause: Cause::Mismatch {
                other: 2,
                expected: long.clone(),
                found: long.clone(),
            },
            operation: long.clone(),
            step: long,
            since: Duration::MAX,
        };
        let bytes = Message::Failed(failure).encode();
        assert!(matches!(Message::decode(&bytes), Ok(Some(_))));
    }
}
