//! The rule by which what ranks have encoded becomes their sum.

use std::ops::Range;

use ringway_plan::Rank;

use crate::{Error, StateError, Wire, compressor::Reader};

/// Adds vectors up over the ranks of a [`Wire`], and sends fewer bytes than there are.
pub trait Aggregation: Send {
    /// The largest magnitude that can be sent.
    fn limit(&self) -> f32 {
        f32::MAX
    }

    /// Whether it sends some elements and not others, and does not send something of each.
    fn chooses(&self) -> bool {
        false
    }

    /// Writes the sum of all ranks' `vector`, times `factor`, to `sum`, the same bits on all, and subtracts from `vector` what is in the sum of
    /// it: over all ranks, sums and what is left in vectors are what vectors held before. With `poison` this rank has nothing that
    /// can be sent and takes part so that all learn of it. `noise` is the same on all ranks, and another one each time.
    ///
    /// # Errors
    /// A collective failed. After any outcome but [`Outcome::Summed`] the rule is as it was, `sum` too; `vector` is not.
    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error>;

    /// Appends the state to `bytes`; most rules have none.
    fn save(&self, _bytes: &mut Vec<u8>) {}

    /// Takes a state that a rule of the same kind has saved; after an error what it is is not specified.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        Ok(Reader::new(bytes).end()?)
    }
}

/// How a sum ended, the same on all ranks but for `foreign`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is one.
    Summed,
    /// Some rank had nothing to send, or could not read what another one sent.
    Poisoned {
        /// Whose bytes this rank could not read.
        foreign: Option<Rank>,
    },
}

/// The elements of a vector that each of `ranks` ranks adds up: all of one length, but the last ones.
pub(crate) fn parts(len: usize, ranks: usize) -> Vec<Range<usize>> {
    let each = len.div_ceil(ranks);
    let part = |rank: usize| (rank * each).min(len)..((rank + 1) * each).min(len);
    (0..ranks).map(part).collect()
}

/// What an encoding draws its noise from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// A rank's own vector.
    Own,
    /// The sum of a rank's part.
    Sum,
    /// What all ranks do alike.
    Common,
}

/// A key for the noise of one encoding.
pub(crate) fn key(noise: u64, rank: Rank, stage: Stage) -> u64 {
    mix(mix(noise, rank as u64), stage as u64)
}

/// A hash of two words (the finaliser of splitmix64).
pub(crate) const fn mix(a: u64, b: u64) -> u64 {
    let mut x = a
        .wrapping_mul(0xff51_afd7_ed55_8ccd)
        .wrapping_add(b)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
