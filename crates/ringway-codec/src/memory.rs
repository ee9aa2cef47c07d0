//! What is kept of gradients that were not sent.

use std::ops::Range;

use ringway_kernels::{codec::largest, reduce_slices};
use ringway_plan::ReduceOp;

use crate::{
    StateError,
    compressor::Reader,
    state::{put_floats, take_floats_into},
};

/// Keeps what was not sent, and adds it the next time.
///
/// `recall` makes the next state beside the present one, and `commit` puts it in its place. Without a commit nothing has changed.
pub trait Memory: Send {
    /// What is to be sent: the gradient, with what was kept; and its largest magnitude, which is infinite or NaN if an element is.
    /// Whoever sends subtracts what was sent from it.
    fn recall(&mut self, gradient: &[f32]) -> (&mut [f32], f32);

    /// Keeps what is left of the vector that [`Self::recall`] gave.
    fn commit(&mut self, sent: &Sent<'_>);

    /// What is kept, and will be sent later; empty if nothing is.
    fn kept(&self) -> &[f32];

    /// Appends the state to `bytes`.
    fn save(&self, bytes: &mut Vec<u8>);

    /// Takes a state that was saved by a memory of the same kind and length; after an error what it is is not specified.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError>;
}

/// What a sum has sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent<'a> {
    /// Elements that had no gradient: zeros were sent for them, and what was kept of them stays.
    pub absent: &'a [Range<usize>],
    /// Whether some elements were sent and others not, and not something of each.
    pub chosen: bool,
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
    fn recall(&mut self, gradient: &[f32]) -> (&mut [f32], f32) {
        let runs = self.vector.chunks_mut(RUN).zip(gradient.chunks(RUN));
        let copy = |most, (to, from): (&mut [f32], &[f32])| {
            to.copy_from_slice(from);
            larger(most, largest(to))
        };
        let most = runs.fold(0.0, copy);
        (&mut self.vector, most)
    }

    fn commit(&mut self, _sent: &Sent<'_>) {}

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
    fn recall(&mut self, gradient: &[f32]) -> (&mut [f32], f32) {
        let sources = self.kept.chunks(RUN).zip(gradient.chunks(RUN));
        let mut most = 0.0;
        for (next, (kept, gradient)) in self.next.chunks_mut(RUN).zip(sources) {
            reduce_slices(ReduceOp::Sum, next, kept, gradient);
            most = larger(most, largest(next));
        }
        (&mut self.next, most)
    }

    fn commit(&mut self, sent: &Sent<'_>) {
        for range in sent.absent {
            let kept = &self.kept[range.clone()];
            for (next, &kept) in self.next[range.clone()].iter_mut().zip(kept) {
                *next += kept;
            }
        }
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
/// that a gradient that is sent late counts as if momentum had acted on it meanwhile; where some elements are sent and others not,
/// the momentum of those that are sent ends, and codecs that send something of each leave it. The optimizer that gets the sums then has no momentum of its own.
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
    fn recall(&mut self, gradient: &[f32]) -> (&mut [f32], f32) {
        let velocities = self.next_velocity.iter_mut().zip(&self.velocity);
        for ((next, &velocity), &gradient) in velocities.zip(gradient) {
            *next = self.factor * velocity + gradient;
        }
        self.residual.recall(&self.next_velocity)
    }

    fn commit(&mut self, sent: &Sent<'_>) {
        if sent.chosen {
            let Residual { kept, next } = &self.residual;
            for ((velocity, &kept), &left) in self.next_velocity.iter_mut().zip(kept).zip(next) {
                let recalled = kept + *velocity;
                if left != recalled {
                    *velocity = 0.0;
                }
            }
        }
        for range in sent.absent {
            self.next_velocity[range.clone()].copy_from_slice(&self.velocity[range.clone()]);
        }
        std::mem::swap(&mut self.velocity, &mut self.next_velocity);
        self.residual.commit(sent);
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

/// Elements that are looked at while they are in the first cache.
const RUN: usize = 4096;

/// Of two magnitudes. As numbers, magnitudes order like their bits, and infinity and NaN come last.
fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits(a.to_bits().max(b.to_bits()))
}
