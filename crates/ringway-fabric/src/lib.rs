//! The network under a job: hosts, switches and links as a file, what is wrong with it, the routes through it, and
//! which host each rank should have.
//!
//! A [`Fabric`] is read from a YAML file ([`Fabric::parse`]; the schema is in `docs/fabric.md`), which a [`Shape`]
//! writes for the usual topologies. [`Routes`] are the shortest paths that its switches would use, [`check()`] finds what
//! is wrong, and [`place()`] looks for the order of hosts by which an algorithm loads the links least. No IO, no clock.
#![forbid(unsafe_code)]

mod check;
mod error;
mod expand;
mod file;
mod levels;
mod load;
mod machine;
mod model;
mod pairing;
mod place;
mod routes;
mod shape;
mod units;

pub use check::{Bisection, Check, Diversity, Finding, PathLengths, Severity, TierLoad, check};
pub use error::{FabricError, Problem};
pub use levels::levels;
pub use load::{NoPath, expected_load};
pub use machine::{farthest, machine};
pub use model::{Fabric, Group, HostKind, Link, Local, NodeId, Role, Tier};
pub use pairing::{opponent, turns};
pub use place::{
    BadMatrix, Distances, Load, Matrix, Pattern, Placed, Placement, Start, place, place_within,
    random_order,
};
pub use routes::{Hop, Port, Routes};
pub use shape::{BadShape, Shape};
pub use units::{BadQuantity, parse_latency, parse_rate, show_latency, show_rate};
