//! A job's operations as rank 0 sees them, written down while they run: what `ringway replay` simulates on other fabrics.
//!
//! The file is text, a line for each event, times in nanoseconds since the recording began:
//!
//! ```text
//! ringway record 1 ranks 8 hosts 2
//! group 0 8 world
//! call 0 52018 all_reduce 0 f32 sum 25000000 ring even 0
//! wait 0 52100 2410033
//! end 0 2410033
//! done 2500000
//! ```
//!
//! | line | |
//! |---|---|
//! | `group ID RANKS world\|part` | a group, before its first call: all ranks in order, or others |
//! | `call CALL AT COLLECTIVE ROOT DTYPE OP\|- BYTES ALGORITHM even\|pair\|uneven GROUP` | an operation begins; calls count from 0 |
//! | `wait CALL FROM TO` | the program did nothing but wait for it |
//! | `end CALL AT` | it has ended; without, it was in flight at the end |
//! | `done AT` | rank 0 left in good order |
//! | `full AT` | the file is as long as it may be, and what follows is not in it |
//!
//! What lies between waits is the program's own time. Lines reach the file within some operations or a tenth of a second after they
//! were made, so that a job that dies leaves all but the last.

mod read;

use std::{
    collections::HashSet,
    fmt,
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

pub use read::{BadRecording, Recorded, Recording, Wait};

use crate::{Descriptor, engine::lock};

/// A recording is no longer: about four million operations.
const MOST_BYTES: u64 = 256 << 20;

/// No line waits longer, if others follow.
const FLUSH: Duration = Duration::from_millis(100);

/// Writes a recording.
pub(crate) struct Recorder {
    began: Instant,
    sink: Mutex<Sink>,
}

struct Sink {
    file: BufWriter<File>,
    calls: u64,
    groups: HashSet<u64>,
    written: u64,
    flushed: Instant,
    /// Nothing more is written: it is full, done, or writing failed.
    closed: bool,
}

/// The number of a call in the recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call(u64);

impl Recorder {
    pub(crate) fn create(path: &Path, ranks: usize, hosts: usize) -> std::io::Result<Self> {
        let now = Instant::now();
        let recorder = Self {
            began: now,
            sink: Mutex::new(Sink {
                file: BufWriter::new(File::create(path)?),
                calls: 0,
                groups: HashSet::new(),
                written: 0,
                flushed: now,
                closed: false,
            }),
        };
        let heading = format_args!("ringway record 1 ranks {ranks} hosts {hosts}");
        lock(&recorder.sink).line(now, now, heading);
        Ok(recorder)
    }

    /// An operation of a group of so many ranks begins.
    pub(crate) fn call(
        &self,
        at: Instant,
        descriptor: &Descriptor,
        bytes: usize,
        (group, ranks, is_world): (u64, usize, bool),
    ) -> Call {
        let mut sink = lock(&self.sink);
        if sink.groups.insert(group) {
            let kind = if is_world { "world" } else { "part" };
            sink.line(self.began, at, format_args!("group {group} {ranks} {kind}"));
        }
        let call = sink.calls;
        sink.calls += 1;
        let Descriptor {
            collective,
            dtype,
            op,
            algorithm,
            form,
            ..
        } = descriptor;
        let line = format_args!(
            "call {call} {} {} {} {dtype} {} {bytes} {algorithm} {} {group}",
            self.nanos(at),
            collective.name(),
            collective.root().unwrap_or(0),
            op.map_or("-", |op| op.name()),
            form.name(),
        );
        sink.line(self.began, at, line);
        Call(call)
    }

    pub(crate) fn wait(&self, Call(call): Call, from: Instant, to: Instant) {
        let line = format_args!("wait {call} {} {}", self.nanos(from), self.nanos(to));
        lock(&self.sink).line(self.began, to, line);
    }

    pub(crate) fn end(&self, Call(call): Call, at: Instant) {
        let line = format_args!("end {call} {}", self.nanos(at));
        lock(&self.sink).line(self.began, at, line);
    }

    /// The job is over.
    pub(crate) fn close(&self) {
        let now = Instant::now();
        let mut sink = lock(&self.sink);
        let line = format_args!("done {}", self.nanos(now));
        sink.line(self.began, now, line);
        sink.close();
    }

    fn nanos(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.began).as_nanos()
    }
}

impl Sink {
    fn line(&mut self, began: Instant, now: Instant, line: fmt::Arguments<'_>) {
        if self.closed {
            return;
        }
        let mut text = line.to_string();
        text.push('\n');
        self.written += text.len() as u64;
        let full = self.written > MOST_BYTES;
        if full {
            let nanos = now.saturating_duration_since(began).as_nanos();
            text = format!("full {nanos}\n");
        }
        let mut result = self.file.write_all(text.as_bytes());
        if now.saturating_duration_since(self.flushed) >= FLUSH {
            self.flushed = now;
            result = result.and_then(|()| self.file.flush());
        }
        if let Err(error) = result {
            tracing::warn!(%error, "the recording ends here");
            self.closed = true;
        }
        if full {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Err(error) = self.file.flush() {
            tracing::warn!(%error, "the end of the recording is lost");
        }
        self.closed = true;
    }
}
