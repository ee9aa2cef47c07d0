//! 24-bit numbers: packet sequence numbers and queue pair numbers.

use std::fmt;

const MASK: u32 = 0x00ff_ffff;

/// The most packets that may be under way at once: half of the sequence numbers, for the other half is the past.
pub const MAX_WINDOW: u32 = 1 << 23;

/// A packet sequence number: 24 bits, around in a circle. Of two numbers the later is the one that is less than half
/// a circle ahead. Message sequence numbers count the same way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number's low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The number `count` earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & MASK)
    }

    /// How far `self` is ahead of `from`: -2^23 to 2^23 - 1.
    pub const fn since(self, from: Self) -> i32 {
        // The difference moved to the top of the word, so that the shift back extends its sign.
        ((self.0.wrapping_sub(from.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Where `self` lies in the `count` numbers from `first` on, from 0; None if outside.
    pub const fn index_in(self, first: Self, count: u32) -> Option<u32> {
        let index = self.0.wrapping_sub(first.0) & MASK;
        if index < count { Some(index) } else { None }
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number: 24 bits, given by the side that has the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair to which connection management messages go.
    pub const MANAGEMENT: Self = Self(1);

    /// The number's low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_circle_closes() {
        assert_eq!(Psn::new(0xff_ffff).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(2).since(Psn::new(0xff_fffe)), 4);
        assert_eq!(Psn::new(0xff_fffe).since(Psn::new(2)), -4);
        assert!(Psn::new(0xff_ffff).is_before(Psn::new(0)));
        // Exactly opposite: the past, so that 2^23 numbers are ahead, the number itself among them.
        assert_eq!(Psn::new(MAX_WINDOW).since(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(MAX_WINDOW - 1).since(Psn::new(0)), (1 << 23) - 1);
    }

    #[test]
    fn a_window_may_span_the_end() {
        let first = Psn::new(0xff_fffd);
        assert_eq!(Psn::new(1).index_in(first, 5), Some(4));
        assert_eq!(Psn::new(2).index_in(first, 5), None);
        assert_eq!(Psn::new(0xff_fffc).index_in(first, 5), None);
    }

    proptest! {
        #[test]
        fn since_undoes_plus(start: u32, count in 0..MAX_WINDOW) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(count).since(start), count as i32);
            prop_assert_eq!(start.minus(count).since(start), -(count as i32));
            prop_assert_eq!(start.plus(count).minus(count), start);
        }
    }
}
