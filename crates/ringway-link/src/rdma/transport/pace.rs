//! How fast a queue pair is, so that several share messages by what their paths carry.

use std::time::Instant;

/// What the last message counts in the measured rate: one of so many.
const MEMORY: f64 = 8.0;

/// Bytes under way on a queue pair, and how many it moves in a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    under_way: u64,
    /// Bytes per second while it was busy; none before the first message.
    rate: Option<f64>,
    /// Since when the message that will end next has had the path to itself.
    since: Option<Instant>,
}

impl Pace {
    /// A message is posted.
    pub(super) fn posted(&mut self, now: Instant, bytes: usize) {
        if self.under_way == 0 {
            self.since = Some(now);
        }
        self.under_way += bytes as u64;
    }

    /// The oldest message has ended.
    pub(super) fn ended(&mut self, now: Instant, bytes: usize) {
        self.under_way = self.under_way.saturating_sub(bytes as u64);
        let took = self
            .since
            .map_or(0.0, |since| (now - since).as_secs_f64())
            // Two that are seen to end at the same time ended before: the first of them has shown a rate that is too low.
            .max(1e-6);
        let seen = bytes as f64 / took;
        self.rate = Some(self.rate.map_or(seen, |rate| rate + (seen - rate) / MEMORY));
        self.since = Some(now);
    }

    /// How long a message of so many bytes would take behind those under way, in seconds. `other` is the rate to take if
    /// none is measured.
    pub(super) fn takes(&self, bytes: usize, other: f64) -> f64 {
        (self.under_way + bytes as u64) as f64 / self.rate.unwrap_or(other)
    }

    /// Bytes per second, once measured.
    pub(super) const fn rate(&self) -> Option<f64> {
        self.rate
    }
}

/// The fastest for a message of so many bytes, of those that may take it.
pub(super) fn fastest<'a>(
    paces: impl Iterator<Item = (usize, &'a Pace)> + Clone,
    bytes: usize,
) -> Option<usize> {
    // One that was never tried is as good as the best.
    let best = paces.clone().filter_map(|(_, pace)| pace.rate());
    let best = best.fold(0.0, f64::max);
    let other = if best > 0.0 { best } else { 1.0 };
    paces
        .map(|(at, pace)| (at, pace.takes(bytes, other)))
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::Duration};

    use super::*;

    const BYTES: usize = 500_000;

    /// How many of 900 messages go by each of two paths of these rates, where so many may be under way.
    fn shares(rates: [f64; 2], depth: usize) -> [usize; 2] {
        let began = Instant::now();
        let mut now = 0.0;
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
        let mut paces = [Pace::default(); 2];
        // When each that is under way ends.
        let mut ends: [VecDeque<f64>; 2] = Default::default();
        let mut shares = [0; 2];
        for _ in 0..900 {
            while ends.iter().map(VecDeque::len).sum::<usize>() >= depth {
                let first = |path: &VecDeque<f64>| path.front().copied().unwrap_or(f64::MAX);
                let path = usize::from(first(&ends[1]) < first(&ends[0]));
                now = first(&ends[path]);
                ends[path].pop_front();
                paces[path].ended(at(now), BYTES);
            }
            let path = fastest(paces.iter().enumerate(), BYTES).unwrap();
            let start = ends[path].back().copied().unwrap_or(now);
            ends[path].push_back(start + BYTES as f64 / rates[path]);
            paces[path].posted(at(now), BYTES);
            shares[path] += 1;
        }
        shares
    }

    #[test]
    fn paths_share_by_their_rates() {
        for (rates, least, most) in [([1e9, 1e9], 430, 470), ([3e9, 1e9], 630, 720)] {
            let [first, second] = shares(rates, 16);
            assert_eq!(first + second, 900);
            assert!((least..=most).contains(&first), "{rates:?}: {first}");
        }
        let [slow, fast] = shares([1e8, 1e9], 16);
        assert!(slow < 110 && slow > 0, "{slow} and {fast}");
    }
}
