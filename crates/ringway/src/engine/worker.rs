//! The thread that drives operations nobody waits for.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Engine, Task, lock};

/// The worker's side of an engine. The thread starts with the first asynchronous operation.
#[derive(Default)]
pub(super) struct Worker {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    started: bool,
    stop: bool,
    /// What it drives; ended ones are dropped at the next turn.
    tasks: Vec<Arc<Task>>,
}

impl Worker {
    /// Has `task` driven to its end.
    pub(super) fn watch(&self, engine: &Arc<Engine>, task: Arc<Task>) {
        let mut state = lock(&self.state);
        state.tasks.push(task);
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
        self.changed.notify_one();
    }

    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }

    /// The last waiter has gone.
    pub(super) fn resume(&self) {
        if !lock(&self.state).tasks.is_empty() {
            self.changed.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.changed.notify_one();
    }

    /// Sleeps until there is something to drive. `None`: stop.
    fn next(&self) -> Option<Vec<Arc<Task>>> {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return None;
            }
            state.tasks.retain(|task| !task.is_done());
            if !state.tasks.is_empty() {
                return Some(state.tasks.clone());
            }
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
    let mut idle_since: Option<Instant> = None;
    while let Some(tasks) = engine.worker.next() {
        let now = Instant::now();
        let failed = engine.control.failure().is_some();
        for task in tasks.iter().filter(|task| failed || now >= task.deadline) {
            engine.fail(task, now);
        }
        if engine.waiters.load(Ordering::Relaxed) > 0 {
            engine.worker.pause(Duration::from_millis(5));
            continue;
        }
        let Ok(mut driver) = engine.driver.try_lock() else {
            continue;
        };
        if driver.drive(now) {
            idle_since = None;
            engine.settle(driver);
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
        } else {
            let deadline = tasks.iter().map(|task| task.deadline).min().unwrap_or(now);
            engine.nap(driver, deadline.saturating_duration_since(now), idle_for);
        }
    }
}
