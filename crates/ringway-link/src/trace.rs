//! Middleware that records what happens on any transport, and writes it as a Chrome trace: open the file in
//! Perfetto or `chrome://tracing`.

use std::{
    fmt::{self, Write as _},
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ringway_plan::Rank;
use ringway_sys::Memory;

use crate::{Event, LinkError, MessageKey, RegisterError, RegisteredMemory, Sink, Transport};

/// A transport that is recorded.
pub struct Trace {
    inner: Box<dyn Transport>,
    log: Arc<Mutex<Log>>,
}

/// What a [`Trace`] has recorded so far. Stays when the transport is gone.
#[derive(Clone)]
pub struct TraceLog(Arc<Mutex<Log>>);

struct Log {
    rank: Rank,
    /// The time 0, on the machine's clock, so that traces of several ranks of a host fit together.
    began: Duration,
    start: Instant,
    records: Vec<Record>,
    capacity: usize,
    dropped: u64,
}

struct Record {
    at: Duration,
    what: What,
}

enum What {
    Begin {
        group: u64,
        op: u32,
        fingerprint: u32,
    },
    Cancel {
        group: u64,
        op: u32,
    },
    Close,
    Lost {
        peer: Rank,
        error: String,
    },
    Mismatch {
        peer: Rank,
        group: u64,
        op: u32,
    },
    Received {
        peer: Rank,
        key: MessageKey,
        view: bool,
    },
    Recv {
        peer: Rank,
        key: MessageKey,
        bytes: usize,
    },
    Refused {
        peer: Rank,
        key: MessageKey,
        error: String,
    },
    Release {
        peer: Rank,
        key: MessageKey,
    },
    Send {
        peer: Rank,
        key: MessageKey,
        bytes: usize,
        priority: u8,
    },
    Sent {
        peer: Rank,
        key: MessageKey,
    },
    Sleep,
    Wake,
}

impl Trace {
    /// Records `inner`, which is rank `rank`'s: the first `capacity` calls and events, and how many more there were.
    pub fn new(inner: Box<dyn Transport>, rank: Rank, capacity: usize) -> (Self, TraceLog) {
        let log = Arc::new(Mutex::new(Log {
            rank,
            began: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            start: Instant::now(),
            records: Vec::new(),
            capacity,
            dropped: 0,
        }));
        (
            Self {
                inner,
                log: Arc::clone(&log),
            },
            TraceLog(log),
        )
    }

    fn record(&self, what: What) {
        lock(&self.log).add(what);
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    // A log is whole after any panic: each record is added at once.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn add(&mut self, what: What) {
        if self.records.len() == self.capacity {
            self.dropped += 1;
            return;
        }
        self.records.push(Record {
            at: self.start.elapsed(),
            what,
        });
    }
}

impl TraceLog {
    /// How many calls and events are recorded.
    pub fn len(&self) -> usize {
        lock(&self.0).records.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls and events came after the log was full.
    pub fn dropped(&self) -> u64 {
        lock(&self.0).dropped
    }

    /// Writes the logs of some ranks as one Chrome trace: a process for each rank, in it a row for each peer, with
    /// sends, receives and views as spans, and operations, losses and sleep beside them.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(logs: &[Self], out: &mut impl io::Write) -> io::Result<()> {
        let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        for log in logs {
            let log = lock(&log.0);
            let name = Escaped(&format!("rank {}", log.rank)).to_string();
            let rank = log.rank;
            put(
                &mut text,
                format_args!(
                    "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},\"args\":{{\"name\":\"{name}\"}}}}"
                ),
            );
            for record in &log.records {
                let time = (log.began + record.at).as_nanos();
                let time = format!("{}.{:03}", time / 1000, time % 1000);
                record.what.write(&mut text, rank, &time);
                if text.len() > 1 << 16 {
                    out.write_all(text.as_bytes())?;
                    text.clear();
                    // Marks that something stands before: see `put`.
                    text.push(' ');
                }
            }
        }
        text.push_str("]}\n");
        out.write_all(text.as_bytes())
    }
}

/// Adds an event, with a comma before it if it is not the first.
fn put(text: &mut String, event: fmt::Arguments<'_>) {
    if !text.ends_with('[') {
        text.push_str(",\n");
    }
    // Writing to a string does not fail.
    let _ = text.write_fmt(event);
}

impl What {
    fn write(&self, text: &mut String, rank: Rank, time: &str) {
        let span = |text: &mut String,
                    phase: char,
                    kind: &str,
                    peer: Rank,
                    key: &MessageKey,
                    more: &str| {
            let MessageKey {
                group,
                op,
                lane,
                message,
                slice,
            } = key;
            put(
                text,
                format_args!(
                    "{{\"ph\":\"{phase}\",\"cat\":\"{kind}\",\"name\":\"{kind} {op}.{lane}.{message}.{slice}\",\
                 \"id\":\"{kind} {peer} {group} {op} {lane} {message} {slice}\",\"pid\":{rank},\"tid\":{peer},\
                 \"ts\":{time},\"args\":{{\"peer\":{peer},\"group\":{group},\"operation\":{op},\"lane\":{lane},\
                 \"message\":{message},\"slice\":{slice}{more}}}}}"
                ),
            );
        };
        let instant = |text: &mut String, name: &str, peer: Rank, args: fmt::Arguments<'_>| {
            put(
                text,
                format_args!(
                    "{{\"ph\":\"i\",\"s\":\"p\",\"name\":\"{name}\",\"pid\":{rank},\"tid\":{peer},\"ts\":{time},\
                 \"args\":{{{args}}}}}"
                ),
            );
        };
        match self {
            Self::Begin {
                group,
                op,
                fingerprint,
            } => {
                instant(
                    text,
                    "begin",
                    rank,
                    format_args!(
                        "\"group\":{group},\"operation\":{op},\"fingerprint\":\"{fingerprint:08x}\""
                    ),
                );
            }
            Self::Cancel { group, op } => {
                instant(
                    text,
                    "end",
                    rank,
                    format_args!("\"group\":{group},\"operation\":{op}"),
                );
            }
            Self::Close => instant(text, "close", rank, format_args!("")),
            Self::Lost { peer, error } => {
                instant(
                    text,
                    "lost",
                    *peer,
                    format_args!("\"error\":\"{}\"", Escaped(error)),
                );
            }
            Self::Mismatch { peer, group, op } => {
                instant(
                    text,
                    "mismatch",
                    *peer,
                    format_args!("\"group\":{group},\"operation\":{op}"),
                );
            }
            Self::Received { peer, key, view } => {
                span(text, 'e', "receive", *peer, key, "");
                if *view {
                    span(text, 'b', "view", *peer, key, "");
                }
            }
            Self::Recv { peer, key, bytes } => {
                span(
                    text,
                    'b',
                    "receive",
                    *peer,
                    key,
                    &format!(",\"bytes\":{bytes}"),
                );
            }
            Self::Refused { peer, key, error } => {
                let args = format!(",\"error\":\"{}\"", Escaped(error));
                instant(
                    text,
                    "refused",
                    *peer,
                    format_args!("\"message\":\"{key}\"{args}"),
                );
            }
            Self::Release { peer, key } => span(text, 'e', "view", *peer, key, ""),
            Self::Send {
                peer,
                key,
                bytes,
                priority,
            } => {
                let args = format!(",\"bytes\":{bytes},\"priority\":{priority}");
                span(text, 'b', "send", *peer, key, &args);
            }
            Self::Sent { peer, key } => span(text, 'e', "send", *peer, key, ""),
            Self::Sleep | Self::Wake => {
                let phase = if matches!(self, Self::Sleep) {
                    'B'
                } else {
                    'E'
                };
                put(
                    text,
                    format_args!(
                        "{{\"ph\":\"{phase}\",\"name\":\"sleep\",\"pid\":{rank},\"tid\":{rank},\"ts\":{time}}}"
                    ),
                );
            }
        }
    }
}

