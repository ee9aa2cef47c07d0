//! Why there is no control plane.

use std::sync::Arc;

use ringway_link::LinkError;

use super::Failure;

/// Connecting to the control plane failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Rank 0 cannot be reached.
    #[error("no control connection to rank 0: {0}")]
    Connect(LinkError),
    /// A rank failed before all were connected.
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// The operating system refused.
    #[error(
        "{what} for the control plane failed: {detail}; raise the limits of open files and processes (ulimit -n, -u)"
    )]
    System {
        /// The call.
        what: &'static str,
        /// What it said.
        detail: String,
    },
}
