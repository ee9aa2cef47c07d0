//! The operating system's parts that Ringway stands on.

pub mod barrier;
mod cpu;
pub mod datagram;
mod epoll;
mod futex;
mod hops;
mod interfaces;
mod memory;
mod places;
mod process;
mod segment;
mod shared;
pub mod socket;
pub mod socket_name;
mod staging;

pub use cpu::{cpu_count, spin_hint, take_short_turns, yield_now};
pub use epoll::{Epoll, Interest, Signal, Timer};
pub use futex::{futex_wait, futex_wake};
pub use hops::Expired;
pub use interfaces::{InterfaceAddress, hardware_addresses, interface_addresses};
pub use memory::Memory;
pub use places::Places;
pub use process::end_with_parent;
pub use segment::{Segment, SegmentError};
pub use shared::{Shared8, Shared32, Shared64};
pub use staging::Staging;
