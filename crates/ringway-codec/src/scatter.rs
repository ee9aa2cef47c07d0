//! Encoded parts to their owners, and the owners' sums to all.

use std::ops::Range;

use ringway_plan::Rank;

use crate::{
    Aggregation, Compressor, Encoded, Error, Load, Outcome, Wire,
    aggregation::{Stage, key, parts},
    compressor::POISON,
    wire::{exchange_lengths, gather_lengths},
};

/// Each rank owns a part of the vector: it gets the other ranks' encoded parts, decodes them, adds them in rank order, encodes the sum
/// once, and sends that to all. Bytes sent and received are about twice the encoded vector's, for any number of ranks.
///
/// What encoding the sum takes from it is left in the owner's vector.
#[derive(Clone, Debug)]
pub struct ScatterGather<C> {
    compressor: C,
    encoded: Encoded,
    received: Vec<u8>,
    part: Vec<f32>,
    decoded: Vec<f32>,
}

impl<C: Compressor> ScatterGather<C> {
    /// With vectors encoded by `compressor`.
    pub fn new(compressor: C) -> Self {
        Self {
            compressor,
            encoded: Encoded::default(),
            received: Vec::new(),
            part: Vec::new(),
            decoded: Vec::new(),
        }
    }

    pub(crate) fn compressor(&mut self) -> &mut C {
        &mut self.compressor
    }

