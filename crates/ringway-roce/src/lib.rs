//! The RoCE v2 protocol without IO: RDMA over UDP as the InfiniBand specification has it (volume 1 and annex A17).
//!
//! Nothing here opens a socket, reads a clock or touches raw memory. The caller hands in packets and the time, and
//! takes packets out; memory is what it registers as a [`Region`].
#![forbid(unsafe_code)]

pub mod cm;
pub mod dcqcn;
pub mod endpoint;
pub mod hash;
mod memory;
mod psn;
pub mod rc;
pub mod timer;
pub mod wire;

pub use memory::{Access, AccessError, Key, ProtectionDomain, Region, RegisterError};
pub use psn::{MAX_WINDOW, Psn, Qpn};
