//! Training steps whose gradients are averaged behind the backward pass and behind the next forward pass.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 2 -- target/release/examples/pipeline
//!
//! [0] a step: ... ms with all-reduces after the backward pass, ... ms with the pipeline
//! ```

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use ringway::{Communicator, Error, GradientPipeline, ReduceOp};

const LAYERS: usize = 12;
const PARAMETERS: usize = 1 << 18;
const BACKWARD: Duration = Duration::from_millis(2);
const FORWARD: Duration = Duration::from_millis(1);
const STEPS: u32 = 20;

/// Stands in for a layer's backward pass, which takes the time and leaves gradients.
fn backward(layer: usize, gradient: &mut [f32]) {
    sleep(BACKWARD);
    gradient.fill(layer as f32);
}

/// Stands in for the update of a layer's parameters and its next forward pass.
fn forward(parameters: &mut [f32], gradient: &[f32]) {
    for (parameter, slope) in parameters.iter_mut().zip(gradient) {
        *parameter -= 0.1 * slope;
    }
    sleep(FORWARD);
}

fn afterwards(comm: &Communicator, parameters: &mut [Vec<f32>]) -> Result<(), Error> {
    let mut gradients = vec![vec![0.0; PARAMETERS]; LAYERS];
    for layer in (0..LAYERS).rev() {
        backward(layer, &mut gradients[layer]);
    }
    for gradient in &mut gradients {
        comm.all_reduce(gradient, ReduceOp::Average)?;
    }
    for (parameters, gradient) in parameters.iter_mut().zip(&gradients) {
        forward(parameters, gradient);
    }
    Ok(())
}

fn pipelined(
    pipeline: &mut GradientPipeline<f32>,
    parameters: &mut [Vec<f32>],
) -> Result<(), Error> {
    for layer in (0..LAYERS).rev() {
        backward(layer, pipeline.gradient(layer)?);
        pipeline.ready(layer)?;
    }
    for (layer, parameters) in parameters.iter_mut().enumerate() {
        forward(parameters, pipeline.wait(layer)?);
    }
    Ok(())
}

/// The mean time of a step, after one to warm up.
fn timed(mut step: impl FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
    step()?;
    let began = Instant::now();
    for _ in 0..STEPS {
        step()?;
    }
    Ok(began.elapsed() / STEPS)
}

fn main() -> Result<(), Error> {
    let comm = ringway::init()?;
    let mut plain = vec![vec![0.0; PARAMETERS]; LAYERS];
    let mut piped = plain.clone();
    let mut pipeline = GradientPipeline::new(&comm, &[PARAMETERS; LAYERS], 1 << 20)?;
    let before = timed(|| afterwards(&comm, &mut plain))?;
    let after = timed(|| pipelined(&mut pipeline, &mut piped))?;
    assert_eq!(plain, piped, "the parameters are the same bits");
    if comm.rank() == 0 {
        println!(
            "a step: {before:.1?} with all-reduces after the backward pass, {after:.1?} with the pipeline"
        );
    }
    Ok(())
}
