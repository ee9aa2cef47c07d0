//! Schedules for ranks that see each other's memory: messages become loads and stores.
//!
//! [`MappedProgram::compile`] turns a verified schedule into what one rank does when all ranks of the group share a
//! host (`docs/decisions/0003-mapped-programs.md`). It is pure: the runtime that has the memory and the progress
//! counters is elsewhere.
//!
//! # How
//! 1. All steps of all ranks are put in one order in which they could be done one after the other, a receive right
//!    behind its send. The verifier proved that there is one, without any buffering. So a receive may read
//!    the sender's memory itself: whatever conflicts with that read is ordered before or behind it.
//! 2. Steps become *actions*, chunk by chunk: load every source, reduce them in order, store to every destination.
//! 3. Actions are merged, each merge only where nothing that happens in between could tell the difference: what a
//!    relay passes on is read from its origin, chains of reductions become one, copies of a result
//!    become further destinations of it.
//! 4. For private memory, what others read is written to staging as well.
//! 5. Every conflict between two ranks (read after write, write after read, write after write) becomes a wait
//!    for the other rank's progress. Waits always point backwards in the order of 1, so that they never form a cycle.
//!
//! # Progress
//! A rank works in *rounds*. A step of *stage* k works on segment s of its chunks in round s + k; the stage is the
//! number of waits between ranks that lead up to it. So segments are a pipeline: the ranks do one segment's
//! first stage while another's results are fetched. With one segment, rounds are the stages.
//!
//! Within a round, steps with a [`MappedStep::point`] count the rank's progress up to round * points + point.
//! Peers know this program, hence which count to wait for ([`Wait::target`]).

mod action;
mod bind;
mod cells;
mod flow;
mod fuse;
mod order;
mod program;
mod stage;
mod staging;

#[cfg(test)]
mod tests;

pub use bind::{Base, BoundOperand, BoundProgram, BoundStep, Walk};
pub use program::{MappedProgram, MappedStep, Mode, Operand, Slot, Wait};
