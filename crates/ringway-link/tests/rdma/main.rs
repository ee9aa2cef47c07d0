//! RDMA in software: two devices over loopback, in one process and in two, with and without a network that misbehaves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod allocations;
mod breakable;
mod connections;
mod end;
mod failing_back;
mod hostile;
mod lossy;
mod measuring;
mod operations;
mod pair;
mod ports;
mod processes;
#[path = "../tcp/proxy.rs"]
mod proxy;
mod registered;
mod relay;
mod transport;
