//! What a codec needs of a communicator.

use std::time::Duration;

use half::{bf16, f16};
use ringway_plan::{Collective, Rank};

use crate::Error;

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

/// Gathers a length from each rank, each at most `most`.
pub(crate) fn gather_lengths(
    wire: &mut dyn Wire,
    mine: usize,
    most: usize,
) -> Result<Vec<usize>, Error> {
    let mut all = vec![0; 8 * wire.ranks()];
    wire.all_gather(&(mine as u64).to_le_bytes(), &mut all)?;
    lengths(&all, most)
}

/// Sends a length to each rank, and takes those of the others, each at most `most`.
pub(crate) fn exchange_lengths(
    wire: &mut dyn Wire,
    mine: &[usize],
    most: usize,
) -> Result<Vec<usize>, Error> {
    let length = |&len: &usize| (len as u64).to_le_bytes();
    let send: Vec<u8> = mine.iter().flat_map(length).collect();
    let mut all = vec![0; send.len()];
    wire.all_to_all(&send, &mut all)?;
    lengths(&all, most)
}

/// Memory is taken for as many bytes as ranks announce.
fn lengths(bytes: &[u8], most: usize) -> Result<Vec<usize>, Error> {
    let (words, _) = bytes.as_chunks::<8>();
    let length = |(from, word): (Rank, &[u8; 8])| {
        let bytes = u64::from_le_bytes(*word);
        match usize::try_from(bytes) {
            Ok(len) if len <= most => Ok(len),
            _ => Err(Error::Announced { from, bytes, most }),
        }
    };
    words.iter().enumerate().map(length).collect()
}
