//! Times collectives in mapped memory between processes of this host.
//!
//! ```text
//! cargo run --release --example mapped_bench -- --ranks 2 all_reduce 4,1024,65536 1
//! ```
//!
//! Starts the ranks itself, or with `RANK` and `WORLD_SIZE` set is one of them. Prints
//! `op,ranks,bytes,iters,lat_us_median` for each size: each iteration is a barrier, then the collective; its time is the
//! slowest rank's. `bytes` is the whole vector of f32. `all_reduce` is in place. Every size's result is checked first.

use std::{
    env,
    error::Error,
    process::{Command, exit},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::shm::{
    HostIdentity, HostSegment, Offer, SegmentSizes, fetch,
    mapped::{
        Descriptor, GroupBlock, MappedCall, MappedGroup, MappedPlan, MappedSchedule, Patience,
    },
};
use ringway_plan::{Algorithm, Collective, DataType, ReduceOp, Topology, generate, verify};
use ringway_sys::{Memory, Staging};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Up to this many bytes an all_reduce is `one_shot` unless said otherwise.
const ONE_SHOT: usize = 4096;

struct Options {
    ranks: usize,
    arena: bool,
    algorithm: Option<Algorithm>,
    collective: Collective,
    sizes: Vec<usize>,
    seconds: f64,
}

fn options() -> Fallible<Options> {
    let usage =
        "mapped_bench [--ranks N] [--memory arena|private] [--algorithm NAME] OP SIZES SECONDS";
    let mut plain = Vec::new();
    let (mut ranks, mut arena, mut algorithm) = (2, true, None);
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(usage);
        match arg.as_str() {
            "--ranks" => ranks = value()?.parse()?,
            "--memory" => arena = value()? == "arena",
            "--algorithm" => algorithm = Some(value()?.parse()?),
            _ => plain.push(arg),
        }
    }
    let [op, sizes, seconds] = plain.as_slice() else {
        return Err(usage.into());
    };
    Ok(Options {
        ranks,
        arena,
        algorithm,
        collective: Collective::parse(op, 0)?,
        sizes: sizes.split(',').map(str::parse).collect::<Result<_, _>>()?,
        seconds: seconds.parse()?,
    })
}

fn main() -> Fallible<()> {
    let options = options()?;
    match (env::var("RANK"), env::var("WORLD_SIZE")) {
        (Ok(rank), Ok(world)) => run(&options, rank.parse()?, world.parse()?),
        _ => start(options.ranks),
    }
}

/// Starts the ranks and waits for them.
fn start(ranks: usize) -> Fallible<()> {
    let me = env::current_exe()?;
    let mut children = Vec::new();
    for rank in 0..ranks {
        let child = Command::new(&me)
            .args(env::args_os().skip(1))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("MASTER_PORT", std::process::id().to_string())
            .spawn()?;
        children.push(child);
    }
    let mut failed = false;
    for mut child in children {
        failed |= !child.wait()?.success();
    }
    exit(i32::from(failed));
}

/// One rank of the benchmark.
struct Bench {
    segment: Arc<HostSegment>,
    group: MappedGroup,
    rank: usize,
    ranks: usize,
    barrier: Arc<MappedPlan>,
}

/// Memory of either kind.
enum Buffer {
    Arena(ringway_link::shm::ArenaBlock),
    Private(Staging),
}

impl Buffer {
    fn memory(&self) -> Memory {
        match self {
            Self::Arena(block) => block.memory(),
            Self::Private(staging) => staging.memory(),
        }
    }

    fn fill(&self, value: impl Fn(usize) -> f32) {
        let bytes: Vec<u8> = (0..self.memory().len() / 4)
            .flat_map(|i| value(i).to_ne_bytes())
            .collect();
        self.memory().write(&bytes);
    }

    fn values(&self) -> Vec<f32> {
        let mut bytes = vec![0; self.memory().len()];
        self.memory().read(&mut bytes);
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_ne_bytes(b))
            .collect()
    }
}

