//! Gradients that are averaged while the backward pass still computes.

use std::{collections::BTreeSet, ops::Range};

use ringway_kernels::Element;

use crate::{AllReduce, ArenaBuffer, Communicator, Error, Pending};

/// Averages the gradients of a model over the ranks while its backward pass still runs, for training loops without PyTorch.
///
/// Parameters have numbers, in the order in which the forward pass needs them. The backward pass writes the gradient of each
/// to [`Self::gradient`] and calls [`Self::ready`]; neighbours share an all-reduce, which starts when the last of
/// them is ready. The next forward pass calls [`Self::wait`] before it uses a parameter, and so waits for that one only. What it
/// needs first has the highest priority.
///
/// ```no_run
/// # fn backward(layer: usize, gradient: &mut [f32]) {}
/// # fn update(layer: usize, gradient: &[f32]) {}
/// # fn forward(layer: usize) {}
/// let comm = ringway::init()?;
/// let layers = [1 << 16, 1 << 20, 1 << 20, 1000];
/// let mut pipeline = ringway::GradientPipeline::<f32>::new(&comm, &layers, 1 << 20)?;
/// loop {
///     for layer in (0..layers.len()).rev() {
///         backward(layer, pipeline.gradient(layer)?);
///         pipeline.ready(layer)?;
///     }
///     for layer in 0..layers.len() {
///         update(layer, pipeline.wait(layer)?);
///         forward(layer);
///     }
/// }
/// # Ok::<(), ringway::Error>(())
/// ```
///
/// All-reduces start in the same order on all ranks, from the last parameters to the first: one that is not ready keeps
/// those before it back.
#[derive(Debug)]
pub struct GradientPipeline<T: Element> {
    communicator: Communicator,
    /// By parameter: its bucket, and where in it.
    places: Vec<(usize, Range<usize>)>,
    buckets: Vec<Bucket<T>>,
    /// Buckets from here on have been started in this step.
    started: usize,
}

/// The gradients of an all-reduce.
#[derive(Debug)]
struct Bucket<T> {
    parameters: Range<usize>,
    priority: u8,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    /// Waits for the parameters in `missing`.
    Filling {
        buffer: ArenaBuffer<T>,
        missing: BTreeSet<usize>,
    },
    InFlight(Pending<ArenaBuffer<T>>),
    Averaged(ArenaBuffer<T>),
    /// Its all-reduce has failed.
    Failed,
}

impl<T: Element> GradientPipeline<T> {
    /// A pipeline for parameters of so many elements each, on a group of its own with the ranks of `communicator`, all of
    /// which call this alike. A parameter of `bucket_bytes` or more has an all-reduce to itself, others share those of about
    /// that size.
    ///
    /// # Errors
    /// As [`Communicator::split`] and [`Communicator::allocate`].
    pub fn new(
        communicator: &Communicator,
        lengths: &[usize],
        bucket_bytes: usize,
    ) -> Result<Self, Error> {
        let communicator = communicator.duplicate()?;
        let parts = partition(lengths, bucket_bytes.div_ceil(size_of::<T>()));
        let mut places = Vec::with_capacity(lengths.len());
        let mut buckets = Vec::with_capacity(parts.len());
        for (number, parameters) in parts.iter().enumerate() {
            let mut end = 0;
            for length in &lengths[parameters.clone()] {
                places.push((number, end..end + length));
                end += length;
            }
            buckets.push(Bucket {
                parameters: parameters.clone(),
                priority: priority(number, parts.len()),
                state: State::Filling {
                    buffer: communicator.allocate(end)?,
                    missing: parameters.clone().collect(),
                },
            });
        }
        Ok(Self {
            communicator,
            places,
            started: buckets.len(),
            buckets,
        })
    }

    /// Where the backward pass writes the gradient of a parameter. What is there before is of no meaning.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such parameter, or it is ready in this step already.
    pub fn gradient(&mut self, parameter: usize) -> Result<&mut [T], Error> {
        let (bucket, range) = self.place(parameter)?;
        let bucket = &mut self.buckets[bucket];
        if let State::Averaged(_) = bucket.state {
            bucket.refill();
        }
        match &mut bucket.state {
            State::Filling { buffer, missing } if missing.contains(&parameter) => {
                Ok(&mut buffer[range])
            }
            State::Failed => Err(failed(parameter)),
            _ => Err(Error::Argument(format!(
                "parameter {parameter} is ready already: expected `wait` for it before the next backward pass"
            ))),
        }
    }

