//! The engine: who drives operations, how long they may take, and what happens when they fail.
//!
//! The waiter drives: a blocking call progresses its own operation (and with it all others that run over
//! messages) on the calling thread. Operations that nobody waits for are driven by one [`worker`] thread, which
//! steps back while somebody waits for messages. Whoever drives and finds nothing to do spins for a bounded time, then sleeps
//! until a peer, another thread or the control plane wakes it.

mod driver;
mod failure;
mod label;
mod mapped;
mod message;
mod narrow;
mod past;
mod plans;
mod samples;
mod site;
mod spread;
mod task;
mod tuning;
mod watched;
mod worker;

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use ringway_link::{
    Damper, Transport,
    shm::{Geometry, HostSegment, mapped::MappedGroup},
};
use ringway_plan::{BadOverrides, Link, Machine};
use ringway_sys::Signal;

pub(crate) use driver::Driver;
pub(crate) use label::{Label, Limit, Limiter};
pub(crate) use message::{MessageOp, Operands};
pub(crate) use narrow::Narrow;
pub use past::{Candidate, Prediction};
pub(crate) use plans::{Plans, Policy, Way};
pub(crate) use samples::{Kind, Samples};
pub(crate) use site::Site;
pub(crate) use task::{Task, after, lock, spawn, try_lock};
pub(crate) use tuning::{Tried, Tuning};
use worker::Worker;

use crate::{
    Descriptor, Error, Form,
    bootstrap::World,
    control::{Control, Direction},
    group::Group,
    probe::Origin,
    record::{Call, Recorder},
    settings::{Settings, TransportKind},
};

/// What all communicators of a process share.
pub(crate) struct Engine {
    pub(crate) world: World,
    pub(crate) control: Arc<Control>,
    pub(crate) settings: Settings,
    /// Memory shared with the other ranks of this host.
    pub(crate) host: Option<Arc<HostSegment>>,
    /// What groups that are made now choose by.
    policy: Mutex<Arc<Policy>>,
    /// Writes down operations, once the job has begun.
    recorder: OnceLock<Arc<Recorder>>,
    /// Kept for the life of the job, see [`Engine::group`].
    pub(crate) mapped_groups: Mutex<Vec<MappedGroup>>,
    /// The longest message that the transport takes in one piece; slices of messages of two ranks.
    pub(crate) slice_bytes: usize,
    pub(crate) driver: Mutex<Driver>,
    /// Of arena memory that could not be registered.
    pub(crate) not_registered: Mutex<Damper>,
    /// The transport's fd, to sleep on without holding the driver.
    fd: OwnedFd,
    /// Wakes waiters that sleep on `fd`.
    bell: Signal,
    /// Threads that wait for messages, and drive all of these.
    waiters: AtomicUsize,
    worker: Worker,
    spin: Duration,
    /// With more ranks on the machine than cores, spinning keeps a peer from its work: yield at each turn.
    crowded: bool,
    /// With fewer cores than two for each rank on the machine, a second thread that drives keeps a peer from its work.
    one_thread: bool,
}

/// No sleep is longer: deadlines and failures are looked at this often even if a wake-up were lost.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// How long a rank that leaves waits, at most, until others have what it sent, which a network that loses packets delays, and
/// have left, if it carries word between them. After a failure some of them are not there.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Whether ranks of any host share memory, if the system lets them. What all ranks must decide alike, the slices of
/// messages and the choice of algorithms, goes by this: a rank that is alone on its host has another transport than
/// those that are not.
fn shares(world: &World, settings: &Settings) -> bool {
    settings.values().transports.allow(TransportKind::Shm)
        && world.hosts().iter().any(|ranks| ranks.len() > 1)
}

