//! Keeps logs readable where strangers, or a lack of descriptors, would fill them.

use std::time::{Duration, Instant};

/// Warnings that are told whole before they are only counted.
const WHOLE: u32 = 5;

/// From one told warning to the next, once they are counted.
const PAUSE: Duration = Duration::from_secs(30);

/// Lets the first warnings of a kind through, and then one in 30 s, with the number of those between.
#[derive(Debug, Default)]
pub struct Damper {
    told: u32,
    /// Since the last that was told.
    counted: u64,
    next: Option<Instant>,
}

impl Damper {
    /// Has a warning told, or counts it. `tell` gets what to put after its text: nothing, or how many were counted.
    pub fn warn(&mut self, now: Instant, tell: impl FnOnce(&str)) {
        if self.told >= WHOLE && self.next.is_some_and(|next| now < next) {
            self.counted += 1;
            return;
        }
        self.told = self.told.saturating_add(1);
        self.next = Some(now + PAUSE);
        match std::mem::take(&mut self.counted) {
            0 => tell(""),
            counted => tell(&format!(" (and {counted} more of the kind since the last)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_told_whole_and_then_their_number() {
        let (mut damper, began) = (Damper::default(), Instant::now());
        let mut told = Vec::new();
        for second in 0..100 {
            let now = began + Duration::from_secs(second);
            damper.warn(now, |more| told.push((second, more.to_owned())));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 1, 2, 3, 4, 34, 64, 94]);
        assert!(told[..5].iter().all(|(_, more)| more.is_empty()));
        assert_eq!(told[5].1, " (and 29 more of the kind since the last)");
    }
}
