//! What makes a link as slow as the file says: a token bucket at each end of it, one for each direction, and one queue before it
//! (tbf) or one for each connection (htb).

use crate::blueprint::Queues;

/// Bytes of an Ethernet header, which the kernel counts; it knows no preamble, checksum and gap between frames.
const ETHERNET: u32 = 14;

/// How long a link may send at once what it has saved up: shorter wakes the processor more often than it can bear with some
/// dozens of links, longer makes its own bursts seen.
const BURST: f64 = 1e-3;

/// How long what waits at a link takes to be sent, at most: what comes beyond is dropped.
const QUEUE: f64 = 50e-3;

/// Packets that a queue holds at least, whatever the rate.
const LEAST_PACKETS: u32 = 64;

/// Queues of a link that has one for each connection, which are told apart by a hash: of 48 connections 4 pairs meet in one.
const FAIR_QUEUES: u32 = 256;

/// The number of the class that is the bucket, and of the first queue below it.
const BUCKET: u32 = 1;
const FIRST_QUEUE: u32 = 0x1000;

/// What a queue takes beyond its turn: nothing that counts, but tc wants a rate.
const OWN_RATE: &str = "8bit";

/// No queue is slower than the link itself.
const NO_LIMIT: &str = "100gbit";

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

    /// What makes it, as lines of `tc -batch`.
    pub(crate) fn lines(self, interface: &str, queues: Queues) -> String {
        let quantum = self.burst.min(200_000);
        match queues {
            Queues::One => self.change(interface, queues),
            Queues::Fair => {
                let mut text = format!(
                    "qdisc replace dev {interface} root handle 1: htb default {FIRST_QUEUE:x}\n{}",
                    self.bucket(interface, "add"),
                );
                for queue in FIRST_QUEUE..FIRST_QUEUE + FAIR_QUEUES {
                    text += &format!(
                        "class add dev {interface} parent 1:{BUCKET} classid 1:{queue:x} htb rate {OWN_RATE} ceil {NO_LIMIT} \
                         burst {} cburst {} quantum {quantum}\n",
                        self.burst, self.burst
                    );
                }
                text + &format!(
                    "filter add dev {interface} parent 1: protocol ip bpf bytecode \"{}\" classid 1:{FIRST_QUEUE:x}\n",
                    by_connection()
                )
            }
        }
    }

    /// What gives a link that is there another rate, as lines of `tc -batch`.
    pub(crate) fn change(self, interface: &str, queues: Queues) -> String {
        match queues {
            Queues::One => format!(
                "qdisc replace dev {interface} root tbf rate {}bit burst {} limit {}\n",
                self.bits(),
                self.burst,
                self.limit
            ),
            Queues::Fair => self.bucket(interface, "change"),
        }
    }

    fn bucket(self, interface: &str, verb: &str) -> String {
        let (bits, burst) = (self.bits(), self.burst);
        format!(
            "class {verb} dev {interface} parent 1: classid 1:{BUCKET} htb rate {bits}bit ceil {bits}bit burst {burst} \
             cburst {burst} quantum {}\n",
            burst.min(200_000)
        )
    }

    fn bits(self) -> f64 {
        (self.rate * 8.0).round()
    }
}

/// The queue of a frame of IPv4, as a program of the classic packet filter, as tc reads it: a hash of addresses and ports.
fn by_connection() -> String {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_KEPT: u16 = 0x61;
    const KEEP: u16 = 0x02;
    const COPY: u16 = 0x07;
    const TIMES: u16 = 0x24;
    const PLUS: u16 = 0x04;
    const SHIFT: u16 = 0x74;
    const MIX: u16 = 0xac;
    const RETURN: u16 = 0x16;
    // Sender, receiver and ports of an IPv4 packet without options behind an Ethernet header; odd constants of xxHash.
    let program: [(u16, u32); 19] = [
        (LOAD_WORD, 26),
        (TIMES, 0x9e37_79b1),
        (KEEP, 0),
        (LOAD_WORD, 30),
        (TIMES, 0x85eb_ca77),
        (LOAD_KEPT, 0),
        (MIX, 0),
        (KEEP, 0),
        (LOAD_WORD, 34),
        (TIMES, 0xc2b2_ae3d),
        (LOAD_KEPT, 0),
        (MIX, 0),
        (COPY, 0),
        (SHIFT, 15),
        (MIX, 0),
        (TIMES, 0x27d4_eb2f),
        (SHIFT, 32 - FAIR_QUEUES.ilog2()),
        (PLUS, 1 << 16 | FIRST_QUEUE),
        (RETURN, 0),
    ];
    let steps = program.map(|(code, operand)| format!("{code} 0 0 {operand}"));
    format!("{},{}", steps.len(), steps.join(","))
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
        assert_eq!(slow.lines("eth0", Queues::One), format!("{line}\n"));
        // What tc takes, whatever the rate.
        assert!(Shaping::new(1e15, 9000).limit < u32::MAX);
    }

    #[test]
    fn queues_of_connections_hang_below_one_bucket() {
        let shaping = Shaping::new(12.5e6, 1500);
        let text = shaping.lines("eth0", Queues::Fair);
        assert_eq!(text.matches("parent 1:1 ").count(), 256, "{text}");
        let bucket = "dev eth0 parent 1: classid 1:1 htb rate 100000000bit ceil 100000000bit burst 12500 cburst 12500";
        assert!(text.contains(&format!("class add {bucket}")), "{text}");
        let changed = shaping.change("eth0", Queues::Fair);
        assert_eq!(changed.lines().count(), 1);
        assert!(
            changed.starts_with(&format!("class change {bucket}")),
            "{changed}"
        );
    }
}
