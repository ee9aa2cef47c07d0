//! Waiting for another rank: spinning, then yielding the processor, then sleeping.

use std::time::{Duration, Instant};

use ringway_sys::{Shared64, barrier, cpu_count, futex_wait, futex_wake, spin_hint, yield_now};

use crate::shm::HostSegment;

/// A sleep ends after this time though nobody rang, to look at interrupt and deadline.
const NAP: Duration = Duration::from_millis(20);
/// Likewise where the kernel has no asymmetric barrier, so that a ring may be lost.
const SHORT_NAP: Duration = Duration::from_millis(1);
/// Looks at the counter without a pause between them, which would cost as much as the line's way here.
const EAGER: u32 = 1000;

/// How long to spin and to yield before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks at the counter before yielding the processor.
    pub spins: u32,
    /// How long to go on yielding before sleeping.
    pub yielding: Duration,
}

impl Patience {
    /// What suits `ranks` ranks on this host's processors: with a processor for each, spinning is the fastest;
    /// with fewer, whoever spins keeps the rank that it waits for from running.
    pub fn for_ranks(ranks: usize) -> Self {
        match ranks <= cpu_count() {
            true => Self {
                spins: 3000,
                yielding: Duration::from_millis(1),
            },
            false => Self {
                spins: 30,
                yielding: Duration::from_millis(2),
            },
        }
    }
}

/// A word of another rank's that is to reach a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Whose.
    pub(super) member: usize,
    pub(super) word: Shared64,
    pub(super) target: u64,
}

/// Waits until a word has reached a value, for a bounded time in each call.
pub(super) struct Waiter<'a> {
    segment: &'a HostSegment,
    patience: Patience,
    spun: bool,
    since: Option<Instant>,
}

impl<'a> Waiter<'a> {
    pub(super) const fn new(segment: &'a HostSegment, patience: Patience) -> Self {
        Self {
            segment,
            patience,
            spun: false,
            since: None,
        }
    }

    /// After something moved: begins with spinning again.
    pub(super) const fn reset(&mut self) {
        self.spun = false;
        self.since = None;
    }

    /// Waits for at most some milliseconds for a word that the rank `local` writes. `None` if it is there; else for how
    /// long it has been waited for in all.
    pub(super) fn pause(&mut self, awaited: &Awaited, local: usize) -> Option<Duration> {
        let there = || awaited.word.load() >= awaited.target;
        if !self.spun {
            self.spun = true;
            if spin(self.patience.spins, there) {
                return None;
            }
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.patience.yielding {
            for _ in 0..16 {
                yield_now();
                if there() {
                    return None;
                }
            }
        } else {
            sleep(self.segment, awaited, local);
            if there() {
                return None;
            }
        }
        Some(since.elapsed())
    }
}

/// Looks up to so many times; true once it is there.
#[inline]
pub(super) fn spin(times: u32, there: impl Fn() -> bool) -> bool {
    for look in 0..times {
        if there() {
            return true;
        }
        if look > EAGER {
            spin_hint();
        }
    }
    false
}

/// Sleeps until the rank `local` may have brought the word to its value.
fn sleep(segment: &HostSegment, awaited: &Awaited, local: usize) {
    let me = segment.local_rank();
    let alarm = segment.alarm(me);
    let before = alarm.load();
    segment.sleepers(local).fetch_or(bit(me));
    barrier::heavy();
    if awaited.word.load() < awaited.target {
        let nap = if barrier::register() { NAP } else { SHORT_NAP };
        futex_wait(alarm, before, nap);
    }
}

/// Asks for this rank's bell to be rung when the rank `local` may have brought the word to its value; false if it is there.
pub(super) fn arm(segment: &HostSegment, awaited: &Awaited, local: usize) -> bool {
    segment.armed(local).fetch_or(bit(segment.local_rank()));
    barrier::heavy();
    awaited.word.load() < awaited.target
}

const fn bit(local: usize) -> u64 {
    1 << (local % 64)
}

/// Wakes those that sleep until this rank progresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    sleepers: Shared64,
    armed: Shared64,
}

impl Waker {
    pub(super) fn new(segment: &HostSegment) -> Self {
        let me = segment.local_rank();
        Self {
            sleepers: segment.sleepers(me),
            armed: segment.armed(me),
        }
    }

    /// After this rank stored a word that others may wait for. Costs a load where nobody sleeps.
    #[inline]
    pub(super) fn wake(&self, segment: &HostSegment) {
        barrier::light();
        if self.sleepers.load() | self.armed.load() != 0 {
            self.wake_slowly(segment);
        }
    }

    #[cold]
    fn wake_slowly(&self, segment: &HostSegment) {
        let (sleepers, armed) = (self.sleepers.swap(0), self.armed.swap(0));
        for local in 0..segment.local_ranks() {
            if sleepers & bit(local) != 0 {
                let alarm = segment.alarm(local);
                alarm.fetch_add(1);
                futex_wake(alarm);
            }
            if armed & bit(local) != 0 {
                segment.ring(local);
            }
        }
    }
}
