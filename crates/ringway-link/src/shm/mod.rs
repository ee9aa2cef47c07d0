//! Shared memory between the ranks of a host.
//!
//! [`HostSegment`] is the memory, [`Offer`] and [`fetch`] bring it from the rank that makes it to the others,
//! [`Arena`] allocates in it.

mod arena;
mod error;
mod handover;
mod host;

pub use arena::{Arena, ArenaBlock, ArenaError};
pub use error::ShmError;
pub use handover::{Offer, fetch};
pub use host::{HostIdentity, HostSegment, SegmentSizes};
