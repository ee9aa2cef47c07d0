//! One collective operation, untyped: what Python, the benchmark and the typed calls all hand to the engine.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use ringway_link::shm::mapped::{self, MappedCall, MappedPlan};
use ringway_plan::{Algorithm, Collective, DataType, Layout, Rank, ReduceOp, Verified};
use ringway_sys::{Memory, Places};

use crate::Error;

/// A collective operation on memory. Build one with [`Request::new`] and hand it to
/// [`Communicator::run`](crate::Communicator::run) or [`Communicator::submit`](crate::Communicator::submit).
///
/// The sizes of `input` and `output` on each rank are those of the table in [`ringway_plan`]'s schedule module:
/// in all_gather, say, `input` is the rank's part and `output` has `size` times its length. Input and output may be
/// the same memory at the rank's place (in place); otherwise they must not overlap, and input is not written.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) collective: Collective,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) input: Memory,
    pub(crate) output: Memory,
    /// Where input and output both lie if not in a row; they are empty then.
    pub(crate) places: Option<Arc<Places>>,
    pub(crate) parts: Option<Parts>,
    pub(crate) priority: u8,
    pub(crate) timeout: Option<Duration>,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether elements go from host to host as they are, whatever `wire_between_hosts` says.
    pub(crate) wide: bool,
}

/// Where the ranks' parts lie in a `v` collective, in elements of `input` and `output`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// For each chunk of this rank's input space, its elements.
    pub input: Vec<Range<usize>>,
    /// For each chunk of this rank's output space, its elements.
    pub output: Vec<Range<usize>>,
}

impl Request {
    /// An operation with no reduction, priority 0, the communicator's deadline and the selector's algorithm.
    pub const fn new(
        collective: Collective,
        dtype: DataType,
        input: Memory,
        output: Memory,
    ) -> Self {
        Self {
            collective,
            dtype,
            op: None,
            input,
            output,
            places: None,
            parts: None,
            priority: 0,
            timeout: None,
            algorithm: None,
            wide: false,
        }
    }

    /// How elements are reduced; required by all_reduce, reduce and reduce_scatter.
    pub const fn reduce_op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    /// Input and output of an all_reduce are what lies in these places, as if it were in a row. Each has whole elements, and no two
    /// overlap; other ranks may cut the vector elsewhere. What [`Request::new`] was given does not count.
    pub fn places(mut self, places: Arc<Places>) -> Self {
        self.places = Some(places);
        self
    }

    /// Bytes of input and output.
    pub(crate) fn lens(&self) -> [usize; 2] {
        match &self.places {
            None => [self.input, self.output].map(Memory::len),
            Some(places) => [places.len(); 2],
        }
    }

    /// The sizes and places of the ranks' parts where they are not all alike.
    pub fn parts(mut self, parts: Parts) -> Self {
        self.parts = Some(parts);
        self
    }

    /// Among operations in flight, those of higher priority go first. The same on all ranks, or nothing is gained.
    pub const fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// How long the operation may take; otherwise the setting `timeout`.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The algorithm to use, in place of the selector's choice. Must be the same on all ranks.
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// With elements as they are, whatever `wire_between_hosts` says.
    pub(crate) const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// Checks what this rank alone can check, and returns the number of elements of the vector.
    pub(crate) fn check(&self, rank: Rank, ranks: usize) -> Result<usize, Error> {
        let name = self.collective.name();
        if let Some(root) = self.collective.root().filter(|&root| root >= ranks) {
            return Err(Error::Argument(format!(
                "{name} from root {root} in a group of {ranks} ranks: expected a root below {ranks}"
            )));
        }
        match self.op {
            None if self.collective.reduces() => {
                return Err(Error::Argument(format!("{name} needs a reduce operation")));
            }
            Some(op) if !op.supports(self.dtype) => {
                return Err(Error::Argument(format!(
                    "{name}: {op} is not defined for {}; it is for integers",
                    self.dtype
                )));
            }
            _ => {}
        }
        let size = self.dtype.size();
        for (what, len) in ["input", "output"].into_iter().zip(self.lens()) {
            if len % size != 0 {
                return Err(Error::Argument(format!(
                    "{name}: {what} has {len} bytes, which is no multiple of the {size} bytes of {}",
                    self.dtype
                )));
            }
        }
        match &self.parts {
            None => self.check_even(rank, ranks),
            Some(parts) => self.check_parts(parts, rank, ranks),
        }
    }

