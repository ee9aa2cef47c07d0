//! The few elements that matter, with their places.
//!
//! An encoded vector is a byte 0; the number of elements, and of entries; for each [`GAPS`] entries the bits of a gap (a byte) and the gaps, packed: how many
//! elements lie between an entry and the one before; and the entries' values as bfloat16.

use std::{ops::Range, time::Duration};

use half::bf16;
use ringway_kernels::codec::{at_least, largest, top_k};
use ringway_plan::Collective;

use crate::{
    Aggregation, Compressor, DecodeError, Encoded, Error, Load, Outcome, ScatterGather, StateError,
    Wire,
    aggregation::{Stage, key},
    compressor::{POISON, Reader},
    state::put_u64,
    sum::scale,
    wire::gather_lengths,
};

/// Entries whose gaps have the same number of bits.
const GAPS: usize = 64;

/// Which elements are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chosen {
    /// Those of largest magnitude: this share of all, from 0 to 1, at least one.
    Share(f64),
    /// Those whose magnitude is not below.
    Above(f32),
}

/// Sends elements that are large, as bfloat16, and not the others.
#[derive(Clone, Debug)]
pub struct Sparse {
    chosen: Chosen,
    places: Vec<u32>,
}

impl Sparse {
    /// Sends these.
    pub const fn new(chosen: Chosen) -> Self {
        Self {
            chosen,
            places: Vec::new(),
        }
    }

    fn choose(&mut self, vector: &[f32]) {
        match self.chosen {
            Chosen::Share(share) => {
                let k = (vector.len() as f64 * share).ceil() as usize;
                top_k(vector, k, &mut self.places);
            }
            Chosen::Above(threshold) => at_least(vector, threshold, &mut self.places),
        }
    }
}

impl Compressor for Sparse {
    fn fixed_len(&self, _elements: usize) -> Option<usize> {
        None
    }

    /// All elements, with gaps of 32 bits.
    fn most_len(&self, elements: usize) -> usize {
        HEAD + elements.div_ceil(GAPS) + 4 * elements + 2 * elements
    }

    fn encode(
        &mut self,
        vector: &mut [f32],
        parts: &[Range<usize>],
        _noise: u64,
        out: &mut Encoded,
    ) {
        self.choose(vector);
        let mut rest = &self.places[..];
        for part in parts {
            let (places, behind) =
                rest.split_at(rest.partition_point(|&i| (i as usize) < part.end));
            rest = behind;
            out.bytes.push(0);
            out.bytes
                .extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.bytes
                .extend_from_slice(&(places.len() as u32).to_le_bytes());
            let mut next = part.start as u32;
            for places in places.chunks(GAPS) {
                let mut gaps = [0; GAPS];
                for (gap, &place) in gaps.iter_mut().zip(places) {
                    *gap = place - next;
                    next = place + 1;
                }
                pack(&gaps[..places.len()], &mut out.bytes);
            }
            for &place in places {
                // What bfloat16 does not hold is sent later.
                let most = bf16::MAX.to_f32();
                let x = &mut vector[place as usize];
                let value = bf16::from_f32(x.clamp(-most, most));
                *x -= value.to_f32();
                out.bytes.extend_from_slice(&value.to_le_bytes());
            }
            out.end();
        }
    }

    fn check(&self, bytes: &[u8], elements: usize) -> Result<(), DecodeError> {
        entries(bytes, elements).map(|_| ())
    }

    fn decode(&self, bytes: &[u8], vector: &mut [f32], load: Load) -> Result<(), DecodeError> {
        let (places, values) = entries(bytes, vector.len())?;
        let factor = match load {
            Load::Replace(factor) => {
                vector.fill(0.0);
                factor
            }
            Load::Add => 1.0,
        };
        for (&place, &value) in places.iter().zip(values) {
            vector[place as usize] += factor * bf16::from_le_bytes(value).to_f32();
        }
        Ok(())
    }
}

/// The bytes before the entries: a zero, and two numbers.
const HEAD: usize = 9;

/// Places, all within the vector, and values.
fn entries(bytes: &[u8], elements: usize) -> Result<(Vec<u32>, &[[u8; 2]]), DecodeError> {
    let mut reader = Reader::new(bytes);
    let tag = reader.u8()?;
    if tag != 0 {
        return Err(DecodeError::Field {
            field: "the first byte",
            value: tag.into(),
            expected: "0",
        });
    }
    let theirs = reader.u32()?;
    if theirs as usize != elements {
        return Err(DecodeError::Field {
            field: "the number of elements",
            value: theirs.into(),
            expected: "as many as the vector has",
        });
    }
    let count = reader.u32()? as usize;
    if count > elements {
        return Err(DecodeError::Field {
            field: "the number of entries",
            value: count as u64,
            expected: "at most the elements of the vector",
        });
    }
    let mut places = Vec::with_capacity(count);
    let mut next = 0_u64;
    while places.len() < count {
        let mut gaps = [0; GAPS];
        let gaps = &mut gaps[..GAPS.min(count - places.len())];
        unpack(&mut reader, gaps)?;
        for &gap in &*gaps {
            let place = next + u64::from(gap);
            if place >= elements as u64 {
                return Err(DecodeError::Field {
                    field: "the place of an entry",
                    value: place,
                    expected: "one in the vector",
                });
            }
            places.push(place as u32);
            next = place + 1;
        }
    }
    let (values, _) = reader.bytes(2 * count)?.as_chunks::<2>();
    reader.end()?;
    Ok((places, values))
}

