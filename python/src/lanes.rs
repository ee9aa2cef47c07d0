//! Gradient codecs: lanes on which buckets are added up in a codec's form.

use pyo3::{prelude::*, types::PyBytes};
use ringway::{
    ReduceOp, SumOptions,
    codec::{Codec, Feedback, Kind, Options, Tensor, Tensors},
};

use crate::{
    call::parse,
    communicator::Communicator,
    error::{Class, raise},
    guard::Guarded,
    tensor::{Range, limit, memory},
    work::{InFlight, Keep, Work},
};

/// While one bucket is encoded, another is on the wire.
const LANES: usize = 2;

/// In place of a codec's name.
const ADAPTIVE: &str = "adaptive";

/// Where compressed averages run, all with one kind of codec, or each with one that it chooses.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct Lanes {
    inner: Guarded<ringway::Lanes>,
    /// None: each bucket chooses for itself.
    kind: Option<Kind>,
    options: Options,
}

#[pymethods]
impl Lanes {
    #[new]
    fn new(
        py: Python<'_>,
        communicator: &Communicator,
        codec: &str,
        feedback: bool,
        seed: u64,
    ) -> PyResult<Self> {
        let kind = (codec != ADAPTIVE).then(|| parse(codec)).transpose()?;
        let feedback = if feedback {
            Feedback::Residual
        } else {
            Feedback::Nothing
        };
        let engine = communicator.engine()?;
        let lanes = py.detach(|| engine.lanes(LANES)).map_err(|e| raise(&e))?;
        Ok(Self {
            inner: Guarded::new(lanes),
            kind,
            options: Options { feedback, seed },
        })
    }

    /// A bucket of tensors, of which name and shape are given.
    fn bucket(&self, tensors: Vec<(String, Vec<usize>)>) -> PyResult<Bucket> {
        self.inner.check()?;
        let tensors = tensors
            .into_iter()
            .map(|(name, shape)| Tensor::new(name, shape));
        let tensors = Tensors::new(tensors.collect());
        let bucket = match self.kind {
            Some(kind) => self.inner.bucket(Codec::new(kind, self.options, tensors)),
            None => self.inner.adaptive_bucket(self.options, tensors),
        };
        Ok(Bucket(Guarded::new(bucket)))
    }
}

/// A bucket of gradients with its codec.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct Bucket(Guarded<ringway::Bucket>);

#[pymethods]
impl Bucket {
    /// Starts averaging 32-bit floats, which `keep` keeps. `absent` are tensors that have no gradient on any rank; each
    /// collective may take `timeout` seconds.
    fn submit(
        &self,
        range: Range,
        absent: Vec<usize>,
        timeout: f64,
        keep: Py<PyAny>,
    ) -> PyResult<Work> {
        self.0.check()?;
        let options = SumOptions {
            timeout: Some(limit(timeout)),
            absent,
        };
        let work = self
            .0
            .submit_with(memory(range), ReduceOp::Average, options);
        let work = InFlight::Compressed(work.map_err(|e| raise(&e))?);
        Ok(Work::of(work, Keep::Object(keep)))
    }

    /// What an adaptive bucket has decided last, as its log line says it.
    fn decision(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.check()?;
        // While ranks agree on the next one, it waits for them.
        let decision = py.detach(|| self.0.decision());
        Ok(decision.map(|decision| decision.to_string()))
    }

    /// What the codec keeps for later averages, after those that are under way.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.0.check()?;
        let state = py.detach(|| self.0.state());
        Ok(PyBytes::new(py, &state))
    }

    /// Takes up what `state` gave.
    fn restore(&self, py: Python<'_>, state: &[u8]) -> PyResult<()> {
        self.0.check()?;
        let restored = py.detach(|| self.0.restore(state));
        restored.map_err(|error| Class::Argument.error(error.to_string()))
    }
}
