//! What a codec needs of a communicator.

use std::time::Duration;

use half::{bf16, f16};
use ringway_plan::{Collective, Rank};

/// A failure of a collective, as the communicator tells it.
pub type WireError = Box<dyn std::error::Error + Send + Sync>;

/// The collectives of a group of ranks, each made by all of them in the same order. After an error the group cannot be used any more.
pub trait Wire {
    /// This rank.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Adds up `values` over all ranks, in place, with the same bits on all.
    fn all_reduce(&mut self, values: Values<'_>) -> Result<(), WireError>;

    /// The r-th of as many equal parts as ranks goes to rank r; `receive` has what came, in rank order.
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError>;

    /// The same with parts of `counts[r]` bytes to and `expected[r]` bytes from rank r.
    fn all_to_all_v(
        &mut self,
        send: &[u8],
        counts: &[usize],
        receive: &mut [u8],
        expected: &[usize],
    ) -> Result<(), WireError>;

    /// `receive` has every rank's `send`, which are of one length, in rank order.
    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError>;

    /// The same with `counts[r]` bytes from rank r.
    fn all_gather_v(
        &mut self,
        send: &[u8],
        receive: &mut [u8],
        counts: &[usize],
    ) -> Result<(), WireError>;

    /// How long a collective on a vector of `bytes` is expected to take; the same on all ranks.
    fn time(&self, collective: Collective, bytes: usize) -> Duration;
}

/// Numbers that are added up as they are.
#[derive(Debug)]
pub enum Values<'a> {
    /// binary16.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
    /// binary32.
    F32(&'a mut [f32]),
}

/// Gathers a length from each rank.
pub(crate) fn gather_lengths(wire: &mut dyn Wire, mine: usize) -> Result<Vec<usize>, WireError> {
    let mut all = vec![0; 8 * wire.ranks()];
    wire.all_gather(&(mine as u64).to_le_bytes(), &mut all)?;
    Ok(lengths(&all))
}

/// Sends a length to each rank.
pub(crate) fn exchange_lengths(
    wire: &mut dyn Wire,
    mine: impl Iterator<Item = usize>,
) -> Result<Vec<usize>, WireError> {
    let send: Vec<u8> = mine.flat_map(|len| (len as u64).to_le_bytes()).collect();
    let mut all = vec![0; send.len()];
    wire.all_to_all(&send, &mut all)?;
    Ok(lengths(&all))
}

fn lengths(bytes: &[u8]) -> Vec<usize> {
    let (words, _) = bytes.as_chunks::<8>();
    let length = |word: &[u8; 8]| u64::from_le_bytes(*word) as usize;
    words.iter().map(length).collect()
}
