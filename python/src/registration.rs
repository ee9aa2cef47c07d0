//! Memory that is registered with an RDMA device, for as long as an object lives or says so.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use ringway::Memory;

use crate::{communicator::Communicator, error::raise, guard::Guarded, work::Keep};

/// Keeps memory registered, and where it is.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct Registration {
    held: Mutex<Option<Guarded<Held>>>,
    bytes: usize,
}

struct Held {
    /// Before what keeps the memory: they end first.
    _registrations: Vec<ringway::Registration>,
    _keep: Keep,
}

impl Registration {
    /// Registers all of these, which `keep` keeps where they are; or none, with an error.
    pub(crate) fn new(
        communicator: &Communicator,
        py: Python<'_>,
        memories: &[Memory],
        keep: Keep,
    ) -> PyResult<Self> {
        let engine = communicator.engine()?;
        let register = || -> Result<Vec<_>, ringway::Error> {
            let one = |memory: &Memory| engine.register_memory(*memory);
            memories.iter().map(one).collect()
        };
        let held = Held {
            _registrations: py.detach(register).map_err(|e| raise(&e))?,
            _keep: keep,
        };
        Ok(Self {
            held: Mutex::new(Some(Guarded::new(held))),
            bytes: memories.iter().map(|memory| memory.len()).sum(),
        })
    }
}

#[pymethods]
impl Registration {
    /// The bytes that are kept registered; 0 after the release.
    #[getter]
    fn bytes(&self) -> usize {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() { self.bytes } else { 0 }
    }

    fn release(&self) {
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(held);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        format!("Registration({} bytes)", self.bytes())
    }
}
