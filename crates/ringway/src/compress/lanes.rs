//! Compressed sums that run behind: lanes, each a thread and a communicator of its own.

use std::{
    any::Any,
    fmt,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_codec::{Codec, Controller, Decision, Options, StateError, Tensors};
use ringway_plan::ReduceOp;
use ringway_sys::Memory;

use super::{Traffic, adaptive::Adaptive, compressed};
use crate::{
    Buffer, Communicator, Error,
    buffer::floats,
    engine::{lock, spawn},
};

/// Where compressed sums run, while the thread that starts them computes.
///
/// Sums of one lane run one after the other, in the order in which they were started; lanes run side by side, so that one bucket is
/// encoded while another is on the wire. All ranks must start the sums of a lane in the same order.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Arc<Lane>>,
    buckets: Mutex<usize>,
}

/// A thread, until the last bucket of it goes.
#[derive(Debug)]
struct Lane {
    sender: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Lane {
    /// Waits for the thread: it has a communicator of the job, which this process must not leave unawares. What is under way has
    /// its deadline.
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, its sums have ended with an error that says so.
            drop(thread.join());
        }
    }
}

/// Tells the other ranks of a thread that panics: they would wait for it.
struct Herald(Communicator);

impl Drop for Herald {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .abort("the thread of a lane of compressed sums has panicked");
        }
    }
}

/// A bucket of gradients, with its codec and its lane. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    codec: Arc<Mutex<Codec>>,
    adaptive: Option<Arc<Adaptive>>,
    under_way: Arc<UnderWay>,
    lane: Arc<Lane>,
}

/// How a compressed sum is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SumOptions {
    /// How long each of its collectives may take; otherwise the setting `timeout`.
    pub timeout: Option<Duration>,
    /// Tensors, by their places in the bucket, that have no gradient on any rank, and zeros in the memory: see
    /// [`Codec::leave_out`].
    pub absent: Vec<usize>,
}

/// How many sums of a bucket have not ended.
#[derive(Default)]
struct UnderWay {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Communicator {
    /// Makes `count` lanes, at least one, each with a communicator of all ranks of this one. All ranks must call it.
    ///
    /// # Errors
    /// As [`Self::run`]; or no thread can be made.
    pub fn lanes(&self, count: usize) -> Result<Lanes, Error> {
        let lane = |at| {
            let communicator = self.duplicate()?;
            let (sender, jobs) = mpsc::channel::<Job>();
            let run = move || {
                let herald = Herald(communicator);
                jobs.into_iter().for_each(|job| job.run(&herald.0));
            };
            let thread = spawn("a lane", format!("ringway-lane-{at}"), run)?;
            Ok(Arc::new(Lane {
                sender: Some(sender),
                thread: Some(thread),
            }))
        };
        Ok(Lanes {
            lanes: (0..count.max(1)).map(lane).collect::<Result<_, Error>>()?,
            buckets: Mutex::new(0),
        })
    }
}

impl Lanes {
    /// A bucket with a codec. Buckets take the lanes in turns: all ranks must make them in the same order.
    pub fn bucket(&self, codec: Codec) -> Bucket {
        self.bucket_of(codec, None)
    }

    /// A bucket that chooses its codec by what it does to steps: see [`Controller`]. All ranks change at the same step, after
    /// each hundred, or off after 25; rank 0 logs why.
    pub fn adaptive_bucket(&self, options: Options, tensors: Tensors) -> Bucket {
        let kind = Controller::default().kind();
        self.bucket_of(Codec::new(kind, options, tensors), Some(Arc::default()))
    }

    fn bucket_of(&self, codec: Codec, adaptive: Option<Arc<Adaptive>>) -> Bucket {
        let mut buckets = lock(&self.buckets);
        let lane = self.lanes[*buckets % self.lanes.len()].clone();
        *buckets += 1;
        Bucket {
            codec: Arc::new(Mutex::new(codec)),
            adaptive,
            under_way: Arc::default(),
            lane,
        }
    }
}

impl Bucket {
    /// The codec: its state, say. Waits for all sums of the bucket that were started; sums that are started while it is held wait
    /// for it.
    pub fn codec(&self) -> MutexGuard<'_, Codec> {
        let mut count = lock(&self.under_way.count);
        while *count > 0 {
            let waited = self.under_way.fewer.wait(count);
            count = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(count);
        lock(&self.codec)
    }

    /// What later sums depend on, to be saved beside a model; waits as [`Self::codec`] does. Each rank has its own.
    pub fn state(&self) -> Vec<u8> {
        let codec = self.codec();
        let mut state = codec.state();
        if let Some(adaptive) = &self.adaptive {
            state.extend_from_slice(&adaptive.choice());
        }
        state
    }

