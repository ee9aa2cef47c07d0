//! What is measured: the client says it, the server follows.

use anyhow::{Result, bail};
use ringway_link::rdma::Mtu;
use serde::{Deserialize, Serialize};

/// The most bytes that each side registers.
const MEMORY: u64 = 1 << 30;

/// The most queue pairs, requests in a window, and requests of a run at a queue pair.
const QUEUE_PAIRS: u32 = 1024;
const DEPTH: u32 = 1 << 14;
pub(super) const ITERATIONS: u64 = 5_000_000;

/// What each request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// RDMA WRITE into the peer's memory.
    Write,
    /// SEND into a receive that the peer has posted.
    Send,
    /// RDMA READ out of the peer's memory.
    Read,
    /// Fetch and add on eight bytes of the peer's memory.
    Atomic,
}

impl Operation {
    /// Whether data goes from the one that asks to the other, which can answer it with the like. Otherwise it comes with
    /// the completion.
    pub(super) const fn pushes(self) -> bool {
        matches!(self, Self::Write | Self::Send)
    }

    /// The word of the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// What is measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// Bandwidth, with many requests under way.
    Bw,
    /// Latency, with one request under way.
    Lat,
}

impl Measure {
    /// The word of the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Lat => "lat",
        }
    }
}

/// All that both sides have to know before there is memory and queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Test {
    pub(super) operation: Operation,
    pub(super) measure: Measure,
    /// Whether both sides ask at once.
    pub(super) bidirectional: bool,
    pub(super) qps: u32,
    /// The most requests under way at a queue pair.
    pub(super) depth: u32,
    /// The most payload of a packet, in bytes; the devices may have less.
    pub(super) mtu: u32,
    /// The longest message in bytes.
    pub(super) longest: u64,
    /// Whether queue pairs are connected by rdma_cm, and not by addresses.
    pub(super) managed: bool,
}

impl Test {
    /// `write bw`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.operation.name(), self.measure.name())
    }

    /// Whether both sides can do it, whoever has asked for it.
    pub(super) fn check(&self) -> Result<()> {
        for (what, asked, most) in [
            ("queue pairs", self.qps, QUEUE_PAIRS),
            ("depth", self.depth, DEPTH),
        ] {
            if !(1..=most).contains(&asked) {
                bail!("{what}: {asked} asked for, expected 1 to {most}");
            }
        }
        if self.longest == 0 || self.longest > MEMORY {
            bail!(
                "messages of {} bytes asked for, expected 1 to {MEMORY}",
                self.longest
            );
        }
        if self.memory() > MEMORY {
            bail!(
                "{} queue pairs with messages of up to {} bytes take {} bytes of memory, expected at most {MEMORY}: use fewer, or smaller sizes",
                self.qps,
                self.longest,
                self.memory()
            );
        }
        if self.operation == Operation::Atomic && self.longest != 8 {
            bail!(
                "atomic operations are on 8 bytes, and {} were asked for: leave --sizes out",
                self.longest
            );
        }
        if self.measure == Measure::Lat && (self.bidirectional || self.qps > 1) {
            bail!(
                "latency is measured with one request under way: --bidirectional and --qps go with `bw`"
            );
        }
        self.mtu().map(drop)
    }

    /// The MTU by its code.
    pub(super) fn mtu(&self) -> Result<Mtu> {
        match Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == self.mtu) {
            Some(mtu) => Ok(mtu),
            None => bail!(
                "no MTU of RoCE has {} bytes: expected 256, 512, 1024, 2048 or 4096",
                self.mtu
            ),
        }
    }

    /// How far apart the places of two messages are in memory: whole cache lines.
    pub(super) const fn slot(&self) -> u64 {
        self.longest.next_multiple_of(64)
    }

    /// The bytes that each side registers: for each queue pair, a place to send from and one to receive into.
    pub(super) const fn memory(&self) -> u64 {
        self.slot() * 2 * self.qps as u64
    }
}

/// A number of messages of one size at each queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    /// Whether it is there to compare what has arrived, and not to be measured.
    pub(super) check: bool,
}

impl Run {
    /// Whether it can be done with what a test was set up for.
    pub(super) fn fits(&self, test: &Test) -> Result<()> {
        if !(1..=test.longest).contains(&self.bytes) || !(1..=ITERATIONS).contains(&self.iterations)
        {
            bail!(
                "a run of {} messages of {} bytes asked for, expected 1 to {ITERATIONS} of up to {}",
                self.iterations,
                self.bytes,
                test.longest
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test() -> Test {
        Test {
            operation: Operation::Write,
            measure: Measure::Bw,
            bidirectional: false,
            qps: 1,
            depth: 128,
            mtu: 4096,
            longest: 8 << 20,
            managed: false,
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        test().check().unwrap();
        let refused = |change: fn(&mut Test)| {
            let mut test = test();
            change(&mut test);
            test.check().unwrap_err().to_string()
        };
        for (text, says) in [
            (refused(|test| test.qps = 0), "queue pairs: 0"),
            (refused(|test| test.depth = 1 << 20), "depth: 1048576"),
            (refused(|test| test.longest = 0), "messages of 0 bytes"),
            (refused(|test| test.longest = u64::MAX), "messages of 18446"),
            (refused(|test| test.qps = 1000), "1000 queue pairs with"),
            (
                refused(|test| test.operation = Operation::Atomic),
                "on 8 bytes",
            ),
            (
                refused(|test| (test.measure, test.qps) = (Measure::Lat, 2)),
                "one request",
            ),
            (refused(|test| test.mtu = 1500), "has 1500 bytes"),
        ] {
            assert!(text.contains(says), "{text}: expected {says}");
        }
        let run = |bytes, iterations| Run {
            bytes,
            iterations,
            check: false,
        };
        assert!(run(8 << 20, ITERATIONS).fits(&test()).is_ok());
        for bad in [
            run(0, 1),
            run((8 << 20) + 1, 1),
            run(1, 0),
            run(1, ITERATIONS + 1),
        ] {
            assert!(bad.fits(&test()).is_err(), "{bad:?}");
        }
    }
}
