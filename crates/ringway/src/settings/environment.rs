//! The environment as a value, so that tests need not change the process's own.

use std::collections::BTreeMap;

use super::{DEFINITIONS, SettingsError, nearest};

/// A variable that describes the launch of a rank, not a setting.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub doc: &'static str,
}

/// The `RINGWAY_*` variables that are no settings.
pub const LAUNCH_VARIABLES: &[Variable] = &[
    Variable {
        name: "RINGWAY_BENCH_ARGS",
        doc: "Flags that scripts which compare libraries add to `ringway bench`; Ringway itself does not read it.",
    },
    Variable {
        name: "RINGWAY_CONFIG",
        doc: "The settings file, in place of `ringway.yaml`.",
    },
    Variable {
        name: "RINGWAY_JOB",
        doc: "A name of the job: ranks of another job on the same master are refused.",
    },
    Variable {
        name: "RINGWAY_LOCAL_RANK",
        doc: "The number of this process among those of its host, from 0.",
    },
    Variable {
        name: "RINGWAY_MASTER",
        doc: "Where rank 0 serves the rendezvous: `host:port`, or a host if `RINGWAY_MASTER_PORT` is set.",
    },
    Variable {
        name: "RINGWAY_MASTER_PORT",
        doc: "The port of the rendezvous.",
    },
    Variable {
        name: "RINGWAY_RANK",
        doc: "The number of this process in the world, from 0.",
    },
    Variable {
        name: "RINGWAY_WORLD_SIZE",
        doc: "How many ranks the world has.",
    },
];

/// How the names of all variables begin.
pub(super) const PREFIX: &str = "RINGWAY_";

/// How the names go on that Ringway's own tests use.
const TESTS: &str = "TEST_";

/// Variables by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The process's own, as it is now.
    pub fn current() -> Self {
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        Self(
            std::env::vars_os()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        )
    }

    /// The value of a variable; none also if it is empty.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    /// Refuses `RINGWAY_*` names that nothing reads: most are mistyped.
    pub(super) fn check_names(&self) -> Result<(), SettingsError> {
        let settings: Vec<String> = DEFINITIONS.iter().map(|d| d.variable()).collect();
        let launch = LAUNCH_VARIABLES.iter().map(|v| v.name);
        let known = settings.iter().map(String::as_str).chain(launch);
        let known = known.filter_map(|name| name.strip_prefix(PREFIX));
        for name in self.0.keys().filter_map(|name| name.strip_prefix(PREFIX)) {
            if !name.starts_with(TESTS) && !known.clone().any(|k| k == name) {
                return Err(SettingsError::UnknownVariable {
                    variable: format!("{PREFIX}{name}"),
                    hint: nearest::hint(PREFIX, name, known.clone()),
                });
            }
        }
        Ok(())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}
