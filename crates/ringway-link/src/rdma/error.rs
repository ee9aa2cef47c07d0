//! What can go wrong with a device. Requests that fail say so by their completions.

use std::io;

use ringway_roce::{cm::CmError, rc::PostError};
use ringway_verbs::VerbsError;

use super::{Mismatch, QueuePair};

/// A fault of a device, or of what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// More than the device has.
    #[error("{what}: {asked} asked for where {device} has {most}")]
    Limit {
        /// The device.
        device: String,
        /// Of what.
        what: &'static str,
        /// How much was asked for.
        asked: u64,
        /// How much there is.
        most: u64,
    },
    /// The two sides can't be connected.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A request wasn't taken.
    #[error("queue pair {}: {error}", queue_pair.0)]
    Post {
        /// Where it was posted.
        queue_pair: QueuePair,
        /// Why.
        error: PostError,
    },
    /// Connection management can't do what it was asked for.
    #[error("{device}: {what}: {error}")]
    Management {
        /// The device.
        device: String,
        /// What it was to do.
        what: &'static str,
        /// Why not.
        error: CmError,
    },
    /// The caller may not do what it asked for: a fault of this program.
    #[error("{device}: {what}")]
    Misuse {
        /// The device.
        device: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// libibverbs or its device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system or the device's driver refused.
    #[error("{device}: {what} failed: {error}{remedy}")]
    System {
        /// The device.
        device: String,
        /// The call.
        what: &'static str,
        /// What it said.
        error: io::Error,
        /// What to do about it, with what separates it from the rest; may be empty.
        remedy: String,
    },
}
