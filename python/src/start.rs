//! The same calls, asynchronous.

use pyo3::prelude::*;

use crate::{
    call::{self, Keywords, Options},
    communicator::Communicator,
    work::Work,
};

/// A communicator's calls, started and not waited for.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct Start {
    communicator: Py<Communicator>,
}

impl Start {
    pub(crate) const fn new(communicator: Py<Communicator>) -> Self {
        Self { communicator }
    }
}

#[pymethods]
impl Start {
    #[pyo3(signature = (input, output=None, *, op="sum", **options))]
    fn all_reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let options = Options::read(options)?;
        self.communicator
            .get()
            .submit(call::all_reduce(input, output, op, options))
    }

    #[pyo3(signature = (input, output, *, op="sum", counts=None, **options))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        let caller = communicator.caller();
        communicator.submit(call::reduce_scatter(
            caller, input, output, op, counts, options,
        ))
    }

    #[pyo3(signature = (input, output, *, counts=None, **options))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        communicator.submit(call::all_gather(
            communicator.caller(),
            input,
            output,
            counts,
            options,
        ))
    }

    #[pyo3(signature = (buffer, root=0, **options))]
    fn broadcast(
        &self,
        buffer: &Bound<'_, PyAny>,
        root: usize,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        communicator.submit(call::broadcast(
            communicator.caller(),
            buffer,
            root,
            options,
        ))
    }

    #[pyo3(signature = (input, output=None, *, root=0, op="sum", **options))]
    fn reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        op: &str,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        communicator.submit(call::reduce(
            communicator.caller(),
            input,
            output,
            root,
            op,
            options,
        ))
    }

    #[pyo3(signature = (input, output=None, *, root=0, counts=None, **options))]
    fn gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        let caller = communicator.caller();
        communicator.submit(call::gather(caller, input, output, root, counts, options))
    }

    #[pyo3(signature = (input, output, *, root=0, counts=None, **options))]
    fn scatter(
        &self,
        input: Option<&Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        root: usize,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        let caller = communicator.caller();
        communicator.submit(call::scatter(caller, input, output, root, counts, options))
    }

    #[pyo3(signature = (input, output, *, input_counts=None, output_counts=None, **options))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Option<Vec<usize>>,
        output_counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let (communicator, options) = (self.communicator.get(), Options::read(options)?);
        let counts = (input_counts, output_counts);
        communicator.submit(call::all_to_all(
            communicator.caller(),
            input,
            output,
            counts,
            options,
        ))
    }

    #[pyo3(signature = (**options))]
    fn barrier(&self, options: Option<Keywords<'_, '_>>) -> PyResult<Work> {
        self.communicator
            .get()
            .submit(call::barrier(Options::read(options)?))
    }

    #[pyo3(signature = (buffer, to, tag=0, **options))]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        self.communicator.get().start_send(buffer, to, tag, options)
    }

    #[pyo3(signature = (buffer, source, tag=0, **options))]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        source: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        self.communicator
            .get()
            .start_recv(buffer, source, tag, options)
    }
}
