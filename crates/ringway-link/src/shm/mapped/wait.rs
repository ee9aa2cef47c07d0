//! Waiting for another rank: spinning, then yielding the processor, then sleeping.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use ringway_sys::{Shared64, barrier, cpu_count, futex_wait, futex_wake, spin_hint, yield_now};

use crate::shm::HostSegment;

/// A sleep ends after this time though nobody rang, to look at interrupt and deadline.
const NAP: Duration = Duration::from_millis(20);
/// Likewise where the kernel has no asymmetric barrier, so that a ring may be lost.
const SHORT_NAP: Duration = Duration::from_millis(1);
/// Looks at the counter without a pause between them, which would cost as much as the line's way here.
const EAGER: u32 = 1000;
/// Looks where spinning is in vain: for what has come already.
const FEW: u32 = 30;
/// One wait of so many spins all the same, to see whether that still is so.
const SELDOM: u32 = 32;

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

/// How long spinning pays, as seen lately.
///
/// Where two ranks have come to share a processor, as the kernel has it when something else is busy on the other, whoever spins
/// keeps the rank that it waits for from running: every operation takes as long as both of them spin (measured: 200 us in place of
/// 1.5, for as long as the other program ran). So a rank that finds what it waited for as soon as it has yielded spins no
/// more, until it finds something by spinning.
#[derive(Debug)]
pub(super) struct Spins {
    most: u32,
    /// 0 while spinning pays; else counts waits since it does not.
    in_vain: AtomicU32,
}

impl Spins {
    pub(super) const fn new(most: u32) -> Self {
        Self {
            most,
            in_vain: AtomicU32::new(0),
        }
    }

    /// Spins for a while, until it is there.
    #[inline]
    pub(super) fn spin(&self, there: impl Fn() -> bool) -> bool {
        if self.in_vain.load(Relaxed) == 0 {
            return spin(self.most, there).is_some();
        }
        self.spin_seldom(there)
    }

    #[cold]
    fn spin_seldom(&self, there: impl Fn() -> bool) -> bool {
        let wait = self.in_vain.load(Relaxed);
        let is_trial = wait.is_multiple_of(SELDOM);
        let looks = spin(if is_trial { self.most } else { FEW }, there);
        // What is there at once may have come before, on this processor too.
        let pays = looks.is_some_and(|looks| looks > FEW);
        self.in_vain
            .store(if pays { 0 } else { wait % SELDOM + 1 }, Relaxed);
        looks.is_some()
    }

    /// What spinning didn't bring was there after yielding once.
    fn yielding_helped(&self) {
        if self.most > FEW && self.in_vain.load(Relaxed) == 0 {
            self.in_vain.store(1, Relaxed);
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

impl Awaited {
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.word.load() >= self.target
    }
}

/// Waits until a word has reached a value, for a bounded time in each call.
pub(super) struct Waiter<'a> {
    segment: &'a HostSegment,
    spins: &'a Spins,
    yielding: Duration,
    spun: bool,
    since: Option<Instant>,
}

impl<'a> Waiter<'a> {
    pub(super) const fn new(
        segment: &'a HostSegment,
        spins: &'a Spins,
        yielding: Duration,
    ) -> Self {
        Self {
            segment,
            spins,
            yielding,
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
        let there = || awaited.is_there();
        if !self.spun {
            self.spun = true;
            if self.spins.spin(there) {
                return None;
            }
            yield_now();
            if there() {
                self.spins.yielding_helped();
                return None;
            }
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.yielding {
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

/// Looks up to so many times; after how many it was there.
#[inline]
fn spin(times: u32, there: impl Fn() -> bool) -> Option<u32> {
    for look in 0..times {
        if there() {
            return Some(look);
        }
        if look > EAGER {
            spin_hint();
        }
    }
    None
}

/// Sleeps until the rank `local` may have brought the word to its value.
fn sleep(segment: &HostSegment, awaited: &Awaited, local: usize) {
    let me = segment.local_rank();
    let alarm = segment.alarm(me);
    let before = alarm.load();
    segment.sleepers(local).fetch_or(bit(me));
    barrier::heavy();
    if !awaited.is_there() {
        let nap = if barrier::register() { NAP } else { SHORT_NAP };
        futex_wait(alarm, before, nap);
    }
}

/// Asks for this rank's bell to be rung when the rank `local` has progressed. What it did before the next heavy barrier may go
/// unheard.
pub(super) fn arm(segment: &HostSegment, local: usize) {
    segment.armed(local).fetch_or(bit(segment.local_rank()));
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MOST: u32 = 100;

    /// What is there after so many looks; and how many there were.
    fn wait(spins: &Spins, after: u32) -> (bool, u32) {
        let looks = Cell::new(0);
        let found = spins.spin(|| {
            looks.set(looks.get() + 1);
            looks.get() > after
        });
        (found, looks.get())
    }

    #[test]
    fn who_yields_to_whom_it_waits_for_spins_no_more() {
        let spins = Spins::new(MOST);
        assert_eq!(wait(&spins, u32::MAX), (false, MOST));
        spins.yielding_helped();
        let looks: Vec<u32> = (0..2 * SELDOM).map(|_| wait(&spins, 1000).1).collect();
        assert_eq!(looks.iter().filter(|&&looks| looks == MOST).count(), 2);
        assert_eq!(looks.iter().filter(|&&looks| looks == FEW).count(), 62);
        // What was there before says nothing.
        assert_eq!(wait(&spins, 0), (true, 1));
        assert_eq!(wait(&spins, 1000).1, FEW);
    }

    #[test]
    fn who_finds_something_by_spinning_spins_again() {
        let spins = Spins::new(MOST);
        spins.yielding_helped();
        let found = (0..=SELDOM).position(|_| wait(&spins, MOST / 2).0);
        assert_eq!(found, Some(SELDOM as usize - 1));
        assert_eq!(wait(&spins, MOST / 2), (true, MOST / 2 + 1));
    }

    #[test]
    fn who_hardly_spins_anyway_goes_on_as_ever() {
        let spins = Spins::new(FEW);
        spins.yielding_helped();
        assert_eq!(wait(&spins, 1000).1, FEW);
        assert_eq!(wait(&spins, 1000).1, FEW);
    }
}