impl Engine {
    pub(crate) fn new(
        world: World,
        control: Arc<Control>,
        settings: Settings,
        transport: Box<dyn Transport>,
        host: Option<Arc<HostSegment>>,
    ) -> Result<Arc<Self>, Error> {
        let values = settings.values();
        let overrides = values.algorithm.parse().map_err(|error: BadOverrides| {
            Error::Argument(format!(
                "setting algorithm ({}): {error}",
                settings.source("algorithm")
            ))
        })?;
        let site = Site::of(&world, &settings)?;
        let shares = shares(&world, &settings);
        let slice_bytes = transport.slice_bytes().min(if shares {
            Geometry::default().slot_bytes()
        } else {
            usize::MAX
        });
        let machine = {
            // The sum of two vectors by one core: out of memory beside a link that copies nothing, and of slices that
            // the link has just brought into the cache beside one that copies.
            let (intra, reduction) = if shares {
                (Link::SHARED_MEMORY, 8e9)
            } else {
                (Link::LOOPBACK, 40e9)
            };
            // Where nobody has told of the fabric, and links are not measured at start: 10 Gbit/s Ethernet. Steadiness as measured among 4 namespaces at
            // 1 Gbit/s, where for 1 MiB direct took 1.14 times as long as ring, halving_doubling up to 1.1 times.
            // Between containers of one machine no time passes but the processors'.
            let one_machine = world.machine_ranks() == world.size();
            let latency = Duration::from_micros(if one_machine { 1 } else { 10 });
            let overhead = Duration::from_micros(5);
            let ethernet = (Duration::ZERO, 1.1e9, 1);
            let way = site.as_ref().map(Site::way).filter(|way| way.1.is_finite());
            let (wire, rate, cards) = way.unwrap_or(ethernet);
            let inter = Link::new(latency + wire, overhead, rate).with_unsteady(70);
            Machine::new(intra, inter, reduction)
                .sliced(slice_bytes)
                .with_cards(cards)
        };
        let policy = Policy {
            machine,
            tuning: None,
            tried: Vec::new(),
            overrides,
            ring_size: values.ring_size,
            flat: values.hierarchy_levels == Some(1),
            between_hosts: values.wire_between_hosts,
            site: site.map(Arc::new),
            order: None,
            origin: Origin::Assumed,
            plan: 0,
        };
        let system = |what: &str, e: &dyn std::fmt::Display| {
            Error::Memory(format!(
                "{what} failed: {e}; raise the limit of open files (ulimit -n)"
            ))
        };
        let fd = transport
            .fd()
            .try_clone_to_owned()
            .map_err(|e| system("duplicating a descriptor", &e))?;
        let bell = Signal::new().map_err(|e| system("making an eventfd", &e))?;
        let worker = Worker::new().map_err(|e| system("making an eventfd", &e))?;
        let crowded = world.machine_ranks() > ringway_sys::cpu_count();
        let one_thread = 2 * world.machine_ranks() > ringway_sys::cpu_count();
        let spin = settings.values().spin;
        let engine = Arc::new(Self {
            world,
            control,
            settings,
            host,
            policy: Mutex::new(Arc::new(policy)),
            recorder: OnceLock::new(),
            mapped_groups: Mutex::default(),
            slice_bytes,
            driver: Mutex::new(Driver::new(transport)),
            not_registered: Mutex::default(),
            fd,
            bell,
            waiters: AtomicUsize::new(0),
            worker,
            spin,
            crowded,
            one_thread,
        });
        let weak = Arc::downgrade(&engine);
        engine.control.on_change(move || {
            if let Some(engine) = weak.upgrade() {
                engine.wake();
            }
        });
        Ok(engine)
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        lock(&self.policy).clone()
    }

