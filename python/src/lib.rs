//! The Python module `ringway._ringway`: buffers in, the engine's calls, exceptions out.
//!
//! Data is never copied: what Python hands over is pinned by the buffer protocol (or, for PyTorch, by a reference to
//! its tensors) and its address goes to the engine. While a thread waits it is detached from the interpreter, and looks
//! for Ctrl-C now and then.

mod arena;
mod blocking;
mod call;
mod communicator;
mod error;
mod guard;
mod kind;
mod lanes;
mod operand;
mod registration;
mod start;
mod store;
mod tensor;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _ringway {
    use super::{PyModule, PyModuleMethods, PyResult};
    #[pymodule_export]
    use super::{
        arena::ArenaBuffer,
        communicator::{Communicator, init},
        guard::after_fork,
        kind::kinds,
        lanes::{Bucket, Lanes},
        registration::Registration,
        start::Start,
        tensor::{group, join, message, places, register, run, submit},
        work::Work,
    };
    use pyo3::Bound;

    #[pymodule_init]
    fn set_up(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
