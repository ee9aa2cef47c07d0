//! The cost model: how long a schedule takes, as latency, wire time and reduction.
//!
//! The model is alpha-beta-gamma: a message of b bytes takes alpha + b * beta, a reduction of b bytes
//! b * gamma. Alpha has two parts: *overhead*, during which the sending rank can do nothing else, and *latency*,
//! which passes by itself. A rank sends one message at a time within its host, and so receives; ranks of a host
//! share its network cards towards other hosts. Reductions overlap with messages, unless it is the processor that moves
//! the bytes. Messages move in slices, so that steps that depend on each other
//! overlap.
//!
//! [`predict`] runs the executors of all ranks against such machines, in virtual time; [`estimate`] is the
//! same in closed form, for choosing among many ranks. Times are whole picoseconds inside, so that
//! all ranks compute the same.

mod closed;
mod drive;
mod fit;

pub use closed::estimate;
pub use fit::Observed;

use std::{ops::Add, time::Duration};

use crate::{generate::Topology, verify::Verified};

/// A way between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Picoseconds.
    latency: u64,
    /// Picoseconds.
    overhead: u64,
    /// Femtoseconds.
    byte: u64,
    /// Whether the ranks' processors move the bytes, and reduce nothing meanwhile.
    by_processor: bool,
    /// By how many thousandths bytes are slowed that do not come in a steady stream.
    unsteady: u64,
}

impl Link {
    /// Loopback TCP, between ranks that each have a core, which copies all bytes into and out of the kernel. A send of
    /// 4 bytes was measured at 3 us, another round at 4, and all-reduces of 1 to 16 MiB at 0.12 to 0.2 ns for each byte
    /// that a rank sends and receives (AMD EPYC guest, Linux 6.18; decision 0005).
    pub const LOOPBACK: Self = Self {
        latency: 1_000_000,
        overhead: 3_000_000,
        byte: 143_000,
        by_processor: true,
        unsteady: 0,
    };

    /// Shared memory of a host. Half a round trip was measured at 0.06 or 0.24 us, by where the
    /// processors lie, and a copy by one core at 11 GB/s (AMD EPYC guest, Linux 6.18).
    pub const SHARED_MEMORY: Self = Self {
        latency: 100_000,
        overhead: 50_000,
        byte: 90_909,
        by_processor: false,
        unsteady: 0,
    };

    /// `latency` passes by itself, `overhead` is the sender's time for each message.
    ///
    /// # Panics
    /// If `bytes_per_second` is not above zero.
    pub fn new(latency: Duration, overhead: Duration, bytes_per_second: f64) -> Self {
        let byte = femtoseconds(bytes_per_second);
        Self {
            latency: picoseconds(latency),
            overhead: picoseconds(overhead),
            byte,
            by_processor: false,
            unsteady: 0,
        }
    }

    /// By how many thousandths bytes are slowed that do not come in a steady stream: from several senders at once, for
    /// each further one, as queues in switches fill; or from another sender in each round, as streams that were idle
    /// begin anew. Only [`estimate`] counts it.
    pub const fn with_unsteady(self, thousandths: u64) -> Self {
        Self {
            unsteady: thousandths,
            ..self
        }
    }

    /// The same way at the pace that was measured.
    ///
    /// # Panics
    /// If `bytes_per_second` is not above zero.
    pub fn timed(self, latency: Duration, overhead: Duration, bytes_per_second: f64) -> Self {
        Self {
            latency: picoseconds(latency),
            overhead: picoseconds(overhead),
            byte: femtoseconds(bytes_per_second),
            ..self
        }
    }

    /// What passes by itself when a message is sent.
    pub const fn latency(&self) -> Duration {
        duration(self.latency)
    }

    /// The sender's time for each message.
    pub const fn overhead(&self) -> Duration {
        duration(self.overhead)
    }

    /// Bytes per second; infinite where they take no time.
    pub fn rate(&self) -> f64 {
        1e15 / self.byte as f64
    }

