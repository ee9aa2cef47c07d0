//! When links are to be looked at anew. It knows no clock but the times that it is given, which are the same on all ranks, and
//! so is what it says.

use std::{collections::HashMap, time::Duration};

use crate::engine::Kind;

/// Thousandths of the usual time: beyond these an operation is slower, or quicker, than usual. Halved links are far beyond, what
/// runs differ by is not.
const SLOWER: u128 = 1250;
const QUICKER: u128 = 800;

/// Short operations between two comparisons, of which a long one counts as many: what a comparison costs no time worth speaking of
/// beside, and what a program that goes on to long ones after short ones has soon done.
const INTERVALS: std::ops::RangeInclusive<u32> = 16..=4096;

/// Comparisons within the time that a change must last.
const COMPARISONS: u32 = 4;

/// Between two looks there are at least so many of that time, and twice as many after each look that came soon again.
const REST: u32 = 4;

/// At most; or as long as so many looks, if that is longer: looks take about 2 % of the time where each finds something.
const LONGEST_REST: u32 = 64;
const SHARE: u32 = 50;

/// Trials of algorithms take a twentieth of the time, and the first comes after as long as a look's rest: what ends before would only
/// lose by it.
const TRIALS: u32 = 20;

/// Kinds of operations whose usual time is known, at most.
const MOST_KINDS: usize = 64;

/// What all ranks know of the operations since they last compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    /// Which of them moved the most bytes, and how long they took: the least of all ranks' quartiles, as the rank that comes
    /// last does not wait for others. None if all ranks know too few.
    pub(super) kind: Option<(Kind, Duration)>,
    /// How long that was.
    pub(super) elapsed: Duration,
}

/// Why links are looked at anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Operations have taken so many thousandths of their usual time, and have done so for long enough.
    Trend { kind: Kind, thousandths: u64 },
    /// Links have changed before, and a change back need not be seen: what went over them goes another way.
    Again { kind: Kind },
}

impl Cause {
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Trend { kind, .. } | Self::Again { kind } => *kind,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    /// How long a change must last.
    lasting: Duration,
    now: Duration,
    interval: u32,
    usual: HashMap<Kind, Usual>,
    trend: Option<Trend>,
    /// The last look, and how long there is none by a trend after it.
    looked: Option<Duration>,
    rest: Duration,
    /// What all looks took.
    spent: Duration,
    /// What trials of algorithms took.
    trying: Duration,
    /// When links that have changed are looked at again, and how long after the last time that is.
    again: Option<(Duration, Duration)>,
}

/// What operations of a kind take.
#[derive(Clone, Copy, Debug)]
struct Usual {
    time: Duration,
    /// The first comparison has connections open and windows grow.
    warm: bool,
}

/// Operations differ from what is usual, all in one direction.
#[derive(Clone, Copy, Debug)]
struct Trend {
    kind: Kind,
    slower: bool,
    since: Duration,
}

impl Judge {
    pub(super) fn new(lasting: Duration) -> Self {
        Self {
            lasting,
            now: Duration::ZERO,
            interval: *INTERVALS.start(),
            usual: HashMap::new(),
            trend: None,
            looked: None,
            rest: lasting * REST,
            spent: Duration::ZERO,
            trying: Duration::ZERO,
            again: None,
        }
    }

    /// Short operations until the next comparison, or as much work.
    pub(super) const fn interval(&self) -> u32 {
        self.interval
    }

    /// Whether links are to be looked at anew, and why.
    pub(super) fn judge(&mut self, compared: &Compared) -> Option<Cause> {
        let before = self.now;
        self.now += compared.elapsed;
        self.pace(compared.elapsed);
        let Some((kind, time)) = compared.kind else {
            self.trend = None;
            return None;
        };
        if let Some((at, _)) = self.again
            && at <= self.now
        {
            return Some(Cause::Again { kind });
        }
        let thousandths = self.compare(kind, time)?;
        let slower = match thousandths {
            SLOWER.. => true,
            ..=QUICKER => false,
            _ => {
                self.trend = None;
                return None;
            }
        };
        let trend = match self.trend {
            Some(trend) if (trend.kind, trend.slower) == (kind, slower) => trend,
            // It began somewhere within these operations.
            _ => Trend {
                kind,
                slower,
                since: before,
            },
        };
        self.trend = Some(trend);
        let lasted = self.now - trend.since >= self.lasting && trend.since < before;
        let rested = self.looked.is_none_or(|at| at + self.rest <= self.now);
        (lasted && rested).then_some(Cause::Trend {
            kind,
            thousandths: u64::try_from(thousandths).unwrap_or(u64::MAX),
        })
    }

