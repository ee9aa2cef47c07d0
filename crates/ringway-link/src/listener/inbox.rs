//! Where finished handshakes are picked up.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest, Signal};

use crate::{LinkError, Session};

/// What comes out of a handshake.
#[derive(Debug)]
pub enum Arrival {
    /// A connection to this peer could not be made.
    Failed {
        /// The peer.
        peer: Rank,
        /// Which of several connections.
        index: u16,
        /// Why.
        error: LinkError,
    },
    /// A connection.
    Session(Session),
}

/// A queue of finished handshakes. Clones share it.
#[derive(Clone, Debug)]
pub struct Inbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: Mutex<VecDeque<Arrival>>,
    /// The length of the queue, so that looking for nothing costs a load.
    len: AtomicUsize,
    signal: Signal,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let inner = Inner {
            queue: Mutex::default(),
            len: AtomicUsize::new(0),
            signal: Signal::new()?,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(crate) fn put(&self, arrival: Arrival) {
        let mut queue = self
            .inner
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue.push_back(arrival);
        self.inner.len.store(queue.len(), Ordering::Release);
        self.inner.signal.raise();
    }

    /// The next arrival, if there is one.
    pub fn take(&self) -> Option<Arrival> {
        if self.inner.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = self
            .inner
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let arrival = queue.pop_front();
        self.inner.len.store(queue.len(), Ordering::Release);
        if queue.is_empty() {
            self.inner.signal.clear();
        }
        arrival
    }

    /// Waits for the next arrival, until a deadline.
    pub fn wait(&self, deadline: Instant) -> Option<Arrival> {
        let set = Epoll::new().ok()?;
        set.add(self.fd(), 0, Interest::Read).ok()?;
        loop {
            if let Some(arrival) = self.take() {
                return Some(arrival);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            set.wait(&mut Vec::new(), Some(left)).ok()?;
        }
    }

    /// Readable while there are arrivals.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.signal.as_fd()
    }
}
