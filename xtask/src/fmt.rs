//! `cargo xtask fmt`.

use anyhow::Result;

use crate::python::RUFF_PATHS;
use crate::{process, repo, setup};

/// Formats all Rust and Python sources in place.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    process::run(repo::cargo(["fmt", "--all"]))?;
    let mut ruff = repo::venv_command("ruff");
    ruff.arg("format").args(RUFF_PATHS);
    process::run(ruff)
}
