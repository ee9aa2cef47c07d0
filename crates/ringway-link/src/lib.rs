//! Transports: how bytes get from a rank to its peers.
#![forbid(unsafe_code)]

mod error;
pub mod shm;
mod transport;

pub use error::LinkError;
pub use transport::{Event, MessageKey, Sink, Transport, Wake};