/// Appends a byte, the bits of the longest number, and the numbers.
fn pack(numbers: &[u32], bytes: &mut Vec<u8>) {
    let bits = numbers
        .iter()
        .fold(0, |all, n| all | n)
        .checked_ilog2()
        .map_or(0, |log| log + 1);
    bytes.push(bits as u8);
    let (mut word, mut filled) = (0_u64, 0);
    for &number in numbers {
        word |= u64::from(number) << filled;
        filled += bits;
        if filled >= 32 {
            bytes.extend_from_slice(&(word as u32).to_le_bytes());
            word >>= 32;
            filled -= 32;
        }
    }
    let left = filled.div_ceil(8) as usize;
    bytes.extend_from_slice(&word.to_le_bytes()[..left]);
}

/// Reads what [`pack`] has written.
fn unpack(reader: &mut Reader<'_>, numbers: &mut [u32]) -> Result<(), DecodeError> {
    let bits = u32::from(reader.u8()?);
    if bits > 32 {
        return Err(DecodeError::Field {
            field: "the bits of a gap",
            value: bits.into(),
            expected: "at most 32",
        });
    }
    let mut bytes = reader
        .bytes((numbers.len() * bits as usize).div_ceil(8))?
        .iter();
    let (mut word, mut filled) = (0_u64, 0);
    for number in numbers {
        while filled < bits {
            word |= u64::from(bytes.next().copied().unwrap_or(0)) << filled;
            filled += 8;
        }
        *number = (word & ((1 << bits) - 1)) as u32;
        word >>= bits;
        filled -= bits;
    }
    Ok(())
}

/// Sums of sparse vectors: all entries to all ranks, or parts to their owners and the largest of each part's sum to all,
/// whichever takes less time by the cost model for as many bytes as there were the last time.
///
/// The first rule loses nothing, and takes time in proportion to the number of ranks. What the second one leaves out
/// of sums is left in the owner's vector.
#[derive(Clone, Debug)]
pub struct GatherAll {
    scatter: ScatterGather<Sparse>,
    encoded: Encoded,
    received: Vec<u8>,
    decoded: Vec<f32>,
    /// Bytes of a rank's encoded vector, on the mean; the same on all ranks. Unknown at first.
    typical: Option<u64>,
}

impl GatherAll {
    /// With these elements sent.
    pub fn new(chosen: Chosen) -> Self {
        Self {
            scatter: ScatterGather::new(Sparse::new(chosen)),
            encoded: Encoded::default(),
            received: Vec::new(),
            decoded: Vec::new(),
            typical: None,
        }
    }

    /// Whether parts are to be added up by owners.
    fn scatters(&self, wire: &dyn Wire) -> bool {
        let (Some(typical), ranks) = (self.typical, wire.ranks()) else {
            return false;
        };
        let typical = typical as usize;
        let time = |collective, bytes| -> Duration { wire.time(collective, bytes) };
        let gather = time(Collective::AllGather, typical * ranks);
        // Either round of the other rule begins with lengths.
        let lengths = time(Collective::AllToAll, 8 * ranks);
        let scatter = time(Collective::AllToAll, typical) + time(Collective::AllGather, typical);
        scatter + lengths < gather
    }

    fn gather(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<(Outcome, usize), Error> {
        let (me, ranks) = (wire.rank(), wire.ranks());
        let whole = 0..vector.len();
        let whole = std::slice::from_ref(&whole);
        self.encoded.clear();
        if poison {
            self.encoded.bytes.push(POISON);
        } else {
            let compressor = self.scatter.compressor();
            compressor.encode(vector, whole, key(noise, me, Stage::Own), &mut self.encoded);
        }
        let most = self.scatter.compressor().most_len(vector.len());
        let counts = gather_lengths(wire, self.encoded.bytes.len(), most)?;
        let all = counts.iter().sum();
        self.received.resize(all, 0);
        wire.all_gather_v(&self.encoded.bytes, &mut self.received, &counts)?;
        self.decoded.clear();
        self.decoded.resize(vector.len(), 0.0);
        let mut rest = &self.received[..];
        let mut foreign = None;
        for (from, &count) in counts.iter().enumerate() {
            let (bytes, behind) = rest.split_at(count);
            rest = behind;
            if bytes.first() == Some(&POISON) {
                return Ok((Outcome::Poisoned { foreign: None }, all));
            }
            let compressor = self.scatter.compressor();
            if compressor
                .decode(bytes, &mut self.decoded, Load::Add)
                .is_err()
            {
                foreign.get_or_insert(from);
            }
        }
        if foreign.is_some() || !largest(&self.decoded).is_finite() {
            return Ok((Outcome::Poisoned { foreign }, all));
        }
        scale(sum, &self.decoded, factor);
        Ok((Outcome::Summed, all / ranks))
    }
}

impl Aggregation for GatherAll {
    fn chooses(&self) -> bool {
        true
    }

    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        let (outcome, typical) = if self.scatters(wire) {
            self.scatter.run(vector, sum, factor, poison, noise, wire)?
        } else {
            self.gather(vector, sum, factor, poison, noise, wire)?
        };
        if outcome == Outcome::Summed {
            self.typical = Some(typical as u64);
        }
        Ok(outcome)
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        put_u64(
            bytes,
            self.typical.map_or(0, |typical| typical.saturating_add(1)),
        );
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::new(bytes);
        self.typical = reader.u64()?.checked_sub(1);
        Ok(reader.end()?)
    }
}
