//! Transports: how bytes get from a rank to its peers.
#![forbid(unsafe_code)]

mod error;
mod transport;

pub use error::LinkError;
pub use transport::{Event, MessageKey, Sink, Transport, Wake};
