//! Joining a job: from a launcher's environment, or a store that all ranks reach, to a [`World`].
//!
//! [`Launch::detect`] reads what the launcher says; [`join`] opens this rank's port and meets the others. They meet
//! at rank 0's rendezvous on the master port, or through a [`Store`] that is there already. Each rank brings its
//! [`Member`] (host, process, addresses), and gets all others'.

mod book;
mod client;
mod codec;
mod detect;
mod error;
mod exchange;
mod hostlist;
mod join;
mod launch;
mod process;
mod reminder;
mod server;
mod store;
mod wire;
mod world;

pub(crate) use codec::{Malformed, Reader, Writer, fnv1a};
pub use error::BootstrapError;
pub(crate) use exchange::get_reminding;
pub use hostlist::expand_hostlist;
pub use join::join;
pub(crate) use join::missing;
pub use launch::{Launch, Launcher, Rendezvous};
pub(crate) use store::Part;
pub use store::{Store, StoreError};
pub use world::{HostId, Member, World};

/// Reads bytes as the rendezvous reads those of strangers, and as ranks read its answers.
#[cfg(fuzzing)]
pub fn fuzz_wire(bytes: &[u8]) {
    wire::check(bytes, 5);
}

/// Plays a script of guests and time to the rendezvous.
#[cfg(fuzzing)]
pub fn fuzz_book(script: &[u8]) {
    book::check(script);
}
