//! What must not happen in a forked child: its copies of a communicator have no threads behind them, and their
//! connections are the parent's.

use std::{
    mem::ManuallyDrop,
    ops::Deref,
    sync::atomic::{AtomicU32, Ordering},
};

use pyo3::prelude::*;

use crate::error::Class;

/// How often this process and its ancestors have forked, as far as Python knows.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called by Python in every forked child, before anything else runs there.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A value that a forked child neither uses nor drops: dropping a communicator leaves the job, dropping arena memory
/// gives it to others. Elsewhere it is dropped detached from the interpreter, because leaving may take a while.
#[derive(Debug)]
pub(crate) struct Guarded<T: Send> {
    value: ManuallyDrop<T>,
    forks: u32,
}

impl<T: Send> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// Whether this is a copy in a forked child.
    pub(crate) fn is_copy(&self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.forks
    }

    /// An error in a forked child.
    #[inline]
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.is_copy() {
            return Err(Class::Other.error(
                "this process was forked from one that is in a Ringway job, and cannot communicate for it: only the \
                 parent can. Start processes that communicate with the 'spawn' method, and let each join with \
                 ringway.init() or init_process_group",
            ));
        }
        Ok(())
    }
}

impl<T: Send> Deref for Guarded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.is_copy() {
            return;
        }
        // SAFETY: taken once, here, and `self` is not used afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        let mut value = Some(value);
        // Without an interpreter (it has been finalised), `value` is dropped at the end.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
