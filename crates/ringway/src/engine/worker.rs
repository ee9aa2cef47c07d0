//! The thread that drives operations nobody waits for.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use ringway_sys::Signal;

use super::{Driver, Engine, Task, lock, try_lock, watched::Watched};

/// The worker's side of an engine. The thread starts with the first asynchronous operation.
pub(super) struct Worker {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread where it sleeps for operations in flight. Its own: a waiter that clears the engine's must not
    /// take a ring that is meant for it.
    bell: Signal,
    /// Operations that the thread has in hand, at its last turn; those that have just ended among them.
    load: AtomicUsize,
    /// The thread, once it runs.
    thread: OnceLock<ThreadId>,
}

#[derive(Default)]
struct State {
    started: bool,
    stop: bool,
    /// What the thread has not taken over yet.
    new: Vec<Arc<Task>>,
    /// Whether it has anything to drive.
    busy: bool,
    /// Whether it sleeps, or is about to, and nobody has woken it: whoever has something for it must. Waking a thread that is awake,
    /// or has been woken and waits for a processor, would be two system calls for each operation.
    rests: bool,
}

impl Worker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: Signal::new()?,
            load: AtomicUsize::new(0),
            thread: OnceLock::new(),
        })
    }

    /// Has an operation driven to its end.
    pub(super) fn watch(&self, engine: &Arc<Engine>, task: Arc<Task>) {
        self.hand_over(task, || {
            let engine = engine.clone();
            let thread = std::thread::Builder::new().name("ringway-engine".into());
            thread.spawn(move || run(&engine)).map(drop)
        });
    }

    /// Leaves an operation to the thread, which `spawn` makes if there is none. If it cannot, one that can be made later
    /// takes the operation over.
    fn hand_over(&self, task: Arc<Task>, spawn: impl FnOnce() -> io::Result<()>) {
        let mut state = lock(&self.state);
        state.new.push(task);
        state.busy = true;
        if !state.started {
            if let Err(error) = spawn() {
                tracing::warn!(%error, "no engine thread: asynchronous operations progress in wait only");
                // Nobody else forgets those that have ended.
                state.new.retain(|task| !task.is_done());
                return;
            }
            state.started = true;
        }
        let rests = std::mem::take(&mut state.rests);
        drop(state);
        if rests {
            self.notify();
        }
    }

    /// Makes the thread look again, wherever it sleeps: also at operations that it does not know of yet.
    pub(super) fn notify(&self) {
        self.bell.raise();
        self.changed.notify_one();
    }

    /// Whether the thread has several operations in hand, and moves them: it does not where it calls this itself, in a callback of
    /// one of them.
    pub(super) fn is_loaded(&self) -> bool {
        self.load.load(Ordering::Relaxed) > 1
            && self.thread.get() != Some(&std::thread::current().id())
    }

    /// The last waiter has gone.
    pub(super) fn resume(&self) {
        let mut state = lock(&self.state);
        let wakes = state.busy && std::mem::take(&mut state.rests);
        drop(state);
        if wakes {
            self.notify();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.notify();
    }

    /// Takes over what is new, or sleeps until something is, if there is nothing to drive. False: stop.
    fn next(&self, watched: &mut Watched) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                self.load.store(0, Ordering::Relaxed);
                return false;
            }
            state.new.drain(..).for_each(|task| watched.add(task));
            self.load.store(watched.len(), Ordering::Relaxed);
            if watched.len() > 0 {
                return true;
            }
            (state.busy, state.rests) = (false, true);
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.rests = false;
        }
    }

    /// Sleeps by `sleep`, unless there is something to do already: what is new, or what waiters drove that have gone.
    fn rest(&self, engine: &Engine, steps_back: bool, sleep: impl FnOnce()) {
        let mut state = lock(&self.state);
        let idle = state.new.is_empty() && !state.stop;
        state.rests = idle;
        drop(state);
        // Waiters that go from here on see that the thread rests.
        if idle && !(steps_back && engine.waiters.load(Ordering::Relaxed) == 0) {
            sleep();
        }
        lock(&self.state).rests = false;
    }

    /// Sleeps while others wait. The last of them that goes wakes this under the lock, or has gone before.
    fn pause(&self, engine: &Engine, longest: Duration) {
        let mut state = lock(&self.state);
        let waiters = engine.waiters.load(Ordering::Relaxed);
        if state.new.is_empty() && !state.stop && waiters > 0 {
            // A waiter that has gone since may have woken this before it slept.
            state.rests = true;
            drop(self.changed.wait_timeout(state, longest));
        }
    }
}

/// Turns in which something moved, after which deadlines are looked at all the same.
const BUSY_TURNS: u32 = 16;

/// Such turns after which who sleeps until an operation has ended is woken all the same. A turn moves some hundred KiB at most.
const WAKING_TURNS: u32 = 4;

