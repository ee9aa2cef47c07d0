//! How large batches should be: hill climbing on bytes per second.

use std::{ops::RangeInclusive, time::Duration};

/// Batches whose rate counts as one measurement.
const SAMPLE: usize = 8;

/// A rate must be better by this factor to count as better: what is less is noise.
const BETTER: f64 = 1.05;

/// Samples at a size that both neighbours were worse than, before they are tried again.
const REST: usize = 32;

/// Moves a size by factors of two within bounds, towards where more bytes pass in a second.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    bounds: RangeInclusive<usize>,
    target: usize,
    up: bool,
    /// Rate at the size before the last step, which is returned to unless the step was good.
    before: Option<(usize, f64)>,
    /// Steps in a row that were taken back.
    failed: usize,
    resting: usize,
    bytes: u64,
    time: Duration,
    batches: usize,
}

impl Climb {
    /// Starts at the least size.
    ///
    /// # Panics
    /// If the bounds hold nothing.
    pub(super) fn new(bounds: RangeInclusive<usize>) -> Self {
        assert!(!bounds.is_empty(), "bounds of {bounds:?} bytes");
        Self {
            target: *bounds.start(),
            bounds,
            up: true,
            before: None,
            failed: 0,
            resting: 0,
            bytes: 0,
            time: Duration::ZERO,
            batches: 0,
        }
    }

    /// At this many bytes a batch is closed.
    pub(super) const fn target(&self) -> usize {
        self.target
    }

    /// A batch that was closed because it was large enough took `time`; the size that follows from that, if it is another one, with the rate
    /// at the present one.
    pub(super) fn record(&mut self, bytes: usize, time: Duration) -> Option<(usize, f64)> {
        self.bytes += bytes as u64;
        self.time += time;
        self.batches += 1;
        if self.batches < SAMPLE {
            return None;
        }
        let rate = self.bytes as f64 / self.time.as_secs_f64().max(1e-9);
        (self.bytes, self.time, self.batches) = (0, Duration::ZERO, 0);
        let present = self.target;
        match self.before.take() {
            Some((size, before)) if rate < before * BETTER => {
                // Not worth it: back, and the other way the next time.
                self.target = size;
                self.turn();
            }
            Some(_) => {
                self.failed = 0;
                self.step(rate);
            }
            None if self.resting > 0 => self.resting -= 1,
            None => self.step(rate),
        }
        (self.target != present).then_some((self.target, rate))
    }

    /// The other way the next time; after both have failed, not soon.
    const fn turn(&mut self) {
        self.up = !self.up;
        self.failed += 1;
        if self.failed >= 2 {
            self.resting = REST;
            self.failed = 0;
        }
    }

    fn step(&mut self, rate: f64) {
        let (least, most) = (*self.bounds.start(), *self.bounds.end());
        let next = if self.up {
            self.target.saturating_mul(2)
        } else {
            self.target / 2
        };
        let next = next.clamp(least, most);
        if next == self.target {
            // At a bound: that way there is nothing.
            return self.turn();
        }
        self.before = Some((self.target, rate));
        self.target = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Sizes that the climb goes through, where a batch of some bytes takes a time.
    fn sizes(time: impl Fn(usize) -> f64, batches: usize) -> Vec<usize> {
        let mut climb = Climb::new(MIB..=10 * MIB);
        (0..batches)
            .map(|_| {
                let bytes = climb.target();
                climb.record(bytes, Duration::from_secs_f64(time(bytes)));
                climb.target()
            })
            .collect()
    }

    #[test]
    fn grows_while_a_latency_dominates() {
        let sizes = sizes(|bytes| 0.1 + bytes as f64 / 1e9, 100);
        assert!(sizes.iter().all(|size| (MIB..=10 * MIB).contains(size)));
        assert_eq!(sizes.iter().max(), Some(&(10 * MIB)));
        let late = sizes[50..].iter().filter(|&&size| size >= 8 * MIB).count();
        assert!(late > 40, "{sizes:?}");
    }

    #[test]
    fn stays_small_where_large_is_slower() {
        let sizes = sizes(
            |bytes| bytes as f64 / if bytes > 3 * MIB { 1e8 } else { 1e9 },
            400,
        );
        let large = sizes.iter().filter(|&&size| size > 3 * MIB).count();
        assert!(large <= 2 * SAMPLE + 400 / REST, "{large}: {sizes:?}");
    }

    #[test]
    fn noise_moves_nothing_for_long() {
        let noise = std::cell::Cell::new(0_u32);
        let sizes = sizes(
            |bytes| {
                noise.set(
                    noise
                        .get()
                        .wrapping_mul(1_664_525)
                        .wrapping_add(1_013_904_223),
                );
                bytes as f64 / 1e9 * (1.0 + f64::from(noise.get() >> 16) / 65536.0 * 0.02)
            },
            1000,
        );
        let away = sizes.iter().filter(|&&size| size != MIB).count();
        assert!(away < 150, "{away} of 1,000 batches");
    }
}
