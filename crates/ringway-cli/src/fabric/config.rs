//! `ringway fabric config`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use ringway_doctor::{
    config::{Purpose, Target, render},
    intent::Intent,
};

use crate::{input, output};

/// The configuration of a switch or host for an intent.
#[derive(Debug, Args)]
#[command(
    after_help = "The configuration goes to standard output, what to know of it to standard error.\n\
                  An intent to begin with is examples/lossless.yaml; docs/lossless.md explains it.\n\n\
                  Examples:\n  ringway fabric config lossless.yaml --for nxos > leaf.cfg\n  \
                  ringway fabric config lossless.yaml --for sonic --rollback\n  \
                  ringway fabric config lossless.yaml --for host > ringway-lossless && bash ringway-lossless --dry-run\n  \
                  ringway fabric config lossless.yaml --for host-unit > ringway-lossless.service"
)]
pub(crate) struct Config {
    /// The intent: a YAML file.
    intent: PathBuf,
    /// The system: nxos, sonic, eos, nvue, onyx, os10, junos, host (a script) or host-unit (systemd's).
    #[arg(long = "for", value_name = "SYSTEM")]
    target: Target,
    /// What undoes the configuration.
    #[arg(long, conflicts_with = "verify")]
    rollback: bool,
    /// Commands that show whether the configuration works, and what they should say.
    #[arg(long)]
    verify: bool,
    /// A directory with templates of your own: SYSTEM.apply.j2, SYSTEM.rollback.j2, SYSTEM.verify.j2.
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// As JSON: system, purpose, text and notes.
    #[arg(long)]
    json: bool,
}

/// The largest intent, in bytes: those that are written by hand have a thousand.
const LARGEST: u64 = 1 << 20;

impl Config {
    pub(crate) fn execute(self) -> Result<()> {
        let intent = read(&self.intent)?;
        let purpose = match (self.rollback, self.verify) {
            (true, _) => Purpose::Rollback,
            (_, true) => Purpose::Verify,
            _ => Purpose::Apply,
        };
        let rendered = render(&intent, self.target, purpose, self.templates.as_deref())?;
        if self.json {
            let json = serde_json::json!({
                "system": self.target.name(), "purpose": purpose.name(),
                "text": rendered.text, "notes": rendered.notes,
            });
            return output::print_json(&json);
        }
        for note in &rendered.notes {
            eprintln!("note: {note}");
        }
        output::print(&rendered.text)
    }
}

/// The intent in a file.
pub(super) fn read(path: &Path) -> Result<Intent> {
    let text = input::text(path, "intent", LARGEST)?;
    Ok(Intent::parse(&text, path)?)
}
