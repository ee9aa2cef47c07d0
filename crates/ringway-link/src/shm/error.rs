//! What can go wrong with a host's shared memory.

use std::{io, time::Duration};

use ringway_plan::Rank;
use ringway_sys::SegmentError;

use super::SegmentSizes;

/// The shared memory of a host could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The segment is not the one that this rank expects.
    #[error(
        "the shared memory is not this job's: {field} should be {expected}, found {found}; start all ranks of a host with the same program and settings"
    )]
    Header {
        /// The field that differs.
        field: &'static str,
        /// What this rank expects.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Ranks of this host did not come for the shared memory in time.
    #[error(
        "ranks {missing:?} did not join the shared memory of their host within {waited:.1?}; {remedy}"
    )]
    Missing {
        /// World ranks.
        missing: Vec<Rank>,
        /// How long was waited.
        waited: Duration,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The rank that makes the shared memory did not hand it over in time.
    #[error(
        "no shared memory from the lowest rank of this host within {waited:.1?}: {detail}; {remedy}"
    )]
    NoOffer {
        /// How long was waited.
        waited: Duration,
        /// What happened last.
        detail: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Making or mapping the memory failed.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The operating system refused.
    #[error("{what} failed: {source}; {remedy}")]
    System {
        /// The system call.
        what: &'static str,
        /// What it said.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The areas do not fit the address space.
    #[error(
        "shared memory for {ranks} ranks with {sizes:?} does not fit the address space; make RINGWAY_ARENA_SIZE smaller"
    )]
    TooLarge {
        /// Ranks on the host.
        ranks: usize,
        /// Bytes for each.
        sizes: SegmentSizes,
    },
    /// Another rank of the host cannot share memory, and has said so.
    #[error("{reason}")]
    Withdrawn {
        /// What it said.
        reason: String,
    },
}