    /// Thousandths of the usual time; none while that is not known.
    fn compare(&mut self, kind: Kind, time: Duration) -> Option<u128> {
        if let Some(usual) = self.usual.get_mut(&kind) {
            if usual.warm {
                return Some(time.as_nanos() * 1000 / usual.time.as_nanos().max(1));
            }
            *usual = Usual { time, warm: true };
        } else if self.usual.len() < MOST_KINDS {
            self.usual.insert(kind, Usual { time, warm: false });
        }
        None
    }

    /// What a look has found: whether the plan is another one now. `took` is the same on all ranks.
    ///
    /// Where operations differ by themselves as much as by plans, plans change back and forth for good. So only a trend
    /// after a long rest, and while looks have cost little, has intervals begin anew.
    pub(super) fn note_look(&mut self, cause: &Cause, changed: bool, took: Duration) {
        let least = self.lasting * REST;
        let most = (self.lasting * LONGEST_REST).max(took * SHARE);
        let longer = |rest: Duration| (rest * 2).min(most);
        let is_trend = matches!(cause, Cause::Trend { .. });
        let is_soon = self.looked.is_some_and(|at| self.now < at + self.rest * 2);
        let is_news = is_trend && !is_soon && self.spent * SHARE <= self.now;
        // Whatever operations take now is usual.
        self.usual.clear();
        self.trend = None;
        self.looked = Some(self.now);
        self.spent += took;
        if is_news {
            self.rest = least;
        } else if is_trend {
            self.rest = longer(self.rest);
        }
        let after = match (self.again, changed) {
            (None, false) => None,
            (None, true) => Some(least),
            (Some(_), true) if is_news => Some(least),
            (Some((_, after)), _) => Some(longer(after)),
        };
        self.again = after.map(|after| (self.now + after, after));
    }

    /// Whether the job has gone on for long enough that trying algorithms pays.
    pub(super) fn may_try(&self) -> bool {
        self.now >= self.lasting * REST && self.now >= self.trying * TRIALS
    }

    /// Algorithms were tried; `took` is the same on all ranks.
    pub(super) fn note_trial(&mut self, took: Duration) {
        self.trying += took;
    }

    /// As if the job had gone on for long.
    #[cfg(test)]
    pub(super) fn age(&mut self) {
        self.now += self.lasting * REST;
    }

    /// Sets the interval so that comparisons come in time, whatever operations take.
    fn pace(&mut self, elapsed: Duration) {
        let wanted = self.lasting.as_nanos() / u128::from(COMPARISONS);
        let interval = u128::from(self.interval);
        let fitting = interval * wanted / elapsed.as_nanos().max(1);
        let fitting = fitting.clamp(interval / 4, interval * 4);
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
        self.interval = fitting.clamp(*INTERVALS.start(), *INTERVALS.end());
    }
}

#[cfg(test)]
mod tests {
    use ringway_plan::{Algorithm, Collective};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn kind(bytes: usize) -> Kind {
        Kind {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            bytes,
        }
    }

    /// Compares each second, for 5 that a change must last; when it said to look, and what. Looks take no time.
    fn looks(
        judge: &mut Judge,
        seconds: std::ops::Range<u64>,
        millis: impl Fn(u64) -> u64,
        changed: bool,
    ) -> Vec<(u64, Cause)> {
        looks_that_take(Duration::ZERO, judge, seconds, millis, changed)
    }

    fn looks_that_take(
        took: Duration,
        judge: &mut Judge,
        seconds: std::ops::Range<u64>,
        millis: impl Fn(u64) -> u64,
        changed: bool,
    ) -> Vec<(u64, Cause)> {
        let mut looks = Vec::new();
        for at in seconds {
            let compared = Compared {
                kind: Some((kind(1), Duration::from_millis(millis(at)))),
                elapsed: SECOND,
            };
            if let Some(cause) = judge.judge(&compared) {
                judge.note_look(&cause, changed, took);
                looks.push((at, cause));
            }
        }
        looks
    }

    const fn trend(thousandths: u64) -> Cause {
        Cause::Trend {
            kind: Kind {
                collective: Collective::AllReduce,
                algorithm: Algorithm::Ring,
                bytes: 1,
            },
            thousandths,
        }
    }

    #[test]
    fn a_change_that_lasts_is_seen_once_each_way() {
        let mut judge = Judge::new(5 * SECOND);
        assert_eq!(looks(&mut judge, 0..100, |_| 10, true), []);
        // It is seen at the end of the first second that it holds in.
        let found = looks(&mut judge, 100..200, |_| 20, false);
        assert_eq!(found, [(104, trend(2000))]);
        let found = looks(&mut judge, 200..300, |_| 10, false);
        assert_eq!(found, [(204, trend(500))]);
    }

