//! Shared memory between the ranks of a host.
//!
//! [`HostSegment`] is the memory, [`Offer`] and [`fetch`] bring it from the rank that makes it to the others,
//! [`Arena`] allocates in it, [`SlotTransport`] moves messages through it, and groups that lie within a host go without
//! messages: [`mapped`].

mod arena;
mod error;
mod handover;
mod host;
pub mod mapped;
mod slots;

pub use arena::{Arena, ArenaBlock, ArenaError};
pub use error::ShmError;
#[cfg(fuzzing)]
pub use handover::fuzz as fuzz_hello;
pub use handover::{Offer, fetch};
pub use host::{HostIdentity, HostSegment, SegmentSizes};
#[cfg(fuzzing)]
pub use slots::fuzz as fuzz_descriptor;
pub use slots::{Geometry, SlotOptions, SlotTransport};