    /// The gradient of a parameter is complete. Starts the all-reduces that can start by that.
    ///
    /// # Errors
    /// As [`Self::gradient`]; what the all-reduce itself comes to, [`Self::wait`] says.
    pub fn ready(&mut self, parameter: usize) -> Result<(), Error> {
        self.gradient(parameter)?;
        let (bucket, _) = self.place(parameter)?;
        if let State::Filling { missing, .. } = &mut self.buckets[bucket].state {
            missing.remove(&parameter);
        }
        while let Some(next) = self.started.checked_sub(1) {
            if !self.buckets[next].start(&self.communicator)? {
                break;
            }
            self.started = next;
        }
        if self.started == 0 {
            self.started = self.buckets.len();
        }
        Ok(())
    }

    /// The averaged gradient of a parameter, when it has come. It stays until the next call of [`Self::gradient`].
    ///
    /// # Errors
    /// [`Error::Argument`] if a parameter is not ready that this one waits for; otherwise what the all-reduce failed
    /// with.
    pub fn wait(&mut self, parameter: usize) -> Result<&[T], Error> {
        let (number, range) = self.place(parameter)?;
        if let State::Filling { .. } = self.buckets[number].state {
            return Err(self.not_started(parameter));
        }
        let bucket = &mut self.buckets[number];
        if let State::InFlight(_) = bucket.state
            && let State::InFlight(pending) = std::mem::replace(&mut bucket.state, State::Failed)
        {
            bucket.state = State::Averaged(pending.wait()?);
        }
        match &bucket.state {
            State::Averaged(buffer) => Ok(&buffer[range]),
            _ => Err(failed(parameter)),
        }
    }

    fn place(&self, parameter: usize) -> Result<(usize, Range<usize>), Error> {
        self.places.get(parameter).cloned().ok_or_else(|| {
            Error::Argument(format!(
                "there is no parameter {parameter}: expected one of 0 to {}",
                self.places.len().saturating_sub(1)
            ))
        })
    }

    /// Which parameters keep the all-reduce of one back.
    fn not_started(&self, parameter: usize) -> Error {
        let missing: Vec<String> = self
            .buckets
            .iter()
            .rev()
            .filter_map(|bucket| match &bucket.state {
                State::Filling { missing, .. } => Some(missing),
                _ => None,
            })
            .find(|missing| !missing.is_empty())
            .into_iter()
            .flatten()
            .map(usize::to_string)
            .collect();
        Error::Argument(format!(
            "the gradient of parameter {parameter} is not on its way, as the backward pass has not called `ready` for {}: \
             call it for every parameter in every step, with zeros for those that were not used",
            missing.join(", ")
        ))
    }
}

impl<T: Element> Bucket<T> {
    /// Starts the all-reduce if all gradients are there; whether they are.
    fn start(&mut self, communicator: &Communicator) -> Result<bool, Error> {
        if !matches!(&self.state, State::Filling { missing, .. } if missing.is_empty()) {
            return Ok(false);
        }
        if let State::Filling { buffer, .. } = std::mem::replace(&mut self.state, State::Failed) {
            let call = AllReduce::new(buffer).avg().priority(self.priority);
            self.state = State::InFlight(communicator.start(call)?);
        }
        Ok(true)
    }

    /// Takes gradients again.
    fn refill(&mut self) {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Averaged(buffer) => {
                let missing = self.parameters.clone().collect();
                self.state = State::Filling { buffer, missing };
            }
            state => self.state = state,
        }
    }
}

fn failed(parameter: usize) -> Error {
    Error::Argument(format!(
        "the all-reduce of parameter {parameter} has failed before: expected a new communicator and a new pipeline"
    ))
}

/// Runs of parameters that have `least` elements or more together; the last may have fewer.
fn partition(lengths: &[usize], least: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut begin, mut elements) = (0, 0);
    for (parameter, length) in lengths.iter().enumerate() {
        if *length >= least && begin < parameter {
            parts.push(begin..parameter);
            (begin, elements) = (parameter, 0);
        }
        elements += length;
        if elements >= least {
            parts.push(begin..parameter + 1);
            (begin, elements) = (parameter + 1, 0);
        }
    }
    if begin < lengths.len() {
        parts.push(begin..lengths.len());
    }
    parts
}

/// The first bucket has the highest priority; those of asynchronous calls beside the pipeline, without one, the lowest.
fn priority(bucket: usize, buckets: usize) -> u8 {
    u8::try_from(255 - bucket * 254 / buckets).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;
