//! Sums of gradients with fewer bytes on the wire: codecs over a communicator.

mod adaptive;
mod lanes;
mod wire;

use std::time::{Duration, Instant};

pub use lanes::{Bucket, CompressedPending, CompressedWork, Lanes, SumOptions};
use ringway_codec::{Codec, Error as CodecError};
use ringway_plan::ReduceOp;
use wire::CommunicatorWire;

use crate::{Communicator, Error};

/// What a compressed sum has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that this rank has sent, if what is gathered goes round a ring; an all-reduce of 32-bit floats sends almost 8 for each.
    pub sent: u64,
    /// Time in collectives, waiting for other ranks included.
    pub wire: Duration,
    /// Time in which gradients were encoded, decoded and added up.
    pub coding: Duration,
}

impl Communicator {
    /// Adds up `gradients` over all ranks, in place, in the form of `codec`, which each rank has made alike. The same bits on all
    /// ranks. Of operations there are sum and average.
    ///
    /// # Errors
    /// As [`Self::run`], and those of [`Codec::sum`], after which gradients and codec are what they were and ranks may go on.
    pub fn all_reduce_compressed(
        &self,
        gradients: &mut [f32],
        op: ReduceOp,
        codec: &mut Codec,
    ) -> Result<Traffic, Error> {
        compressed(self, gradients, op, None, codec)
    }
}

fn compressed(
    communicator: &Communicator,
    gradients: &mut [f32],
    op: ReduceOp,
    timeout: Option<Duration>,
    codec: &mut Codec,
) -> Result<Traffic, Error> {
    let began = Instant::now();
    let mut wire = CommunicatorWire::new(communicator, 0, timeout);
    let ended = match op {
        ReduceOp::Sum => codec.sum(gradients, &mut wire),
        ReduceOp::Average => codec.average(gradients, &mut wire),
        op => {
            return Err(Error::Argument(format!(
                "a compressed all_reduce by {op}; expected sum or avg, which codecs have"
            )));
        }
    };
    if let Err(error @ CodecError::Announced { .. }) = &ended {
        // This rank takes no part in what the others begin now.
        communicator.abort(&error.to_string());
    }
    ended?;
    Ok(Traffic {
        sent: wire.sent,
        wire: wire.time,
        coding: began.elapsed().saturating_sub(wire.time),
    })
}