    /// Goes on from a state of a bucket of the same codec and tensors, or of an adaptive one if this is.
    ///
    /// # Errors
    /// It is no such state. Make the bucket anew then: part of the state may have been taken.
    pub fn restore(&self, state: &[u8]) -> Result<(), StateError> {
        let mut codec = self.codec();
        match &self.adaptive {
            Some(adaptive) => adaptive.restore(&mut codec, state),
            None => codec.restore(state),
        }
    }

    /// What an adaptive bucket has decided last; none in its first window.
    pub fn decision(&self) -> Option<Decision> {
        self.adaptive.as_ref()?.decision()
    }

    /// Starts adding up a buffer that the operation owns; [`CompressedPending::wait`] gives it back. Of operations there are sum
    /// and average. Nothing but errors comes before that.
    pub fn start<B: Buffer<Element = f32> + 'static>(
        &self,
        mut buffer: B,
        op: ReduceOp,
    ) -> CompressedPending<B> {
        // A Vec's elements stay where they are when the Vec itself moves into the box.
        let memory = buffer.memory();
        CompressedPending {
            work: self.send(memory, op, SumOptions::default(), Some(Box::new(buffer))),
            buffer: PhantomData,
        }
    }

    /// Starts adding up 32-bit floats. The memory must stay valid, and alone the operation's, until it has ended.
    ///
    /// # Errors
    /// The memory is no whole number of aligned floats.
    pub fn submit(&self, memory: Memory, op: ReduceOp) -> Result<CompressedWork, Error> {
        self.submit_with(memory, op, SumOptions::default())
    }

    /// Like [`Self::submit`], with options.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_with(
        &self,
        memory: Memory,
        op: ReduceOp,
        options: SumOptions,
    ) -> Result<CompressedWork, Error> {
        let (address, len) = (memory.as_ptr().addr(), memory.len());
        if address % align_of::<f32>() != 0 || len % size_of::<f32>() != 0 {
            return Err(Error::Argument(format!(
                "{len} bytes at {address:#x}; expected a whole number of 32-bit floats, at a multiple of 4"
            )));
        }
        Ok(self.send(memory, op, options, None))
    }

    fn send(
        &self,
        memory: Memory,
        op: ReduceOp,
        options: SumOptions,
        buffer: Option<Box<dyn Any + Send>>,
    ) -> CompressedWork {
        let work = CompressedWork {
            end: Arc::default(),
            adaptive: self.adaptive.clone(),
            begun: Instant::now(),
        };
        *lock(&self.under_way.count) += 1;
        let job = Job {
            codec: self.codec.clone(),
            under_way: self.under_way.clone(),
            adaptive: self.adaptive.clone(),
            memory,
            op,
            options,
            buffer,
            end: work.end.clone(),
        };
        // Without a lane the job is dropped, which ends it.
        drop(self.lane.sender.as_ref().map(|sender| sender.send(job)));
        work
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").finish_non_exhaustive()
    }
}

/// A sum to be carried out. However it goes, it ends.
struct Job {
    codec: Arc<Mutex<Codec>>,
    under_way: Arc<UnderWay>,
    adaptive: Option<Arc<Adaptive>>,
    memory: Memory,
    op: ReduceOp,
    options: SumOptions,
    /// What the memory is of, if the operation owns it.
    buffer: Option<Box<dyn Any + Send>>,
    end: Arc<End>,
}

impl Job {
    fn run(mut self, communicator: &Communicator) {
        let result = self.sum(communicator);
        if let Err(error) = &result
            && is_local(error)
        {
            // The others take part in what this rank doesn't.
            communicator.abort(&format!("a compressed sum has failed: {error}"));
        }
        self.end(result);
    }

    fn sum(&mut self, communicator: &Communicator) -> Result<Traffic, Error> {
        let mut codec = lock(&self.codec);
        if let Some(adaptive) = &self.adaptive {
            adaptive.before(communicator, &mut codec, self.options.timeout)?;
        }
        let gradients = floats(&mut self.memory);
        codec.leave_out(&self.options.absent);
        let timeout = self.options.timeout;
        let traffic = compressed(communicator, gradients, self.op, timeout, &mut codec)?;
        if let Some(adaptive) = &self.adaptive {
            adaptive.after(&traffic);
        }
        Ok(traffic)
    }

    /// The first end stands.
    fn end(&mut self, result: Result<Traffic, Error>) {
        let mut ended = lock(&self.end.ended);
        if ended.result.is_some() {
            return;
        }
        let callbacks = std::mem::take(&mut ended.callbacks);
        ended.result = Some(result.clone());
        let now = Instant::now();
        ended.at = Some(now);
        if let (Some(adaptive), Some(since)) = (&self.adaptive, ended.waits_since) {
            adaptive.waited(now - since);
        }
        ended.buffer = self.buffer.take();
        self.end.set.notify_all();
        drop(ended);
        for callback in callbacks {
            callback(&result);
        }
    }
}