    /// By how many thousandths bytes are slowed that do not come in a steady stream, see [`Self::with_unsteady`].
    pub const fn unsteady(&self) -> u64 {
        self.unsteady
    }

    /// The time of a message without bytes.
    pub const fn alpha(&self) -> Duration {
        duration(self.latency + self.overhead)
    }

    const fn wire(&self, bytes: u64) -> u64 {
        scaled(self.byte, bytes)
    }
}

/// What the model knows of the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    intra: Link,
    inter: Link,
    /// Femtoseconds for each byte that is reduced or copied.
    reduce: u64,
    cards: usize,
    slice_bytes: usize,
}

impl Machine {
    /// `intra` joins ranks of a host, `inter` ranks of different hosts; a rank reduces, and copies,
    /// `reduce_bytes_per_second`. One network card in each host and slices of 128 KiB, unless set.
    ///
    /// # Panics
    /// If `reduce_bytes_per_second` is not above zero.
    pub fn new(intra: Link, inter: Link, reduce_bytes_per_second: f64) -> Self {
        let reduce = femtoseconds(reduce_bytes_per_second);
        Self {
            intra,
            inter,
            reduce,
            cards: 1,
            slice_bytes: 128 << 10,
        }
    }

    /// How many network cards a host has; its ranks take them in turns. 0 counts as 1.
    pub fn with_cards(self, cards: usize) -> Self {
        Self {
            cards: cards.max(1),
            ..self
        }
    }

    /// In which slices messages move. 0 counts as 1.
    pub fn with_slice_bytes(self, slice_bytes: usize) -> Self {
        Self {
            slice_bytes: slice_bytes.max(1),
            ..self
        }
    }

    /// Slices that the link between hosts has for half a millisecond: a power of two of bytes, from 64 KiB to `longest`.
    ///
    /// A rank sends a chunk on once it is there. If that is one slice, a slow link waits at every step for ranks that are late
    /// by what processes wake up late; with shorter ones it still has the next. All-reduce of 1.7 MB by ring, 4 hosts at 240
    /// Mbit/s: 94 ms with slices of 512 KiB, 87 with 64 (the link allows 85).
    #[must_use]
    pub fn sliced(self, longest: usize) -> Self {
        const SLICE: u64 = 500_000_000_000; // femtoseconds
        const LEAST: usize = 64 << 10;
        let bytes = SLICE / self.inter.byte.max(1);
        let bytes = usize::try_from(bytes.next_power_of_two()).unwrap_or(longest);
        self.with_slice_bytes(bytes.clamp(LEAST.min(longest), longest))
    }

    /// In which messages move.
    pub const fn slice_bytes(&self) -> usize {
        self.slice_bytes
    }

    /// Where elements go from host to host in half their width: half the bytes, and two casts in line, each as quick as a reduction:
    /// one of what a rank sends, one of what it receives.
    #[must_use]
    pub const fn with_half_between_hosts(mut self) -> Self {
        self.inter.byte = self.inter.byte / 2 + 2 * self.reduce;
        self
    }

    /// Between ranks of a host.
    pub const fn intra(&self) -> Link {
        self.intra
    }

    /// Between ranks of different hosts.
    pub const fn inter(&self) -> Link {
        self.inter
    }

    /// Bytes that a rank reduces per second; infinite where they take no time.
    pub fn reduce_rate(&self) -> f64 {
        1e15 / self.reduce as f64
    }

    /// With these links, and reductions of so many bytes per second.
    ///
    /// # Panics
    /// If `reduce_bytes_per_second` is not above zero.
    pub fn with_measured(self, intra: Link, inter: Link, reduce_bytes_per_second: f64) -> Self {
        Self {
            intra,
            inter,
            reduce: femtoseconds(reduce_bytes_per_second),
            ..self
        }
    }

    const fn reduction(&self, bytes: u64) -> u64 {
        scaled(self.reduce, bytes)
    }
}

/// How long an operation takes, and on what its slowest rank spends that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost {
    /// All of it.
    pub total: Duration,
    /// The alphas of messages.
    pub latency: Duration,
    /// Bytes on links.
    pub wire: Duration,
    /// Reducing and copying.
    pub reduction: Duration,
}

