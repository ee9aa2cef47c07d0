//! Asynchronous operations: handles, owned buffers, and scopes for borrowed ones.

use std::{
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::{Algorithm, Collective, ReduceOp};

use crate::{Communicator, Error, Request, buffer::Buffer, engine::Task, engine::lock};

/// An untyped operation in flight, as [`Communicator::submit`] starts it.
///
/// Dropping the handle does not end the operation.
#[derive(Clone)]
pub struct Work {
    pub(crate) communicator: Communicator,
    pub(crate) task: Arc<Task>,
}

impl Work {
    /// Whether it has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.task.is_done()
    }

    /// When it was started and when it ended; `None` while it is in flight.
    pub fn span(&self) -> Option<(Instant, Instant)> {
        Some((self.task.begun, self.task.ended_at()?))
    }

    /// Drives the operation on the calling thread until it has ended.
    pub fn wait(&self) -> Result<(), Error> {
        self.communicator.engine().wait(&self.task)
    }

    /// Like [`Self::wait`] for at most `timeout`; `None` if it has not ended then. It goes on.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        self.communicator.engine().wait_for(&self.task, timeout)
    }

    /// Like [`Self::wait`] until `stop` says so; `None` then. It goes on. `stop` is asked at least every 100 ms.
    pub fn wait_until(&self, stop: &dyn Fn() -> bool) -> Option<Result<(), Error>> {
        self.communicator.engine().wait_until(&self.task, stop)
    }

    /// Calls `callback` when the operation ends (at once if it has), on the thread that drives it.
    pub fn on_end(&self, callback: impl FnOnce(&Result<(), Error>) + Send + 'static) {
        self.task.on_end(Box::new(callback));
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Work({}, done: {})",
            self.task.descriptor,
            self.is_done()
        )
    }
}

/// An all-reduce to be started. `B` is a buffer: `Vec<T>` or an [`ArenaBuffer`](crate::ArenaBuffer) for
/// [`Communicator::start`], also `&mut [T]` within [`Communicator::scope`].
#[derive(Debug)]
pub struct AllReduce<B> {
    buffer: B,
    op: ReduceOp,
    priority: u8,
    timeout: Option<Duration>,
    algorithm: Option<Algorithm>,
}

impl<B: Buffer> AllReduce<B> {
    /// The sum of `buffer` over all ranks, in place.
    pub fn new(buffer: B) -> Self {
        Self {
            buffer,
            op: ReduceOp::Sum,
            priority: 0,
            timeout: None,
            algorithm: None,
        }
    }

    /// The average in place of the sum.
    pub fn avg(self) -> Self {
        self.op(ReduceOp::Average)
    }

    /// Another reduction.
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.op = op;
        self
    }

    /// Among operations in flight, those of higher priority go first.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// How long it may take; otherwise the setting `timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The algorithm to use, in place of the selector's choice.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    fn request(&mut self) -> Request {
        use ringway_kernels::Element as _;
        let memory = self.buffer.memory();
        let mut request = Request::new(Collective::AllReduce, <B::Element>::DTYPE, memory, memory)
            .reduce_op(self.op)
            .priority(self.priority);
        request.timeout = self.timeout;
        request.algorithm = self.algorithm;
        request
    }
}

/// An operation in flight that owns its buffer.
#[must_use = "the buffer comes back from `wait`"]
#[derive(Debug)]
pub struct Pending<B> {
    work: Work,
    buffer: PhantomData<fn() -> B>,
}

impl<B> Pending<B> {
    /// The operation, which has the buffer.
    pub(crate) fn into_task(self) -> Arc<Task> {
        self.work.task
    }
}

impl<B: Send + 'static> Pending<B> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Drives the operation on the calling thread until it has ended, and gives the buffer back.
    pub fn wait(self) -> Result<B, Error> {
        self.work.wait()?;
        match self.work.task.take().map(|kept| kept.downcast::<B>()) {
            Some(Ok(buffer)) => Ok(*buffer),
            _ => unreachable!("`start` kept a B, and only this consuming call takes it"),
        }
    }
}

/// Where operations on borrowed buffers are started; see [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'env> {
    communicator: Communicator,
    started: std::sync::Mutex<Vec<Work>>,
    // Invariant, so that buffers must outlive the scope's closure.
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation on a borrowed buffer; ends at the latest with its scope.
#[derive(Debug)]
pub struct Scoped<'scope> {
    work: Work,
    scope: PhantomData<&'scope ()>,
}

impl Scoped<'_> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Drives the operation on the calling thread until it has ended.
    pub fn wait(self) -> Result<(), Error> {
        self.work.wait()
    }
}

impl<'env> Scope<'env> {
    /// Starts an all-reduce of a borrowed buffer. The buffer is free again after the scope.
    pub fn start<B: Buffer + 'env>(&self, mut call: AllReduce<B>) -> Result<Scoped<'_>, Error> {
        let work = self.communicator.submit(call.request())?;
        lock(&self.started).push(work.clone());
        Ok(Scoped {
            work,
            scope: PhantomData,
        })
    }
}

impl Communicator {
    /// Starts an operation that owns its buffer; [`Pending::wait`] gives it back.
    pub fn start<B: Buffer + 'static>(&self, mut call: AllReduce<B>) -> Result<Pending<B>, Error> {
        // A Vec's elements stay where they are when the Vec itself moves into the box.
        let request = call.request();
        let work = self.submit_keeping(request, Box::new(call.buffer))?;
        Ok(Pending {
            work,
            buffer: PhantomData,
        })
    }

    /// Runs `body`, which may start operations on borrowed buffers, and waits for all that it started. The first
    /// error of an operation that `body` did not wait for is returned.
    pub fn scope<'env, R>(
        &self,
        body: impl FnOnce(&Scope<'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        /// Waits also when `body` panics: the borrows end with this frame.
        struct WaitAll<'a, 'env>(&'a Scope<'env>);
        impl Drop for WaitAll<'_, '_> {
            fn drop(&mut self) {
                for work in lock(&self.0.started).drain(..) {
                    drop(work.wait());
                }
            }
        }
        let scope = Scope {
            communicator: self.clone(),
            started: std::sync::Mutex::default(),
            env: PhantomData,
        };
        let waiting = WaitAll(&scope);
        let result = body(&scope);
        let started: Vec<Work> = lock(&scope.started).drain(..).collect();
        let ended: Result<(), Error> = started.iter().map(Work::wait).fold(Ok(()), Result::and);
        drop(waiting);
        let value = result?;
        ended.map(|()| value)
    }
}