/// Text inside a JSON string.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

impl Transport for Trace {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        self.record(What::Begin {
            group,
            op,
            fingerprint,
        });
        self.inner.begin(group, op, fingerprint);
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        self.record(What::Send {
            peer,
            key,
            bytes: src.len(),
            priority,
        });
        let result = self.inner.send(peer, key, src, priority);
        if let Err(error) = &result {
            self.record(What::Refused {
                peer,
                key,
                error: error.to_string(),
            });
        }
        result
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        self.record(What::Recv {
            peer,
            key,
            bytes: sink.len(),
        });
        let result = self.inner.recv(peer, key, sink);
        if let Err(error) = &result {
            self.record(What::Refused {
                peer,
                key,
                error: error.to_string(),
            });
        }
        result
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        self.record(What::Release { peer, key });
        self.inner.release(peer, key);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        let moved = self.inner.poll(now, events);
        if events.len() > before {
            let mut log = lock(&self.log);
            for event in &events[before..] {
                log.add(match *event {
                    Event::Sent { peer, key } => What::Sent { peer, key },
                    Event::Received { peer, key, view } => What::Received {
                        peer,
                        key,
                        view: !view.is_empty(),
                    },
                    Event::Mismatch {
                        peer, group, op, ..
                    } => What::Mismatch { peer, group, op },
                    Event::Lost { peer, ref error } => What::Lost {
                        peer,
                        error: error.to_string(),
                    },
                });
            }
        }
        moved
    }

    fn arm(&mut self) -> bool {
        let armed = self.inner.arm();
        if armed {
            self.record(What::Sleep);
        }
        armed
    }

    fn disarm(&mut self) {
        self.inner.disarm();
        let mut log = lock(&self.log);
        // `disarm` also follows an `arm` that returned false, when nobody slept.
        if log.asleep() {
            log.add(What::Wake);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        self.record(What::Cancel { group, op });
        self.inner.cancel(group, op);
    }

    fn slice_bytes(&self) -> usize {
        self.inner.slice_bytes()
    }

    fn memory_in_use(&self) -> usize {
        self.inner.memory_in_use()
    }

    fn register(&mut self, memory: Memory) -> Result<(), RegisterError> {
        self.inner.register(memory)
    }

    fn deregister(&mut self, memory: Memory) {
        self.inner.deregister(memory);
    }

    fn registered(&self) -> RegisteredMemory {
        self.inner.registered()
    }

    fn close(&mut self, timeout: Duration) {
        self.record(What::Close);
        self.inner.close(timeout);
    }
}

impl Log {
    fn asleep(&self) -> bool {
        matches!(
            self.records.last(),
            Some(Record {
                what: What::Sleep,
                ..
            })
        )
    }
}
