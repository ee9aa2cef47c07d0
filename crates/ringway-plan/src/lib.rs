//! Schedules of collective operations: a collective is not code but data.
//!
//! A [`Schedule`] is made by a generator for a number of ranks. The verifier proves it, the executor
//! runs it over real transports, the simulator runs it in virtual time, and people read it.
#![forbid(unsafe_code)]

mod algorithm;
mod cost;
mod data;
mod executor;
mod generate;
mod key_map;
mod layout;
pub mod mapped;
mod msccl;
mod programs;
mod schedule;
mod select;
mod table;
mod verify;

pub use algorithm::Algorithm;
pub use cost::{Cost, Link, Machine, Observed, estimate, predict};
pub use data::{DataType, ReduceOp, UnknownName};
pub use executor::{Action, ActionId, Executor, Pending, Place, WINDOW};
pub use generate::{GenerateError, Topology, generate};
pub use key_map::{KeyHasher, KeyMap};
pub use layout::{Layout, cut};
pub use msccl::{MscclError, read_msccl};
pub use programs::{Programs, Turned};
pub use schedule::{
    Collective, Lane, Op, Order, Program, Rank, Schedule, Space, Span, Step, StepRef,
};
pub use select::{BadOverrides, Choice, Overrides, choose};
pub use verify::{Memory, Site, Verified, VerifyError, verify};
