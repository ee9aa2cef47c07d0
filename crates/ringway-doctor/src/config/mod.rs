//! Configurations from an intent: what to enter, what undoes it, and what shows that it works.
//!
//! Each system has three templates, `SYSTEM.apply.j2`, `SYSTEM.rollback.j2` and `SYSTEM.verify.j2`, of which users may
//! put their own into a directory. What a system cannot express is refused, not left out.

mod job;
mod ports;
mod refuse;
mod target;
mod view;

use std::{fs, io, path::Path};

use minijinja::{Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};

use crate::{file, intent::Intent};

pub use job::{Job, Scheduler, render_job};
pub use ports::PortNameError;
pub use target::{Target, UnknownTarget};
pub(crate) use view::View;

/// What a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be entered.
    Apply,
    /// To undo what was entered.
    Rollback,
    /// To see whether it works.
    Verify,
}

impl Purpose {
    /// Its name, as in the names of templates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Rollback => "rollback",
            Self::Verify => "verify",
        }
    }
}

/// How a rollback and a verification begin, in a comment: by that they are known to be no configurations.
pub(crate) const UNDOES: &str = "Undoes the configuration of lossless RoCE";
pub(crate) const SHOWS: &str = "Shows whether the configuration of lossless RoCE works";

/// The largest template, in bytes: those built in have ten thousand at most.
const LARGEST: u64 = 1 << 20;

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// What to enter.
    pub text: String,
    /// What the operator has to know of it: what was never verified, what it leaves as it is.
    pub notes: Vec<String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The system cannot express the intent. One line for each reason.
    #[error("{target} cannot express this intent:\n - {}", reasons.join("\n - "))]
    Inexpressible {
        /// The system.
        target: Target,
        /// Each with its remedy.
        reasons: Vec<String>,
    },
    /// The job is not one that can be started.
    #[error("the job is refused: {reason}")]
    Job {
        /// What was expected and what was found.
        reason: String,
    },
    /// A template of the user's, or the directory of them, is not there or cannot be read.
    #[error(
        "the templates in {path} cannot be read: {source}; name a directory with templates of your own, or none"
    )]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// A template is wrong.
    #[error("the template {name} is wrong: {detail}")]
    Template {
        /// Its name.
        name: String,
        /// Line and mistake.
        detail: String,
    },
}

/// The configuration of `target` for `intent`, the same bytes for the same intent. Templates in the directory
/// `templates` go before those built in.
pub fn render(
    intent: &Intent,
    target: Target,
    purpose: Purpose,
    templates: Option<&Path>,
) -> Result<Rendered, ConfigError> {
    if let Some(directory) = templates {
        fs::read_dir(directory).map_err(|source| ConfigError::Read {
            path: directory.display().to_string(),
            source,
        })?;
    }
    let reasons = refuse::reasons(intent, target);
    if !reasons.is_empty() {
        return Err(ConfigError::Inexpressible { target, reasons });
    }
    let view = View::new(intent, target).map_err(|error| ConfigError::Inexpressible {
        target,
        reasons: vec![error.to_string()],
    })?;
    let name = format!("{}.{}.j2", target.name(), purpose.name());
    let source = match templates.map(|directory| directory.join(&name)) {
        Some(path) if path.exists() => {
            file::text(&path, LARGEST).map_err(|source| ConfigError::Read {
                path: path.display().to_string(),
                source,
            })?
        }
        _ => target.template(purpose).to_owned(),
    };
    let wrong = |error: minijinja::Error| ConfigError::Template {
        name: name.clone(),
        detail: format!("{error:#}"),
    };
    let text = environment()
        .map_err(wrong)?
        .render_named_str(&name, &source, Value::from(Serde(view)))
        .map_err(wrong)?;
    Ok(Rendered {
        text,
        notes: target
            .notes()
            .iter()
            .map(|note| (*note).to_owned())
            .collect(),
    })
}

/// How all templates are read.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build()?;
    environment.set_syntax(syntax);
    // Nothing here is HTML, whatever a template is called.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    Ok(environment)
}