impl Bench {
    fn new(rank: usize, ranks: usize) -> Fallible<Self> {
        let name = format!("ringway-bench-{}", env::var("MASTER_PORT")?);
        let identity = HostIdentity {
            job: [9; 16],
            world: ranks,
            ranks: (0..ranks).collect(),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let segment = if rank == 0 {
            let sizes = SegmentSizes {
                arena: 4 << 30,
                ..SegmentSizes::default()
            };
            let segment = HostSegment::create(identity, sizes)?;
            Offer::bind(&name)?.serve(&segment, deadline, &mut |_| None)?;
            segment
        } else {
            HostSegment::join(
                fetch(&name, &identity, rank, deadline, &mut || None)?,
                identity,
                rank,
            )?
        };
        let block = GroupBlock::allocate(&segment)?;
        // Every rank's first block lies at the same offset.
        let members: Vec<_> = (0..ranks).map(|local| (local, block.offset())).collect();
        let patience = Patience::for_ranks(ranks);
        let group = MappedGroup::new(Arc::clone(&segment), block, &members, rank, patience)
            .ok_or("a block outside of its area")?;
        let barrier = plan(
            Collective::Barrier,
            Algorithm::Direct,
            rank,
            ranks,
            0,
            DataType::U8,
        )?;
        Ok(Self {
            segment,
            group,
            rank,
            ranks,
            barrier,
        })
    }

    fn buffer(&self, arena: bool, bytes: usize) -> Fallible<Buffer> {
        Ok(match arena {
            true => Buffer::Arena(self.segment.user_arena().allocate(bytes)?),
            false => Buffer::Private(Staging::new(bytes)),
        })
    }

    fn call(
        &self,
        plan: &Arc<MappedPlan>,
        kind: u64,
        input: Memory,
        output: Memory,
    ) -> Fallible<()> {
        let descriptor = Descriptor([kind, output.len() as u64]);
        let call = MappedCall {
            descriptor,
            plan: Arc::clone(plan),
            input,
            output,
            places: None,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        Ok(self.group.run(&call, deadline, &|| false)?)
    }

    fn barrier(&self) -> Fallible<()> {
        self.call(&self.barrier, 0, Memory::EMPTY, Memory::EMPTY)
    }

    /// The largest of all ranks' numbers, for each.
    fn max(&self, values: &mut [f64]) -> Fallible<()> {
        let algorithm = Algorithm::Direct;
        let collective = Collective::AllReduce;
        let count = values.len();
        let plan = {
            let schedule = verify(generate(
                collective,
                algorithm,
                &Topology::single_host(self.ranks),
            )?)?;
            let compiled = MappedSchedule::compile(&schedule, self.rank);
            Arc::new(MappedPlan::new(
                &compiled,
                count,
                DataType::F64,
                ReduceOp::Max,
            ))
        };
        let buffer = Staging::new(8 * count);
        let memory = buffer.memory();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        memory.write(&bytes);
        self.call(&plan, 1, memory, memory)?;
        let mut bytes = vec![0; 8 * count];
        memory.read(&mut bytes);
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f64::from_ne_bytes(*bytes);
        }
        Ok(())
    }
}

fn plan(
    collective: Collective,
    algorithm: Algorithm,
    rank: usize,
    ranks: usize,
    count: usize,
    dtype: DataType,
) -> Fallible<Arc<MappedPlan>> {
    let schedule = verify(generate(
        collective,
        algorithm,
        &Topology::single_host(ranks),
    )?)?;
    let compiled = MappedSchedule::compile(&schedule, rank);
    Ok(Arc::new(MappedPlan::new(
        &compiled,
        count,
        dtype,
        ReduceOp::Sum,
    )))
}

fn run(options: &Options, rank: usize, ranks: usize) -> Fallible<()> {
    let bench = Bench::new(rank, ranks)?;
    for &bytes in &options.sizes {
        size(&bench, options, bytes)?;
    }
    // Nobody leaves while others still look at its block.
    bench.barrier()?;
    Ok(())
}

fn size(bench: &Bench, options: &Options, bytes: usize) -> Fallible<()> {
    let (rank, n, collective) = (bench.rank, bench.ranks, options.collective);
    let count = bytes / 4 / n * n;
    let count = if matches!(
        collective,
        Collective::AllReduce | Collective::Broadcast { .. }
    ) {
        bytes / 4
    } else {
        count
    };
    let part = count / n;
    let algorithm = options.algorithm.unwrap_or({
        match collective {
            Collective::AllReduce if bytes <= ONE_SHOT => Algorithm::OneShot,
            _ => Algorithm::Direct,
        }
    });
    let plan = plan(collective, algorithm, rank, n, count, DataType::F32)?;
    let (input, output) = match collective {
        Collective::AllReduce => (count, 0),
        Collective::Broadcast { .. } => (count, 0),
        Collective::ReduceScatter => (count, part),
        Collective::AllGather => (part, count),
        Collective::AllToAll => (count, count),
        _ => return Err("no such benchmark".into()),
    };
    let (a, b) = (
        bench.buffer(options.arena, 4 * input)?,
        bench.buffer(options.arena, 4 * output)?,
    );
    let (source, target) = match output {
        0 => (a.memory(), a.memory()),
        _ => (a.memory(), b.memory()),
    };
    let call = || bench.call(&plan, 2, source, target);

    a.fill(|i| (rank + 1) as f32 + (i % 7) as f32);
    call()?;
    let got = if output == 0 { a.values() } else { b.values() };
    let sum = (n * (n + 1) / 2) as f32;
    let want = |i: usize| match collective {
        Collective::AllReduce => sum + (n * (i % 7)) as f32,
        Collective::ReduceScatter => sum + (n * ((i + rank * part) % 7)) as f32,
        Collective::Broadcast { .. } => 1.0 + (i % 7) as f32,
        Collective::AllGather => (i / part + 1) as f32 + (i % part % 7) as f32,
        _ => (i / part + 1) as f32 + ((i % part + rank * part) % 7) as f32,
    };
    if let Some(wrong) = (0..got.len()).find(|&i| got[i] != want(i)) {
        return Err(format!(
            "{collective} of {bytes}: {} at {wrong}, not {}",
            got[wrong],
            want(wrong)
        )
        .into());
    }
    // Sums stay 0, whatever the number of iterations.
    a.fill(|_| 0.0);

    let once = || -> Fallible<f64> {
        bench.barrier()?;
        let start = Instant::now();
        call()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let mut each = [once()?, once()?, once()?];
    each.sort_by(f64::total_cmp);
    let mut iters = [-(options.seconds / each[0]).clamp(5.0, 5000.0)];
    bench.max(&mut iters)?;
    let iters = -iters[0] as usize;
    let mut times = (0..iters).map(|_| once()).collect::<Fallible<Vec<f64>>>()?;
    bench.max(&mut times)?;
    times.sort_by(f64::total_cmp);
    if rank == 0 {
        println!(
            "{collective},{n},{bytes},{iters},{:.2}",
            times[iters / 2] * 1e6
        );
    }
    Ok(())
}
