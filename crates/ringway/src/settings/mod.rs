//! Settings: what a user may choose, from where, and what was chosen.
//!
//! Defaults < `ringway.yaml` < `RINGWAY_*` environment < flag or builder. Each value remembers its
//! [`Source`], so that `ringway config show` can say why something is as it is. One table,
//! [`DEFINITIONS`], says everything about every setting: its name, default, range, unit and meaning. The
//! file's keys, the environment's names, `config show` and `docs/settings.md` all come from it.
//!
//! ```
//! use std::path::Path;
//! use ringway::settings::{Settings, Source};
//!
//! let mut settings = Settings::default();
//! settings.apply_yaml("communication: {algorithm: ring, buffer_size: 64MB}", Path::new("ringway.yaml"))?;
//! settings.set("buffer_size", "128MiB", Source::Flag { name: "--buffer-size".into() })?;
//! assert_eq!(settings.values().buffer_size, 128 << 20);
//! assert_eq!(settings.source("algorithm").to_string(), "ringway.yaml:1");
//! # Ok::<(), ringway::settings::SettingsError>(())
//! ```

mod definitions;
mod environment;
mod error;
mod file;
mod nearest;
mod units;
mod values;

use std::{
    fmt,
    path::{Path, PathBuf},
};

pub use definitions::{DEFINITIONS, Definition, reference};
pub use environment::{Environment, LAUNCH_VARIABLES, Variable};
pub use error::SettingsError;
pub use units::{parse_duration, parse_size, show_duration, show_size};
pub use values::{Interfaces, Probing, TransportKind, Transports, Values};

/// The file that is read when `RINGWAY_CONFIG` names no other, if it is there.
pub const DEFAULT_FILE: &str = "ringway.yaml";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody chose it.
    Default,
    /// A variable of the environment.
    Environment {
        /// Its name.
        variable: String,
    },
    /// A settings file.
    File {
        /// Its path, as it was given.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// A flag of the command line, or a call of a builder.
    Flag {
        /// The flag as the user writes it.
        name: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Environment { variable } => f.write_str(variable),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Flag { name } => f.write_str(name),
        }
    }
}

/// All settings, each with where it comes from.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Values,
    /// One for each of [`DEFINITIONS`], in its order.
    sources: Vec<Source>,
}

impl Default for Settings {
    /// Every setting at its default.
    fn default() -> Self {
        Self {
            values: Values::default(),
            sources: vec![Source::Default; DEFINITIONS.len()],
        }
    }
}

impl Settings {
    /// Reads the settings file and the process's environment.
    ///
    /// The file is the one that `RINGWAY_CONFIG` names, else [`DEFAULT_FILE`] in the current directory if
    /// there is one.
    ///
    /// # Errors
    /// The first thing wrong in the file or in a `RINGWAY_*` variable, by place.
    pub fn load() -> Result<Self, SettingsError> {
        Self::load_from(&Environment::current(), Path::new(""))
    }

    /// As [`Settings::load`], from this environment and with this directory for [`DEFAULT_FILE`].
    ///
    /// # Errors
    /// As for [`Settings::load`].
    pub fn load_from(environment: &Environment, directory: &Path) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        match environment.var("RINGWAY_CONFIG") {
            Some(path) => settings.apply_file(Path::new(path))?,
            None => {
                let path = directory.join(DEFAULT_FILE);
                if path.exists() {
                    settings.apply_file(&path)?;
                }
            }
        }
        settings.apply_environment(environment)?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks what no setting shows alone: whoever has set any by hand calls it last.
    ///
    /// # Errors
    /// Values that do not go together.
    pub fn check(&self) -> Result<(), SettingsError> {
        let Values {
            failure_after,
            heartbeat,
            ..
        } = self.values;
        if failure_after < 3 * heartbeat {
            let name = "failure_after";
            let definition = DEFINITIONS.iter().find(|d| d.name == name);
            return Err(SettingsError::Invalid {
                place: self.source(name).clone(),
                name,
                expected: definition.map_or("", |d| d.expected),
                found: show_duration(failure_after),
                why: format!(
                    "heartbeat is {} ({})",
                    show_duration(heartbeat),
                    self.source("heartbeat")
                ),
            });
        }
        Ok(())
    }

    /// Takes over what a settings file says.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong.
    pub fn apply_file(&mut self, path: &Path) -> Result<(), SettingsError> {
        let text = file::read(path)?;
        self.apply_yaml(&text, path)
    }

    /// Takes over what the text of a settings file says; `path` is for sources and errors only.
    ///
    /// # Errors
    /// The first thing wrong, by line: syntax, unknown or repeated keys, values of wrong type or range.
    /// The settings are then left as they were.
    pub fn apply_yaml(&mut self, text: &str, path: &Path) -> Result<(), SettingsError> {
        let mut changed = self.clone();
        for entry in file::parse(text, path)? {
            let source = Source::File {
                path: path.to_owned(),
                line: entry.line,
            };
            changed.set(&entry.name, &entry.value, source)?;
        }
        *self = changed;
        Ok(())
    }

    /// Takes over the `RINGWAY_*` variables. Empty ones count as not set.
    ///
    /// # Errors
    /// A variable that is neither a setting nor one of [`LAUNCH_VARIABLES`], or a wrong value.
    pub fn apply_environment(&mut self, environment: &Environment) -> Result<(), SettingsError> {
        environment.check_names()?;
        for definition in DEFINITIONS {
            let variable = definition.variable();
            if let Some(value) = environment.var(&variable) {
                self.set(definition.name, value, Source::Environment { variable })?;
            }
        }
        Ok(())
    }

    /// Sets one, by the name that it has in the file (`buffer_size`).
    ///
    /// # Errors
    /// There is no such setting, or the value is not one of its.
    pub fn set(&mut self, name: &str, value: &str, source: Source) -> Result<(), SettingsError> {
        let Some(at) = DEFINITIONS.iter().position(|d| d.name == name) else {
            return Err(SettingsError::UnknownKey {
                place: source,
                key: name.to_owned(),
                hint: nearest::hint("", name, DEFINITIONS.iter().map(|d| d.name)),
            });
        };
        let definition = &DEFINITIONS[at];
        (definition.set)(&mut self.values, value.trim()).map_err(|why| SettingsError::Invalid {
            place: source.clone(),
            name: definition.name,
            expected: definition.expected,
            found: value.to_owned(),
            why,
        })?;
        self.sources[at] = source;
        Ok(())
    }

    /// The values.
    pub const fn values(&self) -> &Values {
        &self.values
    }

    /// Where a setting's value comes from; [`Source::Default`] for a name that is none.
    pub fn source(&self, name: &str) -> &Source {
        DEFINITIONS
            .iter()
            .position(|d| d.name == name)
            .map_or(&Source::Default, |at| &self.sources[at])
    }

    /// Every setting with its value as text and its source, in the order of [`DEFINITIONS`].
    pub fn rows(&self) -> impl Iterator<Item = (&'static Definition, String, &Source)> {
        DEFINITIONS
            .iter()
            .zip(&self.sources)
            .map(|(d, source)| (d, (d.show)(&self.values), source))
    }
}
