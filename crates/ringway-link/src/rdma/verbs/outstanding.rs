//! How many requests of a queue pair have not completed.

use std::collections::VecDeque;

/// Counts a queue pair's requests from when they are posted to when their completions are polled.
///
/// Drivers round depths up, and some (Linux's rxe) take a request's place back before its completion is polled. Counted
/// here, a queue pair has exactly the depths that it was asked for, on all devices, and never more completions than there
/// is room for in the completion queue.
#[derive(Debug)]
pub(super) struct Outstanding {
    sends: usize,
    /// Of each signaled send, in their order: how many end with it, itself and the unsignaled ones before it.
    signaled: VecDeque<usize>,
    /// Unsignaled sends after the last signaled one.
    unsignaled: usize,
    receives: usize,
}

impl Outstanding {
    /// None so far, and memory for the most that there can be.
    pub(super) fn new(send_depth: u32) -> Self {
        Self {
            sends: 0,
            signaled: VecDeque::with_capacity(send_depth as usize),
            unsignaled: 0,
            receives: 0,
        }
    }

    pub(super) const fn sends(&self) -> usize {
        self.sends
    }

    pub(super) const fn receives(&self) -> usize {
        self.receives
    }

    pub(super) fn sent(&mut self, signaled: bool) {
        self.sends += 1;
        self.unsignaled += 1;
        if signaled {
            self.signaled.push_back(self.unsignaled);
            self.unsignaled = 0;
        }
    }

    pub(super) const fn received(&mut self) {
        self.receives += 1;
    }

    /// A signaled send has completed, and so those before it.
    pub(super) fn send_ended(&mut self) {
        self.sends -= self.signaled.pop_front().unwrap_or(0);
    }

    pub(super) const fn receive_ended(&mut self) {
        self.receives = self.receives.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsignaled_sends_end_with_the_signaled_one_after_them() {
        let mut counts = Outstanding::new(8);
        for signaled in [false, false, true, true, false] {
            counts.sent(signaled);
        }
        assert_eq!(counts.sends(), 5);
        counts.send_ended();
        assert_eq!(counts.sends(), 2);
        counts.send_ended();
        assert_eq!(counts.sends(), 1);
        counts.sent(true);
        counts.send_ended();
        assert_eq!(counts.sends(), 0);
    }
}
