//! What the counters of RDMA ports do while a job runs, and what that means.

mod cause;
mod counters;

pub use cause::{CAUSES, Cause, explain};
pub use counters::{PortCounters, Ports, Sample};
