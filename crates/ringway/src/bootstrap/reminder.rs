//! When to say that something is still waited for.

use std::time::{Duration, Instant};

/// The first time. Most launchers have started all ranks by then.
const FIRST: Duration = Duration::from_secs(5);

/// Due after 5 s, and then after as long again as it has lasted: 10 s, 20 s, 40 s ...
#[derive(Clone, Copy, Debug)]
pub(super) struct Reminder {
    began: Instant,
    next: Instant,
}

impl Reminder {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            next: now + FIRST,
        }
    }

    /// When it is due next.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// How long the wait has lasted, if it is time to say so.
    pub(super) fn due(&mut self, now: Instant) -> Option<Duration> {
        if now < self.next {
            return None;
        }
        let lasted = now - self.began;
        self.next = now + lasted;
        Some(lasted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_ever_more_seldom() {
        let began = Instant::now();
        let mut reminder = Reminder::new(began);
        let due: Vec<u64> = (0..60)
            .filter_map(|second| reminder.due(began + Duration::from_secs(second)))
            .map(|lasted| lasted.as_secs())
            .collect();
        assert_eq!(due, [5, 10, 20, 40]);
    }
}
