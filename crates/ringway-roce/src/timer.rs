//! The specification's encodings of times and retry counts.

use std::time::Duration;

/// The local ACK timeout, coded in five bits: 4.096 µs · 2^code; 0 is for ever (volume 1, 9.9.2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// 67 ms, code 14: what most programs on verbs ask for.
    pub const USUAL: Self = Self(14);

    /// 268 ms, code 16: for whom it costs little to wait, and much to give up.
    pub const LONG: Self = Self(16);

    /// The timeout of a code from 0 to 31; None beyond.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long to wait for an acknowledgement; None: for ever.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

/// How long a requester waits after "receiver not ready", coded in five bits (volume 1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// 0.64 ms, code 12: what most programs on verbs ask for.
    pub const USUAL: Self = Self(12);

    /// The timer of a code from 0 to 31; None beyond.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time to wait.
    pub const fn duration(self) -> Duration {
        /// In units of 10 µs. Code 0 is the longest.
        const TABLE: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TABLE[self.0 as usize] as u64 * 10)
    }
}

/// How often something may be tried again: a limit, and what is left of it.
///
/// The same three bits mean different things: 7 retries after time-outs are seven (Linux's rxe takes them as
/// unlimited), 7 retries after "receiver not ready" are unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    limit: Option<u8>,
    left: u8,
}

impl Retries {
    /// Again and again.
    pub const UNLIMITED: Self = Self {
        limit: None,
        left: 0,
    };

    /// So many retries.
    pub const fn limited(limit: u8) -> Self {
        Self {
            limit: Some(limit),
            left: limit,
        }
    }

    /// A retry count as the "receiver not ready" retry count is coded: 7 is unlimited.
    pub const fn rnr(code: u8) -> Self {
        if code < 7 {
            Self::limited(code)
        } else {
            Self::UNLIMITED
        }
    }

    /// Takes one retry. False if none was left.
    #[must_use]
    pub const fn take(&mut self) -> bool {
        match (self.limit, self.left) {
            (None, _) => true,
            (Some(_), 0) => false,
            (Some(_), _) => {
                self.left -= 1;
                true
            }
        }
    }

    /// All retries are there again: the connection has made progress.
    pub const fn refill(&mut self) {
        if let Some(limit) = self.limit {
            self.left = limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_double() {
        let at = |code| AckTimeout::new(code).unwrap().duration();
        assert_eq!(at(0), None);
        assert_eq!(at(1), Some(Duration::from_nanos(8192)));
        assert_eq!(at(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(at(20), Some(Duration::from_nanos(4_294_967_296)));
        assert_eq!(at(31), Some(Duration::from_nanos(4096 << 31)));
        assert_eq!(AckTimeout::new(32), None);
    }

    #[test]
    fn rnr_timers_are_the_tables() {
        let at = |code| RnrTimer::new(code).unwrap().duration();
        assert_eq!(at(0), Duration::from_micros(655_360));
        assert_eq!(at(1), Duration::from_micros(10));
        assert_eq!(at(12), Duration::from_micros(640));
        assert_eq!(at(31), Duration::from_micros(491_520));
        assert!((1..31).all(|code| at(code) < at(code + 1)));
        assert_eq!(RnrTimer::new(32), None);
    }

    #[test]
    fn seven_is_for_ever_only_for_receiver_not_ready() {
        let mut retries = Retries::limited(7);
        assert!((0..7).all(|_| retries.take()));
        assert!(!retries.take());
        retries.refill();
        assert!(retries.take());

        let mut rnr = Retries::rnr(7);
        assert!((0..1000).all(|_| rnr.take()));
        let mut none = Retries::rnr(0);
        assert!(!none.take());
    }
}
