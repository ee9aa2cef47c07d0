//! rustfmt, clippy and cargo-nextest.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{process, repo};

/// The version that is built where none is present. Any version that is there is taken.
const NEXTEST: &str = "0.9.143";

/// Adds the missing ones.
pub(super) fn install() -> Result<String> {
    let mut added = Vec::new();
    for component in ["fmt", "clippy"] {
        if !answers(component) {
            let name = if component == "fmt" {
                "rustfmt"
            } else {
                component
            };
            let mut rustup = Command::new("rustup");
            rustup
                .args(["component", "add", name])
                .current_dir(repo::root());
            process::run(rustup).with_context(|| {
                format!("`cargo {component}` is missing and rustup cannot add it")
            })?;
            added.push(name.to_owned());
        }
    }
    if !answers("nextest") {
        println!("setup: building cargo-nextest {NEXTEST}, which takes some minutes");
        process::run(repo::cargo([
            "install",
            "cargo-nextest",
            "--locked",
            "--version",
            NEXTEST,
        ]))?;
        added.push(format!("cargo-nextest {NEXTEST}"));
    }
    Ok(if added.is_empty() {
        "present".to_owned()
    } else {
        format!("installed {}", added.join(", "))
    })
}

fn answers(subcommand: &str) -> bool {
    let mut command = repo::cargo([subcommand, "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
