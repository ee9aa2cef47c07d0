//! Times of operations, for ranks to compare.

use std::{collections::HashMap, time::Duration};

use ringway_plan::{Algorithm, Collective};

use crate::{Descriptor, Form};

/// Operations that should take the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    /// Of the vector.
    pub(crate) bytes: usize,
}

impl Kind {
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        let elements = usize::try_from(descriptor.elements).unwrap_or(usize::MAX);
        Self {
            collective: descriptor.collective,
            algorithm: descriptor.algorithm,
            bytes: elements.saturating_mul(descriptor.dtype.size()),
        }
    }

    /// Whether no rank can end it before all have begun it: so the rank that comes last measures what links take, and the
    /// others how long they waited for it.
    pub(crate) const fn tells(&self) -> bool {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        self.bytes > 0
            && matches!(
                self.collective,
                AllGather | AllReduce | AllToAll | ReduceScatter
            )
    }

    /// Whether operations like `descriptor` are counted.
    pub(crate) fn counted(descriptor: &Descriptor) -> Option<Self> {
        let kind = Self::of(descriptor);
        (descriptor.form == Form::Even && kind.tells()).then_some(kind)
    }
}

/// Kinds that are kept apart, at most: jobs with more are not judged by what comes beyond.
const MOST_KINDS: usize = 64;

/// Times of each kind, at most.
const MOST_TIMES: usize = 1024;

/// Fewer say nothing.
const LEAST_TIMES: usize = 4;

/// By kind, how long operations took.
#[derive(Debug, Default)]
pub(crate) struct Samples(HashMap<Kind, Vec<Duration>>);

impl Samples {
    pub(super) fn note(&mut self, kind: Kind, took: Duration) {
        if !kind.tells() || (self.0.len() >= MOST_KINDS && !self.0.contains_key(&kind)) {
            return;
        }
        let times = self.0.entry(kind).or_default();
        if times.len() < MOST_TIMES {
            times.push(took);
        }
    }

    /// The lower quartile of a kind's times, and none of any from now on. What takes longer than that waited for something
    /// that comes and goes: a late rank, a busy processor.
    pub(crate) fn take(&mut self, kind: Kind) -> Option<Duration> {
        let mut times = self.0.remove(&kind).filter(|t| t.len() >= LEAST_TIMES);
        self.0.clear();
        let times = times.as_mut()?;
        times.sort_unstable();
        times.get(times.len() / 4).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(collective: Collective, bytes: usize) -> Kind {
        Kind {
            collective,
            algorithm: Algorithm::Ring,
            bytes,
        }
    }

    #[test]
    fn late_ranks_do_not_move_the_quartile() {
        let (all, millis) = (kind(Collective::AllReduce, 4), Duration::from_millis);
        let mut samples = Samples::default();
        for took in [10, 11, 500, 12, 13, 700, 14, 600] {
            samples.note(all, millis(took));
        }
        assert_eq!(samples.take(all), Some(millis(12)));
        assert_eq!(samples.take(all), None);
    }

    #[test]
    fn only_what_all_take_part_in_is_kept_and_little_of_it() {
        let mut samples = Samples::default();
        let root = kind(Collective::Broadcast { root: 0 }, 4);
        for bytes in 0..2 * MOST_KINDS {
            for _ in 0..LEAST_TIMES {
                samples.note(kind(Collective::AllReduce, bytes), Duration::ZERO);
                samples.note(root, Duration::ZERO);
            }
        }
        assert_eq!(samples.0.len(), MOST_KINDS);
        assert_eq!(samples.take(root), None);
        for _ in 0..2 * MOST_TIMES {
            samples.note(kind(Collective::AllGather, 4), Duration::ZERO);
        }
        assert_eq!(samples.0.values().map(Vec::len).max(), Some(MOST_TIMES));
    }
}
