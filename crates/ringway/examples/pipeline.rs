//! Training steps whose gradients are averaged behind the backward pass and behind the next forward pass, where computation
//! takes as long as communication. Computation is stood in for by timed waits, two thirds of it in the backward pass.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 2 -- target/release/examples/pipeline
//!
//! [0] computation ... ms, communication ... ms; a step: ... ms with all-reduces after the backward pass, ... ms with the
//!     pipeline, ... x the longer of the two
//! ```

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use ringway::{Communicator, Error, GradientPipeline, ReduceOp};

const LAYERS: usize = 32;
const PARAMETERS: usize = 1 << 17;
const STEPS: usize = 21;

/// What a layer computes for.
#[derive(Clone, Copy)]
struct Layer {
    backward: Duration,
    forward: Duration,
}

impl Layer {
    /// Stands in for the backward pass, which takes the time and leaves gradients.
    fn backward(self, layer: usize, gradient: &mut [f32]) {
        sleep(self.backward);
        gradient.fill(layer as f32);
    }

    /// Stands in for the update of the parameters and the next forward pass.
    fn forward(self, parameters: &mut [f32], gradient: &[f32]) {
        for (parameter, slope) in parameters.iter_mut().zip(gradient) {
            *parameter -= 0.1 * slope;
        }
        sleep(self.forward);
    }
}

/// A step without communication, or with all-reduces after the backward pass.
fn afterwards(
    comm: Option<&Communicator>,
    of: Layer,
    gradients: &mut [Vec<f32>],
    parameters: &mut [Vec<f32>],
) -> Result<(), Error> {
    for layer in (0..LAYERS).rev() {
        of.backward(layer, &mut gradients[layer]);
    }
    if let Some(comm) = comm {
        for gradient in &mut *gradients {
            comm.all_reduce(gradient, ReduceOp::Average)?;
        }
    }
    for (parameters, gradient) in parameters.iter_mut().zip(gradients) {
        of.forward(parameters, gradient);
    }
    Ok(())
}

fn pipelined(
    pipeline: &mut GradientPipeline<f32>,
    of: Layer,
    parameters: &mut [Vec<f32>],
) -> Result<(), Error> {
    for layer in (0..LAYERS).rev() {
        of.backward(layer, pipeline.gradient(layer)?);
        pipeline.ready(layer)?;
    }
    for (layer, parameters) in parameters.iter_mut().enumerate() {
        of.forward(parameters, pipeline.wait(layer)?);
    }
    Ok(())
}

/// Nothing but communication.
fn communicate(pipeline: &mut GradientPipeline<f32>) -> Result<(), Error> {
    for layer in (0..LAYERS).rev() {
        pipeline.ready(layer)?;
    }
    for layer in 0..LAYERS {
        pipeline.wait(layer)?;
    }
    Ok(())
}

fn timed(step: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let began = Instant::now();
    step()?;
    Ok(began.elapsed().as_secs_f64())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Error> {
    let comm = ringway::init()?;
    let mut pipeline = GradientPipeline::new(&comm, &[PARAMETERS; LAYERS], 1)?;
    let mut alone = [0.0; STEPS];
    for time in &mut alone {
        *time = timed(|| communicate(&mut pipeline))?;
    }
    // The same on all ranks.
    let mut communication = [median(&mut alone)];
    comm.all_reduce(&mut communication, ReduceOp::Max)?;
    let share = |part: f64| Duration::from_secs_f64(communication[0] * part / LAYERS as f64);
    let of = Layer {
        backward: share(2.0 / 3.0),
        forward: share(1.0 / 3.0),
    };

    let mut plain = vec![vec![0.0; PARAMETERS]; LAYERS];
    let (mut piped, mut gradients, mut unused) = (plain.clone(), plain.clone(), plain.clone());
    let [mut computed, mut after, mut behind, mut sent] = [[0.0; STEPS]; 4];
    for at in 0..STEPS {
        sent[at] = timed(|| communicate(&mut pipeline))?;
        computed[at] = timed(|| afterwards(None, of, &mut gradients, &mut unused))?;
        after[at] = timed(|| afterwards(Some(&comm), of, &mut gradients, &mut plain))?;
        behind[at] = timed(|| pipelined(&mut pipeline, of, &mut piped))?;
    }
    assert_eq!(plain, piped, "the parameters are the same bits");
    if comm.rank() == 0 {
        let [computed, sent, after, behind] =
            [&mut computed, &mut sent, &mut after, &mut behind].map(|times| 1e3 * median(times));
        println!(
            "computation {computed:.1} ms, communication {sent:.1} ms; a step: {after:.1} ms with all-reduces after the \
             backward pass, {behind:.1} ms with the pipeline, {:.2} x the longer of the two",
            behind / computed.max(sent)
        );
    }
    Ok(())
}