    fn check_even(&self, rank: Rank, ranks: usize) -> Result<usize, Error> {
        let (collective, size) = (self.collective, self.dtype.size());
        let [input, output] = self.lens().map(|len| len / size);
        // With one chunk for each rank, a space has as many chunks as ranks' parts.
        let ins = collective.input_chunks(ranks, ranks, rank).len();
        let outs = collective.output_chunks(ranks, ranks, rank).len();
        let (count, part) = if !collective.has_parts() {
            (input.max(output), 0)
        } else {
            let part = match (ins, outs) {
                (1, _) => input,
                (_, 1) => output,
                (0, _) => output / ranks,
                _ => input / ranks,
            };
            (part * ranks, part)
        };
        for (what, got, chunks) in [("input", input, ins), ("output", output, outs)] {
            let wanted = if part == 0 { count } else { part * chunks };
            if chunks != 0 && got != wanted {
                let hint = if got % ranks != 0 && chunks == ranks {
                    format!(
                        "; for parts of different length use the v form, or pad to {}",
                        got.next_multiple_of(ranks)
                    )
                } else {
                    String::new()
                };
                return Err(Error::Argument(format!(
                    "{collective}: {what} has {got} elements where {wanted} were expected in a group of \
                     {ranks} ranks (input {input}, output {output}){hint}"
                )));
            }
        }
        Ok(count)
    }

    /// Whether input and output are the same memory, at the rank's place. `elements` is the vector's length.
    pub(crate) fn in_place(
        &self,
        rank: Rank,
        ranks: usize,
        elements: usize,
    ) -> Result<bool, Error> {
        if let Some(places) = &self.places {
            return self.check_places(places).map(|()| true);
        }
        let (input, output) = (self.input, self.output);
        let (in_start, out_start) = (input.as_ptr().addr(), output.as_ptr().addr());
        let apart = input.is_empty()
            || output.is_empty()
            || in_start + input.len() <= out_start
            || out_start + output.len() <= in_start;
        if apart {
            return Ok(false);
        }
        let (collective, size) = (self.collective, self.dtype.size());
        let first_in = collective.input_chunks(ranks, ranks, rank).start;
        let first_out = collective.output_chunks(ranks, ranks, rank).start;
        let same = match &self.parts {
            None if collective.has_parts() => {
                let part = elements / ranks * size;
                in_start + first_out * part == out_start + first_in * part
            }
            None => in_start == out_start,
            Some(parts) => parts.input.iter().enumerate().all(|(i, range)| {
                let other = (first_in + i)
                    .checked_sub(first_out)
                    .and_then(|o| parts.output.get(o));
                other.is_none_or(|o| in_start + range.start * size == out_start + o.start * size)
            }),
        };
        match (same, collective) {
            (true, Collective::AllToAll) => Err(Error::Argument(
                "all_to_all: input and output are the same memory; expected memory apart"
                    .to_owned(),
            )),
            (true, _) => Ok(true),
            (false, _) => Err(Error::Argument(format!(
                "{collective}: input and output overlap elsewhere than at the rank's own place; expected memory \
                 apart, or input at its place in output"
            ))),
        }
    }

    fn check_places(&self, places: &Places) -> Result<(), Error> {
        let (collective, size) = (self.collective, self.dtype.size());
        if collective != Collective::AllReduce || self.parts.is_some() {
            return Err(Error::Argument(format!(
                "{collective} of memory in several places: expected an all_reduce; copy it to one place"
            )));
        }
        if let Some(place) = places.iter().find(|place| place.len() % size != 0) {
            return Err(Error::Argument(format!(
                "{collective}: a place has {} bytes, which is no multiple of the {size} bytes of {}",
                place.len(),
                self.dtype
            )));
        }
        if places.overlap() {
            return Err(Error::Argument(format!(
                "{collective} of places that overlap, whose sums would depend on which is added up first; expected each element in one \
                 place"
            )));
        }
        Ok(())
    }