    #[test]
    fn what_comes_and_goes_is_no_change() {
        let mut judge = Judge::new(5 * SECOND);
        for slow in [1, 2, 4] {
            let bursts = |at| if at % 6 < slow { 30 } else { 10 };
            assert_eq!(looks(&mut judge, 6..300, bursts, true), [], "{slow} of 6");
        }
        // Nor is what is within what runs differ by.
        let mut judge = Judge::new(5 * SECOND);
        let waves = |at| 100 + [0, 11, 24, 7, 0][at as usize / 7 % 5];
        assert_eq!(looks(&mut judge, 0..300, waves, true), []);
    }

    #[test]
    fn after_a_change_it_looks_again_ever_more_seldom() {
        let mut judge = Judge::new(5 * SECOND);
        looks(&mut judge, 0..10, |_| 10, true);
        let found = looks(&mut judge, 10..15, |_| 20, true);
        assert_eq!(found, [(14, trend(2000))]);
        let again: Vec<u64> = looks(&mut judge, 15..1500, |_| 10, false)
            .iter()
            .map(|look| look.0)
            .collect();
        assert_eq!(again, [34, 74, 154, 314, 634, 954, 1274]);
        // A change that such a look finds does not make them more frequent: plans may change back and forth.
        let found = looks(&mut judge, 1500..1600, |_| 10, true);
        assert_eq!(found[0].0, 1594);
        // One that operations show does.
        let shown = |at| if at < 1650 { 10 } else { 20 };
        let at: Vec<u64> = looks(&mut judge, 1600..1680, shown, true)
            .iter()
            .map(|look| look.0)
            .collect();
        assert_eq!(at, [1654, 1674]);
    }

    #[test]
    fn looks_take_a_fiftieth_of_the_time_where_each_changes_the_plan() {
        const SECONDS: u64 = 20_000;
        const TOOK: u64 = 7;
        for noise in [20, 60, 400] {
            let mut judge = Judge::new(5 * SECOND);
            let noisy = |at| if at / noise % 2 == 0 { 10 } else { 20 };
            let took = Duration::from_secs(TOOK);
            let looks = looks_that_take(took, &mut judge, 0..SECONDS, noisy, true).len() as u64;
            let most = SECONDS / TOOK / 40;
            assert!((most / 2..=most).contains(&looks), "{noise} s: {looks}");
        }
    }

    #[test]
    fn a_link_that_flaps_is_looked_at_ever_more_seldom() {
        let mut judge = Judge::new(5 * SECOND);
        // Each 15 s another way; looks find nothing to be done.
        let flaps = |at| if at / 15 % 2 == 0 { 10 } else { 20 };
        let found = looks(&mut judge, 0..1000, flaps, false);
        assert!((3..12).contains(&found.len()), "{found:?}");
    }

    #[test]
    fn trials_come_late_and_take_a_twentieth_of_the_time() {
        let (mut judge, mut trials) = (Judge::new(5 * SECOND), Vec::new());
        for at in 1..=1000 {
            let compared = Compared {
                kind: None,
                elapsed: SECOND,
            };
            judge.judge(&compared);
            if judge.may_try() {
                judge.note_trial(3 * SECOND);
                trials.push(at);
            }
        }
        assert_eq!(trials[..4], [20, 60, 120, 180]);
        assert_eq!(trials.len(), 17);
    }

    #[test]
    fn the_interval_follows_the_time_that_operations_take() {
        let mut judge = Judge::new(4 * SECOND);
        for (micros, interval) in [(50, 4096), (1000, 1000), (20_000, 50), (1_000_000, 16)] {
            for _ in 0..8 {
                let elapsed = Duration::from_micros(micros) * judge.interval();
                judge.judge(&Compared {
                    kind: None,
                    elapsed,
                });
            }
            assert_eq!(judge.interval(), interval, "{micros} us");
        }
    }

    #[test]
    fn kinds_have_their_own_usual_times_and_are_not_mixed() {
        let mut judge = Judge::new(5 * SECOND);
        for at in 0..200_u64 {
            let bytes = at as usize % 100;
            let time = Duration::from_millis(bytes as u64 + 1);
            let compared = Compared {
                kind: Some((kind(bytes), time)),
                elapsed: SECOND,
            };
            assert_eq!(judge.judge(&compared), None, "{at}");
        }
        assert_eq!(judge.usual.len(), MOST_KINDS);
    }
}
