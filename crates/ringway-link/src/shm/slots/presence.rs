//! Whether a peer is still there: what each rank says of itself in shared memory, and how that is
//! checked.

use std::{fs, os::fd::OwnedFd, os::unix::fs::MetadataExt};

use ringway_sys::{Memory, Shared64};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Bytes of what a rank says of itself, in a pair of cache lines of its own.
pub(super) const PRESENCE_BYTES: usize = 128;

const STATE: usize = 0;
const PID: usize = 8;
const STARTED: usize = 16;
const NAMESPACE: usize = 24;

const HERE: u64 = 1;
const LEFT: u64 = 2;
const FELL: u64 = 3;

/// What a rank says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presence(Memory);

/// Whether and how a peer's process can be watched.
#[derive(Debug)]
pub(super) enum Watch {
    /// It has ended.
    Ended,
    /// It has not said which it is.
    NotYet,
    /// Readable once it has ended.
    Process(OwnedFd),
    /// It is in another process namespace, or the system does not allow it: its death must become
    /// known otherwise.
    Unwatchable,
}

impl Presence {
    /// The first [`PRESENCE_BYTES`] of `memory`, zeros at first.
    pub(super) const fn new(memory: Memory) -> Self {
        Self(memory)
    }

    /// This process says that it is here.
    pub(super) fn enter(self) {
        let pid = rustix::process::getpid();
        // Without /proc peers cannot watch this process; they are told so by zeros.
        let (started, namespace) = start_time("self").zip(namespace()).unwrap_or_default();
        self.word(PID)
            .store(u64::from(pid.as_raw_nonzero().get().unsigned_abs()));
        self.word(STARTED).store(started);
        self.word(NAMESPACE).store(namespace);
        self.word(STATE).store(HERE);
    }

    /// This process says that it leaves in good order.
    pub(super) fn leave(self) {
        self.word(STATE).store(LEFT);
    }

    /// This process says that it is no longer there, unless it has left.
    pub(super) fn fall(self) {
        self.word(STATE).replace(HERE, FELL);
    }

    /// Whether the rank has left in good order.
    pub(super) fn has_left(self) -> bool {
        self.word(STATE).load() == LEFT
    }

    /// Whether the rank is no longer there and has not left.
    pub(super) fn has_fallen(self) -> bool {
        self.word(STATE).load() == FELL
    }

    /// Starts to watch the rank's process.
    pub(super) fn watch(self) -> Watch {
        if self.word(STATE).load() == 0 {
            return Watch::NotYet;
        }
        let pid = i32::try_from(self.word(PID).load())
            .ok()
            .and_then(Pid::from_raw);
        let (Some(pid), Some(own)) = (pid, namespace()) else {
            return Watch::Unwatchable;
        };
        if self.word(NAMESPACE).load() != own {
            return Watch::Unwatchable;
        }
        match pidfd_open(pid, PidfdFlags::empty()) {
            // Its number may have been given to another process since.
            Ok(fd) if start_time(&pid.to_string()) == Some(self.word(STARTED).load()) => {
                Watch::Process(fd)
            }
            Ok(_) | Err(Errno::SRCH) => Watch::Ended,
            Err(error) => {
                tracing::debug!(%error, "a peer's process cannot be watched");
                Watch::Unwatchable
            }
        }
    }

    fn word(self, offset: usize) -> Shared64 {
        Shared64::at(self.0, offset)
    }
}

/// When a process started, in ticks since the system did: with its number, its name for ever.
fn start_time(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field, the program's name in parentheses, may have anything in it. The start is
    // the 22nd.
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// The namespace that this process's number is of.
fn namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ringway_sys::Staging;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn zeros() -> Staging {
        let staging = Staging::new(PRESENCE_BYTES);
        staging.memory().write(&[0; PRESENCE_BYTES]);
        staging
    }

    fn has_ended(fd: &OwnedFd, wait: i64) -> bool {
        let wait = Timespec {
            tv_sec: wait,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&wait)).unwrap() == 1
    }

    #[test]
    fn this_process_is_here_until_it_leaves() {
        let memory = zeros();
        let presence = Presence::new(memory.memory());
        assert!(matches!(presence.watch(), Watch::NotYet));
        presence.enter();
        assert!(!presence.has_left());
        let Watch::Process(fd) = presence.watch() else {
            panic!("not watchable")
        };
        assert!(!has_ended(&fd, 0));
        presence.leave();
        presence.fall();
        assert!(presence.has_left() && !presence.has_fallen());
    }

    #[test]
    fn a_killed_process_is_seen_to_end() {
        let memory = zeros();
        let presence = Presence::new(memory.memory());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        presence.enter();
        presence.word(PID).store(child.id().into());
        presence
            .word(STARTED)
            .store(start_time(&child.id().to_string()).unwrap());
        let Watch::Process(fd) = presence.watch() else {
            panic!("not watchable")
        };
        assert!(!has_ended(&fd, 0));
        child.kill().unwrap();
        assert!(has_ended(&fd, 10));
        child.wait().unwrap();
        assert!(matches!(presence.watch(), Watch::Ended));
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let memory = zeros();
        let presence = Presence::new(memory.memory());
        presence.enter();
        presence.word(STARTED).store(1);
        assert!(matches!(presence.watch(), Watch::Ended));
    }
}
