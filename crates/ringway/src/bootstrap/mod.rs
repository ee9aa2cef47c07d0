//! Joining a job: from a launcher's environment, or a store that all ranks reach, to a [`World`].

mod error;
mod launch;
mod store;
mod world;

pub use error::BootstrapError;
pub use launch::{Launch, Launcher, Rendezvous};
pub use store::{Store, StoreError};
pub use world::{HostId, Member, World};
