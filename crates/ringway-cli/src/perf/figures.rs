//! What one size came to.

use super::message::Finished;

/// A size and its figures.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) bytes: u64,
    /// Messages at each queue pair, in each direction.
    pub(super) iterations: u64,
    pub(super) figures: Figures,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) enum Figures {
    /// The times of all messages in microseconds, ascending.
    Latency(Vec<f64>),
    /// Messages per second, of both directions together.
    Bandwidth { peak: f64, mean: f64 },
}

impl Figures {
    /// From the times in microseconds as they came.
    pub(super) fn latency(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self::Latency(times)
    }

    /// From what the sides that have sent `messages` each say. The mean is over the longer of their times; the peak is
    /// the sum of theirs, as if they had been at once.
    pub(super) fn bandwidth(messages: u64, sides: &[Finished]) -> Self {
        let seconds = sides.iter().map(|side| side.seconds).fold(0.0, f64::max);
        let mean = messages as f64 * sides.len() as f64 / seconds.max(f64::MIN_POSITIVE);
        let peak: f64 = sides.iter().map(|side| side.peak).sum();
        Self::Bandwidth {
            peak: peak.max(mean),
            mean,
        }
    }
}

/// The time that the part `q` of the messages does not exceed (nearest rank); `times` is ascending.
pub(super) fn percentile(times: &[f64], q: f64) -> f64 {
    let at = (q * times.len() as f64).ceil() as usize;
    times
        .get(at.clamp(1, times.len().max(1)) - 1)
        .copied()
        .unwrap_or_default()
}

/// The mean.
pub(super) fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// How many times lie below each of the limits, which are 2^(1/4) apart, from the first to the last that has one.
/// Returns (limit in microseconds, count).
pub(super) fn histogram(times: &[f64]) -> Vec<(f64, usize)> {
    let bucket = |time: f64| (time.max(1e-3).log2() * 4.0).floor() as i32;
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        return Vec::new();
    };
    let mut counts: Vec<(f64, usize)> = (bucket(first)..=bucket(last))
        .map(|at| ((f64::from(at + 1) / 4.0).exp2(), 0))
        .collect();
    for &time in times {
        if let Some((_, count)) = counts.get_mut((bucket(time) - bucket(first)) as usize) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&times, 0.0), 1.0);
        assert_eq!(percentile(&times, 0.5), 500.0);
        assert_eq!(percentile(&times, 0.99), 990.0);
        assert_eq!(percentile(&times, 0.999), 999.0);
        assert_eq!(percentile(&times, 1.0), 1000.0);
        assert_eq!(percentile(&[7.0], 0.999), 7.0);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
    }

    #[test]
    fn all_times_are_in_the_histogram_below_their_limit() {
        let times = [0.9, 1.0, 1.1, 1.5, 40.0];
        let counts = histogram(&times);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), 5);
        let mut below = 0;
        for (limit, count) in counts {
            below += count;
            let expected = times.iter().filter(|&&time| time < limit).count();
            assert_eq!(below, expected, "below {limit}");
        }
        assert!(histogram(&[]).is_empty());
    }

    #[test]
    fn two_directions_add_up_over_the_longer_time() {
        let side = |seconds, peak| Finished { seconds, peak };
        let sides = [side(1.0, 120.0), side(2.0, 60.0)];
        let Figures::Bandwidth { peak, mean } = Figures::bandwidth(100, &sides) else {
            panic!("a bandwidth");
        };
        assert_eq!((peak, mean), (180.0, 100.0));
        let Figures::Bandwidth { peak, mean } = Figures::bandwidth(100, &sides[..1]) else {
            panic!("a bandwidth");
        };
        assert_eq!((peak, mean), (120.0, 100.0));
    }
}
