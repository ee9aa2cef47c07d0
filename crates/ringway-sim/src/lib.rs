//! Collectives on a modelled fabric, in virtual time: the schedules and the executor that run in production, over a
//! network that is computed.
//!
//! ```text
//!   schedule -> Executor of each rank  <-- Simulation -->  Network
//!               (ringway-plan)             processors,     latency-bandwidth: `Ports`
//!                                          scenario        max-min fair flows: `Flows`
//!                                                          queues and losses: `Packets`
//! ```
//!
//! [`Simulation::run`] drives the executors: a message is handed to the [`Network`] when both its sides have started and the
//! sender has spent its overhead, and reductions and copies take the rank's processor one after the other. It is
//! deterministic: the same arguments give the same picoseconds. What comes out is an [`Outcome`]: the time and on
//! what it was spent, the load of every link, and, if asked for, a record of everything that took time.
#![forbid(unsafe_code)]

mod drive;
mod error;
mod expected;
mod flow;
mod network;
mod outcome;
mod packet;
mod ports;
mod program;
mod scenario;
mod simulation;
mod time;
mod trace;
mod world;

pub use error::SimError;
pub use expected::expected_load;
pub use flow::{Flows, max_min};
pub use network::{Message, Network, Passage};
pub use outcome::{Elapsed, HopLoad, Outcome, busbw_factor};
pub use packet::{FlowControl, Marking, PacketReport, PacketSettings, Packets, Pause, PortCounts};
pub use ports::Ports;
pub use program::{Act, Operation};
pub use scenario::{Background, Change, Scenario};
pub use simulation::{Level, Paths, Simulation};
pub use time::{Moment, Time};
pub use trace::{Kind, Record, chrome_trace};
pub use world::{Place, World};
