//! Collectives in mapped memory: ranks of one host read and write each other's memory, without messages.
//!
//! [`MappedGroup`] is a group whose members are all on this host. Its operations follow
//! [`ringway_plan::mapped`] programs. Setting up:
//!
//! 1. every member allocates a [`GroupBlock`] and tells the others its offset, by any other means;
//! 2. every member makes a [`MappedGroup`] from all offsets;
//! 3. for each kind of call a [`MappedSchedule`], for each size a [`MappedPlan`], both kept for later calls;
//! 4. [`MappedGroup::run`] carries out a call on the calling thread; or [`MappedGroup::start`] starts it and
//!    [`MappedOp::step`] carries it out bit by bit, on a thread that serves several.
//!
//! # The way of the data
//! Small operations travel in the members' control blocks, beside the counters. Others go by the arena, if all
//! members' memory lies there (then members read and write each other's buffers), or through staging, which
//! stays in the cache, segment by segment. Members tell each other what they call and where their memory is, and
//! decide alike: a mismatch is an error at every member, before any data moves.
//!
//! # Peers that misbehave
//! A member that dies or stops is waited for until the deadline or the interrupt, never longer. Whatever stands in
//! shared memory, no access leaves the area of the rank that it is about, or where two members hand each other staging
//! the two areas.

mod block;
mod error;
mod exchange;
mod execute;
mod group;
mod inline;
mod op;
mod plan;
mod sequence;
mod staging;
mod stores;
mod wait;

#[cfg(test)]
mod tests;

pub use block::GroupBlock;
pub use error::MappedError;
pub use group::{Descriptor, MappedCall, MappedGroup};
pub use op::{MappedOp, Progress};
pub use plan::{MappedPlan, MappedSchedule};
pub use wait::Patience;
