//! A thousand tensors of 4 to 64 KiB, each for itself and in batches; and as one vector, which no batches can beat.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 2 -- target/release/examples/batching
//!
//! [0] one by one: ... ms; in flight together: ... ms; in ... batches: ... ms, the last after ... ms, with a fixed window of
//!     10 ms after ... ms; as one vector: ... ms
//! ```

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use ringway::{AllReduce, BatchLimits, Batcher, Communicator, Error, ReduceOp};

const CLOCKED: BatchLimits = BatchLimits {
    window: Duration::from_millis(10),
    bytes: 64 << 20..=64 << 20,
};

fn tensors() -> Vec<Vec<f32>> {
    let len = |i: usize| 1024 + i * 7919 % 15_361;
    (0..1000).map(|i| vec![1.0; len(i)]).collect()
}

fn one_by_one(comm: &Communicator) -> Result<Duration, Error> {
    let mut tensors = tensors();
    comm.barrier()?;
    let began = Instant::now();
    for tensor in &mut tensors {
        comm.all_reduce(tensor, ReduceOp::Average)?;
    }
    Ok(began.elapsed())
}

fn together(comm: &Communicator) -> Result<Duration, Error> {
    let tensors = tensors();
    comm.barrier()?;
    let began = Instant::now();
    let start = |tensor| comm.start(AllReduce::new(tensor).avg());
    let pending: Vec<_> = tensors.into_iter().map(start).collect::<Result<_, _>>()?;
    for pending in pending {
        pending.wait()?;
    }
    Ok(began.elapsed())
}

/// All of it, and from the last tensor's adding to its end.
fn in_batches(comm: &Communicator, batcher: &Batcher<f32>) -> Result<[Duration; 2], Error> {
    let tensors = tensors();
    comm.barrier()?;
    let began = Instant::now();
    let tickets: Vec<_> = tensors
        .into_iter()
        .map(|tensor| batcher.add(tensor))
        .collect();
    let last = Instant::now();
    batcher.flush();
    for ticket in tickets {
        ticket.wait()?;
    }
    Ok([began.elapsed(), last.elapsed()])
}

/// Where nothing but the clock closes a batch: from the last tensor's adding to its end.
fn by_clock(comm: &Communicator, batcher: &Batcher<f32>) -> Result<Duration, Error> {
    let tensors = tensors();
    comm.barrier()?;
    let tickets: Vec<_> = tensors
        .into_iter()
        .map(|tensor| batcher.add(tensor))
        .collect();
    let last = Instant::now();
    while tickets.last().is_some_and(|ticket| !ticket.is_done()) {
        sleep(Duration::from_micros(100));
    }
    let took = last.elapsed();
    for ticket in tickets {
        ticket.wait()?;
    }
    Ok(took)
}

fn as_one(comm: &Communicator) -> Result<Duration, Error> {
    let mut vector = tensors().concat();
    comm.barrier()?;
    let began = Instant::now();
    comm.all_reduce(&mut vector, ReduceOp::Average)?;
    Ok(began.elapsed())
}

fn main() -> Result<(), Error> {
    let comm = ringway::init()?;
    let batcher = comm.batcher(ReduceOp::Average)?;
    let clocked = comm.batcher_with(ReduceOp::Average, CLOCKED)?;
    const ROUNDS: u64 = 20;
    // The first round warms up; of the others the best counts.
    let [mut single, mut flight, mut one, mut late] = [Duration::MAX; 4];
    let mut batched = [Duration::MAX; 2];
    for _ in 0..=ROUNDS {
        single = single.min(one_by_one(&comm)?);
        flight = flight.min(together(&comm)?);
        one = one.min(as_one(&comm)?);
        late = late.min(by_clock(&comm, &clocked)?);
        batched = batched.min(in_batches(&comm, &batcher)?);
    }
    if comm.rank() == 0 {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "one by one: {:.1} ms; in flight together: {:.1} ms; in {} batches: {:.1} ms, the last after {:.1} ms, with a fixed \
             window of 10 ms after {:.1} ms; as one vector: {:.1} ms",
            ms(single),
            ms(flight),
            batcher.stats().batches / (ROUNDS + 1),
            ms(batched[0]),
            ms(batched[1]),
            ms(late),
            ms(one),
        );
    }
    Ok(())
}
