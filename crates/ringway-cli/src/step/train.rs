//! Training steps without a model: compute is waited for, gradients are real.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ringway::{
    ArenaBuffer, Bucket, Collective, Communicator, CompressedWork, DataType, Lanes, ReduceOp,
    Request, Work,
    codec::{Codec, Kind, Options, Tensors},
};
use rustix::time::{ClockId, clock_gettime};

use super::timeline::{Operation, Timeline};

/// What steps came to, by the slowest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Seconds of a step.
    pub(super) step: f64,
    /// Of these, seconds that were waited for communication.
    pub(super) exposed: f64,
    /// Processor seconds of a step, of all ranks together; none in virtual time.
    pub(super) processor: Option<f64>,
    /// Bytes that a rank's interfaces have sent in a step, where they are not loopback; of rank 0.
    pub(super) wire: f64,
    /// Gradients with another value than the mean over all ranks.
    pub(super) wrong: u64,
}

impl Figures {
    /// The median of each over several runs; all gradients that were wrong.
    pub(super) fn median(runs: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        Self {
            step: of(|run| run.step),
            exposed: of(|run| run.exposed),
            processor: Some(of(|run| run.processor.unwrap_or_default())),
            wire: of(|run| run.wire),
            wrong: runs.iter().map(|run| run.wrong).sum(),
        }
    }
}

/// A rank in training.
pub(super) struct Trainer<'a> {
    comm: &'a Communicator,
    timeline: &'a Timeline,
    gradients: ArenaBuffer<f32>,
    /// By operation, while it is under way.
    under_way: Vec<Option<UnderWay>>,
    compression: Option<Compression>,
    overlap: bool,
    clock: Clock,
}

impl<'a> Trainer<'a> {
    /// With gradients of which each rank has its own, the same for all elements.
    pub(super) fn new(
        comm: &'a Communicator,
        timeline: &'a Timeline,
        overlap: bool,
        codec: Kind,
    ) -> Result<Self> {
        let gradients: ArenaBuffer<f32> = comm
            .allocate(timeline.elements)
            .context("allocating the gradients")?;
        let own = (comm.rank() as f32).to_ne_bytes();
        gradients.handle().write(&own.repeat(timeline.elements));
        Ok(Self {
            comm,
            timeline,
            gradients,
            under_way: timeline.operations.iter().map(|_| None).collect(),
            compression: match codec {
                Kind::None => None,
                kind => Some(Compression::new(comm, timeline, kind)?),
            },
            overlap,
            clock: Clock::start(),
        })
    }

    /// Runs `count` steps after one that does not count.
    pub(super) fn run(&mut self, count: u32) -> Result<Figures> {
        self.steps(1)?;
        self.comm.barrier()?;
        let (wire, processor) = (sent(), processor_seconds());
        let began = Instant::now();
        self.clock = Clock::start();
        self.steps(count)?;
        let took = began.elapsed().as_secs_f64();
        let (wire, processor) = (sent() - wire, processor_seconds() - processor);
        let each = f64::from(count);
        let mut slowest = [took / each, self.clock.waited.as_secs_f64() / each];
        self.comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        let mut sums = [processor / each];
        self.comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mut wrong = [self.wrong()];
        self.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(Figures {
            step: slowest[0],
            exposed: slowest[1],
            processor: Some(sums[0]),
            wire: wire / each,
            wrong: wrong[0],
        })
    }

    fn steps(&mut self, count: u32) -> Result<()> {
        (0..count).try_for_each(|_| self.step())?;
        (0..self.under_way.len()).try_for_each(|operation| self.finish(operation))
    }

