//! Collective communication for distributed training: what `cargo add ringway` gives.
//!
//! ```no_run
//! use ringway::ReduceOp;
//!
//! let comm = ringway::init()?; // torchrun, Slurm, mpirun or RINGWAY_* environment
//! let mut gradients = vec![comm.rank() as f32; 1 << 20];
//! comm.all_reduce(&mut gradients, ReduceOp::Average)?;
//!
//! // Asynchronous: the buffer comes back when it is reduced.
//! let pending = comm.start(ringway::AllReduce::new(gradients).avg().priority(3))?;
//! let gradients = pending.wait()?;
//! # Ok::<(), ringway::Error>(())
//! ```
//!
//! Every rank makes the same collective calls in the same order. Nothing waits for ever: each operation has a
//! deadline, and a rank that dies, stops or calls something else is named in every rank's [`Error`].
#![deny(unsafe_code)]

mod adapt;
mod batch;
pub mod bootstrap;
mod buffer;
mod calls;
mod communicator;
mod compress;
pub mod control;
mod engine;
mod error;
mod external;
mod group;
mod pipeline;
mod probe;
mod record;
mod registration;
mod request;
pub mod settings;
mod share;
mod start;
#[cfg(test)]
mod tests;

mod work;

pub use adapt::Replan;
pub use batch::{BatchLimits, BatchStats, Batcher, Ticket};
pub use buffer::{ArenaBuffer, Buffer};
pub use communicator::Communicator;
pub use compress::{Bucket, CompressedPending, CompressedWork, Lanes, SumOptions, Traffic};
pub use engine::{Candidate, Prediction};
pub use error::Error;
pub use pipeline::GradientPipeline;
pub use probe::Origin;
pub use record::{BadRecording, Recorded, Recording, Wait};
pub use registration::{Registered, Registration};
pub use request::{Descriptor, Form, Parts, Request};
pub use ringway_codec as codec;
pub use ringway_kernels::Element;
pub use ringway_link::RegisteredMemory;
pub use ringway_plan::{Algorithm, Collective, Cost, DataType, Link, Machine, Rank, ReduceOp};
pub use ringway_sys::{Memory, Places};
pub use start::{Builder, init};

pub use work::{AllReduce, Pending, Scope, Scoped, Work};
