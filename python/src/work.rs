//! Operations in flight.

use std::{
    mem::take,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use pyo3::{buffer::PyUntypedBuffer, prelude::*};
use ringway::Error;

use crate::{blocking, call::seconds, error::raise, guard::Guarded};

/// What keeps an operation's memory where it is.
#[derive(Debug, Default)]
pub(crate) enum Keep {
    #[default]
    Nothing,
    Pins(
        #[expect(dead_code, reason = "dropped when the operation has ended")] Vec<PyUntypedBuffer>,
    ),
    Object(#[expect(dead_code, reason = "dropped when the operation has ended")] Py<PyAny>),
}

/// Callbacks that are running on threads of the engine.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Waits for callbacks that are running, so that none is when the interpreter goes. Call it detached.
pub(crate) fn finish_callbacks(limit: Duration) {
    let end = Instant::now() + limit;
    while RUNNING.load(Ordering::Acquire) > 0 && Instant::now() < end {
        sleep(Duration::from_millis(1));
    }
}

/// An operation of either kind.
pub(crate) enum InFlight {
    Plain(ringway::Work),
    Compressed(ringway::CompressedWork),
}

impl InFlight {
    fn is_done(&self) -> bool {
        match self {
            Self::Plain(work) => work.is_done(),
            Self::Compressed(work) => work.is_done(),
        }
    }

    fn span(&self) -> Option<(Instant, Instant)> {
        match self {
            Self::Plain(work) => work.span(),
            Self::Compressed(work) => work.span(),
        }
    }

    pub(crate) fn wait_until(&self, stop: &dyn Fn() -> bool) -> Option<Result<(), Error>> {
        match self {
            Self::Plain(work) => work.wait_until(stop),
            Self::Compressed(work) => Some(work.wait_until(stop)?.map(drop)),
        }
    }

    fn on_end(&self, callback: impl FnOnce(Option<&Error>) + Send + 'static) {
        match self {
            Self::Plain(work) => work.on_end(|result| callback(result.as_ref().err())),
            Self::Compressed(work) => work.on_end(|result| callback(result.as_ref().err())),
        }
    }
}

/// An operation in flight.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct Work {
    inner: Guarded<InFlight>,
    keep: Mutex<Keep>,
}

impl Work {
    pub(crate) fn new(work: ringway::Work, keep: Keep) -> Self {
        Self::of(InFlight::Plain(work), keep)
    }

    pub(crate) fn of(work: InFlight, keep: Keep) -> Self {
        Self {
            inner: Guarded::new(work),
            keep: Mutex::new(keep),
        }
    }

    fn keep(&self) -> Keep {
        take(&mut *self.keep.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Work {
    /// Waits until the operation has ended; with a timeout in seconds, false if it has not ended by then.
    #[pyo3(signature = (timeout=None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.inner.check()?;
        let ended = blocking::wait(py, &self.inner, timeout.map(seconds).transpose()?);
        if !matches!(ended, Ok(false)) && self.inner.is_done() {
            drop(self.keep());
        }
        ended
    }

    /// Whether the operation has ended, well or not.
    fn is_done(&self) -> PyResult<bool> {
        self.inner.check()?;
        Ok(self.inner.is_done())
    }

    /// How many seconds ago the operation was started and ended; None while it is in flight.
    fn _ages(&self) -> PyResult<Option<(f64, f64)>> {
        self.inner.check()?;
        let age = |moment: Instant| moment.elapsed().as_secs_f64();
        Ok(self
            .inner
            .span()
            .map(|(begun, ended)| (age(begun), age(ended))))
    }

    /// Seconds of encoding, decoding and adding up, of a compressed sum that has ended; None otherwise.
    fn _coding(&self) -> PyResult<Option<f64>> {
        self.inner.check()?;
        Ok(match &*self.inner {
            InFlight::Plain(_) => None,
            InFlight::Compressed(work) => work.traffic().map(|took| took.coding.as_secs_f64()),
        })
    }

    /// Says that the program waits for a compressed sum from now on, in code that does not call `wait`.
    fn _waits_from_now(&self) -> PyResult<()> {
        self.inner.check()?;
        if let InFlight::Compressed(work) = &*self.inner {
            work.waits_from_now();
        }
        Ok(())
    }

    /// Calls `callback` with None or the exception when the operation has ended, on whichever thread ends it.
    fn _on_end(&self, callback: Py<PyAny>) -> PyResult<()> {
        self.inner.check()?;
        let keep = self.keep();
        self.inner.on_end(move |error| {
            RUNNING.fetch_add(1, Ordering::AcqRel);
            let error = error.map(raise);
            Python::try_attach(|py| {
                let outcome = error.map(|error| error.into_value(py));
                if let Err(error) = callback.call1(py, (outcome,)) {
                    error.write_unraisable(py, None);
                }
                drop((callback, keep));
            });
            RUNNING.fetch_sub(1, Ordering::AcqRel);
        });
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let keep = self.keep();
        if !matches!(keep, Keep::Nothing) && !self.inner.is_copy() && !self.inner.is_done() {
            // Nobody waits, but the operation goes on in this memory.
            self.inner.on_end(move |_| drop(keep));
        }
    }
}
