//! The settings of NCCL's that follow from what a host says, each with its reason, and those that no host can tell.
//!
//! Names and meanings are from NCCL's user guide, "Environment Variables". They are of the host that is asked: names of
//! devices and indices of GIDs differ between hosts.

mod class;
mod ports;
mod text;
mod ways;

use serde::Serialize;

use super::{Root, facts::Host};
use crate::finding::{Confidence, Evidence, Step};

/// Settings, and what had to be left open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What follows from the host.
    pub settings: Vec<Setting>,
    /// What does not.
    pub open: Vec<Open>,
}

/// A variable and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What to set it to.
    pub value: String,
    /// Why, in one line.
    pub why: String,
    /// How sure it is.
    pub confidence: Confidence,
    /// What was read.
    pub evidence: Vec<Evidence>,
}

/// A variable that is not set, as its value does not follow from the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Open {
    /// The variable.
    pub name: &'static str,
    /// What is not known.
    pub reason: String,
    /// What was read.
    pub evidence: Vec<Evidence>,
    /// How to find out.
    pub ask: Vec<Step>,
}

/// The settings for a job on this host.
pub fn advise(root: &Root) -> Advice {
    let host = Host::look(root);
    let mut advice = Advice::default();
    let rails = ports::choose(&host, &mut advice);
    ways::sockets(&host, &rails, &mut advice);
    if !rails.is_empty() {
        class::mark(&host, &rails, &mut advice);
        ways::patience(&host, &rails, &mut advice);
        ways::crossing(&host, &rails, &mut advice);
    }
    for setting in &mut advice.settings {
        // What the job has now, where that is something else.
        if let Some(value) = host.environment.get(setting.name)
            && *value != setting.value
        {
            let source = format!("environment variable {}", setting.name);
            setting.evidence.push(Evidence::new(source, value));
        }
    }
    advice
}

impl Advice {
    fn set(
        &mut self,
        name: &'static str,
        value: impl Into<String>,
        why: impl Into<String>,
    ) -> Draft<'_> {
        self.settings.push(Setting {
            name,
            value: value.into(),
            why: why.into(),
            confidence: Confidence::Certain,
            evidence: Vec::new(),
        });
        let last = self.settings.len() - 1;
        Draft(&mut self.settings[last])
    }

    fn leave(
        &mut self,
        name: &'static str,
        reason: impl Into<String>,
        evidence: Vec<Evidence>,
        ask: Vec<Step>,
    ) {
        self.open.push(Open {
            name,
            reason: reason.into(),
            evidence,
            ask,
        });
    }
}

/// A setting that is being told.
struct Draft<'a>(&'a mut Setting);

impl Draft<'_> {
    fn saw(self, source: impl AsRef<str>, value: impl Into<String>) -> Self {
        self.0.evidence.push(seen(source, value));
        self
    }

    fn all(self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.0.evidence.extend(evidence);
        self
    }

    /// Something that a host does not show may say otherwise.
    fn likely(self) -> Self {
        self.0.confidence = Confidence::Likely;
        self
    }
}

/// What a file, by its path from the root without the leading slash, or a command said.
fn seen(source: impl AsRef<str>, value: impl Into<String>) -> Evidence {
    let source = source.as_ref();
    let is_file = source.starts_with("sys/") || source.starts_with("proc/");
    let slash = if is_file { "/" } else { "" };
    Evidence::new(format!("{slash}{source}"), value)
}
