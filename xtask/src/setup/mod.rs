//! `cargo xtask setup`: what building and testing need, installed where it is missing.
//!
//! Each step looks first and does nothing when its result is there, so a second run takes seconds
//! and one that was interrupted is simply run again. Packages come from wherever apt, cargo and pip
//! are configured to get them.

mod system;
mod toolchain;
mod venv;

pub(crate) use system::{Need, apt_update, need, path};

use std::fs::{self, File};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::repo;

/// Runs all steps, one process at a time.
pub(crate) fn run() -> Result<()> {
    let lock = lock()?;
    step("Debian packages", system::install)?;
    step("Rust tools", toolchain::install)?;
    step("Python environment", || venv::install(&lock))
}

/// Held while a setup runs: two at once would install into the same environment.
fn lock() -> Result<File> {
    let dir = repo::target();
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join("setup.lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    if file.try_lock().is_err() {
        println!("setup: waiting for another setup of this checkout");
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Runs one step, which says what it did, and prints that with its time.
fn step(name: &str, work: impl FnOnce() -> Result<String>) -> Result<()> {
    let start = Instant::now();
    let done = work().with_context(|| format!("setup of the {name}"))?;
    println!(
        "setup: {name}: {done} ({:.1} s)",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
