//! The thread that drives operations nobody waits for.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use ringway_link::shm::mapped::Progress;
use ringway_sys::Signal;

use super::{Driver, Engine, Task, lock, mapped::MappedTask, try_lock};

/// The worker's side of an engine. The thread starts with the first asynchronous operation.
pub(super) struct Worker {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread where it sleeps for operations in flight. Its own: a waiter that clears the engine's must not
    /// take a ring that is meant for it.
    bell: Signal,
}

#[derive(Default)]
struct State {
    started: bool,
    stop: bool,
    /// What it drives, by descending priority; ended ones are dropped at the next turn.
    watched: Vec<Arc<Task>>,
}

impl Worker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: Signal::new()?,
        })
    }

    /// Has an operation driven to its end.
    pub(super) fn watch(&self, engine: &Arc<Engine>, task: Arc<Task>) {
        let mut state = lock(&self.state);
        let at = state
            .watched
            .partition_point(|other| other.priority >= task.priority);
        state.watched.insert(at, task);
        if !state.started {
            state.started = true;
            let engine = engine.clone();
            let thread = std::thread::Builder::new().name("ringway-engine".into());
            if let Err(error) = thread.spawn(move || run(&engine)) {
                // Operations then progress when they are waited for.
                state.started = false;
                tracing::warn!(%error, "no engine thread: asynchronous operations progress in wait only");
            }
        }
        drop(state);
        self.notify();
    }

    /// Makes the thread look again, wherever it sleeps: also at operations that it does not know of yet.
    pub(super) fn notify(&self) {
        self.bell.raise();
        self.changed.notify_one();
    }

    /// The last waiter has gone.
    pub(super) fn resume(&self) {
        if !lock(&self.state).watched.is_empty() {
            self.notify();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.notify();
    }

    /// Sleeps until there is something to drive. False: stop.
    fn next(&self, into: &mut Vec<Arc<Task>>) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return false;
            }
            state.watched.retain(|task| !task.is_done());
            if !state.watched.is_empty() {
                into.clone_from(&state.watched);
                return true;
            }
            into.clear();
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pause(&self, longest: Duration) {
        let state = lock(&self.state);
        drop(self.changed.wait_timeout(state, longest));
    }
}

/// The thread, until the rank leaves.
fn run(engine: &Engine) {
    // Behind a thread that computes it would wait for milliseconds at each step of an operation, and so would its peers.
    if let Err(error) = ringway_sys::take_short_turns() {
        tracing::debug!(%error, "the engine thread keeps turns of the usual length");
    }
    let mut watched = Vec::new();
    let mut idle_since: Option<Instant> = None;
    while engine.worker.next(&mut watched) {
        let now = Instant::now();
        let failed = engine.control.failure().is_some();
        for task in watched.iter().filter(|task| failed || now >= task.deadline) {
            match task.mapped() {
                Some(mapped) => mapped.fail(task, engine),
                None => engine.fail(task, now),
            }
        }
        let mapped = watched.iter().any(|task| task.mapped().is_some());
        let messages = watched.iter().any(|task| task.mapped().is_none());
        let mut moved = mapped && step_mapped(engine, &watched);
        // Whoever waits drives all messages.
        let step_back = engine.waiters.load(Ordering::Relaxed) > 0;
        let mut driver = None;
        if messages
            && !step_back
            && let Some(mut free) = try_lock(&engine.driver)
        {
            if free.drive(now) {
                moved = true;
                engine.settle(free);
            } else {
                driver = Some(free);
            }
        }
        if moved {
            idle_since = None;
            continue;
        }
        let idle_for = now - *idle_since.get_or_insert(now);
        if idle_for < engine.spin {
            drop(driver);
            if engine.crowded {
                ringway_sys::yield_now()
            } else {
                ringway_sys::spin_hint()
            }
        } else if !mapped && step_back {
            engine.worker.pause(Duration::from_millis(5));
        } else {
            sleep(engine, &watched, driver, now, idle_for);
        }
    }
}

/// Steps the first operation that can move; whether one did.
fn step_mapped(engine: &Engine, watched: &[Arc<Task>]) -> bool {
    watched.iter().any(|task| {
        let mapped = task.mapped();
        mapped.is_some_and(|mapped| mapped.try_step(task, engine) == Progress::Moved)
    })
}

fn sleep(
    engine: &Engine,
    watched: &[Arc<Task>],
    driver: Option<MutexGuard<'_, Driver>>,
    now: Instant,
    idle_for: Duration,
) {
    let deadline = watched
        .iter()
        .map(|task| task.deadline)
        .min()
        .unwrap_or(now);
    let mut mapped = watched.iter().filter_map(|task| task.mapped());
    let may_sleep = mapped.all(MappedTask::arm);
    if !may_sleep {
        return;
    }
    let longest = deadline.saturating_duration_since(now);
    match driver {
        Some(driver) => engine.nap(driver, longest, idle_for, &engine.worker.bell),
        None => engine.doze(longest, false, &engine.worker.bell),
    }
    if let Some(host) = &engine.host {
        host.hush();
    }
    if engine.waiters.load(Ordering::Relaxed) > 0 {
        // They drive now, and what ended this sleep may have been meant for them.
        engine.bell.raise();
    }
}

impl Engine {
    /// Sleeps on everything that may wake this process.
    pub(super) fn doze(&self, longest: Duration, transport: bool, bell: &Signal) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let nap = longest.min(super::LONGEST_NAP);
        let nap = Timespec {
            tv_sec: nap.as_secs().cast_signed(),
            tv_nsec: nap.subsec_nanos().into(),
        };
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let host = self.host.as_ref().map(|host| host.bell(host.local_rank()));
        let transport = transport.then(|| self.fd.as_fd());
        let mut fds = [bell.as_fd(), bell.as_fd(), bell.as_fd()].map(read);
        let mut used = 1;
        for fd in [host, transport].into_iter().flatten() {
            fds[used] = read(fd);
            used += 1;
        }
        // Interrupted or not: the caller looks again.
        let _ = poll(&mut fds[..used], Some(&nap));
        bell.clear();
    }
}
