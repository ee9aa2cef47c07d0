//! The engine's errors as Python exceptions; `ringway/errors.py` defines them.

use pyo3::{prelude::*, sync::PyOnceLock, types::PyType};
use ringway::{
    Error,
    control::{Cause, ControlError, Failure},
};

/// An exception of `ringway.errors`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    Argument,
    Bootstrap,
    Failed,
    Other,
    Settings,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Self::Argument => "ArgumentError",
            Self::Bootstrap => "BootstrapError",
            Self::Failed => "FailedError",
            Self::Other => "Error",
            Self::Settings => "SettingsError",
        }
    }

    fn get(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 5] = [const { PyOnceLock::new() }; 5];
        CLASSES[self as usize]
            .import(py, "ringway.errors", self.name())
            .cloned()
    }

    /// An exception of this class.
    pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(|py| match self.get(py) {
            Ok(class) => PyErr::from_type(class, message),
            Err(error) => error,
        })
    }
}

/// The exception for an engine's error.
pub(crate) fn raise(error: &Error) -> PyErr {
    let failure = match error {
        Error::Failed { failure, .. } => Some(&**failure),
        Error::Control(control) => match &**control {
            ControlError::Failed(failure) => Some(&**failure),
            _ => None,
        },
        _ => None,
    };
    let class = match error {
        Error::Argument(_) => Class::Argument,
        Error::Failed { .. } => Class::Failed,
        Error::Bootstrap(_) | Error::Control(_) | Error::Store(_) => Class::Bootstrap,
        Error::Settings(_) => Class::Settings,
        _ => Class::Other,
    };
    let raised = class.error(error.to_string());
    let Some(failure) = failure else {
        return raised;
    };
    Python::attach(|py| match describe(raised.value(py), failure) {
        Ok(()) => raised,
        Err(error) => error,
    })
}

fn describe(raised: &Bound<'_, PyAny>, failure: &Failure) -> PyResult<()> {
    let cause = match failure.cause {
        Cause::Aborted { .. } => "aborted",
        Cause::Crashed => "crashed",
        Cause::Left => "left",
        Cause::LinkLost { .. } => "link_lost",
        Cause::Misfit { .. } => "misfit",
        Cause::Mismatch { .. } => "mismatch",
        Cause::Silent { .. } => "silent",
        Cause::Timeout { .. } => "timeout",
        Cause::Unable { .. } => "unable",
        _ => "other",
    };
    raised.setattr("rank", failure.rank)?;
    raised.setattr("host", &failure.host)?;
    raised.setattr("pid", failure.pid)?;
    raised.setattr("cause", cause)
}
