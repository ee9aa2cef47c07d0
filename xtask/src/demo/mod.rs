//! `cargo xtask demo`: one training script over Ringway and over Gloo, and a page that shows both.

mod chart;
mod page;
mod record;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

pub(crate) use record::Records;

use crate::{process, python, repo, setup};

/// The share of the held-out digits that must be recognised.
pub(crate) const LEAST_ACCURACY: f64 = 0.97;
const RANKS: &str = "2";
const BACKENDS: [&str; 2] = ["ringway", "gloo"];

/// Trains over both backends and writes the page; an error if either falls short of
/// [`LEAST_ACCURACY`].
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    for command in python::wheel_commands()? {
        process::run(command)?;
    }
    process::run(build_launcher())?;

    let mut all = Vec::new();
    for backend in BACKENDS {
        println!("\nTraining examples/train_digits.py on {RANKS} ranks, backend {backend}:");
        process::run(train(backend)?)?;
        all.push(records(backend)?);
    }

    let report = repo::report()?;
    let html = report.join("demo.html");
    fs::write(&html, page::html(&all))
        .with_context(|| format!("cannot write {}", html.display()))?;
    let svg = report.join("demo.svg");
    fs::write(&svg, page::svg(&all)).with_context(|| format!("cannot write {}", svg.display()))?;
    println!("\n{}\nReport: {}", page::text(&all), html.display());

    for records in &all {
        let run = &records.run;
        if run.accuracy < LEAST_ACCURACY {
            bail!(
                "{}: {:.2} % of the held-out digits recognised, at least {:.0} % are expected",
                run.backend,
                run.accuracy * 100.0,
                LEAST_ACCURACY * 100.0
            );
        }
    }
    Ok(())
}

/// Builds the `ringway` command, which starts the ranks.
pub(crate) fn build_launcher() -> Command {
    repo::cargo(["build", "--release", "--package", "ringway-cli"])
}

/// Trains over one backend; what it measures is then read by [`records`].
pub(crate) fn train(backend: &str) -> Result<Command> {
    let log = log(backend)?;
    // What an earlier run left must not pass for this one's.
    if log.exists() {
        fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
    }
    let script = repo::venv_command("python");
    let mut command = Command::new(repo::ringway());
    command
        .args(["run", "-n", RANKS, "--no-prefix", "--"])
        .arg(script.get_program());
    command
        .args(["examples/train_digits.py", "--backend", backend, "--json"])
        .arg(log);
    command.current_dir(repo::root());
    for (name, value) in script.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    Ok(command)
}

/// What the last [`train`] over this backend measured.
pub(crate) fn records(backend: &str) -> Result<Records> {
    let log = log(backend)?;
    let text =
        fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
    Records::parse(&text).with_context(|| format!("in {}", log.display()))
}

fn log(backend: &str) -> Result<PathBuf> {
    Ok(repo::report()?.join(format!("digits-{backend}.jsonl")))
}
