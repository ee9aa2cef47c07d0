//! The TCP transport, rank against rank in one process, through proxies, and against processes that die.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod faults;
mod intruders;
mod orders;
mod proxy;
mod sleeping;
mod world;
