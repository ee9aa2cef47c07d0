//! The communicator, for objects of the buffer protocol.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use pyo3::{prelude::*, types::PyDict};
use ringway::{
    Builder, Candidate, Collective, Error,
    settings::{Settings, Source},
};

use crate::{
    arena::ArenaBuffer,
    blocking,
    call::{self, Call, Caller, Keywords, Options},
    error::{Class, raise},
    guard::Guarded,
    kind::Kind,
    operand::{Access, Operand},
    registration::Registration,
    start::Start,
    work::{Keep, Work, finish_callbacks},
};

/// How long leaving waits for callbacks into Python.
const CALLBACKS: Duration = Duration::from_secs(1);

/// The ranks of a group, as one of them sees it.
#[pyclass(frozen, weakref, module = "ringway._ringway")]
pub(crate) struct Communicator {
    inner: Guarded<ringway::Communicator>,
    /// Whether the job has been left, by any of its communicators.
    left: Arc<AtomicBool>,
}

impl Communicator {
    pub(crate) fn world(communicator: ringway::Communicator) -> Self {
        Self {
            inner: Guarded::new(communicator),
            left: Arc::default(),
        }
    }

    /// Another group of the same job.
    pub(crate) fn sibling(&self, communicator: ringway::Communicator) -> Self {
        Self {
            inner: Guarded::new(communicator),
            left: self.left.clone(),
        }
    }

    /// The engine's communicator, if calls can be made.
    #[inline]
    pub(crate) fn engine(&self) -> PyResult<&ringway::Communicator> {
        self.inner.check()?;
        if self.left.load(Ordering::Relaxed) {
            return Err(
                Class::Other.error("this rank has left the job: no call can be made any more")
            );
        }
        Ok(&self.inner)
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller {
            rank: self.inner.rank(),
            size: self.inner.size(),
        }
    }

    fn run(&self, py: Python<'_>, call: PyResult<Call>) -> PyResult<()> {
        let Call { request, pins } = call?;
        blocking::run(py, self.engine()?, request, || pins)
    }
}

#[pymethods]
impl Communicator {
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.inner.size()
    }

    #[getter]
    fn members(&self) -> Vec<usize> {
        self.inner.members().to_vec()
    }

    #[getter]
    fn transport(&self) -> PyResult<String> {
        Ok(self.engine()?.transport())
    }

    fn predict_all_reduce(&self, bytes: usize) -> PyResult<f64> {
        let engine = self.engine()?;
        let algorithm = engine.algorithm(Collective::AllReduce, bytes);
        let candidates = engine.candidates(Collective::AllReduce, bytes);
        let taken = candidates.iter().find(|it| it.algorithm == algorithm);
        let time = taken
            .or_else(|| candidates.first())
            .map_or(Duration::ZERO, Candidate::total);
        Ok(time.as_secs_f64())
    }

    #[getter]
    fn start(slf: Bound<'_, Self>) -> Start {
        Start::new(slf.unbind())
    }

    #[pyo3(signature = (input, output=None, *, op="sum", **options))]
    fn all_reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        self.run(
            input.py(),
            call::all_reduce(input, output, op, Options::read(options)?),
        )
    }

    #[pyo3(signature = (input, output, *, op="sum", counts=None, **options))]
    fn reduce_scatter(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(
            input.py(),
            call::reduce_scatter(caller, input, output, op, counts, options),
        )
    }

    #[pyo3(signature = (input, output, *, counts=None, **options))]
    fn all_gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(
            input.py(),
            call::all_gather(caller, input, output, counts, options),
        )
    }

    #[pyo3(signature = (buffer, root=0, **options))]
    fn broadcast(
        &self,
        buffer: &Bound<'_, PyAny>,
        root: usize,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(buffer.py(), call::broadcast(caller, buffer, root, options))
    }

    #[pyo3(signature = (input, output=None, *, root=0, op="sum", **options))]
    fn reduce(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        op: &str,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(
            input.py(),
            call::reduce(caller, input, output, root, op, options),
        )
    }

    #[pyo3(signature = (input, output=None, *, root=0, counts=None, **options))]
    fn gather(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(
            input.py(),
            call::gather(caller, input, output, root, counts, options),
        )
    }

    #[pyo3(signature = (input, output, *, root=0, counts=None, **options))]
    fn scatter(
        &self,
        input: Option<&Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        root: usize,
        counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        self.run(
            output.py(),
            call::scatter(caller, input, output, root, counts, options),
        )
    }

    #[pyo3(signature = (input, output, *, input_counts=None, output_counts=None, **options))]
    fn all_to_all(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Option<Vec<usize>>,
        output_counts: Option<Vec<usize>>,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        let (caller, options) = (self.caller(), Options::read(options)?);
        let counts = (input_counts, output_counts);
        self.run(
            input.py(),
            call::all_to_all(caller, input, output, counts, options),
        )
    }

    #[pyo3(signature = (**options))]
    fn barrier(&self, py: Python<'_>, options: Option<Keywords<'_, '_>>) -> PyResult<()> {
        self.run(py, call::barrier(Options::read(options)?))
    }

    #[pyo3(signature = (buffer, to, tag=0, **options))]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        self.start_send(buffer, to, tag, options)?
            .wait(buffer.py(), None)
            .map(drop)
    }

    #[pyo3(signature = (buffer, source, tag=0, **options))]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        source: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<()> {
        self.start_recv(buffer, source, tag, options)?
            .wait(buffer.py(), None)
            .map(drop)
    }

    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let engine = self.engine()?;
        let group = py
            .detach(|| engine.split(color, key))
            .map_err(|e| raise(&e))?;
        Ok(group.map(|group| self.sibling(group)))
    }

    #[pyo3(signature = (count, dtype="f32"))]
    fn allocate(&self, count: usize, dtype: &str) -> PyResult<ArenaBuffer> {
        let kind = Kind::named(dtype)?;
        let bytes = count.saturating_mul(kind.size());
        let buffer = self
            .engine()?
            .allocate::<u8>(bytes)
            .map_err(|e| raise(&e))?;
        Ok(ArenaBuffer::new(buffer, kind))
    }

    fn register(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Registration> {
        // Its bytes: what the elements are doesn't matter.
        let bytes = Some(Kind::named("u8")?);
        let Operand { memory, pin, .. } = Operand::pin(buffer, "buffer", Access::Write, bytes)?;
        Registration::new(self, buffer.py(), &[memory], Keep::Pins(vec![pin]))
    }

    fn registered_memory(&self) -> PyResult<HashMap<&'static str, u64>> {
        let registered = self.engine()?.registered_memory();
        Ok(HashMap::from([
            ("bytes", registered.bytes as u64),
            ("regions", registered.regions as u64),
            ("registrations", registered.registrations),
        ]))
    }

    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.inner.check()?;
        py.detach(|| self.inner.abort(reason));
        Ok(())
    }

    fn leave(&self, py: Python<'_>) {
        if self.inner.is_copy() || self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        py.detach(|| {
            self.inner.leave();
            finish_callbacks(CALLBACKS);
        });
    }

    fn __repr__(&self) -> String {
        let Caller { rank, size } = self.caller();
        format!("Communicator(rank {rank} of {size})")
    }
}

