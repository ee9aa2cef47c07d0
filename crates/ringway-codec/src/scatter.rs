//! Encoded parts to their owners, and the owners' sums to all.

use std::ops::Range;

use ringway_kernels::{codec::largest, reduce_in_place};
use ringway_plan::{Rank, ReduceOp};

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
}

impl<C: Compressor> ScatterGather<C> {
    /// With vectors encoded by `compressor`.
    pub fn new(compressor: C) -> Self {
        Self {
            compressor,
            encoded: Encoded::default(),
            received: Vec::new(),
            part: Vec::new(),
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
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<(Outcome, usize), Error> {
        let me = wire.rank();
        let parts = parts(vector.len(), wire.ranks());
        self.encoded.clear();
        if poison {
            self.poison(&parts);
        } else {
            let own = key(noise, me, Stage::Own);
            self.compressor
                .encode(vector, &parts, own, &mut self.encoded);
        }
        let mine = parts[me].clone();
        let came = self.exchange(&parts, me, wire)?;
        let heard = self.add_up(mine.len(), &came);
        self.encoded.clear();
        match heard {
            Heard::Sum => {
                let whole = 0..self.part.len();
                let whole = std::slice::from_ref(&whole);
                let own = key(noise, me, Stage::Sum);
                self.compressor
                    .encode(&mut self.part, whole, own, &mut self.encoded);
                reduce_in_place(ReduceOp::Sum, &mut vector[mine], &self.part);
            }
            Heard::Poison | Heard::Foreign(_) => self.poison(&parts[me..=me]),
        }
        let sums = self.gather(&parts, wire)?;
        let foreign = match heard {
            Heard::Foreign(from) => Some(from),
            _ => None,
        };
        let outcome = self.spread(&parts, &sums, sum, factor, foreign);
        Ok((outcome, sums.iter().map(ExactSizeIterator::len).sum()))
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

    /// Sends encoded parts to their owners; where those from each rank have been received.
    fn exchange(
        &mut self,
        parts: &[Range<usize>],
        me: Rank,
        wire: &mut dyn Wire,
    ) -> Result<Vec<Range<usize>>, Error> {
        let counts: Vec<usize> = self.encoded.iter().map(<[u8]>::len).collect();
        let Some(slot) = self.slot(parts) else {
            let most = self.compressor.most_len(parts[me].len());
            let expected = exchange_lengths(wire, &counts, most)?;
            self.received.resize(expected.iter().sum(), 0);
            wire.all_to_all_v(&self.encoded.bytes, &counts, &mut self.received, &expected)?;
            return Ok(one_by_one(&expected));
        };
        let send = &mut self.encoded.bytes;
        send.resize(slot * counts.len(), 0);
        // Parts may be shorter than their slots, the last ones.
        for (to, from) in one_by_one(&counts).into_iter().enumerate().rev() {
            if from.start != to * slot {
                send.copy_within(from, to * slot);
            }
        }
        self.received.resize(send.len(), 0);
        wire.all_to_all(send, &mut self.received)?;
        let len = counts[me];
        let place = |from: Rank| from * slot..from * slot + len;
        Ok((0..counts.len()).map(place).collect())
    }

    /// Sends the encoded sum to all; where those from each rank have been received.
    fn gather(
        &mut self,
        parts: &[Range<usize>],
        wire: &mut dyn Wire,
    ) -> Result<Vec<Range<usize>>, Error> {
        let mine = &mut self.encoded.bytes;
        let Some(slot) = self.compressor.fixed_len(parts[0].len()) else {
            let most = self.compressor.most_len(parts[0].len());
            let counts = gather_lengths(wire, mine.len(), most)?;
            self.received.resize(counts.iter().sum(), 0);
            wire.all_gather_v(mine, &mut self.received, &counts)?;
            return Ok(one_by_one(&counts));
        };
        mine.resize(slot, 0);
        self.received.resize(slot * wire.ranks(), 0);
        wire.all_gather(mine, &mut self.received)?;
        let place = |(from, part): (Rank, &Range<usize>)| {
            let len = self.compressor.fixed_len(part.len()).unwrap_or(slot);
            from * slot..from * slot + len
        };
        Ok(parts.iter().enumerate().map(place).collect())
    }

    /// The bytes of the longest part, if parts of one length have as many; the first is one of the longest.
    fn slot(&self, parts: &[Range<usize>]) -> Option<usize> {
        self.compressor.fixed_len(parts[0].len())
    }

    /// Decodes what came, and adds it up to `part`.
    fn add_up(&mut self, len: usize, came: &[Range<usize>]) -> Heard {
        self.part.resize(len, 0.0);
        for (from, place) in came.iter().enumerate() {
            let bytes = &self.received[place.clone()];
            if bytes.first() == Some(&POISON) {
                return Heard::Poison;
            }
            let load = if from == 0 {
                Load::Replace(1.0)
            } else {
                Load::Add
            };
            if self.compressor.decode(bytes, &mut self.part, load).is_err() {
                return Heard::Foreign(from);
            }
        }
        // Finite vectors may have a sum that is not, which no compressor takes.
        if largest(&self.part).is_finite() {
            Heard::Sum
        } else {
            Heard::Poison
        }
    }

    /// Decodes all sums, unless some are poison: nothing is written then.
    fn spread(
        &self,
        parts: &[Range<usize>],
        sums: &[Range<usize>],
        sum: &mut [f32],
        factor: f32,
        foreign: Option<Rank>,
    ) -> Outcome {
        let bytes = |place: &Range<usize>| &self.received[place.clone()];
        let poisoned = |place| bytes(place).first() == Some(&POISON);
        if foreign.is_some() || sums.iter().any(poisoned) {
            return Outcome::Poisoned { foreign };
        }
        let pieces = || sums.iter().map(bytes).zip(parts);
        let unfit = |(bytes, part): (&[u8], &Range<usize>)| {
            self.compressor.check(bytes, part.len()).is_err()
        };
        let mut foreign = pieces().position(unfit);
        if foreign.is_none() {
            let load = Load::Replace(factor);
            foreign = pieces().position(|(bytes, part)| {
                self.compressor
                    .decode(bytes, &mut sum[part.clone()], load)
                    .is_err()
            });
        }
        match foreign {
            None => Outcome::Summed,
            Some(_) => Outcome::Poisoned { foreign },
        }
    }
}

/// Where pieces of these lengths lie, one after the other.
fn one_by_one(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |&len: &usize| {
        end += len;
        end - len..end
    };
    lengths.iter().map(place).collect()
}

/// What a rank's part of the exchange came to.
#[derive(Clone, Copy)]
enum Heard {
    Sum,
    Poison,
    Foreign(Rank),
}

impl<C: Compressor> Aggregation for ScatterGather<C> {
    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        self.run(vector, sum, factor, poison, noise, wire)
            .map(|(outcome, _)| outcome)
    }
}
