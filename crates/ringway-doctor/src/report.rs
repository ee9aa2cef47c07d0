//! All that was found, for people and for programs.

use serde::Serialize;

use crate::finding::{Finding, Severity, Unjudged};

/// What all checks of a run said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// What could not be judged.
    pub unjudged: Vec<Unjudged>,
    /// How many checks had something to judge.
    pub checks: usize,
}

impl Report {
    /// The worst severity; `None` if nothing was found.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}
