//! Virtual time, and what it was spent on.

use std::{fmt, time::Duration};

/// Picoseconds since the operation began: a byte at 400 Gbit/s takes 20 of them, and a u64 holds half a year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that `bytes` take at so many bytes per second, rounded up.
    pub fn of_bytes(bytes: f64, bytes_per_second: f64) -> Self {
        Self((bytes * 1e12 / bytes_per_second).ceil() as u64)
    }

    /// So much later.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// From `earlier` to this; zero if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl From<Duration> for Time {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX))
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        Self::from_nanos(time.0 / 1000)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} us", self.0 as f64 / 1e6)
    }
}

/// A point in time with the account of the chain of causes that led there: the critical path, if it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When.
    pub at: Time,
    /// Of this, the overheads and latencies of messages.
    pub latency: Time,
    /// Bytes on the wire, each at the rate of the slowest link of its path, as if it were alone there.
    pub wire: Time,
    /// What it took longer because links were shared, or down.
    pub contention: Time,
    /// Reductions and copies.
    pub reduction: Time,
    /// The number of what ended here: a message's, or a reduction's.
    pub cause: Option<u32>,
}

impl Moment {
    /// When the operation begins.
    pub const START: Self = Self {
        at: Time(0),
        latency: Time(0),
        wire: Time(0),
        contention: Time(0),
        reduction: Time(0),
        cause: None,
    };

    /// So much later, for latency.
    #[must_use]
    pub const fn latency(self, span: Time) -> Self {
        Self {
            at: self.at.after(span),
            latency: self.latency.after(span),
            ..self
        }
    }

    /// Later by bytes that would have taken `ideal` alone, and took until `end`.
    #[must_use]
    pub const fn transfer(self, ideal: Time, end: Time) -> Self {
        let took = end.since(self.at);
        // Rounding may make what is alone a picosecond shorter than ideal.
        let wire = if ideal.0 < took.0 { ideal } else { took };
        Self {
            at: end,
            wire: self.wire.after(wire),
            contention: self.contention.after(took.since(wire)),
            ..self
        }
    }

    /// So much later, for reducing or copying.
    #[must_use]
    pub const fn reduction(self, span: Time) -> Self {
        Self {
            at: self.at.after(span),
            reduction: self.reduction.after(span),
            ..self
        }
    }

    /// The later of two; of equals this.
    #[must_use]
    pub fn or_later(self, other: Self) -> Self {
        if other.at > self.at { other } else { self }
    }
}
