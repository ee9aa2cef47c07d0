//! One size of a benchmark: check, warm up, measure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringway::{
    Algorithm, ArenaBuffer, Candidate, Collective, Communicator, DataType, Memory, ReduceOp,
    Request,
};

use super::{Placement, values};

/// How long ranks are left to settle before the first size.
const SETTLING: Duration = Duration::from_millis(500);

/// What is measured, and how.
pub(crate) struct Measure<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) collective: Collective,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) placement: Placement,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) iterations: u32,
    pub(crate) seconds: Option<f64>,
    pub(crate) warmup: u32,
    pub(crate) check: bool,
}

/// What one size came to. Times in microseconds, bandwidths in GB/s.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) collective: Collective,
    pub(crate) transport: String,
    pub(crate) algorithm: Algorithm,
    /// By the cost model, of messages.
    pub(crate) predicted: Option<f64>,
    pub(crate) ranks: usize,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) bytes: usize,
    pub(crate) iterations: usize,
    /// The slowest rank's time of each iteration, ascending.
    pub(crate) times: Vec<f64>,
    pub(crate) wrong: u64,
    /// Plans that the job had had before, as links changed.
    pub(crate) replans: usize,
}

impl Sample {
    /// The time that the part `q` of the iterations does not exceed (nearest rank).
    pub(crate) fn percentile(&self, q: f64) -> f64 {
        let at = (q * self.times.len() as f64).ceil() as usize;
        self.times[at.clamp(1, self.times.len()) - 1]
    }

    /// GB/s by the median time.
    pub(crate) fn algbw(&self) -> f64 {
        self.bytes as f64 / self.percentile(0.5) / 1e3
    }

    /// GB/s that each rank's link carries in the best algorithm: nccl-tests' correction of algbw.
    pub(crate) fn busbw(&self) -> f64 {
        let n = self.ranks as f64;
        let factor = match self.collective {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::Broadcast { .. } | Collective::Reduce { .. } | Collective::Barrier => 1.0,
            _ => (n - 1.0) / n,
        };
        self.algbw() * factor
    }
}

/// A rank's memory for one size. All-reduce and broadcast work in place, as gradients do.
struct Buffers {
    input: ArenaBuffer<u64>,
    output: Option<ArenaBuffer<u64>>,
    ins: std::ops::Range<usize>,
    outs: std::ops::Range<usize>,
    element: usize,
}

impl Buffers {
    fn input(&self) -> Memory {
        self.input.handle().slice(0..self.ins.len() * self.element)
    }

    fn output(&self) -> Memory {
        let buffer = self.output.as_ref().unwrap_or(&self.input);
        buffer.handle().slice(0..self.outs.len() * self.element)
    }
}

