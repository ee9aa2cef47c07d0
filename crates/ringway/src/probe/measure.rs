//! All-reduces that are timed.

use std::time::{Duration, Instant};

use ringway_plan::{Algorithm, Collective, DataType, Observed, ReduceOp};
use ringway_sys::Memory;

use super::share;
use crate::{
    Candidate, Communicator, Element, Error, Request,
    buffer::{exclusive, shared},
};

/// A long vector takes at least so long, for what buckets and queues swallow to count little.
const LONG: Duration = Duration::from_millis(20);

/// And at least so many times as long as a short one, for what messages cost to count little.
const LONGER: u32 = 4;

/// Short vectors are repeated for about so long, each algorithm.
const SHORT: Duration = Duration::from_millis(8);

/// No vector is made longer once so much time has passed.
const ENOUGH: Duration = Duration::from_millis(80);

/// Elements of the longest vector: 8 MiB.
const LONGEST: usize = 2 << 20;

/// Elements of each rank's part at first.
const PART: usize = 1 << 10;

/// Repetitions of short vectors, at most.
const REPETITIONS: u64 = 64;

/// Bytes of the shorter of the vectors that algorithms are compared with.
pub(super) const COMPARED: usize = 16 << 10;

/// What is predicted to take more than so many times as long as the quickest is not compared with a long vector.
const HOPELESS: u128 = 3;

/// What member 0 has all do next: nothing any more, or all-reduces by an algorithm of [`Algorithm::ALL`], numbered from 1.
const STOP: u64 = 0;

const fn number(algorithm: Algorithm) -> u64 {
    algorithm.place() as u64 + 1
}

/// What predictions for vectors of so many bytes were to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) bytes: usize,
    /// By the place in [`Algorithm::ALL`].
    pub(super) thousandths: [Option<u64>; Algorithm::ALL.len()],
}

impl Compared {
    const fn new(bytes: usize) -> Self {
        Self {
            bytes,
            thousandths: [None; Algorithm::ALL.len()],
        }
    }
}

