//! The link by which the model says what was measured.

use std::time::Duration;

use super::{Link, Machine, closed::Ranks, picoseconds};
use crate::{algorithm::Algorithm, generate::Topology, schedule::Collective};

/// Times of all-reduces by all ranks of a [`Topology`]: of the shortest vectors, for what messages cost, and of long
/// ones, for what bytes do. A ring's messages come one after the other, those of `direct` all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Bytes of the short vector.
    pub short: usize,
    /// Bytes of the long vector.
    pub long: usize,
    /// The short one by `ring`.
    pub ring_short: Duration,
    /// The short one by `direct`.
    pub direct_short: Duration,
    /// The long one by `ring`.
    pub ring_long: Duration,
    /// The long one by `direct`.
    pub direct_long: Duration,
}

/// 100 KB/s: no link is taken to be slower.
const SLOWEST: u64 = 10_000_000_000;

/// Five times as long for each further sender: more is no unsteadiness but a link that many share.
const UNSTEADIEST: u64 = 4_000;

/// What messages cost depends a little on what bytes do, and that on messages.
const TURNS: usize = 4;

impl Machine {
    /// With the link that makes [`super::estimate`] say what was measured among ranks of `topology`: the one between hosts if
    /// there is one rank on each of several, the one within a host if all are on one. Of two ranks nothing tells overhead from latency, nor
    /// how steady bytes must come: these stay as they are, in proportion.
    #[must_use]
    pub fn fitted(&self, topology: &Topology, observed: &Observed) -> Self {
        let apart = topology.hosts().len() > 1;
        let with = |link| match apart {
            true => Self {
                inter: link,
                ..*self
            },
            false => Self {
                intra: link,
                ..*self
            },
        };
        let time = |link, algorithm, bytes: usize| {
            let machine = with(link);
            let ranks = Ranks::new(topology, &machine);
            let time = ranks.time(Collective::AllReduce, algorithm, bytes as u64);
            time.unwrap_or_default().at
        };
        let mut link = if apart { self.inter } else { self.intra };
        for _ in 0..TURNS {
            link = messages(link, observed, &time);
            link.byte = least(SLOWEST, |byte| {
                let long = time(Link { byte, ..link }, Algorithm::Ring, observed.long);
                long >= picoseconds(observed.ring_long)
            });
            if topology.ranks() > 2 {
                link.unsteady = least(UNSTEADIEST, |unsteady| {
                    let link = Link { unsteady, ..link };
                    let long = time(link, Algorithm::Direct, observed.long);
                    long >= picoseconds(observed.direct_long)
                });
            }
        }
        with(link)
    }
}

/// With the latency and the overhead that the short vectors tell. Times are linear in both.
fn messages(
    link: Link,
    observed: &Observed,
    time: &impl Fn(Link, Algorithm, usize) -> u64,
) -> Link {
    const UNIT: u64 = 1_000_000;
    let short = |latency, overhead, algorithm| {
        let link = Link {
            latency,
            overhead,
            ..link
        };
        time(link, algorithm, observed.short)
    };
    // Picoseconds that are the messages', and how many latencies and overheads these are.
    let parts = |algorithm, measured| {
        let bytes = short(0, 0, algorithm);
        let count = |time: u64| (time - bytes) / UNIT;
        let latencies = count(short(UNIT, 0, algorithm)).max(1);
        let overheads = count(short(0, UNIT, algorithm)).max(1);
        let rest = picoseconds(measured).saturating_sub(bytes);
        (rest, latencies, overheads)
    };
    let (ring, latencies, _) = parts(Algorithm::Ring, observed.ring_short);
    // A ring has as many overheads as latencies.
    let both = (ring / latencies).max(20);
    let (direct, latencies, overheads) = parts(Algorithm::Direct, observed.direct_short);
    let overhead = match overheads.checked_sub(latencies) {
        None | Some(0) => {
            let before = (link.overhead + link.latency).max(1);
            (u128::from(both) * u128::from(link.overhead) / u128::from(before)) as u64
        }
        Some(more) => direct.saturating_sub(latencies * both) / more,
    };
    let overhead = overhead.clamp(both / 20, both - both / 20);
    Link {
        overhead,
        latency: both - overhead,
        ..link
    }
}

