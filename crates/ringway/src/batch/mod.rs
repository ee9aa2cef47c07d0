//! Many small tensors as few operations.
//!
//! Rank 0 decides where a batch ends: by bytes, by its clock, or because somebody waits. It broadcasts that, and every rank
//! adds up the same tensors in one all-reduce. A clock closes no batch on a rank by itself, so ranks' batches are the same
//! whatever their clocks say; and the word goes one way: nobody answers.

mod announcement;
mod climb;
mod worker;

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    ops::RangeInclusive,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_kernels::Element;
use ringway_plan::ReduceOp;
use ringway_sys::Memory;

use crate::{Buffer, Communicator, Error, engine::lock};

/// Adds tensors up over all ranks, many of them at a time. Cheap to clone.
///
/// Every rank must add tensors of the same lengths in the same order. If one does not, every rank gets an error that names
/// it and the first tensor that differs.
pub struct Batcher<T> {
    shared: Arc<Shared<T>>,
    /// Ends the thread with the last of the clones.
    _closer: Arc<Closer<T>>,
}

impl<T> Clone for Batcher<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            _closer: self._closer.clone(),
        }
    }
}

impl<T> fmt::Debug for Batcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batcher")
            .field(&lock(&self.shared.state).stats)
            .finish()
    }
}

/// When a batch is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// At the latest when its first tensor has waited for so long.
    pub window: Duration,
    /// Bytes: within these bounds is the size at which a batch is closed, which moves to where most bytes pass in a second. A
    /// batch is never larger than the upper bound, unless it is a single tensor.
    pub bytes: RangeInclusive<usize>,
}

/// What a batcher has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Tensors that were added up.
    pub tensors: u64,
    /// In so many operations.
    pub batches: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// The size at which batches are closed now; 0 on ranks that do not decide.
    pub target: usize,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    op: ReduceOp,
    limits: BatchLimits,
}

struct State<T> {
    /// Tensors that are in no batch yet.
    pending: VecDeque<Pending<T>>,
    pending_bytes: usize,
    /// The number of tensors that were ever added.
    added: u64,
    /// Up to where tensors were asked for: those before are in a batch at once.
    wanted: u64,
    /// Where [`Batcher::flush`] was called.
    flushes: VecDeque<u64>,
    stats: BatchStats,
    /// What the thread sleeps for, while it does and nobody has woken it.
    sought: Option<Sought>,
    closing: bool,
    failed: Option<Error>,
}

/// How much must be pending for the thread to be woken, besides the first tensor of all. For each tensor it would be two changes of
/// context.
#[derive(Clone, Copy)]
struct Sought {
    bytes: usize,
    tensors: usize,
}

impl Sought {
    /// Only the first of all, as the clock begins with it.
    const FIRST: Self = Self {
        bytes: usize::MAX,
        tensors: usize::MAX,
    };
}

struct Pending<T> {
    /// Until it is given back.
    tensor: Option<Box<dyn Held<T>>>,
    bytes: usize,
    since: Instant,
    end: Arc<End>,
}

impl<T> Pending<T> {
    fn held(&mut self) -> &mut dyn Held<T> {
        match &mut self.tensor {
            Some(tensor) => &mut **tensor,
            None => unreachable!("a tensor is given back with the last use of this"),
        }
    }

    /// Gives the tensor back to whoever waits for it.
    fn end(mut self, result: Result<(), Error>) {
        if let Some(tensor) = self.tensor.take() {
            self.end.set(tensor.into_any(), result);
        }
    }
}

/// Whatever becomes of a batch, nobody waits for it for ever.
impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take() {
            let text =
                "the batch of this tensor could not be started; the batcher's next error says why";
            self.end
                .set(tensor.into_any(), Err(Error::Memory(text.to_owned())));
        }
    }
}