    /// Writes down, on rank 0, the operations that begin from now on, if the settings want it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin_recording(&self) -> Result<(), Error> {
        let Some(path) = &self.settings.values().record else {
            return Ok(());
        };
        if self.world.rank > 0 {
            return Ok(());
        }
        let (ranks, hosts) = (self.world.size(), self.world.hosts().len());
        let recorder = Recorder::create(path, ranks, hosts).map_err(|e| {
            let (path, source) = (path.display(), self.settings.source("record"));
            Error::Argument(format!(
                "setting record ({source}): {path}: {e}; expected a file that can be written"
            ))
        })?;
        // It begins once.
        let _ = self.recorder.set(Arc::new(recorder));
        Ok(())
    }

    /// Writes down that an operation begins; `None` where nothing is recorded.
    pub(crate) fn record(
        &self,
        descriptor: &Descriptor,
        elements: usize,
        group: &Group,
    ) -> Option<(Arc<Recorder>, Call)> {
        let recorder = self.recorder.get().filter(|_| !group.is_hidden())?;
        let is_world = group.members.iter().copied().eq(0..self.world.size());
        let bytes = elements * descriptor.dtype.size();
        let group = (group.id, group.size(), is_world);
        let call = recorder.call(Instant::now(), descriptor, bytes, group);
        Some((recorder.clone(), call))
    }

    /// Has groups to come choose by this policy, and `group`, which must have nothing in flight.
    pub(crate) fn adopt(&self, policy: Policy, group: &Group) {
        let policy = Arc::new(policy);
        *lock(&self.policy) = policy.clone();
        self.adopt_in(policy, group);
    }

    /// Has `group` choose by this policy.
    pub(crate) fn adopt_in(&self, policy: Arc<Policy>, group: &Group) {
        let topology = self.topology(&group.members, &policy);
        lock(&group.plans).adopt(policy, topology);
    }

    /// Makes whoever sleeps look again.
    pub(crate) fn wake(&self) {
        self.bell.raise();
        self.worker.notify();
    }

    /// What messages go over.
    pub(crate) fn transport_name(&self) -> String {
        lock(&self.driver).transport.name().to_owned()
    }

    /// Bytes that transports have allocated for buffers.
    pub(crate) fn memory_in_use(&self) -> usize {
        lock(&self.driver).transport.memory_in_use()
    }

    /// Starts an operation over messages. Unless its caller waits at once, the worker drives it.
    pub(crate) fn start(self: &Arc<Self>, op: MessageOp, waited_for: bool) {
        let task = op.task.clone();
        if let Err(error) = self.usable() {
            task.finish(Err(error));
            return;
        }
        self.note_call(&task);
        let mut driver = lock(&self.driver);
        driver.start(op);
        self.settle(driver);
        if !waited_for && !task.is_done() {
            self.worker.watch(self, task);
        }
    }

    /// For the others to see what this rank is in.
    fn note_call(&self, task: &Task) {
        let activity = self.control.activity();
        match (task.descriptor.form, &task.members[..]) {
            (Form::Pair, &[from, to]) if from == self.world.rank => {
                activity.begin_message(Direction::Send, to, task.call);
            }
            (Form::Pair, &[from, _]) => {
                activity.begin_message(Direction::Recv, from, task.call);
            }
            _ => activity.begin(task.descriptor.collective, task.group, task.call),
        }
    }

    /// Has the worker drive an operation that its caller has stopped waiting for.
    pub(crate) fn drive_messages_behind(self: &Arc<Self>, task: &Arc<Task>) {
        self.worker.watch(self, task.clone());
    }

    /// An error if the job has failed: no new operation can end.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match self.control.failure() {
            None => Ok(()),
            Some(failure) => Err(Error::Failed {
                failure,
                context: String::new(),
            }),
        }
    }

    /// Drives until `task` has ended.
    pub(crate) fn wait(&self, task: &Task) -> Result<(), Error> {
        loop {
            // Without a limit and never stopped, this returns only a result.
            if let Some(result) = self.drive(task, None, &|| false) {
                return result;
            }
        }
    }

    /// Drives until `task` has ended or `timeout` has passed.
    pub(crate) fn wait_for(&self, task: &Task, timeout: Duration) -> Option<Result<(), Error>> {
        let limit = after(Instant::now(), timeout);
        self.drive(task, Some(limit), &|| Instant::now() >= limit)
    }

    /// Drives until `task` has ended or `stop` says so, which is asked at least every 100 ms.
    pub(crate) fn wait_until(
        &self,
        task: &Task,
        stop: &dyn Fn() -> bool,
    ) -> Option<Result<(), Error>> {
        self.drive(task, None, stop)
    }

    fn drive(
        &self,
        task: &Task,
        limit: Option<Instant>,
        stop: &dyn Fn() -> bool,
    ) -> Option<Result<(), Error>> {
        // Who waits for an operation in mapped memory moves no messages: the worker goes on with them.
        let counts = usize::from(task.mapped().is_none());
        self.waiters.fetch_add(counts, Ordering::Relaxed);
        let recorded = task.recorded().map(|call| (call, Instant::now()));
        let result = self.drive_until(task, limit, stop);
        if let Some(((recorder, call), from)) = recorded {
            recorder.wait(*call, from, Instant::now());
        }
        if self.waiters.fetch_sub(counts, Ordering::Relaxed) == counts {
            self.worker.resume();
        }
        result
    }

    fn drive_until(
        &self,
        task: &Task,
        limit: Option<Instant>,
        stop: &dyn Fn() -> bool,
    ) -> Option<Result<(), Error>> {
        // Once said it holds: it may be asked further in, and may not say it twice.
        let stopped = Cell::new(false);
        let stop = || {
            stopped.set(stopped.get() || stop());
            stopped.get()
        };
        let mut idle_since: Option<Instant> = None;
        loop {
            if let Some(result) = task.result() {
                return Some(result);
            }
            if stop() {
                return None;
            }
            if let Some(mapped) = task.mapped() {
                // The engine's thread moves all of them at each turn, unless it is in a callback, which may take its time.
                let ends = || self.control.failure().is_some() || Instant::now() >= task.deadline;
                if self.one_thread && self.worker.is_loaded() && !ends() {
                    task.sleep(Duration::from_millis(1));
                    continue;
                }
                if !self.take_over(task, mapped, &stop) {
                    ringway_sys::yield_now();
                }
                continue;
            }
            let now = Instant::now();
            if self.control.failure().is_some() || now >= task.deadline {
                self.fail(task, now);
                continue;
            }
            let Some(mut driver) = try_lock(&self.driver) else {
                // Another waiter drives, this operation too.
                task.sleep(Duration::from_micros(50));
                continue;
            };
            if driver.drive(now) {
                idle_since = None;
                self.settle(driver);
                continue;
            }
            let idle_for = now - *idle_since.get_or_insert(now);
            if idle_for < self.spin {
                drop(driver);
                if self.crowded {
                    ringway_sys::yield_now()
                } else {
                    ringway_sys::spin_hint()
                }
                continue;
            }
            let until = limit.map_or(task.deadline, |limit| limit.min(task.deadline));
            let longest = until.saturating_duration_since(now);
            self.nap(driver, longest, idle_for, &self.bell);
        }
    }

    /// After a barrier, with more ranks on the machine than cores: lets those that may leave it, too, but wait for a
    /// core, do so before this rank goes on.
    pub(crate) fn give_way(&self) {
        if self.crowded {
            ringway_sys::yield_now();
        }
    }

    /// Sleeps until something may have happened. The driver is free meanwhile.
    fn nap<'a>(
        &'a self,
        mut driver: MutexGuard<'a, Driver>,
        longest: Duration,
        idle: Duration,
        bell: &Signal,
    ) {
        self.look_for_leavers(&mut driver, idle);
        if !driver.troubles.is_empty() {
            return self.settle(driver);
        }
        if driver.transport.arm() {
            self.note_activity(&driver);
            drop(driver);
            self.doze(longest, true, bell);
            driver = lock(&self.driver);
        }
        driver.transport.disarm();
    }

    /// For the others to see what this rank waits for.
    fn note_activity(&self, driver: &Driver) {
        if let Some((_, pending)) = driver.ops().find_map(|op| op.waiting_for().next()) {
            let at = pending.at;
            let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            let chunk = pending.op.writes().or_else(|| pending.op.reads().next());
            let chunk = chunk.map_or(0, |span| u32::try_from(span.chunk).unwrap_or(u32::MAX));
            self.control
                .activity()
                .step(short(at.lane), short(at.step), chunk);
        }
    }

    /// Ends what the driver has finished, and sees to what went wrong.
    fn settle(&self, mut driver: MutexGuard<'_, Driver>) {
        if driver.finished.is_empty() && driver.troubles.is_empty() {
            return;
        }
        let finished = std::mem::take(&mut driver.finished);
        let troubles = std::mem::take(&mut driver.troubles);
        if !driver.is_busy() {
            self.control.activity().end();
        }
        drop(driver);
        for done in finished {
            if let Some((group, call)) = &done.task.plan {
                let mut plans = lock(&group.plans);
                plans.note(&done.task.descriptor, done.task.begun.elapsed());
                plans.reuse(*call, done.executor);
            }
            done.task.finish(Ok(()));
        }
        for trouble in troubles {
            self.report(trouble);
        }
    }

    /// Leaves the job in good order.
    pub(crate) fn leave(&self) {
        self.worker.stop();
        if let Some(recorder) = self.recorder.get() {
            recorder.close();
        }
        let patience = match self.control.failure() {
            None => PATIENCE,
            Some(_) => PATIENCE_AFTER_FAILURE,
        };
        // First, as others wait for a rank's last words no longer than a moment once they know that it has left.
        lock(&self.driver).transport.close(patience);
        self.control.leave(patience);
    }
}

/// Keeps the engine in the job: when the last communicator is dropped, this rank leaves in good order.
pub(crate) struct Membership(pub(crate) Arc<Engine>);

impl Membership {
    /// Leaves the job in good order.
    pub(crate) fn leave(&self) {
        self.0.leave();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}