/// The least number up to `most` for which `enough`, which holds for all above it.
fn least(most: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match enough(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;

    fn observe(machine: &Machine, topology: &Topology, long: usize) -> Observed {
        let short = 16 * topology.ranks();
        let time = |algorithm, bytes| {
            let cost = estimate(Collective::AllReduce, algorithm, bytes, topology, machine);
            cost.unwrap().total
        };
        Observed {
            short,
            long,
            ring_short: time(Algorithm::Ring, short),
            direct_short: time(Algorithm::Direct, short),
            ring_long: time(Algorithm::Ring, long),
            direct_long: time(Algorithm::Direct, long),
        }
    }

    fn machine(inter: Link) -> Machine {
        Machine::new(Link::SHARED_MEMORY, inter, 40e9)
    }

    fn near(found: f64, wanted: f64, share: f64) {
        assert!((found / wanted - 1.0).abs() < share, "{found} for {wanted}");
    }

    #[test]
    fn what_the_model_made_is_found_again() {
        let micros = Duration::from_micros;
        let prior = machine(Link::new(micros(10), micros(5), 1.1e9).with_unsteady(70));
        for hosts in [3, 4, 8, 33] {
            let topology = Topology::new((0..hosts).collect());
            for (latency, overhead, rate, unsteady) in
                [(2, 1, 12e9, 0), (30, 8, 11e6, 90), (4, 20, 1.2e9, 300)]
            {
                let link = Link::new(micros(latency), micros(overhead), rate);
                let truth = machine(link.with_unsteady(unsteady));
                let seen = observe(&truth, &topology, 1 << 20);
                let found = prior.fitted(&topology, &seen).inter();
                near(found.latency().as_secs_f64(), latency as f64 / 1e6, 0.02);
                near(found.overhead().as_secs_f64(), overhead as f64 / 1e6, 0.02);
                near(found.rate(), rate, 0.02);
                assert!(found.unsteady().abs_diff(unsteady) <= 5, "{found:?}");
            }
        }
    }

    #[test]
    fn two_hosts_tell_the_sum_and_the_rate() {
        let micros = Duration::from_micros;
        let topology = Topology::new(vec![0, 1]);
        let truth = machine(Link::new(micros(20), micros(40), 2e9));
        let prior = machine(Link::new(micros(10), micros(5), 1.1e9).with_unsteady(70));
        let found = prior
            .fitted(&topology, &observe(&truth, &topology, 1 << 20))
            .inter();
        near(found.alpha().as_secs_f64(), 60e-6, 0.02);
        // A third of it is overhead before, and so it stays; bytes make up for what slices cost less.
        near(found.latency().as_secs_f64(), 40e-6, 0.02);
        assert_eq!(found.unsteady(), 70);
        let long = |machine: &Machine| observe(machine, &topology, 1 << 20).ring_long;
        near(
            long(&machine(found)).as_secs_f64(),
            long(&truth).as_secs_f64(),
            0.01,
        );
    }

    #[test]
    fn what_no_link_does_stays_within_bounds() {
        let topology = Topology::new((0..4).collect());
        let link = Link::new(Duration::from_micros(10), Duration::from_micros(5), 1.1e9);
        for time in [Duration::ZERO, Duration::from_secs(3600)] {
            let seen = Observed {
                short: 64,
                long: 1 << 20,
                ring_short: time,
                direct_short: Duration::ZERO,
                ring_long: Duration::ZERO,
                direct_long: time,
            };
            let found = machine(link).fitted(&topology, &seen).inter();
            assert!(found.unsteady() <= UNSTEADIEST && found.alpha() <= Duration::from_secs(3600));
        }
    }
}