    fn check_parts(&self, parts: &Parts, rank: Rank, ranks: usize) -> Result<usize, Error> {
        let size = self.dtype.size();
        let expected = [
            (
                "input",
                &parts.input,
                self.input,
                self.collective.input_chunks(ranks, ranks, rank),
            ),
            (
                "output",
                &parts.output,
                self.output,
                self.collective.output_chunks(ranks, ranks, rank),
            ),
        ];
        for (what, ranges, memory, chunks) in expected {
            if ranges.len() != chunks.len() {
                return Err(Error::Argument(format!(
                    "{}: {} {what} parts were given where {} were expected",
                    self.collective,
                    ranges.len(),
                    chunks.len()
                )));
            }
            if let Some(bad) = ranges
                .iter()
                .find(|r| r.start > r.end || r.end * size > memory.len())
            {
                return Err(Error::Argument(format!(
                    "{}: {what} part {bad:?} is outside of its {} elements",
                    self.collective,
                    memory.len() / size
                )));
            }
        }
        Ok(0)
    }

    /// The call of an operation whose descriptor encodes as these words.
    pub(crate) fn mapped_call(&self, words: [u64; 2], plan: &Arc<MappedPlan>) -> MappedCall {
        MappedCall {
            descriptor: mapped::Descriptor(words),
            plan: plan.clone(),
            input: self.input,
            output: self.output,
            places: self.places.clone(),
        }
    }

    /// Where the chunks of `schedule` lie for this rank.
    pub(crate) fn layout(&self, schedule: &Verified, rank: Rank, count: usize) -> Layout {
        let size = self.dtype.size();
        match &self.parts {
            None => Layout::even(
                self.collective,
                &schedule.programs[rank],
                schedule.ranks(),
                schedule.chunks,
                rank,
                count,
                size,
            ),
            Some(parts) => {
                let bytes = |ranges: &[Range<usize>]| {
                    ranges
                        .iter()
                        .map(|r| r.start * size..r.end * size)
                        .collect()
                };
                Layout::uneven(bytes(&parts.input), bytes(&parts.output))
            }
        }
    }
}

/// What ranks must agree on about an operation; small and plain, so that a mismatch can be told from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The collective with its root.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DataType,
    /// The reduction, if any.
    pub op: Option<ReduceOp>,
    /// Elements of the vector; 0 for the `v` forms, where ranks may know only their own.
    pub elements: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Which form of the operation.
    pub form: Form,
    /// Which of the group's plans it follows, counted from 0 and after [`Self::PLANS`] from 0 again: where links change,
    /// or algorithms have been tried, there is another.
    pub plan: u8,
    /// As what elements go from host to host, if not as they are.
    pub wire: Option<DataType>,
}

/// The form of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// All ranks' parts have the same length.
    Even,
    /// From one rank to one other: a broadcast between two.
    Pair,
    /// Parts have lengths of their own (the `v` form).
    Uneven,
}

impl Form {
    /// In recordings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Pair => "pair",
            Self::Uneven => "uneven",
        }
    }
}

impl Descriptor {
    /// Plans that descriptors tell apart.
    pub const PLANS: u32 = 16;

