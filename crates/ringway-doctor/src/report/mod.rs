//! All that was found, for people and for programs.

mod html;
mod text;

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Severity, Unjudged};

/// The check of what was given and could not be read.
pub(crate) const UNREAD: &str = "file";

/// What all checks of a run said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Whether something that was given could not be read, so that it was not looked at.
    pub fn unread(&self) -> bool {
        self.unjudged.iter().any(|it| it.check == UNREAD)
    }

    /// The exit code of a command: 0 without warnings, 1 with warnings, 2 with errors, 3 if something was not read.
    pub fn exit_code(&self) -> u8 {
        match self.worst() {
            _ if self.unread() => 3,
            None | Some(Severity::Note) => 0,
            Some(Severity::Warning) => 1,
            Some(Severity::Error) => 2,
        }
    }

    /// Puts the worst first, and leaves what is equally bad in the order of the checks.
    pub fn sort(&mut self) {
        self.findings
            .sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.confidence)));
    }

    /// For a terminal. `colour`: with its codes for colours.
    pub fn text(&self, colour: bool) -> String {
        text::render(self, colour)
    }

    /// A page of HTML that needs nothing else, and prints well. `title` is what it is about.
    ///
    /// # Errors
    /// If the page's template fails, which is a fault of this program.
    pub fn html(&self, title: &str) -> Result<String, minijinja::Error> {
        html::render(self, title)
    }

    /// `2 errors, 1 warning, 3 notes; 31 checks, 4 not judged`.
    pub fn summary(&self) -> String {
        let count = |severity| {
            let all = self.findings.iter();
            all.filter(|finding| finding.severity == severity).count()
        };
        let mut parts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Note]
            .into_iter()
            .filter(|&severity| count(severity) > 0)
            .map(|severity| plural(count(severity), severity.name()))
            .collect();
        if parts.is_empty() {
            parts.push("nothing found".to_owned());
        }
        let mut summary = format!("{}; {}", parts.join(", "), plural(self.checks, "check"));
        if !self.unjudged.is_empty() {
            summary.push_str(&format!(", {} not judged", self.unjudged.len()));
        }
        summary
    }
}

fn plural(count: usize, word: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {word}{s}")
}
