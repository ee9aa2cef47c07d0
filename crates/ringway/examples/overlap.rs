//! A training step whose gradients are reduced while the rest of the backward pass still computes.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 2 -- target/release/examples/overlap
//!
//! [0] one after the other: ... ms, overlapped: ... ms
//! ```

use std::time::{Duration, Instant};

use ringway::{AllReduce, Communicator, Error, Pending};

const LAYERS: usize = 8;
const PARAMETERS: usize = 1 << 18;
const COMPUTE: Duration = Duration::from_millis(1);

/// Stands in for a layer's backward pass, which takes the time and leaves gradients.
fn backward(layer: usize) -> Vec<f32> {
    std::thread::sleep(COMPUTE);
    vec![layer as f32; PARAMETERS]
}

fn one_after_the_other(comm: &Communicator) -> Result<Duration, Error> {
    let began = Instant::now();
    for layer in (0..LAYERS).rev() {
        let mut gradients = backward(layer);
        comm.all_reduce(&mut gradients, ringway::ReduceOp::Average)?;
    }
    Ok(began.elapsed())
}

fn overlapped(comm: &Communicator) -> Result<Duration, Error> {
    let began = Instant::now();
    let mut pending: Vec<Pending<Vec<f32>>> = Vec::with_capacity(LAYERS);
    for layer in (0..LAYERS).rev() {
        // The next forward pass needs the first layers first.
        let priority = u8::try_from(LAYERS - layer).unwrap_or(u8::MAX);
        pending.push(comm.start(AllReduce::new(backward(layer)).avg().priority(priority))?);
    }
    for reduced in pending {
        reduced.wait()?;
    }
    Ok(began.elapsed())
}

fn main() -> Result<(), Error> {
    let comm = ringway::init()?;
    // Once to warm up.
    one_after_the_other(&comm)?;
    let (plain, overlap) = (one_after_the_other(&comm)?, overlapped(&comm)?);
    if comm.rank() == 0 {
        println!("one after the other: {plain:.1?}, overlapped: {overlap:.1?}");
    }
    Ok(())
}
