//! Which stores fill staging faster, found by trying.
//!
//! That depends on where the processors of the ranks lie. Lines that another core wrote come out of a shared cache at 35
//! to 45 GB/s, but at 2 where the cores share none, as those of two sockets or two core complexes; past the caches they
//! come at 12 to 17 either way (measured on two processors of a virtual machine, Zen 5, that its host moves about).

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use ringway_kernels::Stores;

/// So many operations of a trial are timed, its last ones. The fastest counts: interruptions only ever add.
const TIMED: u32 = 3;
/// Trials are at most one operation in so many.
const SELDOM: u32 = 32;

/// What is known of operations of one plan. All members count the same operations, and so try the same at a time. What
/// counts is what the slowest of them needs: who only writes does not notice how long others read.
#[derive(Debug)]
pub(super) struct StoreChoice {
    /// Operations that a trial of a kind takes.
    run: u32,
    operations: AtomicU32,
    /// The fastest of the current trial.
    fastest: AtomicU32,
    own: Costs,
    /// The most that any other member needs.
    others: Costs,
}

/// What operations took of late, in nanoseconds: with stores through the caches, and past them. 0 is unknown.
#[derive(Debug, Default)]
struct Costs([AtomicU32; 2]);

impl Costs {
    fn load(&self) -> [u32; 2] {
        [0, 1].map(|kind: usize| self.0[kind].load(Relaxed))
    }
}

/// How an operation fills staging, and what that takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) stores: Stores,
    /// Whether it is timed, and as the how manieth of its trial.
    timed: Option<u32>,
    took: Duration,
    since: Option<Instant>,
}

impl Trial {
    /// Of an operation that needs none.
    pub(super) const NONE: Self = Self {
        stores: Stores::Cached,
        timed: None,
        took: Duration::ZERO,
        since: None,
    };

    /// The clock goes on.
    pub(super) fn resume(&mut self) {
        if self.timed.is_some() {
            self.since = Some(Instant::now());
        }
    }

    /// The clock stands still, as while others have yet to call the operation.
    pub(super) fn rest(&mut self) {
        if let Some(since) = self.since.take() {
            self.took += since.elapsed();
        }
    }
}

impl StoreChoice {
    /// For operations of which so many fill all of staging's rotation: until then a trial still meets the lines that the other
    /// kind has left.
    pub(super) fn new(rotation: u32) -> Self {
        Self {
            run: rotation + TIMED,
            operations: AtomicU32::new(0),
            fastest: AtomicU32::new(0),
            own: Costs::default(),
            others: Costs::default(),
        }
    }

    /// Operations from a trial to the next of its kind.
    const fn period(&self) -> u32 {
        2 * self.run * SELDOM
    }

    /// For the next operation.
    pub(super) fn next(&self) -> Trial {
        let place = self.operations.fetch_add(1, Relaxed) % self.period();
        let past = match place / self.run {
            0 => false,
            1 => true,
            _ => {
                let (own, others) = (self.own.load(), self.others.load());
                let [through, past] = [0, 1].map(|kind: usize| own[kind].max(others[kind]));
                // By a tenth at least, for the sake of who reads the results next.
                u64::from(past) * 10 < u64::from(through) * 9
            }
        };
        let stores = match past {
            true => Stores::Streaming,
            false => Stores::Cached,
        };
        let untimed = self.run - TIMED;
        let timed = (place < 2 * self.run).then_some(place % self.run);
        Trial {
            stores,
            timed: timed.and_then(|place| place.checked_sub(untimed)),
            ..Trial::NONE
        }
    }

    /// An operation has ended.
    pub(super) fn learn(&self, trial: &Trial) {
        let Some(index) = trial.timed else {
            return;
        };
        let took = u32::try_from(trial.took.as_nanos())
            .unwrap_or(u32::MAX)
            .max(1);
        let fastest = match index {
            0 => took,
            _ => took.min(self.fastest.load(Relaxed)),
        };
        self.fastest.store(fastest, Relaxed);
        if index + 1 < TIMED {
            return;
        }
        let cost = &self.own.0[usize::from(trial.stores == Stores::Streaming)];
        let cost_now = match cost.load(Relaxed) {
            0 => fastest,
            // What disturbs a whole trial must not outweigh all that was seen before.
            known => u32::midpoint(known, fastest.min(known.saturating_mul(4))),
        };
        cost.store(cost_now, Relaxed);
    }

    /// This member's costs, to be shown to the others.
    pub(super) fn word(&self) -> u64 {
        let [through, past] = self.own.load().map(u64::from);
        past << 32 | through
    }

    /// What the others have shown.
    pub(super) fn hear(&self, words: impl Iterator<Item = u64>) {
        let most = words.fold([0; 2], |most: [u32; 2], word| {
            [most[0].max(word as u32), most[1].max((word >> 32) as u32)]
        });
        for (cost, most) in self.others.0.iter().zip(most) {
            cost.store(most, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an operation that rewrites half of the rotation.
    fn choice() -> StoreChoice {
        StoreChoice::new(2)
    }

    /// Runs operations that take `costs` nanoseconds by kind, up to the next trial; the kind of most of them.
    fn run(choice: &StoreChoice, costs: [u64; 2]) -> Stores {
        run_disturbed(choice, costs, |_| 0)
    }

    /// The same, while something adds nanoseconds to the operation of that index.
    fn run_disturbed(choice: &StoreChoice, costs: [u64; 2], added: impl Fn(u32) -> u64) -> Stores {
        let mut last = Stores::Cached;
        for index in 0..choice.period() {
            let mut trial = choice.next();
            let kind = usize::from(trial.stores == Stores::Streaming);
            trial.took = Duration::from_nanos(costs[kind] + added(index));
            choice.learn(&trial);
            last = trial.stores;
        }
        last
    }

    #[test]
    fn the_faster_kind_is_taken_and_a_change_is_noticed() {
        let choice = choice();
        assert_eq!(run(&choice, [1000, 3000]), Stores::Cached);
        run(&choice, [9000, 3000]);
        assert_eq!(run(&choice, [9000, 3000]), Stores::Streaming);
        for _ in 0..4 {
            run(&choice, [1000, 3000]);
        }
        assert_eq!(run(&choice, [1000, 3000]), Stores::Cached);
        for _ in 0..8 {
            // Too little of a difference.
            assert_eq!(run(&choice, [1000, 950]), Stores::Cached);
        }
    }

    #[test]
    fn the_slowest_member_counts() {
        let (writer, reader) = (choice(), choice());
        assert_eq!(run(&writer, [1000, 2000]), Stores::Cached);
        assert_eq!(run(&reader, [9000, 3000]), Stores::Streaming);
        writer.hear([reader.word()].into_iter());
        assert_eq!(run(&writer, [1000, 2000]), Stores::Streaming);
    }

    #[test]
    fn the_first_operations_of_a_trial_do_not_count() {
        let choice = choice();
        let unsettled = |index| if index % 5 < 2 { 9000 } else { 0 };
        assert_eq!(
            run_disturbed(&choice, [1000, 3000], unsettled),
            Stores::Cached
        );
    }

    #[test]
    fn one_interruption_changes_nothing() {
        let choice = choice();
        for interrupted in 0..choice.run {
            let added = |index| if index == interrupted { 4_000_000 } else { 0 };
            assert_eq!(run_disturbed(&choice, [1000, 3000], added), Stores::Cached);
        }
    }
}
