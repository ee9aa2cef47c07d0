//! What a call can end with.

use std::sync::Arc;

use ringway_link::LinkError;
use ringway_plan::{GenerateError, VerifyError};

use crate::{
    bootstrap::{BootstrapError, StoreError},
    control::{ControlError, Failure},
    settings::SettingsError,
};

/// Why an operation, or joining the job, failed. Each says what was expected, what was found, and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's arguments cannot be right.
    #[error("{0}")]
    Argument(String),
    /// There is no compressed sum. Unless a rank failed, this is the same on all ranks, which may go on.
    #[error(transparent)]
    Codec(Arc<ringway_codec::Error>),
    /// Joining the job failed.
    #[error(transparent)]
    Bootstrap(Arc<BootstrapError>),
    /// The control plane could not be joined.
    #[error(transparent)]
    Control(Arc<ControlError>),
    /// A rank failed, or the ranks disagree; the communicator cannot be used any more.
    #[error("{failure}{context}")]
    Failed {
        /// Who failed, and how: the same on all ranks.
        failure: Arc<Failure>,
        /// What this rank was doing, as a clause to follow the failure; may be empty.
        context: String,
    },
    /// No schedule for the algorithm and group.
    #[error(transparent)]
    Generate(Arc<GenerateError>),
    /// A connection could not be made or was lost.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Memory for the operation would pass the limit, or there is none.
    #[error("{0}")]
    Memory(String),
    /// A setting is wrong.
    #[error(transparent)]
    Settings(Arc<SettingsError>),
    /// Of [`run_until`](crate::Communicator::run_until): nothing has begun, and the same call may be made again.
    #[error(
        "stopped before the operation began, for which ranks were to meet first (setting adapt_after); expected the same call again"
    )]
    Stopped,
    /// The ranks' store failed.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The schedule does not keep its promise; it was not run.
    #[error("refused a schedule that does not verify: {0}")]
    Verify(Arc<VerifyError>),
}

impl From<ringway_codec::Error> for Error {
    fn from(error: ringway_codec::Error) -> Self {
        match error {
            // What a communicator said, in its own words.
            ringway_codec::Error::Wire(said) => match said.downcast::<Self>() {
                Ok(own) => *own,
                Err(said) => Self::Codec(Arc::new(ringway_codec::Error::Wire(said))),
            },
            error => Self::Codec(Arc::new(error)),
        }
    }
}

macro_rules! from_arc {
    ($($error:ty => $variant:ident),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(Arc::new(error))
            }
        }
    )*};
}
from_arc!(BootstrapError => Bootstrap, ControlError => Control, StoreError => Store, GenerateError => Generate, SettingsError => Settings, VerifyError => Verify);