/// The thread, until the rank leaves.
fn run(engine: &Engine) {
    // It starts once.
    let _ = engine.worker.thread.set(std::thread::current().id());
    // Behind a thread that computes it would wait for milliseconds at each step of an operation, and so would its peers.
    if let Err(error) = ringway_sys::take_short_turns() {
        tracing::debug!(%error, "the engine thread keeps turns of the usual length");
    }
    let mut watched = Watched::default();
    let mut idle_since: Option<Instant> = None;
    let (mut turn, mut moved) = (0_u32, false);
    while engine.worker.next(&mut watched) {
        let now = Instant::now();
        turn = turn.wrapping_add(1);
        if !moved || turn.is_multiple_of(BUSY_TURNS) {
            watched.sweep(engine, now);
        }
        moved = watched.step(engine);
        // Those of the last operation too: there may not be another turn for long.
        if !moved || watched.len() == 0 || turn.is_multiple_of(WAKING_TURNS) {
            watched.wake_sleepers();
        }
        // Whoever waits for messages drives all of them.
        let steps_back = engine.waiters.load(Ordering::Relaxed) > 0;
        let mut driver = None;
        if watched.has_messages()
            && !steps_back
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
        } else if !watched.has_mapped() && steps_back {
            let pause = || engine.worker.pause(engine, Duration::from_millis(5));
            engine.worker.rest(engine, true, pause);
        } else {
            sleep(engine, &watched, driver, now, idle_for);
        }
    }
}

fn sleep(
    engine: &Engine,
    watched: &Watched,
    driver: Option<MutexGuard<'_, Driver>>,
    now: Instant,
    idle_for: Duration,
) {
    if watched.has_ended() || !watched.arm() {
        return;
    }
    let longest = watched
        .earliest()
        .map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
    let bell = &engine.worker.bell;
    let steps_back = driver.is_none() && watched.has_messages();
    engine.worker.rest(engine, steps_back, || match driver {
        Some(driver) => engine.nap(driver, longest, idle_for, bell),
        None => engine.doze(longest, false, bell),
    });
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::{
        AllReduce, ReduceOp,
        tests::{Over, world_on},
    };

    #[test]
    fn a_thread_that_is_made_late_takes_over_what_came_before() {
        let looked = Barrier::new(2);
        world_on(&["a", "b"], Over::Messages, &[], |comm| {
            if comm.rank() == 1 {
                looked.wait();
                for _ in 0..2 {
                    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
                }
                return;
            }
            // In flight until the other rank begins.
            let tasks = [1_u32, 2].map(|element| {
                let call = AllReduce::new(vec![element]);
                comm.start(call).unwrap().into_task()
            });
            let worker = Worker::new().unwrap();
            worker.hand_over(tasks[0].clone(), || Err(io::ErrorKind::WouldBlock.into()));
            worker.hand_over(tasks[1].clone(), || Ok(()));
            let mut watched = Watched::default();
            assert!(worker.next(&mut watched));
            assert_eq!(watched.numbers(), tasks.each_ref().map(|task| task.number));
            looked.wait();
            for task in tasks {
                comm.engine().wait(&task).unwrap();
            }
        });
    }

    /// On few cores, where who waits leaves several operations to the thread.
    #[test]
    fn a_callback_on_the_thread_may_wait_for_another_operation() {
        world_on(&["a", "a"], Over::Mapped, &[], |comm| {
            if comm.rank() == 1 {
                // The other rank's thread has all of them in hand by then.
                std::thread::sleep(Duration::from_millis(200));
            }
            let tasks = [1_u32, 2, 3].map(|element| {
                let call = AllReduce::new(vec![element]);
                comm.start(call).unwrap().into_task()
            });
            let (engine, next) = (comm.engine().clone(), tasks[1].clone());
            let (end, ended) = std::sync::mpsc::channel();
            tasks[0].on_end(Box::new(move |_| drop(end.send(engine.wait(&next)))));
            let waited = ended.recv_timeout(Duration::from_secs(10));
            waited.unwrap().unwrap();
            for task in tasks {
                comm.engine().wait(&task).unwrap();
            }
        });
    }

    #[test]
    fn messages_move_while_an_operation_in_mapped_memory_is_waited_for() {
        let settings = [("timeout", "10s")];
        world_on(&["a", "a", "b"], Over::Mapped, &settings, |comm| {
            let color = u32::from(comm.rank() == 2);
            let group = comm.split(Some(color), 0).unwrap().unwrap();
            assert_eq!(group.is_mapped(), comm.rank() < 2);
            if comm.rank() == 1 {
                // Rank 0 waits for the other operation by then.
                std::thread::sleep(Duration::from_millis(200));
            }
            let far = comm.start(AllReduce::new(vec![1_u32; 100_000])).unwrap();
            let near = || group.start(AllReduce::new(vec![1_u32])).unwrap();
            if comm.rank() == 1 {
                far.wait().unwrap();
                near().wait().unwrap();
            } else {
                near().wait().unwrap();
                far.wait().unwrap();
            }
        });
    }
}
