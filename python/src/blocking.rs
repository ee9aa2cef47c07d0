//! Waiting: detached from the interpreter, with an eye on Ctrl-C.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use pyo3::prelude::*;
use ringway::{Communicator, Error, Request};

use crate::{error::raise, work::InFlight};

/// How often a waiting thread looks for signals.
const SLICE: Duration = Duration::from_millis(50);

/// Tells a wait to stop: at a limit, or when a signal's handler has raised an exception.
struct Watch {
    limit: Option<Instant>,
    /// When to look for signals next. Not before a slice has passed: short waits never look.
    next: Cell<Option<Instant>>,
    raised: RefCell<Option<PyErr>>,
}

impl Watch {
    const fn new(limit: Option<Instant>) -> Self {
        Self {
            limit,
            next: Cell::new(None),
            raised: RefCell::new(None),
        }
    }

    fn stop(&self) -> bool {
        let now = Instant::now();
        let Some(next) = self.next.get() else {
            self.next.set(Some(now + SLICE));
            return self.limit.is_some_and(|limit| now >= limit);
        };
        if now >= next {
            self.next.set(Some(now + SLICE));
            if let Err(error) = signals() {
                *self.raised.borrow_mut() = Some(error);
                return true;
            }
        }
        self.limit.is_some_and(|limit| now >= limit)
    }
}

/// Runs the handlers of signals that have come. Python does so on its main thread only, so that others need not stop for
/// the interpreter.
fn signals() -> PyResult<()> {
    if rustix::thread::gettid() != rustix::process::getpid() {
        return Ok(());
    }
    Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))
}

/// Runs an operation to its end. If Ctrl-C ends the wait, an operation that has begun goes on, and `keep` makes what keeps its
/// memory alive until it has ended.
pub(crate) fn run<K: Send + 'static>(
    py: Python<'_>,
    communicator: &Communicator,
    request: Request,
    keep: impl FnOnce() -> K,
) -> PyResult<()> {
    let (outcome, raised) = py.detach(|| {
        let watch = Watch::new(None);
        let outcome = communicator.run_until(request, &|| watch.stop());
        (outcome, watch.raised.into_inner())
    });
    match (outcome, raised) {
        (Ok(None), _) => Ok(()),
        (Ok(Some(work)), Some(raised)) => {
            let keep = keep();
            work.on_end(move |_| drop(keep));
            Err(raised)
        }
        (Ok(Some(_)), None) => unreachable!("without a limit, only a signal stops the wait"),
        // Nothing has begun.
        (Err(Error::Stopped), Some(raised)) => Err(raised),
        (Err(error), _) => Err(raise(&error)),
    }
}

/// Waits for an operation to end, at most `timeout`; false if it has not ended then.
pub(crate) fn wait(py: Python<'_>, work: &InFlight, timeout: Option<Duration>) -> PyResult<bool> {
    let (outcome, raised) = py.detach(|| {
        let watch = Watch::new(timeout.map(|timeout| Instant::now() + timeout));
        let outcome = work.wait_until(&|| watch.stop());
        (outcome, watch.raised.into_inner())
    });
    match (outcome, raised) {
        (Some(Ok(())), _) => Ok(true),
        (Some(Err(error)), _) => Err(raise(&error)),
        (None, Some(raised)) => Err(raised),
        (None, None) => Ok(false),
    }
}
