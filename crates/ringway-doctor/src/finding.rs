//! What a check says: a finding, or that it could not judge.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, but slower than it could, or only until there is load, a reboot or a larger job.
    Warning,
    /// RDMA does not work, or loses packets where it must not.
    Error,
}

impl Severity {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// It rests on a format or a default that was never seen on such hardware by those who wrote the check.
    Unverified,
    /// It follows from what was read unless something else on the way makes up for it.
    Likely,
    /// What was read is the fault itself.
    Certain,
}

/// Something that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The file as it is called on the machine it describes, or the command whose output it is.
    pub source: String,
    /// The line in it, from 1, where a line matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What it said.
    pub value: String,
}

impl Evidence {
    /// What a whole file, or a command, said.
    pub fn new(source: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            line: None,
            value: value.into(),
        }
    }

    /// What a line of a file said; lines count from 1.
    pub fn line(source: impl Into<String>, line: usize, value: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            ..Self::new(source, value)
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.value)
    }
}

/// A step of a remedy or of its rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A command, to be run as root as it stands.
    Run(String),
    /// What no command can do: a cable, a file to be edited, a setting of the firmware.
    Do(String),
}

impl Step {
    /// A command.
    pub fn run(command: impl Into<String>) -> Self {
        Self::Run(command.into())
    }

    /// What no command can do.
    pub fn act(text: impl Into<String>) -> Self {
        Self::Do(text.into())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(command) => write!(f, "# {command}"),
            Self::Do(text) => f.write_str(text),
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The check's name, `group.check`.
    pub check: Cow<'static, str>,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it is about: a device and port, an interface, a switch's port.
    pub subject: String,
    /// What is wrong: expected and found.
    pub problem: String,
    /// Why it matters, in one line.
    pub why: Cow<'static, str>,
    /// What was read; for a contradiction, both sides.
    pub evidence: Vec<Evidence>,
    /// What mends it.
    pub remedy: Vec<Step>,
    /// What undoes the remedy; empty if there is nothing to undo.
    pub rollback: Vec<Step>,
}

/// What a check could not judge, and what would let it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unjudged {
    /// The check's name.
    pub check: Cow<'static, str>,
    /// What it is about.
    pub subject: String,
    /// What is not known, and why.
    pub reason: String,
    /// How to find out.
    pub ask: Vec<Step>,
}