impl Communicator {
    pub(crate) fn submit(&self, call: PyResult<Call>) -> PyResult<Work> {
        let Call { request, pins } = call?;
        let engine = self.engine()?;
        // It may have to agree with the other ranks on a plan first.
        let work = Python::attach(|py| py.detach(|| engine.submit(request)));
        let work = work.map_err(|e| raise(&e))?;
        Ok(Work::new(work, Keep::Pins(pins)))
    }

    pub(crate) fn start_send(
        &self,
        buffer: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let options = Options::read(options)?;
        let Operand { kind, memory, pin } =
            Operand::pin(buffer, "buffer", Access::Read, options.kind)?;
        let work = self
            .engine()?
            .start_send(memory, kind.dtype(), to, tag, options.timeout);
        Ok(Work::new(
            work.map_err(|e| raise(&e))?,
            Keep::Pins(vec![pin]),
        ))
    }

    pub(crate) fn start_recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        source: usize,
        tag: u32,
        options: Option<Keywords<'_, '_>>,
    ) -> PyResult<Work> {
        let options = Options::read(options)?;
        let Operand { kind, memory, pin } =
            Operand::pin(buffer, "buffer", Access::Write, options.kind)?;
        let work = self
            .engine()?
            .start_recv(memory, kind.dtype(), source, tag, options.timeout);
        Ok(Work::new(
            work.map_err(|e| raise(&e))?,
            Keep::Pins(vec![pin]),
        ))
    }
}

/// Joins the job that this process was started in. Keywords are settings, above those of the file and the environment.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn init(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Communicator> {
    let builder = Builder::default().settings(load(settings)?);
    connect(py, builder).map(Communicator::world)
}

/// The settings of file and environment, with some put above.
pub(crate) fn load(chosen: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let mut settings = Settings::load().map_err(|e| raise(&Error::from(e)))?;
    for (name, value) in chosen.into_iter().flatten() {
        let name: String = name.extract()?;
        let source = Source::Flag { name: name.clone() };
        settings
            .set(&name, &value.str()?.to_string_lossy(), source)
            .map_err(|e| raise(&Error::from(e)))?;
    }
    Ok(settings)
}

/// Joins, on another thread: this one stays free for Ctrl-C.
pub(crate) fn connect(py: Python<'_>, builder: Builder) -> PyResult<ringway::Communicator> {
    let (sender, mut receiver) = mpsc::channel();
    let join = move || {
        // Nobody to tell: the caller was interrupted, and what comes of it is dropped.
        let _ = sender.send(builder.connect());
    };
    thread::Builder::new()
        .name("ringway-join".to_owned())
        .spawn(join)?;
    loop {
        let outcome;
        (receiver, outcome) = py.detach(move || {
            let outcome = receiver.recv_timeout(Duration::from_millis(50));
            (receiver, outcome)
        });
        match outcome {
            Ok(result) => return result.map_err(|e| raise(&e)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Class::Other.error("the thread that joins the job has died"));
            }
        }
    }
}