/// Whether this rank alone has the error, and has taken part in no collective.
fn is_local(error: &Error) -> bool {
    match error {
        Error::Argument(_) => true,
        Error::Codec(error) => matches!(**error, ringway_codec::Error::Length { .. }),
        _ => false,
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        *lock(&self.under_way.count) -= 1;
        self.under_way.fewer.notify_all();
        self.end(Err(Error::Memory(
            "the lane of a compressed sum has ended; its thread panicked, and the log says where"
                .to_owned(),
        )));
    }
}

/// Called once, with how a sum ended.
type Callback = Box<dyn FnOnce(&Result<Traffic, Error>) + Send>;

/// How long a wait that can be stopped goes without asking.
const ASKED_EVERY: Duration = Duration::from_millis(50);

#[derive(Default)]
struct End {
    ended: Mutex<Ended>,
    set: Condvar,
}

#[derive(Default)]
struct Ended {
    result: Option<Result<Traffic, Error>>,
    at: Option<Instant>,
    /// Since when the program waits, where it does so without [`CompressedWork::wait`].
    waits_since: Option<Instant>,
    callbacks: Vec<Callback>,
    /// Until it is taken.
    buffer: Option<Box<dyn Any + Send>>,
}

/// A compressed sum in flight. Dropping the handle does not end it.
#[derive(Clone)]
pub struct CompressedWork {
    end: Arc<End>,
    adaptive: Option<Arc<Adaptive>>,
    begun: Instant,
}

impl CompressedWork {
    /// Whether it has ended, well or not.
    pub fn is_done(&self) -> bool {
        lock(&self.end.ended).result.is_some()
    }

    /// Waits until it has ended. Its collectives have the deadline of all operations.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce_compressed`].
    pub fn wait(&self) -> Result<Traffic, Error> {
        loop {
            if let Some(result) = self.wait_until(&|| false) {
                return result;
            }
        }
    }

    /// Like [`Self::wait`] until `stop` says so; `None` then. It goes on. `stop` is asked at least every 50 ms.
    pub fn wait_until(&self, stop: &dyn Fn() -> bool) -> Option<Result<Traffic, Error>> {
        let mut ended = lock(&self.end.ended);
        let began = ended.result.is_none().then(Instant::now);
        loop {
            if let Some(result) = &ended.result {
                if let (Some(adaptive), Some(began)) = (&self.adaptive, began) {
                    adaptive.waited(began.elapsed());
                }
                return Some(result.clone());
            }
            if stop() {
                return None;
            }
            let woken = self.end.set.wait_timeout(ended, ASKED_EVERY);
            ended = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says that the program waits for it from now on, in a way that does not come by here. An adaptive bucket goes by it.
    pub fn waits_from_now(&self) {
        lock(&self.end.ended)
            .waits_since
            .get_or_insert_with(Instant::now);
    }

    /// What it has taken; `None` while it is in flight, and if it failed.
    pub fn traffic(&self) -> Option<Traffic> {
        lock(&self.end.ended)
            .result
            .as_ref()?
            .as_ref()
            .ok()
            .copied()
    }

    /// When it was started and when it ended; `None` while it is in flight.
    pub fn span(&self) -> Option<(Instant, Instant)> {
        Some((self.begun, lock(&self.end.ended).at?))
    }

    /// Calls `callback` when the sum ends (at once if it has), on the lane's thread.
    pub fn on_end(&self, callback: impl FnOnce(&Result<Traffic, Error>) + Send + 'static) {
        let mut ended = lock(&self.end.ended);
        match &ended.result {
            Some(result) => {
                let result = result.clone();
                drop(ended);
                callback(&result);
            }
            None => ended.callbacks.push(Box::new(callback)),
        }
    }
}

impl fmt::Debug for CompressedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompressedWork(done: {})", self.is_done())
    }
}

/// A compressed sum in flight that owns its buffer.
#[derive(Debug)]
#[must_use = "the buffer comes back from `wait`"]
pub struct CompressedPending<B> {
    work: CompressedWork,
    buffer: PhantomData<fn() -> B>,
}

impl<B: Send + 'static> CompressedPending<B> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits until it has ended, and gives the buffer back with the sum, or with what it held where a codec has refused it.
    pub fn wait(self) -> (B, Result<Traffic, Error>) {
        let result = self.work.wait();
        match lock(&self.work.end.ended)
            .buffer
            .take()
            .map(|kept| kept.downcast::<B>())
        {
            Some(Ok(buffer)) => (*buffer, result),
            _ => unreachable!("the operation kept a B, and only this consuming call takes it"),
        }
    }
}
