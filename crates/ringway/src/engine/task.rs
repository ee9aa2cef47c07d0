//! One operation in flight, as the caller's handle and the engine both see it.

use std::{
    any::Any,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_plan::Rank;

use super::{Label, Limit, mapped::MappedTask, plans};
use crate::{
    Descriptor, Error,
    group::Group,
    record::{Call, Recorder},
};

/// Shared by the caller's handle and whoever drives the operation.
pub(crate) struct Task {
    /// What it is, for error texts.
    pub(crate) descriptor: Descriptor,
    /// Its group's number.
    pub(crate) group: u64,
    /// The world's rank of each member of the group.
    pub(crate) members: Arc<[Rank]>,
    /// Its number among the group's operations over messages, or in mapped memory.
    pub(crate) number: u32,
    /// Which call of the group it is, from 0.
    pub(crate) call: u64,
    /// How long it may take.
    pub(crate) limit: Limit,
    /// When it was called.
    pub(crate) begun: Instant,
    /// When it must have ended.
    pub(crate) deadline: Instant,
    /// Among operations in flight, higher goes first.
    pub(crate) priority: u8,
    /// Where its executor goes when it has ended well.
    pub(crate) plan: Option<(Arc<Group>, (plans::Call, bool))>,
    /// Its operation, if that runs in mapped memory and is asynchronous.
    mapped: OnceLock<MappedTask>,
    /// Its number in the recording, if there is one.
    recorded: OnceLock<(Arc<Recorder>, Call)>,
    /// Nobody is hurt if it does not end: peers may leave before.
    optional: AtomicBool,
    done: AtomicBool,
    end: Mutex<End>,
    ended: Condvar,
}

/// Called once, with how the operation ended.
pub(crate) type Callback = Box<dyn FnOnce(&Result<(), Error>) + Send>;

#[derive(Default)]
struct End {
    result: Option<Result<(), Error>>,
    /// When it ended.
    at: Option<Instant>,
    /// Threads in [`Task::sleep`]: waking nobody would still be a system call.
    sleepers: usize,
    /// Buffers that the operation owns, released when the handle takes them or with the task.
    keep: Option<Box<dyn Any + Send>>,
    callbacks: Vec<Callback>,
}

/// Starts a thread for `what`: `a batcher`.
pub(crate) fn spawn(
    what: &str,
    name: String,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name);
    thread.spawn(run).map_err(|e| {
        Error::Memory(format!(
            "no thread for {what}: {e}; raise the limit of processes (ulimit -u)"
        ))
    })
}

/// A poisoned lock only means that another thread panicked between two whole states.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], unless another thread has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The moment `time` after another; at most some hundred years.
pub(crate) fn after(moment: Instant, time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(10_000_000_000);
    moment + time.min(LONGEST)
}

impl Task {
    pub(crate) fn new(
        descriptor: Descriptor,
        group: &Group,
        number: u32,
        call: u64,
        limit: Limit,
        priority: u8,
        plan: Option<(Arc<Group>, (plans::Call, bool))>,
    ) -> Arc<Self> {
        let begun = Instant::now();
        Arc::new(Self {
            descriptor,
            group: group.id,
            members: group.members.clone(),
            number,
            call,
            limit,
            begun,
            deadline: after(begun, limit.time),
            priority,
            plan,
            mapped: OnceLock::new(),
            recorded: OnceLock::new(),
            optional: AtomicBool::new(false),
            done: AtomicBool::new(false),
            end: Mutex::new(End::default()),
            ended: Condvar::new(),
        })
    }

    /// Its name on rank `me` of the world.
    pub(super) fn label(&self, me: Rank) -> Label<'_> {
        Label {
            descriptor: &self.descriptor,
            group: self.group,
            members: &self.members,
            me,
            call: Some(self.call),
        }
    }

    /// Keeps `buffers` alive until the operation has ended and [`Task::take`] is called or the task dropped.
    pub(crate) fn keep(&self, buffers: Box<dyn Any + Send>) {
        lock(&self.end).keep = Some(buffers);
    }

    /// Calls back when the operation ends: at once if it has, else in the order of these calls.
    pub(crate) fn on_end(&self, callback: Callback) {
        let mut end = lock(&self.end);
        match &end.result {
            Some(result) => {
                let result = result.clone();
                drop(end);
                callback(&result);
            }
            None => end.callbacks.push(callback),
        }
    }

    /// Whether the job can do without its end.
    pub(crate) fn set_optional(&self, optional: bool) {
        self.optional.store(optional, Ordering::Relaxed);
    }

    pub(super) fn is_optional(&self) -> bool {
        self.optional.load(Ordering::Relaxed)
    }

    /// Set once, by whoever starts it.
    pub(super) fn set_mapped(&self, op: MappedTask) -> &MappedTask {
        self.mapped.get_or_init(|| op)
    }

    pub(super) fn mapped(&self) -> Option<&MappedTask> {
        self.mapped.get()
    }

    /// Set once, before it starts.
    pub(crate) fn note_recorded(&self, call: Option<(Arc<Recorder>, Call)>) {
        if let Some(call) = call {
            // It begins once.
            let _ = self.recorded.set(call);
        }
    }

    pub(super) fn recorded(&self) -> Option<&(Arc<Recorder>, Call)> {
        self.recorded.get()
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Ends the operation. The first end stands.
    pub(crate) fn finish(&self, result: Result<(), Error>) {
        self.end_with(result, |is_slept_for| {
            if is_slept_for {
                self.wake();
            }
        });
    }

    /// Like [`Self::finish`], but [waking](Self::wake) the threads that sleep until then is left to the caller; whether there
    /// are any.
    pub(super) fn end(&self, result: Result<(), Error>) -> bool {
        let mut found = false;
        self.end_with(result, |is_slept_for| found = is_slept_for);
        found
    }

    fn end_with(&self, result: Result<(), Error>, ended: impl FnOnce(bool)) {
        let mut end = lock(&self.end);
        if end.result.is_some() {
            return;
        }
        let callbacks = std::mem::take(&mut end.callbacks);
        end.result = Some(result.clone());
        let now = Instant::now();
        end.at = Some(now);
        if let (Some((recorder, call)), Ok(())) = (self.recorded.get(), &result) {
            recorder.end(*call, now);
        }
        self.done.store(true, Ordering::Release);
        ended(end.sleepers > 0);
        drop(end);
        for callback in callbacks {
            callback(&result);
        }
    }

    /// Wakes the threads in [`Task::sleep`].
    pub(super) fn wake(&self) {
        self.ended.notify_all();
    }

    /// Sleeps until the operation has ended, at most `timeout`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let mut end = lock(&self.end);
        if end.result.is_none() {
            end.sleepers += 1;
            let woken = self.ended.wait_timeout(end, timeout);
            woken.unwrap_or_else(PoisonError::into_inner).0.sleepers -= 1;
        }
    }

    /// How it ended; `None` while it has not.
    pub(crate) fn result(&self) -> Option<Result<(), Error>> {
        if self.is_done() {
            lock(&self.end).result.clone()
        } else {
            None
        }
    }

    /// When it ended; `None` while it has not.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        lock(&self.end).at
    }

    /// The buffers that it kept.
    pub(crate) fn take(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.end).keep.take()
    }
}