    /// Like [`Aggregation::sum`]; also the bytes of all encoded sums.
    pub(crate) fn run(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<(Outcome, usize), Error> {
        let (me, ranks) = (wire.rank(), wire.ranks());
        let parts = parts(vector.len(), ranks);
        self.encoded.clear();
        if poison {
            self.poison(&parts);
        } else {
            let own = key(noise, me, Stage::Own);
            self.compressor
                .encode(vector, &parts, own, &mut self.encoded);
            subtract(
                &self.compressor,
                &self.encoded,
                &parts,
                vector,
                &mut self.decoded,
            );
        }
        let mine = parts[me].clone();
        let sizes = self.exchange(&parts, me, wire)?;
        let heard = self.add_up(mine.len(), &sizes);
        self.encoded.clear();
        match heard {
            Heard::Sum => {
                let (part, own) = (&self.part[..], key(noise, me, Stage::Sum));
                let whole = 0..part.len();
                let whole = std::slice::from_ref(&whole);
                self.compressor.encode(part, whole, own, &mut self.encoded);
                self.decoded.resize(part.len(), 0.0);
                let decoded =
                    self.compressor
                        .decode(&self.encoded.bytes, &mut self.decoded, Load::Replace);
                debug_assert!(decoded.is_ok(), "a compressor decodes what it has encoded");
                for ((left, &part), &sent) in vector[mine].iter_mut().zip(part).zip(&self.decoded) {
                    *left += part - sent;
                }
            }
            Heard::Poison | Heard::Foreign(_) => self.poison(&parts[me..=me]),
        }
        let sizes = self.gather(&parts, me, wire)?;
        let foreign = match heard {
            Heard::Foreign(from) => Some(from),
            _ => None,
        };
        let outcome = self.spread(&parts, &sizes, sum, foreign);
        Ok((outcome, sizes.iter().sum()))
    }

    /// In place of vectors of these parts.
    fn poison(&mut self, parts: &[Range<usize>]) {
        for part in parts {
            let len = self.compressor.fixed_len(part.len()).unwrap_or(1);
            let start = self.encoded.bytes.len();
            self.encoded.bytes.resize(start + len, POISON);
            self.encoded.end();
        }
    }

    /// Sends encoded parts to their owners; the bytes from each rank.
    fn exchange(
        &mut self,
        parts: &[Range<usize>],
        me: Rank,
        wire: &mut dyn Wire,
    ) -> Result<Vec<usize>, Error> {
        let ranks = wire.ranks();
        let Some(slot) = self.slot(parts) else {
            let counts: Vec<usize> = self.encoded.iter().map(<[u8]>::len).collect();
            let expected = exchange_lengths(wire, counts.iter().copied())?;
            self.received.resize(expected.iter().sum(), 0);
            wire.all_to_all_v(&self.encoded.bytes, &counts, &mut self.received, &expected)?;
            return Ok(expected);
        };
        let mut send = vec![0; slot * ranks];
        for (slot, part) in send.chunks_exact_mut(slot).zip(self.encoded.iter()) {
            slot[..part.len()].copy_from_slice(part);
        }
        self.received.resize(send.len(), 0);
        wire.all_to_all(&send, &mut self.received)?;
        // Parts may be shorter than their slots, all of mine alike.
        let len = self.compressor.fixed_len(parts[me].len()).unwrap_or(slot);
        for rank in 1..ranks {
            self.received
                .copy_within(rank * slot..rank * slot + len, rank * len);
        }
        Ok(vec![len; ranks])
    }

    /// Sends the encoded sum to all; the bytes from each rank.
    fn gather(
        &mut self,
        parts: &[Range<usize>],
        me: Rank,
        wire: &mut dyn Wire,
    ) -> Result<Vec<usize>, Error> {
        let mine = &mut self.encoded.bytes;
        let Some(slot) = self.compressor.fixed_len(parts[0].len()) else {
            let counts = gather_lengths(wire, mine.len())?;
            self.received.resize(counts.iter().sum(), 0);
            wire.all_gather_v(mine, &mut self.received, &counts)?;
            return Ok(counts);
        };
        mine.resize(slot, 0);
        self.received.resize(slot * wire.ranks(), 0);
        wire.all_gather(mine, &mut self.received)?;
        debug_assert_eq!(&self.received[me * slot..][..slot], &mine[..]);
        let len = |part: &Range<usize>| self.compressor.fixed_len(part.len()).unwrap_or(slot);
        let sizes: Vec<usize> = parts.iter().map(len).collect();
        let mut end = 0;
        for (rank, &len) in sizes.iter().enumerate() {
            self.received
                .copy_within(rank * slot..rank * slot + len, end);
            end += len;
        }
        Ok(sizes)
    }

    /// The bytes of the longest part, if parts of one length have as many; the first is one of the longest.
    fn slot(&self, parts: &[Range<usize>]) -> Option<usize> {
        self.compressor.fixed_len(parts[0].len())
    }

    /// Decodes what came, and adds it up to `part`.
    fn add_up(&mut self, len: usize, sizes: &[usize]) -> Heard {
        self.part.clear();
        self.part.resize(len, 0.0);
        let mut rest = &self.received[..];
        for (from, &size) in sizes.iter().enumerate() {
            let (bytes, behind) = rest.split_at(size);
            rest = behind;
            if bytes.first() == Some(&POISON) {
                return Heard::Poison;
            }
            if self
                .compressor
                .decode(bytes, &mut self.part, Load::Add)
                .is_err()
            {
                return Heard::Foreign(from);
            }
        }
        // Finite vectors may have a sum that is not, which no compressor takes.
        if ringway_kernels::codec::largest(&self.part).is_finite() {
            Heard::Sum
        } else {
            Heard::Poison
        }
    }

    /// Decodes all sums, unless some are poison: nothing is written then.
    fn spread(
        &mut self,
        parts: &[Range<usize>],
        sizes: &[usize],
        sum: &mut [f32],
        foreign: Option<Rank>,
    ) -> Outcome {
        let mut rest = &self.received[..];
        let mut pieces = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let (bytes, behind) = rest.split_at(size);
            rest = behind;
            pieces.push(bytes);
        }
        if foreign.is_some() || pieces.iter().any(|bytes| bytes.first() == Some(&POISON)) {
            return Outcome::Poisoned { foreign };
        }
        self.decoded.resize(sum.len(), 0.0);
        for (from, (bytes, part)) in pieces.iter().zip(parts).enumerate() {
            let to = &mut self.decoded[part.clone()];
            if self.compressor.decode(bytes, to, Load::Replace).is_err() {
                return Outcome::Poisoned {
                    foreign: Some(from),
                };
            }
        }
        sum.copy_from_slice(&self.decoded);
        Outcome::Summed
    }
}

/// What a rank's part of the exchange came to.
#[derive(Clone, Copy)]
enum Heard {
    Sum,
    Poison,
    Foreign(Rank),
}

/// Subtracts what was encoded.
pub(crate) fn subtract(
    compressor: &impl Compressor,
    encoded: &Encoded,
    parts: &[Range<usize>],
    vector: &mut [f32],
    decoded: &mut Vec<f32>,
) {
    for (bytes, part) in encoded.iter().zip(parts) {
        decoded.resize(part.len(), 0.0);
        let result = compressor.decode(bytes, decoded, Load::Replace);
        debug_assert!(result.is_ok(), "a compressor decodes what it has encoded");
        for (left, &sent) in vector[part.clone()].iter_mut().zip(&*decoded) {
            *left -= sent;
        }
    }
}

impl<C: Compressor> Aggregation for ScatterGather<C> {
    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        self.run(vector, sum, poison, noise, wire)
            .map(|(outcome, _)| outcome)
    }
}
