//! A bucket's codec: memory and rule of aggregation, and what they agree on.

use std::{fmt, ops::Range};

use ringway_plan::Rank;

use crate::{
    Aggregation, Error, Fault, Feedback, Kind, Memory, Options, Outcome, StateError, Tensors, Wire,
    aggregation::mix,
    compressor::Reader,
    memory::Sent,
    state::{put_bytes, put_u64, take_bytes},
    tensors::product,
};

/// Adds up a bucket of gradients over ranks, with fewer bytes on the wire. Each rank has one, made alike, for each of its buckets.
pub struct Codec {
    name: String,
    tensors: Tensors,
    len: usize,
    options: Options,
    memory: Box<dyn Memory>,
    aggregation: Box<dyn Aggregation>,
    steps: u64,
    /// Neither encodes nor keeps anything.
    off: bool,
    measures: bool,
    fidelity: Option<Fidelity>,
    /// Elements of tensors that the next sum leaves out.
    absent: Vec<Range<usize>>,
}

/// How much of a gradient was sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fidelity {
    /// The cosine between what was sent and what was to be sent.
    pub cosine: f64,
    /// The length of what was kept for later over the length of the gradient.
    pub residual: f64,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Codec({}, {} elements, step {})",
            self.name, self.len, self.steps
        )
    }
}

impl Codec {
    /// The codec of a kind for a bucket of `tensors`; the same on all ranks.
    pub fn new(kind: Kind, options: Options, tensors: Tensors) -> Self {
        let memory = options.feedback.memory(tensors.len());
        let aggregation = kind.aggregation(&tensors, options);
        Self {
            off: kind == Kind::None && !matches!(options.feedback, Feedback::Momentum(_)),
            ..Self::of_parts(kind.to_string(), options, tensors, memory, aggregation)
        }
    }

    /// A codec of a memory and a rule of one's own; `name` is written into its state. Of `options` the seed counts.
    pub fn of_parts(
        name: String,
        options: Options,
        tensors: Tensors,
        memory: Box<dyn Memory>,
        aggregation: Box<dyn Aggregation>,
    ) -> Self {
        Self {
            name,
            len: tensors.len(),
            tensors,
            options,
            memory,
            aggregation,
            steps: 0,
            off: false,
            measures: false,
            fidelity: None,
            absent: Vec::new(),
        }
    }

    /// The name of its kind.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensors of its bucket.
    pub const fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Goes on as another kind. What was not sent is kept, and sent by it. To be called on all ranks, between the same two sums.
    pub fn change(&mut self, kind: Kind) {
        self.aggregation = kind.aggregation(&self.tensors, self.options);
        self.name = kind.to_string();
        // What is kept goes with the first sum that is not encoded.
        self.off = false;
    }

    /// Measures the [`Fidelity`] of the next sum, which takes a copy of the bucket and two passes over it.
    pub const fn measure_next(&mut self) {
        self.measures = true;
    }

    /// Of the last sum that was measured.
    pub const fn fidelity(&self) -> Option<Fidelity> {
        self.fidelity
    }

    /// What is kept for later sums, in the units of a sum; empty if nothing is.
    pub fn residual(&self) -> &[f32] {
        self.memory.kept()
    }

    /// Leaves tensors, by their places in the bucket, out of the next sum, in which they have no gradient on any rank: what is
    /// kept of them waits for a later one. Their elements must be zeros.
    pub fn leave_out(&mut self, tensors: &[usize]) {
        let mut end = 0;
        self.absent.clear();
        for (place, tensor) in self.tensors.iter().enumerate() {
            let range = end..end + tensor.len();
            end = range.end;
            if tensors.contains(&place) {
                self.absent.push(range);
            }
        }
    }

    /// Adds `gradients` up over the ranks of `wire`, in place. The same bits on all ranks.
    ///
    /// # Errors
    /// See [`Error`]. Unless it is [`Error::Wire`] or [`Error::Announced`], it is the same on all ranks, gradients and codec are what they were, and ranks
    /// may go on. With the kind `none` nothing is looked at: a sum is then what it is.
    pub fn sum(&mut self, gradients: &mut [f32], wire: &mut dyn Wire) -> Result<(), Error> {
        self.total(gradients, 1.0, wire)
    }

    /// Like [`Self::sum`], divided by the number of ranks.
    pub fn average(&mut self, gradients: &mut [f32], wire: &mut dyn Wire) -> Result<(), Error> {
        self.total(gradients, 1.0 / wire.ranks() as f32, wire)
    }

    fn total(
        &mut self,
        gradients: &mut [f32],
        factor: f32,
        wire: &mut dyn Wire,
    ) -> Result<(), Error> {
        if gradients.len() != self.len {
            return Err(Error::Length {
                expected: self.len,
                found: gradients.len(),
            });
        }
        let absent = std::mem::take(&mut self.absent);
        if self.off {
            wire.all_reduce(crate::Values::F32(gradients))?;
            if factor != 1.0 {
                gradients.iter_mut().for_each(|x| *x *= factor);
            }
        } else {
            self.encoded_total(gradients, factor, &absent, wire)?;
        }
        self.steps += 1;
        Ok(())
    }

