//! What happens to the fabric while the ranks work.

use std::time::Duration;

/// Traffic of others between two hosts, for as long as the operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// The sending host.
    pub from: usize,
    /// The receiving host.
    pub to: usize,
    /// Bytes per second that it would send; it takes its fair share where links do not have that.
    pub rate: f64,
}

/// A link that changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at: Duration,
    /// Which.
    pub link: usize,
    /// The part of its rate that it has from then on: 0 is down, 1 is up.
    pub share: f64,
}

/// Everything that is not as in the fabric file.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Hosts whose NICs, GPUs and ways between these have only a part of their rate.
    pub slow: Vec<(usize, f64)>,
    /// Links that go down, come up or slow down, in any order.
    pub changes: Vec<Change>,
    /// How long switches send into a link that is down, and do not use one that came up.
    pub reroute_after: Duration,
    /// Traffic of others. Latency-bandwidth networks know no shared links and leave it out.
    pub background: Vec<Background>,
}

impl Default for Scenario {
    /// Nothing happens; switches that lose a link would take 10 ms to route around it, of the order of what link-state
    /// detection and a route update take in hardware.
    fn default() -> Self {
        Self {
            slow: Vec::new(),
            changes: Vec::new(),
            reroute_after: Duration::from_millis(10),
            background: Vec::new(),
        }
    }
}

impl Scenario {
    /// The part of its rates that a host has.
    pub(crate) fn share(&self, host: usize) -> f64 {
        let slow = self.slow.iter().filter(|s| s.0 == host);
        slow.map(|s| s.1).product()
    }
}
