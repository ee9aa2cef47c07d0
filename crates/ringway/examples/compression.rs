//! What codecs cost and save for one bucket, and what a bucket that chooses for itself does where steps do not wait.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 2 -- target/release/examples/compression
//!
//! [0] bf16: ... ms, of that ... ms coding; ... MB sent
//! ...
//! [0] where steps do not wait: none ... ms, adaptive ... ms a step; off after ... steps
//! ```

use std::time::{Duration, Instant};

use ringway::{
    Bucket, Communicator, Error, ReduceOp,
    codec::{Codec, Kind, Options, Tensor, Tensors},
};

/// A bucket of 25 MB, as DistributedDataParallel makes them.
const SIDE: usize = 2500;

fn tensors(side: usize) -> Tensors {
    Tensors::new(vec![Tensor::new("weight", [side, side])])
}

fn gradients(rank: usize, len: usize) -> Vec<f32> {
    let mut state = rank as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24) - 0.5
    };
    (0..len).map(|_| (4.0 * next()).powi(3) as f32).collect()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn codecs(comm: &Communicator) -> Result<(), Error> {
    let source = gradients(comm.rank(), SIDE * SIDE);
    for kind in [
        Kind::None,
        Kind::Fp16,
        Kind::Bf16,
        Kind::Int(8),
        Kind::Int(4),
        Kind::Dynamic(0.1),
        Kind::TopK(0.01),
        Kind::PowerSgd(2),
    ] {
        let mut codec = Codec::new(kind, Options::default(), tensors(SIDE));
        let (mut all, mut coding, mut sent) = (Vec::new(), Vec::new(), 0);
        for _ in 0..7 {
            let mut x = source.clone();
            comm.barrier()?;
            let began = Instant::now();
            let traffic = comm.all_reduce_compressed(&mut x, ReduceOp::Average, &mut codec)?;
            all.push(began.elapsed());
            coding.push(traffic.coding);
            sent = traffic.sent;
        }
        if comm.rank() == 0 {
            let (all, coding) = (median(all), median(coding));
            println!(
                "{kind}: {all:.1} ms, of that {coding:.1} ms coding; {:.2} MB sent",
                sent as f64 / 1e6
            );
        }
    }
    Ok(())
}

/// A step that computes for longer than the sum takes.
fn step(bucket: &Bucket, x: Vec<f32>) -> Result<(Vec<f32>, Duration), Error> {
    let began = Instant::now();
    let pending = bucket.start(x, ReduceOp::Average);
    std::thread::sleep(Duration::from_millis(10));
    let (x, ended) = pending.wait();
    ended?;
    Ok((x, began.elapsed()))
}

fn adaptive(comm: &Communicator) -> Result<(), Error> {
    const SMALL: usize = 200;
    let lanes = comm.lanes(1)?;
    let plain = lanes.bucket(Codec::new(Kind::None, Options::default(), tensors(SMALL)));
    let adaptive = lanes.adaptive_bucket(Options::default(), tensors(SMALL));
    let mut x = gradients(comm.rank(), SMALL * SMALL);
    let (mut without, mut with, mut off) = (Vec::new(), Vec::new(), None);
    for at in 0..500 {
        let (y, time) = step(&plain, x)?;
        let (y, other) = step(&adaptive, y)?;
        x = y;
        if adaptive.codec().name() == "none" {
            off.get_or_insert(at + 1);
        }
        if at >= 200 {
            without.push(time);
            with.push(other);
        }
    }
    if comm.rank() == 0 {
        let off = off.map_or_else(
            || "never off".to_owned(),
            |steps| format!("off after {steps} steps"),
        );
        let (without, with) = (median(without), median(with));
        println!(
            "where steps do not wait: none {without:.3} ms, adaptive {with:.3} ms a step; {off}"
        );
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let comm = ringway::init()?;
    codecs(&comm)?;
    adaptive(&comm)
}
