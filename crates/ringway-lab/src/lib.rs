//! A fabric file as a network on one machine: hosts and switches are network namespaces, links are shaped veth pairs,
//! switches route with ECMP.
//!
//! ```text
//!   Fabric -> Blueprint (scripts of `ip` and `tc`) -> Lab (runs them) -> commands in hosts, cut, heal, rate, stats
//!                                                      |
//!                              Sandbox: user, mount, process and network namespaces of the lab's own
//! ```
//!
//! A lab lives in namespaces that go with its processes: whatever ends it, kill -9 too, the kernel removes all of it, and
//! it never sees, let alone changes, the network of the machine. Root is not needed where users may make namespaces.
//! What stays is an entry in a [`Registry`], by which other processes find the lab; it is removed when next looked at.
#![forbid(unsafe_code)]

mod address;
mod blueprint;
mod command;
mod error;
mod flows;
mod lab;
mod registry;
mod sandbox;
mod shaping;
mod stats;

pub use address::{host_address, interface};
pub use blueprint::{Queues, Settings};
pub use error::LabError;
pub use flows::{Connection, Tuple};
pub use lab::{Lab, within};
pub use registry::{Entry, Registry};
pub use sandbox::{Inside, Sandbox, can_make_namespaces, scratch};
pub use stats::HopStats;
