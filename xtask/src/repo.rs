//! Where things are in this checkout.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The checkout's root. Cargo says at run time where this package lies, so a binary built for
/// another checkout with a shared target directory still works on the one it was started in.
pub(crate) fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().unwrap_or(&package).to_path_buf()
}

/// Cargo's target directory, which `CARGO_TARGET_DIR` can move.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The Python environment that `setup` makes.
pub(crate) fn venv() -> PathBuf {
    root().join(".venv")
}

/// The directory for what the tasks write for people; made when it is missing.
pub(crate) fn report() -> Result<PathBuf> {
    let dir = root().join("report");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// A cargo command in the checkout's root.
pub(crate) fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // The same interpreter for every build of the Python crate: another one would rebuild it.
    let python = venv().join("bin/python");
    if python.exists() {
        command.env("PYO3_PYTHON", python);
    }
    command
}

/// A command of the Python environment in the checkout's root, on one thread per process.
pub(crate) fn venv_command(program: &str) -> Command {
    let mut command = Command::new(venv().join("bin").join(program));
    command.current_dir(root()).env("VIRTUAL_ENV", venv());
    // Ranks share the cores: a thread pool in each of them would only get in the others' way.
    for variable in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
        command.env(variable, "1");
    }
    command
}

/// The `ringway` binary, built in release mode.
pub(crate) fn ringway() -> PathBuf {
    target().join("release/ringway")
}
