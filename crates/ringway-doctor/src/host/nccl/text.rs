//! Advice for people, and for shells.

use super::Advice;
use crate::finding::{Confidence, Step};

impl Advice {
    /// For a terminal: each setting with its reason and evidence, then what was left open.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for setting in &self.settings {
            out += &format!(
                "{}={}\n  why       {}\n",
                setting.name, setting.value, setting.why
            );
            for evidence in &setting.evidence {
                out += &format!("  evidence  {}\n", one_line(&evidence.to_string()));
            }
            if setting.confidence != Confidence::Certain {
                out += "  sure?     likely: something that this host does not show may say otherwise\n";
            }
        }
        if !self.open.is_empty() {
            out += "\nnot set, as this host does not tell:\n";
        }
        for open in &self.open {
            out += &format!("{}\n  why       {}\n", open.name, open.reason);
            for evidence in &open.evidence {
                out += &format!("  evidence  {}\n", one_line(&evidence.to_string()));
            }
            for step in &open.ask {
                out += &format!("  ask       {step}\n");
            }
        }
        out
    }

    /// For a shell: `eval "$(ringway env nccl --export)"`.
    pub fn export(&self) -> String {
        let mut out = String::new();
        for setting in &self.settings {
            let value = setting.value.replace('\'', r"'\''");
            out += &format!(
                "# {}\nexport {}='{value}'\n",
                one_line(&setting.why),
                setting.name
            );
        }
        for open in &self.open {
            out += &format!("# {} is not set: {}\n", open.name, one_line(&open.reason));
            for step in &open.ask {
                let (Step::Run(words) | Step::Do(words)) = step;
                out += &format!("#   {}\n", one_line(words));
            }
        }
        out
    }
}

/// What came from files has any characters.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
