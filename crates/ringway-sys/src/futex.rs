//! Sleeping until a word in shared memory changes.

use std::time::Duration;

use rustix::{
    io::Errno,
    thread::futex::{self, Flags, Timespec},
};

use crate::Shared32;

/// Sleeps while `word` holds `expected`, for at most `timeout`. Returns early for no reason at times: look
/// again at what was waited for. Works between processes.
pub fn futex_wait(word: Shared32, expected: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64).cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match futex::wait(word.atomic(), Flags::empty(), expected, Some(&timeout)) {
        // Changed already, interrupted by a signal, or the time is over: all for the caller to look at.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        // No futex here (a sandbox): a short sleep keeps the caller's loop correct, if slow.
        Err(_) => std::thread::sleep(Duration::from_micros(50)),
    }
}

/// Wakes every thread, of any process, that sleeps on `word`. Change the word first.
pub fn futex_wake(word: Shared32) {
    // Waking fails only where waiting does, and there nobody sleeps for long.
    let _ = futex::wake(word.atomic(), Flags::empty(), i32::MAX.cast_unsigned());
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Segment;

    #[test]
    fn a_wake_ends_the_sleep() {
        let segment = Segment::create("test", 4096).unwrap();
        let word = Shared32::at(segment.memory(), 0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load() == 0 {
                    futex_wait(word, 0, Duration::from_secs(20));
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            word.store(1);
            futex_wake(word);
        });
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn the_timeout_ends_the_sleep() {
        let segment = Segment::create("test", 4096).unwrap();
        let start = Instant::now();
        futex_wait(
            Shared32::at(segment.memory(), 0),
            0,
            Duration::from_millis(5),
        );
        assert!(start.elapsed() >= Duration::from_millis(4));
    }
}
