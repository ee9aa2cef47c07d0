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

    /// In the parser's words, but for those that are for programmers.
    pub(super) fn syntax(path: &Path, text: &str, error: &serde_saphyr::Error) -> Self {
        let words = error.to_string();
        let detail = if text.trim().is_empty() {
            "it is empty: expected an intent, such as examples/lossless.yaml".to_owned()
        } else if let Some((_, limit)) = words.split_once("budget breached: ") {
            let limit = limit.split(' ').next().unwrap_or_default();
            format!("it is too large, or too deep, for an intent ({limit})")
        } else {
            words.replace(", set DuplicateKeyPolicy in Options if acceptable", "")
        };
        Self::Syntax {
            path: path.to_owned(),
            line: error.location().map_or(0, |location| location.line()),
            detail,
        }
    }
}
