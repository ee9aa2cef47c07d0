//! What can go wrong with an operation in mapped memory.

use std::time::Duration;

use super::Descriptor;
use crate::shm::ArenaError;

/// An operation failed. Members count in the group, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappedError {
    /// No room for the group's control block or an operation's staging.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Memory that is not what the operation needs.
    #[error(
        "the operation's {what} has {found} bytes where {expected} are needed; pass memory of the size that the call states"
    )]
    Buffer {
        /// `input` or `output`.
        what: &'static str,
        /// Bytes that are needed.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// What a peer wrote to shared memory makes no sense: it runs another program, or its memory is damaged.
    #[error(
        "member {member} wrote {what} to shared memory that cannot be right; start all ranks with the same version of Ringway"
    )]
    Corrupt {
        /// Who.
        member: usize,
        /// What.
        what: &'static str,
    },
    /// The caller's interrupt fired, as when the communicator is aborted.
    #[error(
        "interrupted while waiting for member {member} to reach point {point} of operation {op}"
    )]
    Interrupted {
        /// Whom the operation waited for.
        member: usize,
        /// The number of the operation in its group.
        op: u64,
        /// The point of the member's program.
        point: u64,
    },
    /// Two members called different operations.
    #[error("member {member} calls {theirs:?} where this member calls {mine:?}")]
    Mismatch {
        /// The other.
        member: usize,
        /// What the other calls.
        theirs: Descriptor,
        /// What this member calls.
        mine: Descriptor,
    },
    /// A plan that was made for another member or another group.
    #[error(
        "the plan is for member {} of {} where this is member {} of {}; make one for this group", found.0, found.1, expected.0, expected.1
    )]
    Plan {
        /// This member, and the number of members.
        expected: (usize, usize),
        /// What the plan was made for.
        found: (usize, usize),
    },
    /// The deadline passed.
    #[error(
        "member {member} did not reach point {point} of operation {op} within {waited:.1?}: it hangs, was stopped, or did not call the operation"
    )]
    Timeout {
        /// Whom the operation waited for.
        member: usize,
        /// The number of the operation in its group.
        op: u64,
        /// The point of the member's program; 0 is the call itself.
        point: u64,
        /// How long it was waited for.
        waited: Duration,
    },
}
