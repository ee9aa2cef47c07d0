//! What makes a link as slow as the file says: a token bucket (tbf) at each end of it, one for each direction.

/// Bytes of an Ethernet header, which the kernel counts; it knows no preamble, checksum and gap between frames.
const ETHERNET: u32 = 14;

/// How long a link may send at once what it has saved up: shorter wakes the processor more often than it can bear with some
/// dozens of links, longer makes its own bursts seen.
const BURST: f64 = 1e-3;

/// How long what waits at a link takes to be sent, at most: what comes beyond is dropped.
const QUEUE: f64 = 50e-3;

/// Packets that a queue holds at least, whatever the rate.
const LEAST_PACKETS: u32 = 64;

/// The parameters of a link's token bucket. Bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shaping {
    /// Bytes per second.
    rate: f64,
    burst: u32,
    limit: u32,
}

impl Shaping {
    /// For packets of up to `mtu` bytes.
    pub(crate) fn new(rate: f64, mtu: u32) -> Self {
        let frame = mtu + ETHERNET;
        let within = |seconds: f64| (rate * seconds).min(f64::from(u32::MAX / 4)) as u32;
        // tbf drops what is larger than the bucket, or cuts it up at some cost.
        let burst = within(BURST).max(2 * frame);
        Self {
            rate,
            burst,
            limit: burst + within(QUEUE).max(LEAST_PACKETS * frame),
        }
    }

    /// The largest train of packets that TCP may hand over as one: the bucket holds it, and it holds up others no longer
    /// than a burst does.
    pub(crate) fn largest_train(self) -> u32 {
        self.burst.min(65_536)
    }

    /// As a line of `tc -batch`.
    pub(crate) fn line(self, interface: &str) -> String {
        let bits = (self.rate * 8.0).round();
        format!(
            "qdisc replace dev {interface} root tbf rate {bits}bit burst {} limit {}",
            self.burst, self.limit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_hold_packets_and_fast_ones_milliseconds() {
        let slow = Shaping::new(125e3, 1500);
        assert_eq!((slow.burst, slow.limit), (3028, 3028 + 64 * 1514));
        let fast = Shaping::new(125e6, 1500);
        assert_eq!((fast.burst, fast.limit), (125_000, 6_375_000));
        assert_eq!(fast.largest_train(), 65_536);
        let line = "qdisc replace dev eth0 root tbf rate 1000000bit burst 3028 limit 99924";
        assert_eq!(slow.line("eth0"), line);
        // What tc takes, whatever the rate.
        assert!(Shaping::new(1e15, 9000).limit < u32::MAX);
    }
}