impl Measure<'_> {
    /// Measures vectors of `bytes`: whole elements, as many for each rank's part.
    pub(crate) fn size(&self, bytes: usize) -> Result<Sample> {
        let (comm, collective) = (self.comm, self.collective);
        let (ranks, size) = (comm.size(), self.dtype.size());
        let elements = bytes / size;
        let buffers = self.buffers(elements)?;
        let mut wrong = 0;
        if self.check && collective != Collective::Barrier {
            wrong = self.check(&buffers, elements)?;
            for buffer in [Some(&buffers.input), buffers.output.as_ref()]
                .into_iter()
                .flatten()
            {
                // Sums of zeros stay zeros, whatever the number of iterations.
                buffer.handle().write(&vec![0; buffer.len() * 8]);
            }
        }
        let request = self.request(&buffers);
        if self.algorithm.is_none() && collective == Collective::AllReduce {
            // What a job finds out when it has gone on for a while.
            comm.tune(bytes)?;
        }
        let each = self.warm_up(&request)?;
        let mut wanted = [match self.seconds {
            Some(seconds) => (seconds / each).clamp(5.0, 5000.0) as u64,
            None => self.iterations.into(),
        }];
        comm.broadcast(&mut wanted, 0)?;
        let mut times = Vec::with_capacity(wanted[0] as usize);
        for _ in 0..wanted[0] {
            times.push(self.iteration(&request)?);
        }
        comm.all_reduce(&mut times, ReduceOp::Max)?;
        times.sort_by(f64::total_cmp);
        let algorithm = self
            .algorithm
            .unwrap_or_else(|| comm.algorithm(collective, bytes));
        let transport = comm.path();
        let candidates = comm.candidates(collective, bytes);
        let is_it = |c: &&Candidate| c.algorithm == algorithm && transport != "shm";
        let candidate = candidates.iter().find(is_it);
        Ok(Sample {
            collective,
            transport: transport.clone(),
            algorithm,
            predicted: candidate.map(|c| c.total().as_secs_f64() * 1e6),
            ranks,
            dtype: self.dtype,
            op: collective.reduces().then_some(self.op),
            bytes,
            iterations: times.len(),
            times,
            wrong,
            replans: comm.replans().len(),
        })
    }

    /// Waits, in barriers, until the kernel has spread the ranks over the processors. Where there are more ranks, that
    /// takes some 100 ms (measured with 4 ranks on 2 cores: 13 us for 4 B at first, 4 us then).
    pub(crate) fn settle(&self) -> Result<()> {
        let began = Instant::now();
        while !self.all_say(began.elapsed() >= SETTLING)? {
            (0..100).try_for_each(|_| self.comm.barrier())?;
        }
        Ok(())
    }

    /// Runs the operation as often as asked, and where a time is given for at least a tenth of it. Returns the mean in
    /// seconds, its barrier included.
    fn warm_up(&self, request: &Request) -> Result<f64> {
        let least = self.seconds.unwrap_or(0.0) / 10.0;
        let mut done = 0;
        let began = Instant::now();
        loop {
            for _ in 0..self.warmup {
                self.iteration(request)?;
                done += 1;
            }
            let spent = began.elapsed().as_secs_f64();
            if self.all_say(spent >= least)? {
                return Ok(spent / f64::from(done));
            }
        }
    }

    /// What rank 0 says.
    fn all_say(&self, yes: bool) -> Result<bool> {
        let mut says = [u8::from(yes)];
        self.comm.broadcast(&mut says, 0)?;
        Ok(says == [1])
    }

    /// Microseconds of one operation after a barrier.
    fn iteration(&self, request: &Request) -> Result<f64> {
        self.comm.barrier()?;
        let began = Instant::now();
        self.comm.run(request.clone())?;
        Ok(began.elapsed().as_secs_f64() * 1e6)
    }

    fn buffers(&self, elements: usize) -> Result<Buffers> {
        let (n, me, collective) = (self.comm.size(), self.comm.rank(), self.collective);
        let part = elements / n;
        let spans = |chunks: std::ops::Range<usize>| match collective.has_parts() {
            true => chunks.start * part..chunks.end * part,
            false if chunks.is_empty() => 0..0,
            false => 0..elements,
        };
        let ins = spans(collective.input_chunks(n, n, me));
        let outs = spans(collective.output_chunks(n, n, me));
        let element = self.dtype.size();
        let in_place = matches!(
            collective,
            Collective::AllReduce | Collective::Broadcast { .. }
        );
        let allocate = |elements: usize| {
            let words = (elements * element).div_ceil(8);
            match self.placement {
                Placement::Arena => self.comm.allocate(words).context("allocating buffers"),
                Placement::User => Ok(ArenaBuffer::private(words)),
            }
        };
        let input = allocate(if in_place { elements } else { ins.len() })?;
        let output = if in_place {
            None
        } else {
            Some(allocate(outs.len())?)
        };
        Ok(Buffers {
            input,
            output,
            ins,
            outs,
            element,
        })
    }

    fn request(&self, buffers: &Buffers) -> Request {
        let request = Request::new(
            self.collective,
            self.dtype,
            buffers.input(),
            buffers.output(),
        );
        let request = if self.collective.reduces() {
            request.reduce_op(self.op)
        } else {
            request
        };
        match self.algorithm {
            Some(algorithm) => request.algorithm(algorithm),
            None => request,
        }
    }

    /// How many elements of the result are wrong, over all ranks.
    fn check(&self, buffers: &Buffers, elements: usize) -> Result<u64> {
        let (n, me, dtype, element) = (
            self.comm.size(),
            self.comm.rank(),
            self.dtype,
            buffers.element,
        );
        let mut bytes = vec![0; buffers.ins.len() * element];
        for (at, i) in buffers.ins.clone().enumerate() {
            values::write(dtype, &mut bytes, at, values::brought(self.op, n, me, i));
        }
        buffers.input().write(&bytes);
        self.comm.run(self.request(buffers))?;
        let mut bytes = vec![0; buffers.outs.len() * element];
        buffers.output().read(&mut bytes);
        let part = (elements / n).max(1);
        let mut wrong = [0_u64];
        for (at, i) in buffers.outs.clone().enumerate() {
            let value = values::expected(self.collective, self.op, n, me, part, i);
            wrong[0] += u64::from(!values::is(dtype, n, &bytes, at, value));
        }
        self.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }
}
