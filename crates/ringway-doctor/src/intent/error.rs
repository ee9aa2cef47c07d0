//! What can be wrong with an intent.

use std::path::{Path, PathBuf};

/// A mistake in an intent: where, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntentError {
    /// The values go together with nothing that works.
    #[error("{}:{line}: {what}; {remedy}", path.display())]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u32,
        /// What was expected and what was found.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// No YAML, or keys and values that an intent does not have.
    #[error("{}:{line}: {detail}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 if the parser knows none.
        line: u64,
        /// What the parser says.
        detail: String,
    },
}

impl IntentError {
    /// The line, from 1; 0 if it is not known.
    pub fn line(&self) -> u32 {
        match self {
            Self::Contradiction { line, .. } => *line,
            Self::Syntax { line, .. } => u32::try_from(*line).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn syntax(path: &Path, error: &serde_saphyr::Error) -> Self {
        Self::Syntax {
            path: path.to_owned(),
            line: error.location().map_or(0, |location| location.line()),
            detail: error.to_string(),
        }
    }
}