    /// As two words for other ranks: names by their places in the lists of this version, then elements.
    pub fn encode(&self) -> [u64; 2] {
        let place = |all: &[&str], name: &str| {
            all.iter()
                .position(|n| *n == name)
                .map_or(NONE, |place| place as u64)
        };
        let names = place(
            &Collective::all(0).map(Collective::name),
            self.collective.name(),
        ) | place(&DataType::ALL.map(DataType::name), self.dtype.name()) << 8
            | self.op.map_or(NONE, |op| {
                place(&ReduceOp::ALL.map(ReduceOp::name), op.name())
            }) << 16
            | place(&Algorithm::ALL.map(Algorithm::name), self.algorithm.name()) << 24
            | (self.form as u64) << 32
            | u64::from(self.plan & 0xf) << 36
            | self.wire.map_or(0, |wire| {
                place(&DataType::ALL.map(DataType::name), wire.name()) + 1
            }) << 34
            | (self.collective.root().unwrap_or(0) as u64) << 40;
        [names, self.elements]
    }

    /// The descriptor in another rank's words; `None` if they are none.
    pub fn decode([names, elements]: [u64; 2]) -> Option<Self> {
        let place = |shift: u32| (names >> shift & 0xff) as usize;
        let root = usize::try_from(names >> 40).ok()?;
        let read = Self {
            collective: *Collective::all(root).get(place(0))?,
            dtype: *DataType::ALL.get(place(8))?,
            op: match place(16) as u64 {
                NONE => None,
                _ => Some(*ReduceOp::ALL.get(place(16))?),
            },
            algorithm: *Algorithm::ALL.get(place(24))?,
            form: *[Form::Even, Form::Pair, Form::Uneven].get(place(32) & 0x3)?,
            plan: (place(36) & 0xf) as u8,
            wire: match place(34) & 0x3 {
                0 => None,
                place => Some(*DataType::ALL.get(place - 1)?),
            },
            elements,
        };
        // No other words say the same: a root where there is none, say.
        (read.encode() == [names, elements]).then_some(read)
    }

    /// 32 bits that differ, but for one chance in 2^31, where descriptors differ. Those of a message of up to 2^27 - 1
    /// elements say what it is: nothing else tells its receiver.
    pub fn fingerprint(&self) -> u32 {
        let [names, elements] = self.encode();
        if self.form == Form::Pair && elements < LONG {
            let dtype = (names >> 8 & 0xf) as u32;
            return TELLING | dtype << LONG.ilog2() | elements as u32;
        }
        (crate::group::mix(&[names, elements]) >> 33) as u32
    }

    /// The message that a fingerprint is of; none if it does not say.
    pub(crate) fn of_message(fingerprint: u32) -> Option<Self> {
        let dtype = DataType::ALL.get((fingerprint >> LONG.ilog2() & 0xf) as usize);
        (fingerprint & TELLING != 0).then_some(Self {
            collective: Collective::Broadcast { root: 0 },
            dtype: *dtype?,
            op: None,
            elements: u64::from(fingerprint) & (LONG - 1),
            algorithm: Algorithm::Direct,
            form: Form::Pair,
            plan: 0,
            wire: None,
        })
    }
}

/// Set in fingerprints that say what they are of.
const TELLING: u32 = 1 << 31;

/// Messages of so many elements have a fingerprint that is a hash.
const LONG: u64 = 1 << 27;

const _: () = assert!(DataType::ALL.len() <= 16, "four bits name a type");

