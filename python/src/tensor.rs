//! What `ringway.torch` calls: memory by address, names by number, so that little of a call is Python's.

use std::{sync::Arc, time::Duration};

use pyo3::{prelude::*, types::PyDict};
use ringway::{
    Builder, Collective, Memory, Parts, Places, ReduceOp, Request,
    bootstrap::{Launch, Launcher, Rendezvous},
};

use crate::{
    blocking,
    call::packed,
    communicator::{Communicator, connect, load},
    error::{Class, raise},
    kind::Kind,
    registration::Registration,
    store::PythonStore,
    work::{Keep, Work},
};

/// Address and bytes.
pub(crate) type Range = (usize, usize);

/// Joins the world that meets at `store`, an object with the methods that [`PythonStore`] wants.
#[pyfunction]
#[pyo3(signature = (store, rank, size, job, settings=None))]
pub(crate) fn join(
    py: Python<'_>,
    store: &Bound<'_, PyAny>,
    rank: usize,
    size: usize,
    job: String,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Communicator> {
    let launch = Launch {
        launcher: Launcher::Caller,
        rank,
        size,
        local_rank: None,
        job,
        rendezvous: Rendezvous::Store(Arc::new(PythonStore::new(store)?)),
    };
    let builder = Builder::default().settings(load(settings)?).launch(launch);
    connect(py, builder).map(Communicator::world)
}

/// The group of `size` of the world's ranks that meet at `store`, of which this one becomes `rank`.
#[pyfunction]
pub(crate) fn group(
    py: Python<'_>,
    world: &Communicator,
    store: &Bound<'_, PyAny>,
    rank: usize,
    size: usize,
) -> PyResult<Communicator> {
    let store = PythonStore::new(store)?;
    let engine = world.engine()?;
    let group = py
        .detach(|| engine.group_from(&store, rank, size))
        .map_err(|e| raise(&e))?;
    Ok(world.sibling(group))
}

/// The collectives' and reductions' places by their names.
#[pyfunction]
pub(crate) fn places(py: Python<'_>) -> PyResult<(Bound<'_, PyDict>, Bound<'_, PyDict>)> {
    let (collectives, reductions) = (PyDict::new(py), PyDict::new(py));
    for (place, collective) in Collective::all(0).into_iter().enumerate() {
        collectives.set_item(collective.name(), place)?;
    }
    for (place, op) in ReduceOp::ALL.into_iter().enumerate() {
        reductions.set_item(op.name(), place)?;
    }
    Ok((collectives, reductions))
}

/// A collective: its place in [`places`], its root (0 where there is none), the elements' kind, the reduction's place.
type Operation = (usize, usize, usize, Option<usize>);

fn request(
    (place, root, kind, op): Operation,
    (input, output): (Range, Range),
    counts: Option<(Vec<usize>, Vec<usize>)>,
    places: Option<Vec<Range>>,
    timeout: f64,
) -> PyResult<Request> {
    let kind = Kind::at(kind)?;
    let unknown = |what: &str| Class::Argument.error(format!("there is no such {what}"));
    let collective = Collective::all(root)
        .get(place)
        .copied()
        .ok_or_else(|| unknown("collective"))?;
    let mut request = Request::new(collective, kind.dtype(), memory(input), memory(output));
    if let Some(op) = op {
        let op = ReduceOp::ALL
            .get(op)
            .copied()
            .ok_or_else(|| unknown("reduction"))?;
        request = request.reduce_op(kind.reduction(op)?);
    }
    if let Some((input, output)) = counts {
        let parts = Parts {
            input: packed(&input, kind),
            output: packed(&output, kind),
        };
        request = request.parts(parts);
    }
    if let Some(places) = places {
        request = request.places(Arc::new(Places::new(places.into_iter().map(memory))));
    }
    Ok(request.timeout(limit(timeout)))
}

/// The memory of a tensor.
pub(crate) fn memory((address, len): Range) -> Memory {
    if len == 0 {
        return Memory::EMPTY;
    }
    // SAFETY: `ringway.torch` alone calls the functions of this module. It passes the storage of contiguous tensors, and
    // with it a reference to them, which is kept until the operation has ended (`Keep`).
    unsafe { Memory::new(std::ptr::with_exposed_provenance_mut(address), len) }
}

/// A time limit that can be added to an instant.
pub(crate) fn limit(seconds: f64) -> Duration {
    const MOST: Duration = Duration::from_secs(1 << 30);
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(MOST)
        .min(MOST)
}

/// Runs a collective on the memory of its input and its output to its end; `places` are where both lie if not in a row.
#[pyfunction]
#[pyo3(signature = (communicator, operation, memory, counts, timeout, keep, places=None))]
pub(crate) fn run(
    communicator: &Bound<'_, Communicator>,
    operation: Operation,
    memory: (Range, Range),
    counts: Option<(Vec<usize>, Vec<usize>)>,
    timeout: f64,
    keep: &Bound<'_, PyAny>,
    places: Option<Vec<Range>>,
) -> PyResult<()> {
    let request = request(operation, memory, counts, places, timeout)?;
    let engine = communicator.get().engine()?;
    blocking::run(communicator.py(), engine, request, || keep.clone().unbind())
}

/// Starts a collective; among operations in flight, those of higher priority go first.
#[pyfunction]
#[pyo3(signature = (communicator, operation, memory, counts, timeout, keep, priority=0, places=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "each call of Python's would cost more than an argument"
)]
pub(crate) fn submit(
    communicator: &Bound<'_, Communicator>,
    operation: Operation,
    memory: (Range, Range),
    counts: Option<(Vec<usize>, Vec<usize>)>,
    timeout: f64,
    keep: Py<PyAny>,
    priority: u8,
    places: Option<Vec<Range>>,
) -> PyResult<Work> {
    let request = request(operation, memory, counts, places, timeout)?.priority(priority);
    let engine = communicator.get().engine()?;
    let work = communicator
        .py()
        .detach(|| engine.submit(request))
        .map_err(|e| raise(&e))?;
    Ok(Work::new(work, Keep::Object(keep)))
}

/// Registers the memory of tensors, which `keep` keeps.
#[pyfunction]
pub(crate) fn register(
    communicator: &Bound<'_, Communicator>,
    ranges: Vec<Range>,
    keep: Py<PyAny>,
) -> PyResult<Registration> {
    let memories: Vec<Memory> = ranges.into_iter().map(memory).collect();
    let keep = Keep::Object(keep);
    Registration::new(communicator.get(), communicator.py(), &memories, keep)
}

/// Starts sending to a peer, or receiving from it; `stream` is the peer and the tag.
#[pyfunction]
pub(crate) fn message(
    communicator: &Bound<'_, Communicator>,
    sends: bool,
    kind: usize,
    range: Range,
    peer: (usize, u32),
    timeout: f64,
    keep: Py<PyAny>,
) -> PyResult<Work> {
    let (peer, tag) = peer;
    let (dtype, memory, timeout) = (Kind::at(kind)?.dtype(), memory(range), Some(limit(timeout)));
    let engine = communicator.get().engine()?;
    let work = communicator.py().detach(|| match sends {
        true => engine.start_send(memory, dtype, peer, tag, timeout),
        false => engine.start_recv(memory, dtype, peer, tag, timeout),
    });
    Ok(Work::new(work.map_err(|e| raise(&e))?, Keep::Object(keep)))
}
