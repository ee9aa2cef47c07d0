//! What the machine's processors do, all together, as the kernel counts it.

use std::fs;

use anyhow::{Context as _, Result};

/// Their time so far, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Processors {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Processors {
    pub(crate) fn now() -> Result<Self> {
        const FILE: &str = "/proc/stat";
        let text = fs::read_to_string(FILE).context(FILE)?;
        Self::parse(&text).with_context(|| format!("{FILE}: expected a line `cpu` with 8 numbers"))
    }

    /// From `cpu  user nice system idle iowait irq softirq steal ...`. Guests' time, which follows, is in users' (proc(5)).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers = numbers.split_whitespace().take(8);
        let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        let &[_, _, _, idle, waiting, _, _, stolen] = &ticks[..] else {
            return None;
        };
        let sum = |ticks: &[u64]| ticks.iter().fold(0, |sum: u64, it| sum.saturating_add(*it));
        Some(Self {
            all: sum(&ticks),
            idle: sum(&[idle, waiting]),
            stolen,
        })
    }

    /// The part that was in use since then, 0 to 1.
    pub(crate) fn busy_since(self, before: Self) -> f64 {
        1.0 - self.share(before, |it| it.idle)
    }

    /// The part that the hypervisor gave to others, 0 to 1.
    pub(crate) fn stolen_since(self, before: Self) -> f64 {
        self.share(before, |it| it.stolen)
    }

    fn share(self, before: Self, part: fn(Self) -> u64) -> f64 {
        // Some counters go back a little at times (proc(5), iowait).
        let rise = |of: fn(Self) -> u64| of(self).saturating_sub(of(before)) as f64;
        rise(part) / rise(|it| it.all).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_in_use_where_they_are_not_idle() {
        let before = Processors::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2\n").unwrap();
        let after = Processors::parse("cpu  150 0 100 1000 100 0 50 100 9 9\n").unwrap();
        assert!((after.busy_since(before) - 0.5).abs() < 1e-9);
        assert!((after.stolen_since(before) - 0.2).abs() < 1e-9);
        // In no time, and where counters went back.
        assert_eq!(
            (after.busy_since(after), after.stolen_since(after)),
            (1.0, 0.0)
        );
        assert_eq!(before.stolen_since(after), 0.0);
        for text in [
            "",
            "cpu  1 2 3",
            "cpu0 1 2 3 4 5 6 7 8",
            "cpu  a 2 3 4 5 6 7 8",
        ] {
            assert_eq!(Processors::parse(text), None, "{text}");
        }
    }
}
