//! Readiness of many descriptors at once, and two descriptors to wake a sleeper with.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, epoll},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};

/// What to be told about a descriptor. Errors and hang-ups are always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// When there is something to read, or the other side has closed.
    Read,
    /// When there is something to read or room to write.
    ReadWrite,
    /// When there is room to write.
    Write,
}

impl Interest {
    const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN.union(epoll::EventFlags::OUT),
            Self::Write => epoll::EventFlags::OUT,
        }
    }
}

/// A set of descriptors, level-triggered. The set itself is a descriptor that is readable when one of its members
/// is ready, so that sets nest.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// The most events that one [`Epoll::wait`] tells; the rest come with the next.
const EVENTS: usize = 64;

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// If the process or the system has no descriptors left (`ulimit -n`).
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds a descriptor; events of it carry `token`.
    ///
    /// # Errors
    /// If it is in the set already, or cannot be waited for.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.fd,
            fd,
            epoll::EventData::new_u64(token),
            interest.flags(),
        )?)
    }

    /// Changes what is told about a descriptor.
    ///
    /// # Errors
    /// If it is not in the set.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(
            &self.fd,
            fd,
            epoll::EventData::new_u64(token),
            interest.flags(),
        )?)
    }

    /// Takes a descriptor out of the set.
    ///
    /// # Errors
    /// If it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits until a member is ready or `timeout` has passed (`None`: for ever), and appends the tokens of ready
    /// members to `ready`. A signal ends the wait early with nothing ready.
    ///
    /// # Errors
    /// Only if the set itself is broken.
    pub fn wait(&self, ready: &mut Vec<u64>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        match epoll::wait(&self.fd, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                ready.extend(events.iter().map(|event| event.data.u64()));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A descriptor that any thread can make readable.
#[derive(Debug)]
pub struct Signal {
    fd: OwnedFd,
}

impl Signal {
    /// One that is not raised.
    ///
    /// # Errors
    /// If the process or the system has no descriptors left (`ulimit -n`).
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            fd: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Makes the descriptor readable until [`Signal::clear`].
    pub fn raise(&self) {
        // The write fails only if the counter is full, and then the descriptor is readable as it should be.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable, and says whether it had been raised.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A descriptor that becomes readable at a time.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// If the process or the system has no descriptors left (`ulimit -n`).
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            fd: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// Makes the descriptor readable once `after` has passed; `None` makes it unreadable.
    ///
    /// # Errors
    /// If `after` is too long for the kernel's clock.
    pub fn set(&self, after: Option<Duration>) -> io::Result<()> {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A time of zero would unset it.
        let value = after.map_or(zero, |after| Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().max(1).into(),
        });
        let time = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_signal_wakes_once_it_is_added_and_until_cleared() {
        let (set, signal) = (Epoll::new().unwrap(), Signal::new().unwrap());
        set.add(&signal, 7, Interest::Read).unwrap();
        let mut ready = Vec::new();
        set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        signal.raise();
        signal.raise();
        set.wait(&mut ready, None).unwrap();
        assert_eq!(ready, [7]);
        assert!(signal.clear());
        assert!(!signal.clear());
        ready.clear();
        set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn a_timer_fires_through_nested_sets() {
        let (outer, inner, timer) = (
            Epoll::new().unwrap(),
            Epoll::new().unwrap(),
            Timer::new().unwrap(),
        );
        inner.add(&timer, 1, Interest::Read).unwrap();
        outer.add(&inner, 2, Interest::Read).unwrap();
        let mut ready = Vec::new();
        timer.set(Some(Duration::from_millis(5))).unwrap();
        outer.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        outer
            .wait(&mut ready, Some(Duration::from_secs(5)))
            .unwrap();
        assert_eq!(ready, [2]);
        timer.set(None).unwrap();
        ready.clear();
        outer.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn room_to_write_is_told_only_when_asked_for() {
        let (set, signal) = (Epoll::new().unwrap(), Signal::new().unwrap());
        set.add(&signal, 3, Interest::Read).unwrap();
        set.modify(&signal, 4, Interest::ReadWrite).unwrap();
        let mut ready = Vec::new();
        set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready, [4]);
        set.remove(&signal).unwrap();
        ready.clear();
        set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
    }
}