/// A group that measures.
pub(super) struct Field<'a> {
    comm: &'a Communicator,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl<'a> Field<'a> {
    pub(super) const fn new(comm: &'a Communicator) -> Self {
        Self {
            comm,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Measures, on member 0.
    pub(super) fn lead(&mut self) -> Result<Observed, Error> {
        let began = Instant::now();
        let ranks = self.comm.size();
        let short = 4 * ranks;
        // The first opens connections.
        self.time(Algorithm::Direct, short, 1)?;
        let repeated = |field: &mut Self, algorithm| {
            let once = field.time(algorithm, short, 2)?;
            let times = (SHORT.as_nanos() / once.as_nanos().max(1)) as u64;
            field.time(algorithm, short, times.clamp(2, REPETITIONS))
        };
        let ring_short = repeated(self, Algorithm::Ring)?;
        let direct_short = repeated(self, Algorithm::Direct)?;
        let mut long = PART * ranks;
        let mut ring_long = self.time(Algorithm::Ring, long, 1)?;
        let enough = LONG.max(ring_short * LONGER);
        while ring_long < enough && long < LONGEST && began.elapsed() < ENOUGH {
            let times = enough.as_nanos() / ring_long.as_nanos().max(1);
            long = (long * (times as usize).clamp(2, 8)).min(LONGEST.next_multiple_of(ranks));
            ring_long = self.time(Algorithm::Ring, long, 1)?;
        }
        let direct_long = self.time(Algorithm::Direct, long, 1)?;
        self.command([STOP, 0, 0])?;
        Ok(Observed {
            short: short * size_of::<f32>(),
            long: long * size_of::<f32>(),
            ring_short,
            direct_short,
            ring_long,
            direct_long,
        })
    }

    /// How many thousandths of its predicted time each algorithm takes, on member 0: with a short and with a long vector.
    /// `None` leaves it to the other.
    pub(super) fn compare(&mut self, long: usize) -> Result<[Compared; 2], Error> {
        let mut compared = [Compared::new(COMPARED), Compared::new(long)];
        for at in 0..compared.len() {
            let bytes = compared[at].bytes;
            let mut candidates = self.comm.candidates(Collective::AllReduce, bytes);
            let before = compared[0].thousandths;
            let known = |c: &Candidate| {
                let factor = before[c.algorithm.place()].unwrap_or(1000);
                c.total().as_nanos() * u128::from(factor) / 1000
            };
            candidates.sort_by_key(|c| (known(c), c.algorithm));
            let least = candidates.first().map_or(0, known);
            for candidate in &candidates {
                if at > 0 && known(candidate) > least * HOPELESS {
                    continue;
                }
                let times = if at > 0 { 0 } else { 2 };
                let elements = bytes / size_of::<f32>();
                let took = self.time(candidate.algorithm, elements, times)?;
                let predicted = candidate.total().as_nanos().max(1);
                // What seems much quicker than predicted is in shapers' buckets and queues yet.
                let thousandths = (took.as_nanos() * 1000 / predicted).clamp(700, 100_000);
                compared[at].thousandths[candidate.algorithm.place()] =
                    u64::try_from(thousandths).ok();
            }
        }
        self.command([STOP, 0, 0])?;
        Ok(compared)
    }

    /// Does what member 0 says, until it is done.
    pub(super) fn follow(&mut self) -> Result<(), Error> {
        loop {
            match self.command([STOP, 0, 0])? {
                [STOP, ..] => return Ok(()),
                command => self.execute(command)?,
            };
        }
    }

    /// The time of one of several that follow each other. One goes before, which has all begin together, and queues and
    /// shapers filled; but of none `times`, that one counts.
    fn time(
        &mut self,
        algorithm: Algorithm,
        elements: usize,
        times: u64,
    ) -> Result<Duration, Error> {
        let command = self.command([number(algorithm), elements as u64, times])?;
        self.execute(command)
    }

    fn execute(&mut self, [algorithm, elements, times]: [u64; 3]) -> Result<Duration, Error> {
        let elements = usize::try_from(elements)
            .unwrap_or(LONGEST)
            .min(2 * LONGEST);
        if self.input.len() < elements {
            self.input.resize(elements, 0.0);
            self.output.resize(elements, 0.0);
        }
        let place = usize::try_from(algorithm).unwrap_or(0).max(1) - 1;
        let algorithm = *Algorithm::ALL.get(place).unwrap_or(&Algorithm::Direct);
        let began = Instant::now();
        self.all_reduce(algorithm, elements)?;
        if times == 0 {
            return self.slowest(began.elapsed());
        }
        let began = Instant::now();
        for _ in 0..times {
            self.all_reduce(algorithm, elements)?;
        }
        self.slowest(began.elapsed() / u32::try_from(times).unwrap_or(u32::MAX).max(1))
    }

    /// The longest of all members' times: the root of a tree is done first, while what it has sent is under way yet.
    fn slowest(&self, took: Duration) -> Result<Duration, Error> {
        let mut nanos = [u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)];
        let memory = exclusive(&mut nanos);
        let request = Request::new(Collective::AllReduce, u64::DTYPE, memory, memory)
            .reduce_op(ReduceOp::Max)
            .algorithm(Algorithm::RecursiveDoubling);
        self.comm.run(request)?;
        Ok(Duration::from_nanos(nanos[0]))
    }

    fn all_reduce(&mut self, algorithm: Algorithm, elements: usize) -> Result<(), Error> {
        let (input, output) = (
            shared(&self.input[..elements]),
            exclusive(&mut self.output[..elements]),
        );
        let request = Request::new(Collective::AllReduce, f32::DTYPE, input, output);
        self.comm
            .run(request.reduce_op(ReduceOp::Sum).algorithm(algorithm))
    }

    /// Member 0's words, on all.
    fn command(&self, mut words: [u64; 3]) -> Result<[u64; 3], Error> {
        share(self.comm, &mut words)?;
        Ok(words)
    }
}

/// Bytes that this processor reduces per second: two slices that are in its cache to a third, as they are where messages
/// arrive. The best of some.
pub(super) fn reduce_rate() -> f64 {
    const ELEMENTS: usize = 32 << 10;
    const TURNS: usize = 8;
    let (a, b, mut sum) = (
        vec![1.0_f32; ELEMENTS],
        vec![2.0; ELEMENTS],
        vec![0.0; ELEMENTS],
    );
    let (a, b, sum) = (
        shared::<f32>(&a),
        shared::<f32>(&b),
        exclusive::<f32>(&mut sum),
    );
    let mut least = Duration::MAX;
    for _ in 0..TURNS {
        let began = Instant::now();
        Memory::reduce(DataType::F32, ReduceOp::Sum, sum, a, b);
        least = least.min(began.elapsed());
    }
    (ELEMENTS * size_of::<f32>()) as f64 / least.as_secs_f64().max(1e-9)
}
