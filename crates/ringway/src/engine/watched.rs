//! What the engine's thread has in hand.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use super::{
    Engine, Task,
    mapped::{MappedTask, Stepped},
};

/// Operations that nobody waits for, until they have ended.
#[derive(Default)]
pub(super) struct Watched {
    /// In mapped memory, by descending priority.
    mapped: Vec<Arc<Task>>,
    /// In mapped memory, by group and call: those, of which there may be thousands, that have no room to begin before
    /// one in `mapped` has begun.
    queued: BTreeMap<(u64, u64), Arc<Task>>,
    /// Over messages.
    messages: Vec<Arc<Task>>,
    /// Ended ones that threads sleep for, which are not woken yet.
    slept_for: Vec<Arc<Task>>,
    /// No deadline is earlier.
    earliest: Option<Instant>,
}

impl Watched {
    pub(super) fn add(&mut self, task: Arc<Task>) {
        let earliest = self.earliest.unwrap_or(task.deadline);
        self.earliest = Some(earliest.min(task.deadline));
        let (group, call) = (task.group, task.call);
        if task.mapped().is_none() {
            self.messages.push(task);
        } else if self.is_blocked(group, call) {
            self.queued.insert((group, call), task);
        } else {
            self.take_up(task);
        }
    }

    fn take_up(&mut self, task: Arc<Task>) {
        let at = self
            .mapped
            .partition_point(|other| other.priority >= task.priority);
        self.mapped.insert(at, task);
    }

    /// Whether an earlier operation of the group has no room to begin: then this one has none.
    fn is_blocked(&self, group: u64, call: u64) -> bool {
        let mut earlier = self
            .mapped
            .iter()
            .filter(|task| task.group == group && task.call < call);
        earlier.any(|task| task.mapped().is_some_and(MappedTask::is_queued))
    }

    /// How many operations; those that have just ended among them.
    pub(super) fn len(&self) -> usize {
        self.mapped.len() + self.queued.len() + self.messages.len()
    }

    pub(super) fn has_mapped(&self) -> bool {
        !self.mapped.is_empty()
    }

    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// No deadline is earlier.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.earliest
    }

    /// Forgets what has ended, and ends what may not go on.
    pub(super) fn sweep(&mut self, engine: &Engine, now: Instant) {
        self.forget_ended();
        let failed = engine.control.failure().is_some();
        if !failed && self.earliest.is_none_or(|earliest| now < earliest) {
            return;
        }
        self.queued.retain(|_, task| !task.is_done());
        let tasks = || {
            let mapped = self.mapped.iter().chain(self.queued.values());
            mapped.chain(&self.messages)
        };
        for task in tasks().filter(|task| failed || now >= task.deadline) {
            match task.mapped() {
                Some(mapped) => mapped.fail(task, engine),
                None => engine.fail(task, now),
            }
        }
        let left = tasks().filter(|task| !task.is_done());
        self.earliest = left.map(|task| task.deadline).min();
        self.queued.retain(|_, task| !task.is_done());
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        self.mapped.retain(|task| !task.is_done());
        self.messages.retain(|task| !task.is_done());
    }

    /// Whether there are operations to forget.
    pub(super) fn has_ended(&self) -> bool {
        let mut tasks = self.mapped.iter().chain(&self.messages);
        tasks.any(|task| task.is_done())
    }

    /// Steps operations in mapped memory until one has moved much or all of them wait; whether anything was done.
    pub(super) fn step(&mut self, engine: &Engine) -> bool {
        let mut moved = false;
        loop {
            let mut ended = false;
            for task in &self.mapped {
                match task.mapped().map(|mapped| mapped.try_step(task, engine)) {
                    Some(Stepped::Moved) => return true,
                    Some(Stepped::Waits { has_advanced }) => moved |= has_advanced,
                    Some(Stepped::Ended { is_slept_for }) => {
                        ended = true;
                        self.slept_for.extend(is_slept_for.then(|| task.clone()));
                    }
                    Some(Stepped::Elsewhere) | None => {}
                }
            }
            moved |= ended;
            if ended {
                self.mapped.retain(|task| !task.is_done());
            }
            if !self.admit() {
                return moved;
            }
        }
    }

    /// Takes up of each group the next operation, if the one before has begun; whether there are any.
    fn admit(&mut self) -> bool {
        let mut found = false;
        let mut from = Some((0, 0));
        while let Some(next) = from
            && let Some((&(group, call), _)) = self.queued.range(next..).next()
        {
            from = group.checked_add(1).map(|group| (group, 0));
            if !self.is_blocked(group, call)
                && let Some(task) = self.queued.remove(&(group, call))
            {
                self.take_up(task);
                found = true;
            }
        }
        found
    }

    /// Wakes who sleeps for what has ended: not at once, as who waits for one operation after the other would be woken for each,
    /// on a processor that the next ones need.
    pub(super) fn wake_sleepers(&mut self) {
        self.slept_for.drain(..).for_each(|task| task.wake());
    }

    /// Asks to be woken when an operation in mapped memory may move; false if one may already.
    pub(super) fn arm(&self) -> bool {
        if self.mapped.is_empty() {
            return true;
        }
        let mapped = || self.mapped.iter().filter_map(|task| task.mapped());
        mapped().for_each(MappedTask::arm);
        ringway_sys::barrier::heavy();
        !mapped().any(MappedTask::may_move)
    }

    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<u32> {
        let tasks = self.mapped.iter().chain(self.queued.values());
        tasks
            .chain(&self.messages)
            .map(|task| task.number)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Barrier,
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        AllReduce,
        tests::{Over, world_on},
    };

    #[test]
    fn operations_without_room_to_begin_are_not_looked_at_and_end_all_the_same() {
        let looked = Barrier::new(2);
        world_on(&["a", "a"], Over::Mapped, &[], |comm| {
            let start = |_| {
                let call = AllReduce::new(vec![1_u32]);
                comm.start(call).unwrap().into_task()
            };
            if comm.rank() == 1 {
                looked.wait();
                for task in (0..100).map(start) {
                    comm.engine().wait(&task).unwrap();
                }
                return;
            }
            let tasks: Vec<_> = (0..100).map(start).collect();
            // The engine's thread, which has them too, finds nothing to do any more and sleeps.
            sleep(Duration::from_millis(50));
            let mut watched = Watched::default();
            tasks.iter().for_each(|task| watched.add(task.clone()));
            assert!(!watched.step(comm.engine()));
            assert_eq!(watched.len(), 100);
            assert!(watched.mapped.len() < 30, "{}", watched.mapped.len());
            looked.wait();
            let deadline = Instant::now() + Duration::from_secs(10);
            while watched.len() > 0 {
                assert!(Instant::now() < deadline, "{} are left", watched.len());
                watched.step(comm.engine());
                watched.sweep(comm.engine(), Instant::now());
                watched.wake_sleepers();
            }
            assert!(tasks.iter().all(|task| task.is_done()));
        });
    }
}
