//! When RDMA to a peer is tried again: ever more rarely, and for ever.

use std::time::{Duration, Instant};

use super::RdmaSettings;

/// The next attempt, and how long was waited for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    at: Option<Instant>,
    wait: Duration,
    /// Since when RDMA has worked.
    since: Option<Instant>,
}

impl Retry {
    /// RDMA works.
    pub(super) const fn works(&mut self, now: Instant) {
        self.at = None;
        self.since = Some(now);
    }

    /// It has failed, or was tried in vain: when it is tried next.
    pub(super) fn failed(&mut self, now: Instant, settings: &RdmaSettings) -> Instant {
        let (first, longest) = (settings.first_retry, settings.longest_retry);
        let has_held = self
            .since
            .take()
            .is_some_and(|since| now - since >= longest);
        self.wait = if has_held || self.wait.is_zero() {
            first
        } else {
            (2 * self.wait).min(longest)
        };
        self.at(now + self.wait)
    }

    /// It can't be tried yet: when it is looked at again.
    pub(super) fn postponed(&mut self, now: Instant, settings: &RdmaSettings) -> Instant {
        self.at(now + settings.first_retry.min(Duration::from_millis(50)))
    }

    fn at(&mut self, at: Instant) -> Instant {
        self.at = Some(at);
        at
    }

    /// It is tried now.
    pub(super) const fn begun(&mut self) {
        self.at = None;
    }

    /// When it is tried next.
    pub(super) const fn next(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_short_again_after_as_long_a_success() {
        let settings = RdmaSettings::default();
        let mut retry = Retry::default();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let at = retry.failed(now, &settings);
            assert_eq!(at - now, Duration::from_secs(seconds));
            assert_eq!(retry.next(), Some(at));
            now = at;
            retry.begun();
        }
        retry.works(now);
        assert_eq!(retry.next(), None);
        now += Duration::from_secs(59);
        assert_eq!(retry.failed(now, &settings) - now, Duration::from_secs(60));
        retry.works(now);
        now += Duration::from_secs(60);
        assert_eq!(retry.failed(now, &settings) - now, Duration::from_secs(1));
    }
}