impl Cost {
    /// By how much it takes longer if the busiest link, which several ranks share, is busy for `seconds`.
    pub fn contention(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds).saturating_sub(self.wire)
    }
}

/// Predicts the time of `schedule` for a vector of `bytes`, among the hosts of `topology`, out of place. Takes
/// time in proportion to the steps of all ranks.
pub fn predict(schedule: &Verified, bytes: usize, topology: &Topology, machine: &Machine) -> Cost {
    drive::run(schedule, bytes, topology, machine).into()
}

/// A point in time, by what led there: picoseconds. Half a year is as late as it gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Time {
    at: u64,
    latency: u64,
    wire: u64,
    reduction: u64,
}

impl Time {
    fn latency(self, time: u64) -> Self {
        Self {
            at: self.at.saturating_add(time),
            latency: self.latency.saturating_add(time),
            ..self
        }
    }

    fn wire(self, time: u64) -> Self {
        Self {
            at: self.at.saturating_add(time),
            wire: self.wire.saturating_add(time),
            ..self
        }
    }

    fn reduction(self, time: u64) -> Self {
        Self {
            at: self.at.saturating_add(time),
            reduction: self.reduction.saturating_add(time),
            ..self
        }
    }
}

impl Time {
    fn times(self, count: u64) -> Self {
        let Self {
            at,
            latency,
            wire,
            reduction,
        } = self;
        Self {
            at: at.saturating_mul(count),
            latency: latency.saturating_mul(count),
            wire: wire.saturating_mul(count),
            reduction: reduction.saturating_mul(count),
        }
    }

    /// What is left after `other`, of which this is a part.
    fn less(self, other: Self) -> Self {
        Self {
            at: self.at.saturating_sub(other.at),
            latency: self.latency.saturating_sub(other.latency),
            wire: self.wire.saturating_sub(other.wire),
            reduction: self.reduction.saturating_sub(other.reduction),
        }
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            at: self.at.saturating_add(other.at),
            latency: self.latency.saturating_add(other.latency),
            wire: self.wire.saturating_add(other.wire),
            reduction: self.reduction.saturating_add(other.reduction),
        }
    }
}

impl From<Time> for Cost {
    fn from(time: Time) -> Self {
        Self {
            total: duration(time.at),
            latency: duration(time.latency),
            wire: duration(time.wire),
            reduction: duration(time.reduction),
        }
    }
}

/// `each` femtoseconds for each of `count`, in picoseconds.
const fn scaled(each: u64, count: u64) -> u64 {
    let picoseconds = each as u128 * count as u128 / 1000;
    if picoseconds > u64::MAX as u128 {
        return u64::MAX;
    }
    picoseconds as u64
}

fn femtoseconds(per_second: f64) -> u64 {
    assert!(
        per_second > 0.0,
        "{per_second} bytes per second; expected more than 0"
    );
    (1e15 / per_second).round() as u64
}

fn picoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos() * 1000).unwrap_or(u64::MAX / 4)
}

const fn duration(picoseconds: u64) -> Duration {
    Duration::from_nanos(picoseconds / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_have_short_slices() {
        let sliced = |megabits: f64, longest| {
            let link = Link::new(Duration::ZERO, Duration::ZERO, megabits * 1e6 / 8.0);
            Machine::new(link, link, 1e9).sliced(longest).slice_bytes() >> 10
        };
        let rates = [1e-3, 100.0, 240.0, 1e3, 2e3, 10e3, 400e3];
        assert_eq!(
            rates.map(|rate| sliced(rate, 512 << 10)),
            [64, 64, 64, 64, 128, 512, 512]
        );
        assert_eq!(rates.map(|rate| sliced(rate, 32 << 10)), [32; 7]);
        let instant = Machine::new(
            Link::SHARED_MEMORY,
            Link::new(Duration::ZERO, Duration::ZERO, 1e30),
            1e9,
        );
        assert_eq!(instant.sliced(512 << 10).slice_bytes(), 512 << 10);
    }
}
