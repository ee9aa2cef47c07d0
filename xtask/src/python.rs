//! The Python package: building and installing its wheel.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::repo;

/// Where Python sources are.
pub(crate) const RUFF_PATHS: [&str; 3] = ["python", "examples", "xtask"];

/// The commands that build the wheel in release mode and install it, to be run one after the other.
pub(crate) fn wheel_commands() -> Result<[Command; 3]> {
    let dir = wheel_dir()?;
    let mut build = repo::venv_command("maturin");
    build.args([
        "build",
        "--release",
        "--manifest-path",
        "python/Cargo.toml",
        "--interpreter",
    ]);
    build
        .arg(repo::venv().join("bin/python"))
        .arg("--out")
        .arg(&dir);

    // Not `maturin develop`: what is tested is what users install, type stubs and all.
    let mut install = repo::venv_command("python");
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    install.args([
        "--no-index",
        "--no-deps",
        "--force-reinstall",
        "--find-links",
    ]);
    install.arg(&dir).arg("ringway");

    let mut import = repo::venv_command("python");
    import.args(["-c", "import ringway; print('ringway', ringway.__file__)"]);
    Ok([build, install, import])
}

/// An empty directory for the wheel, so that exactly the one just built is installed.
fn wheel_dir() -> Result<PathBuf> {
    let dir = repo::target().join("wheels");
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    Ok(dir)
}
