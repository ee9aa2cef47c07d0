//! What is kept of gradients that were not sent.

use crate::{
    StateError,
    compressor::Reader,
    state::{put_floats, take_floats_into},
};

/// Keeps what was not sent, and adds it the next time.
///
/// `recall` makes the next state beside the present one, and `commit` puts it in its place. Without a commit nothing has changed.
pub trait Memory: Send {
    /// What is to be sent: the gradient, with what was kept. Whoever sends subtracts what was sent from it.
    fn recall(&mut self, gradient: &[f32]) -> &mut [f32];

    /// Keeps what is left of the vector that [`Self::recall`] gave.
    fn commit(&mut self);

    /// What is kept, and will be sent later; empty if nothing is.
    fn kept(&self) -> &[f32];

    /// Appends the state to `bytes`.
    fn save(&self, bytes: &mut Vec<u8>);

    /// Takes a state that was saved by a memory of the same kind and length; after an error what it is is not specified.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError>;
}

/// Keeps nothing: what is not sent is lost.
#[derive(Clone, Debug)]
pub struct Nothing {
    vector: Vec<f32>,
}

impl Nothing {
    /// For vectors of `len` elements.
    pub fn new(len: usize) -> Self {
        Self {
            vector: vec![0.0; len],
        }
    }
}

impl Memory for Nothing {
    fn recall(&mut self, gradient: &[f32]) -> &mut [f32] {
        self.vector.copy_from_slice(gradient);
        &mut self.vector
    }

    fn commit(&mut self) {}

    fn kept(&self) -> &[f32] {
        &[]
    }

    fn save(&self, _bytes: &mut Vec<u8>) {}

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        Ok(Reader::new(bytes).end()?)
    }
}

/// Error feedback: what was not sent is added to the next gradient (Seide et al. 2014, Karimireddy et al. 2019).
#[derive(Clone, Debug)]
pub struct Residual {
    kept: Vec<f32>,
    next: Vec<f32>,
}

impl Residual {
    /// For vectors of `len` elements; nothing is kept yet.
    pub fn new(len: usize) -> Self {
        Self {
            kept: vec![0.0; len],
            next: vec![0.0; len],
        }
    }
}

impl Memory for Residual {
    fn recall(&mut self, gradient: &[f32]) -> &mut [f32] {
        add(&mut self.next, &self.kept, gradient);
        &mut self.next
    }

    fn commit(&mut self) {
        std::mem::swap(&mut self.kept, &mut self.next);
    }

    fn kept(&self) -> &[f32] {
        &self.kept
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        put_floats(bytes, &self.kept);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::new(bytes);
        take_floats_into(&mut reader, &mut self.kept)?;
        Ok(reader.end()?)
    }
}

/// Momentum correction of Deep Gradient Compression (Lin et al. 2018, sections 3.1 and 3.2): what waits to be sent is the velocity, so
/// that a gradient that is sent late counts as if momentum had acted on it meanwhile; where something was sent, its momentum ends.
/// The optimizer that gets the sums then has no momentum of its own.
#[derive(Clone, Debug)]
pub struct Momentum {
    factor: f32,
    velocity: Vec<f32>,
    next_velocity: Vec<f32>,
    residual: Residual,
}

impl Momentum {
    /// For vectors of `len` elements and a momentum such as 0.9.
    pub fn new(len: usize, factor: f32) -> Self {
        Self {
            factor,
            velocity: vec![0.0; len],
            next_velocity: vec![0.0; len],
            residual: Residual::new(len),
        }
    }
}

impl Memory for Momentum {
    fn recall(&mut self, gradient: &[f32]) -> &mut [f32] {
        let velocities = self.next_velocity.iter_mut().zip(&self.velocity);
        for ((next, &velocity), &gradient) in velocities.zip(gradient) {
            *next = self.factor * velocity + gradient;
        }
        self.residual.recall(&self.next_velocity)
    }

    fn commit(&mut self) {
        let Residual { kept, next } = &self.residual;
        for ((velocity, &kept), &left) in self.next_velocity.iter_mut().zip(kept).zip(next) {
            let recalled = kept + *velocity;
            if left != recalled {
                *velocity = 0.0;
            }
        }
        std::mem::swap(&mut self.velocity, &mut self.next_velocity);
        self.residual.commit();
    }

    fn kept(&self) -> &[f32] {
        self.residual.kept()
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        put_floats(bytes, &self.velocity);
        self.residual.save(bytes);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::new(bytes);
        take_floats_into(&mut reader, &mut self.velocity)?;
        take_floats_into(&mut reader, &mut self.residual.kept)?;
        Ok(reader.end()?)
    }
}

fn add(sum: &mut [f32], a: &[f32], b: &[f32]) {
    ringway_kernels::reduce_slices(ringway_plan::ReduceOp::Sum, sum, a, b);
}
