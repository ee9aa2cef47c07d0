//! Gradient codecs: sums over ranks of which fewer bytes are sent.
//!
//! A [`Codec`] is three things. A [`Compressor`] turns floats into bytes and back. A [`Memory`] keeps what was not sent and adds
//! it the next time (error feedback). An [`Aggregation`] is the rule by which what ranks have encoded becomes their sum, over a
//! [`Wire`]: the collectives of a communicator. There is no IO and no clock here.
//!
//! # Promises
//! - All ranks get the same bits, and a run that is repeated, or resumed from [`Codec::state`], gives them again.
//! - With error feedback the results and the residuals of all ranks together are the sum of all gradients: nothing is
//!   lost, some of it comes later.
//! - A NaN or an infinity of any rank is an error on all ranks that names rank, tensor and element. Gradients and residuals are
//!   then what they were.
//! - Bytes of other ranks never make a decoder panic.
#![forbid(unsafe_code)]

mod aggregation;
mod codec;
mod compressor;
mod controller;
mod error;
mod kind;
mod low_rank;
mod memory;
mod quantiser;
mod scatter;
mod sparse;
mod state;
mod sum;
mod tensors;
mod wire;

pub use aggregation::{Aggregation, Outcome};
pub use codec::{Codec, Fidelity};
pub use compressor::{Compressor, DecodeError, Encoded, Load};
pub use controller::{CHOICE, Controller, Decision, LOOK, Measured, Meter, WINDOW};
pub use error::{Error, Fault};
pub use kind::{Feedback, Kind, Options, UnknownKind};
pub use low_rank::LowRank;
pub use memory::{Memory, Momentum, Nothing, Residual, Sent};
pub use quantiser::Quantiser;
pub use scatter::ScatterGather;
pub use sparse::{Chosen, GatherAll, Sparse};
pub use state::StateError;
pub use sum::{Half, SumInDomain};
pub use tensors::{Tensor, Tensors};
pub use wire::{Values, Wire, WireError};
