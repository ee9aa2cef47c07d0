//! A store that Python has (PyTorch's), where ranks leave values for each other.

use std::time::Instant;

use pyo3::{prelude::*, types::PyBytes};
use ringway::bootstrap::{Store, StoreError};

/// An object with `set(key, value)`, `get(key, seconds) -> bytes | None` and `describe() -> str`. The interpreter is
/// attached to for these calls only.
pub(crate) struct PythonStore {
    object: Py<PyAny>,
    name: String,
}

impl PythonStore {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = object.call_method0("describe")?.extract()?;
        Ok(Self {
            object: object.clone().unbind(),
            name,
        })
    }

    fn call<R>(
        &self,
        call: &'static str,
        key: &str,
        body: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Result<R, StoreError> {
        let failed = |detail: String| StoreError::Failed {
            store: self.name.clone(),
            call,
            key: key.to_owned(),
            detail,
        };
        match Python::try_attach(|py| body(self.object.bind(py)).map_err(|e| e.to_string())) {
            Some(result) => result.map_err(failed),
            None => Err(failed("the Python interpreter is shutting down".to_owned())),
        }
    }
}

impl Store for PythonStore {
    fn set(&self, key: &str, value: &[u8], _: Instant) -> Result<(), StoreError> {
        self.call("set", key, |store| {
            store
                .call_method1("set", (key, PyBytes::new(store.py(), value)))
                .map(drop)
        })
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        let seconds = deadline.saturating_duration_since(began).as_secs_f64();
        let found: Option<Vec<u8>> = self.call("get", key, |store| {
            let value = store.call_method1("get", (key, seconds))?;
            match value.is_none() {
                true => Ok(None),
                false => Ok(Some(value.cast::<PyBytes>()?.as_bytes().to_owned())),
            }
        })?;
        found.ok_or_else(|| StoreError::Absent {
            key: key.to_owned(),
            waited: began.elapsed(),
        })
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
