//! What a compressed sum can end with.

use ringway_plan::Rank;

use crate::WireError;

/// Why there is no sum.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The vector is not the one that the codec was made for.
    #[error("{found} gradients; expected {expected}, the elements of the codec's tensors")]
    Length {
        /// Of the codec's tensors.
        expected: usize,
        /// Of the vector.
        found: usize,
    },
    /// A rank cannot encode one of its gradients. Nothing was changed, on any rank: skip the step or lower the loss scale, and go on.
    #[error("rank {rank}, tensor {tensor}, element {element}: {fault}")]
    Unfit {
        /// The first rank that found one.
        rank: Rank,
        /// The name of the tensor.
        tensor: String,
        /// The first such element of the tensor, in memory order.
        element: usize,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A rank could not read what another one has encoded.
    #[error(
        "rank {rank} could not decode what rank {from} sent; expected the same codec, tensors and version on both"
    )]
    Foreign {
        /// Who could not.
        rank: Rank,
        /// Whose bytes they were.
        from: Rank,
    },
    /// A rank announces more bytes than a vector can have. Others may wait for this rank now: the group cannot be used any more.
    #[error(
        "rank {from} announces {bytes} bytes of encoded gradients; expected at most {most}: the same codec, tensors and \
         version on all ranks"
    )]
    Announced {
        /// Who.
        from: Rank,
        /// What it announces.
        bytes: u64,
        /// What there can be.
        most: usize,
    },
    /// The sum is not finite though all gradients are.
    #[error(
        "the sum of finite gradients is not finite; expected a sum below 3.4e38: lower the loss scale"
    )]
    Overflow,
    /// A collective failed.
    #[error("{0}")]
    Wire(WireError),
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// What is wrong with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// It is no finite number.
    #[error("the gradient is {0}; expected a finite number")]
    NotFinite(f32),
    /// The codec has no number so large.
    #[error(
        "the gradient {value:e} is beyond {limit}, the codec's largest number; lower the loss scale, or use bf16"
    )]
    TooLarge {
        /// The gradient, with what was left of earlier ones.
        value: f32,
        /// The largest magnitude that the codec has.
        limit: f32,
    },
}
