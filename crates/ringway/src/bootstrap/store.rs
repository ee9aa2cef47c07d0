//! A place where ranks leave values for each other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A key-value store that all ranks of a job reach: Ringway's own, or an external one such as PyTorch's.
///
/// Keys are written once. Implementations are called from several threads at once.
pub trait Store: Send + Sync {
    /// Leaves a value, trying until `deadline` if the store cannot be reached at once.
    ///
    /// # Errors
    /// The store cannot be reached, or refuses.
    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError>;

    /// The value of a key, waiting for it until `deadline`. A deadline in the past looks once.
    ///
    /// # Errors
    /// [`StoreError::Absent`] at the deadline; the store cannot be reached.
    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError>;

    /// The store in a few words, for errors: `PyTorch's store at 10.0.0.1:29500`.
    fn describe(&self) -> String;
}

/// Part of a store: the keys that begin with a prefix.
pub(crate) struct Part {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) prefix: String,
}

impl Part {
    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }
}

impl Store for Part {
    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        self.store.set(&self.key(key), value, deadline)
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        self.store.get(&self.key(key), deadline)
    }

    fn describe(&self) -> String {
        format!("{} of {}", self.prefix, self.store.describe())
    }
}

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody has left a value within the deadline.
    #[error(
        "no value for `{key}` within {waited:.1?}: the rank that leaves it has not come so far"
    )]
    Absent {
        /// The key.
        key: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The store cannot be reached, or fails.
    #[error("{store} failed at {call} of `{key}`: {detail}")]
    Failed {
        /// The store, as [`Store::describe`] has it.
        store: String,
        /// `set` or `get`.
        call: &'static str,
        /// The key.
        key: String,
        /// What went wrong.
        detail: String,
    },
    /// Longer than the store takes.
    #[error("{what} has {got} bytes where the store takes {most} at most")]
    TooLong {
        /// The key or the value.
        what: String,
        /// Its length.
        got: usize,
        /// The most.
        most: usize,
    },
}