/// In place of a name that there is none of.
const NONE: u64 = 0xff;

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.form, self.collective) {
            (Form::Pair, _) => {
                return write!(
                    f,
                    "send and recv of {} {} elements",
                    self.elements, self.dtype
                );
            }
            (Form::Uneven, collective) => write!(f, "{collective} (v form) of {}", self.dtype)?,
            (Form::Even, Collective::Barrier) => write!(f, "barrier")?,
            (Form::Even, collective) => {
                write!(
                    f,
                    "{collective} of {} {} elements",
                    self.elements, self.dtype
                )?;
            }
        }
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.collective.root() {
            write!(f, ", root {root}")?;
        }
        write!(f, ", by {}", self.algorithm)?;
        if let Some(wire) = self.wire {
            write!(f, ", {wire} between hosts")?;
        }
        match self.plan {
            0 => Ok(()),
            plan => write!(f, ", plan {plan}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Memory {
        crate::buffer::untouched(len)
    }

    #[test]
    fn sizes_are_checked() {
        let request = |c, input: usize, output: usize| {
            Request::new(c, DataType::F32, memory(input * 4), memory(output * 4))
                .reduce_op(ReduceOp::Sum)
                .check(1, 3)
                .map_err(|e| e.to_string())
        };
        assert_eq!(request(Collective::AllReduce, 7, 7), Ok(7));
        assert_eq!(request(Collective::AllGather, 7, 21), Ok(21));
        assert_eq!(request(Collective::ReduceScatter, 21, 7), Ok(21));
        assert_eq!(request(Collective::AllToAll, 21, 21), Ok(21));
        assert_eq!(request(Collective::Broadcast { root: 0 }, 0, 8), Ok(8));
        assert_eq!(request(Collective::Reduce { root: 0 }, 8, 0), Ok(8));
        assert_eq!(request(Collective::Gather { root: 0 }, 8, 0), Ok(24));
        assert_eq!(request(Collective::Gather { root: 1 }, 8, 24), Ok(24));
        assert_eq!(request(Collective::Scatter { root: 1 }, 24, 8), Ok(24));
        assert_eq!(request(Collective::Scatter { root: 0 }, 0, 8), Ok(24));
        assert_eq!(request(Collective::Barrier, 0, 0), Ok(0));
        for (c, input, output, text) in [
            (Collective::AllReduce, 7, 8, "input has 7 elements where 8"),
            (
                Collective::AllGather,
                7,
                20,
                "output has 20 elements where 21",
            ),
            (Collective::AllToAll, 20, 20, "20 elements"),
            (Collective::Broadcast { root: 3 }, 8, 8, "below 3"),
        ] {
            let error = request(c, input, output).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn descriptors_round_trip_and_read_well() {
        let d = Descriptor {
            collective: Collective::Reduce { root: 2 },
            dtype: DataType::Bf16,
            op: Some(ReduceOp::Average),
            elements: 1 << 40,
            algorithm: Algorithm::Ring,
            form: Form::Even,
            plan: 3,
            wire: None,
        };
        assert_eq!(Descriptor::decode(d.encode()), Some(d));
        assert_eq!(
            d.to_string(),
            "reduce of 1099511627776 bf16 elements, avg, root 2, by ring, plan 3"
        );
        let narrow = Descriptor {
            collective: Collective::AllReduce,
            dtype: DataType::F32,
            wire: Some(DataType::F16),
            ..d
        };
        assert_eq!(Descriptor::decode(narrow.encode()), Some(narrow));
        assert!(narrow.to_string().contains(", by ring, f16 between hosts"));
        let wide = Descriptor {
            wire: None,
            ..narrow
        };
        assert_ne!(wide.fingerprint(), narrow.fingerprint());
        let message = |dtype, elements| Descriptor {
            collective: Collective::Broadcast { root: 0 },
            dtype,
            op: None,
            elements,
            algorithm: Algorithm::Direct,
            form: Form::Pair,
            plan: 0,
            wire: None,
        };
        for dtype in DataType::ALL {
            for elements in [0, 1, LONG - 1] {
                let message = message(dtype, elements);
                assert_eq!(Descriptor::of_message(message.fingerprint()), Some(message));
            }
        }
        let long = message(DataType::U8, LONG).fingerprint();
        assert_eq!(Descriptor::of_message(long), None);
        assert_eq!(Descriptor::of_message(d.fingerprint()), None);
        let other = Descriptor { elements: 1, ..d };
        assert_ne!(d.fingerprint(), other.fingerprint());
        let other = Descriptor { plan: 4, ..d };
        assert_ne!(d.fingerprint(), other.fingerprint());
        assert_eq!(Descriptor::decode([u64::MAX; 2]), None);
        // An all_reduce has no root.
        let rooted = Descriptor {
            collective: Collective::AllReduce,
            ..d
        };
        let [names, elements] = rooted.encode();
        assert_eq!(Descriptor::decode([names | 1 << 40, elements]), None);
    }
}
