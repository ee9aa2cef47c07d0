//! What can be wrong with settings.

use std::path::PathBuf;

use super::Source;

/// A mistake in a settings file, in the environment or in a flag. Each says where, what was expected, what was
/// found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A key is there twice.
    #[error("{place}: `{key}` is set again, after line {first}: keep one of the two")]
    Duplicate {
        /// The second.
        place: Source,
        /// The key.
        key: String,
        /// The line of the first.
        first: u64,
    },
    /// A value that the setting cannot have.
    #[error("{place}: {name}: expected {expected}; found `{found}`: {why}")]
    Invalid {
        /// Where it is set.
        place: Source,
        /// The setting.
        name: &'static str,
        /// The values that it may have.
        expected: &'static str,
        /// The value.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file cannot be read.
    #[error("the settings file {} cannot be read: {source}; RINGWAY_CONFIG names another", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A value has another shape than the key's values have: a mapping where a number belongs, say.
    #[error("{place}: {key}: expected {expected}, found {found}")]
    Shape {
        /// Where.
        place: Source,
        /// The key, or `the file`.
        key: String,
        /// The shape that is expected.
        expected: &'static str,
        /// The shape that is there.
        found: &'static str,
    },
    /// The file is no YAML.
    #[error("{place}: the file is no YAML: {detail}")]
    Syntax {
        /// Where reading stopped.
        place: Source,
        /// What the parser said.
        detail: String,
    },
    /// There is no setting of this name.
    #[error("{place}: unknown key `{key}`; {hint}")]
    UnknownKey {
        /// Where.
        place: Source,
        /// The key.
        key: String,
        /// The nearest known one.
        hint: String,
    },
    /// There is no variable of this name.
    #[error("unknown environment variable `{variable}`; {hint} Unset it, or correct its name")]
    UnknownVariable {
        /// Its name.
        variable: String,
        /// The nearest known one.
        hint: String,
    },
}