    /// Forward, which waits layer by layer for what the last step has left under way, and backward.
    fn step(&mut self) -> Result<()> {
        let timeline = self.timeline;
        for slot in &timeline.slots {
            slot.needs
                .iter()
                .try_for_each(|&needed| self.finish(needed))?;
            self.clock.compute(slot.forward);
        }
        for slot in timeline.slots.iter().rev() {
            self.clock.compute(slot.backward);
            if self.overlap {
                self.clock.settle();
                slot.starts
                    .iter()
                    .try_for_each(|&operation| self.begin(operation))?;
            }
        }
        self.clock.settle();
        if !self.overlap {
            for operation in 0..self.under_way.len() {
                self.begin(operation)?;
                self.finish(operation)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, operation: usize) -> Result<()> {
        let it = &self.timeline.operations[operation];
        let memory = self.gradients.handle();
        let memory = memory.slice(4 * it.elements.start..4 * it.elements.end);
        let started = match &self.compression {
            Some(compression) => {
                let bucket = &compression.buckets[operation];
                UnderWay::Compressed(bucket.submit(memory, ReduceOp::Average)?)
            }
            None => {
                let request = Request::new(Collective::AllReduce, DataType::F32, memory, memory)
                    .reduce_op(ReduceOp::Average)
                    .priority(it.priority);
                UnderWay::Plain(self.comm.submit(request)?)
            }
        };
        self.under_way[operation] = Some(started);
        Ok(())
    }

    fn finish(&mut self, operation: usize) -> Result<()> {
        if let Some(work) = self.under_way[operation].take() {
            self.clock.settle();
            let began = Instant::now();
            match work {
                UnderWay::Plain(work) => work.wait()?,
                UnderWay::Compressed(work) => drop(work.wait()?),
            }
            self.clock.wait(began.elapsed());
        }
        Ok(())
    }

    /// Gradients that aren't the mean of all ranks', if they were sent in a form that has it.
    fn wrong(&self) -> u64 {
        let kind = self.compression.as_ref().map_or(Kind::None, |c| c.kind);
        if !matches!(kind, Kind::None | Kind::Fp16 | Kind::Bf16) {
            return 0;
        }
        let mean = (self.comm.size() - 1) as f32 / 2.0;
        let mut bytes = vec![0; 4 * self.timeline.elements];
        self.gradients.handle().read(&mut bytes);
        let (values, _) = bytes.as_chunks::<4>();
        let is_wrong = |value: &&[u8; 4]| (f32::from_ne_bytes(**value) - mean).abs() > 1e-3 * mean;
        values.iter().filter(is_wrong).count() as u64
    }
}

/// An operation.
enum UnderWay {
    Plain(Work),
    Compressed(CompressedWork),
}

/// How gradients become fewer bytes.
struct Compression {
    kind: Kind,
    /// By operation.
    buckets: Vec<Bucket>,
    /// Where they run.
    _lanes: Lanes,
}

/// One bucket is encoded while another is on the wire.
const LANES: usize = 2;

impl Compression {
    fn new(comm: &Communicator, timeline: &Timeline, kind: Kind) -> Result<Self> {
        let lanes = comm.lanes(LANES)?;
        let bucket = |(number, operation): (usize, &Operation)| {
            let tensors = Tensors::vector(&number.to_string(), operation.elements.len());
            lanes.bucket(Codec::new(kind, Options::default(), tensors))
        };
        Ok(Self {
            kind,
            buckets: timeline.operations.iter().enumerate().map(bucket).collect(),
            _lanes: lanes,
        })
    }
}

/// Compute that is waited for. Layers shorter than a sleep can be are waited for together.
struct Clock {
    /// When what has been computed so far would be done.
    done: Instant,
    /// For communication.
    waited: Duration,
}

impl Clock {
    fn start() -> Self {
        Self {
            done: Instant::now(),
            waited: Duration::ZERO,
        }
    }

    fn compute(&mut self, time: Duration) {
        self.done += time;
    }

    /// Sleeps until all is computed.
    fn settle(&self) {
        std::thread::sleep(self.done.saturating_duration_since(Instant::now()));
    }

    fn wait(&mut self, time: Duration) {
        self.waited += time;
        self.done = self.done.max(Instant::now());
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Bytes that the interfaces of this network namespace have sent, but loopback's.
fn sent() -> f64 {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let rows = text.lines().skip(2).filter_map(|line| line.split_once(':'));
    let rows = rows.filter(|(name, _)| name.trim() != "lo");
    rows.filter_map(|(_, counters)| counters.split_whitespace().nth(8)?.parse::<f64>().ok())
        .sum()
}