    fn encoded_total(
        &mut self,
        gradients: &mut [f32],
        factor: f32,
        absent: &[Range<usize>],
        wire: &mut dyn Wire,
    ) -> Result<(), Error> {
        let (vector, most) = self.memory.recall(gradients);
        for range in absent {
            vector[range.clone()].fill(0.0);
        }
        let limit = self.aggregation.limit();
        let finding = fault(vector, gradients, most, limit);
        let before = self
            .measures
            .then(|| (vector.to_vec(), product(gradients, gradients)));
        let noise = mix(self.options.seed, self.steps);
        let poison = finding.is_some();
        match self
            .aggregation
            .sum(vector, gradients, factor, poison, noise, wire)?
        {
            Outcome::Summed => {}
            Outcome::Poisoned { foreign } => return Err(self.blame(finding, foreign, limit, wire)),
        }
        if let Some((before, gradient)) = before {
            self.fidelity = Some(fidelity(&before, vector, gradient));
            self.measures = false;
        }
        self.memory.commit(&Sent {
            absent,
            chosen: self.aggregation.chooses(),
        });
        // Nothing is left to be sent, but of what was absent.
        let momentum = matches!(self.options.feedback, Feedback::Momentum(_));
        self.off = self.name == "none" && !momentum && absent.is_empty();
        Ok(())
    }

    /// Asks all ranks what they have found.
    fn blame(
        &self,
        finding: Option<(usize, Fault)>,
        foreign: Option<Rank>,
        limit: f32,
        wire: &mut dyn Wire,
    ) -> Error {
        let mine = match (finding, foreign) {
            (Some((element, Fault::NotFinite(value))), _) => record(1, element, value),
            (Some((element, Fault::TooLarge { value, .. })), _) => record(2, element, value),
            (None, Some(from)) => record(3, from, 0.0),
            (None, None) => record(0, 0, 0.0),
        };
        let mut all = vec![0; RECORD * wire.ranks()];
        if let Err(error) = wire.all_gather(&mine, &mut all) {
            return Error::Wire(error);
        }
        let (records, _) = all.as_chunks::<RECORD>();
        for (rank, record) in records.iter().enumerate() {
            let mut reader = Reader::new(record);
            let (Ok(kind), Ok(at), Ok(value)) = (reader.u8(), reader.u64(), reader.u32()) else {
                continue;
            };
            let (at, value) = (at as usize, f32::from_bits(value));
            let fault = match kind {
                1 => Fault::NotFinite(value),
                2 => Fault::TooLarge { value, limit },
                3 => return Error::Foreign { rank, from: at },
                _ => continue,
            };
            let (tensor, element) = self.tensors.locate(at);
            return Error::Unfit {
                rank,
                tensor,
                element,
                fault,
            };
        }
        Error::Overflow
    }

    /// All that the next sums depend on, to be saved beside a model: what is kept, where random numbers are, and what codecs
    /// carry over. Each rank has its own.
    pub fn state(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        put_bytes(&mut bytes, self.name.as_bytes());
        put_u64(&mut bytes, self.len as u64);
        put_u64(&mut bytes, self.steps);
        put_u64(&mut bytes, self.off.into());
        let (mut memory, mut aggregation) = (Vec::new(), Vec::new());
        self.memory.save(&mut memory);
        self.aggregation.save(&mut aggregation);
        put_bytes(&mut bytes, &memory);
        put_bytes(&mut bytes, &aggregation);
        bytes
    }

    /// Goes on from a state of a codec of the same kind, tensors and options.
    ///
    /// # Errors
    /// It is no such state. Make the codec anew then: part of the state may have been taken.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::new(state);
        let version = reader.u32()?;
        if version != VERSION {
            return Err(StateError::Malformed(crate::DecodeError::Field {
                field: "the version",
                value: version.into(),
                expected: "1",
            }));
        }
        let name = String::from_utf8_lossy(take_bytes(&mut reader)?).into_owned();
        if name != self.name {
            return Err(StateError::Other {
                expected: self.name.clone(),
                found: name,
            });
        }
        let len = reader.u64()?;
        if len != self.len as u64 {
            return Err(StateError::Length {
                expected: self.len,
                found: len as usize,
            });
        }
        let (steps, off) = (reader.u64()?, reader.u64()?);
        let (memory, aggregation) = (take_bytes(&mut reader)?, take_bytes(&mut reader)?);
        reader.end()?;
        self.memory.restore(memory)?;
        self.aggregation.restore(aggregation)?;
        self.steps = steps;
        self.off = off != 0;
        Ok(())
    }
}

/// Of what [`Codec::state`] writes.
const VERSION: u32 = 1;

/// The bytes of what a rank tells of its finding.
const RECORD: usize = 13;

fn record(kind: u8, at: usize, value: f32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[0] = kind;
    record[1..9].copy_from_slice(&(at as u64).to_le_bytes());
    record[9..].copy_from_slice(&value.to_le_bytes());
    record
}

/// The first element that cannot be sent, where the largest magnitude is `most`.
fn fault(vector: &[f32], gradients: &[f32], most: f32, limit: f32) -> Option<(usize, Fault)> {
    if most.is_finite() && most <= limit {
        return None;
    }
    let unfit = |x: &f32| !x.is_finite() || x.abs() > limit;
    let at = vector.iter().position(unfit)?;
    let (value, gradient) = (vector[at], gradients[at]);
    let fault = if gradient.is_finite() {
        Fault::TooLarge { value, limit }
    } else {
        Fault::NotFinite(gradient)
    };
    Some((at, fault))
}

/// Of what was to be sent, what is left of it, and the square of the gradient's length.
fn fidelity(before: &[f32], left: &[f32], gradient: f64) -> Fidelity {
    let (all, unsent) = (product(before, before), product(left, left));
    let both = product(before, left);
    let (along, sent) = (all - both, (all - 2.0 * both + unsent).max(0.0));
    let over = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    Fidelity {
        cosine: over(along, (all * sent).sqrt()),
        residual: over(unsent, gradient).sqrt(),
    }
}