/// A buffer of any type.
trait Held<T>: Send {
    fn memory(&mut self) -> Memory;
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

impl<T: Element, B: Buffer<Element = T> + 'static> Held<T> for B {
    fn memory(&mut self) -> Memory {
        Buffer::memory(self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// How a tensor's sum ended, with its buffer.
type Ended = (Box<dyn Any + Send>, Result<(), Error>);

#[derive(Default)]
struct End {
    state: Mutex<EndState>,
    set: Condvar,
}

#[derive(Default)]
struct EndState {
    ended: Option<Ended>,
    /// Waking nobody would still be a system call.
    is_waited_for: bool,
}

impl End {
    fn set(&self, buffer: Box<dyn Any + Send>, result: Result<(), Error>) {
        let mut state = lock(&self.state);
        state.ended = Some((buffer, result));
        if state.is_waited_for {
            self.set.notify_all();
        }
    }

    fn is_set(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    /// Waits for it: operations have deadlines, and the batcher's thread ends all that it has if it ends.
    fn take(&self) -> Ended {
        let mut state = lock(&self.state);
        loop {
            if let Some(ended) = state.ended.take() {
                return ended;
            }
            state.is_waited_for = true;
            state = self.set.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the thread, and waits for it: it has a communicator of the job, which this process must not leave unawares. What is under
/// way has its deadline.
struct Closer<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T> Drop for Closer<T> {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it panicked, its tensors have ended with an error that says so.
            drop(thread.join());
        }
    }
}

impl Communicator {
    /// Makes a batcher with the limits of the settings `batch_window`, `batch_min` and `batch_max`. All ranks must call it.
    ///
    /// # Errors
    /// As [`Self::run`]; or no thread can be made.
    pub fn batcher<T: Element>(&self, op: ReduceOp) -> Result<Batcher<T>, Error> {
        let values = self.engine().settings.values();
        let bytes = |size| usize::try_from(size).unwrap_or(usize::MAX);
        let (least, most) = (bytes(values.batch_min), bytes(values.batch_max));
        let limits = BatchLimits {
            window: values.batch_window,
            bytes: least.min(most)..=most,
        };
        self.batcher_with(op, limits)
    }

    /// Makes a batcher with limits, which count on rank 0. All ranks must call it.
    ///
    /// # Errors
    /// As [`Self::run`]; the type has no such operation; no thread can be made.
    pub fn batcher_with<T: Element>(
        &self,
        op: ReduceOp,
        limits: BatchLimits,
    ) -> Result<Batcher<T>, Error> {
        if limits.bytes.is_empty() || !op.supports(T::DTYPE) {
            return Err(Error::Argument(format!(
                "a batcher of {} by {op} with batches of {:?} bytes; expected an operation that the type has, and a \
                 least size that is not above the largest",
                T::DTYPE,
                limits.bytes
            )));
        }
        let communicator = self.duplicate()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                pending: VecDeque::new(),
                pending_bytes: 0,
                added: 0,
                wanted: 0,
                flushes: VecDeque::new(),
                stats: BatchStats::default(),
                sought: None,
                closing: false,
                failed: None,
            }),
            changed: Condvar::new(),
            op,
            limits,
        });
        let thread = worker::start(communicator, shared.clone())?;
        Ok(Batcher {
            _closer: Arc::new(Closer {
                shared: shared.clone(),
                thread: Some(thread),
            }),
            shared,
        })
    }
}

impl<T: Element> Batcher<T> {
    /// Starts adding up a tensor, in a batch with others; [`Ticket::wait`] gives it back.
    pub fn add<B: Buffer<Element = T> + 'static>(&self, mut tensor: B) -> Ticket<T, B> {
        let end = Arc::<End>::default();
        let bytes = Buffer::memory(&mut tensor).len();
        let mut state = lock(&self.shared.state);
        let place = state.added;
        state.added += 1;
        match &state.failed {
            Some(error) => end.set(Box::new(tensor), Err(error.clone())),
            None => {
                state.pending_bytes += bytes;
                state.pending.push_back(Pending {
                    tensor: Some(Box::new(tensor)),
                    bytes,
                    since: Instant::now(),
                    end: end.clone(),
                });
                let (tensors, bytes) = (state.pending.len(), state.pending_bytes);
                let is_found = |sought: &mut Sought| {
                    tensors == 1 || tensors >= sought.tensors || bytes >= sought.bytes
                };
                if state.sought.take_if(is_found).is_some() {
                    self.shared.changed.notify_all();
                }
            }
        }
        drop(state);
        Ticket {
            shared: self.shared.clone(),
            place,
            end,
            buffer: PhantomData,
        }
    }

    /// Says that all tensors of a step were added: the last batch begins at once, and ranks that have added others get their
    /// error now. All ranks must call it at the same place.
    pub fn flush(&self) {
        let mut state = lock(&self.shared.state);
        let added = state.added;
        state.wanted = added;
        state.flushes.push_back(added);
        self.shared.changed.notify_all();
    }

    /// What was done so far.
    pub fn stats(&self) -> BatchStats {
        lock(&self.shared.state).stats
    }
}

/// A tensor that is being added up.
#[must_use = "the tensor comes back from `wait`"]
pub struct Ticket<T, B> {
    shared: Arc<Shared<T>>,
    place: u64,
    end: Arc<End>,
    buffer: PhantomData<fn() -> B>,
}

impl<T, B> fmt::Debug for Ticket<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl<T, B: Send + 'static> Ticket<T, B> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.end.is_set()
    }

    /// Waits for the sum, for which no other tensors are waited for any more. On an error the tensor's elements are not specified.
    ///
    /// # Errors
    /// Those of operations; ranks have added different tensors.
    pub fn wait(self) -> Result<B, Error> {
        let mut state = lock(&self.shared.state);
        if state.wanted <= self.place {
            state.wanted = self.place + 1;
            self.shared.changed.notify_all();
        }
        drop(state);
        let (buffer, result) = self.end.take();
        result?;
        match buffer.downcast::<B>() {
            Ok(buffer) => Ok(*buffer),
            Err(_) => unreachable!("the batcher was given a B"),
        }
    }
}
