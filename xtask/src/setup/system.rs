//! Debian packages, told missing by the commands they bring.

use std::env;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::venv;
use crate::process;

/// (command, packages that bring it, what it is for)
const COMMANDS: [(&str, &[&str], &str); 5] = [
    ("cc", &["gcc", "libc6-dev"], "linking"),
    ("g++", &["g++"], "the fuzzer's run-time library"),
    (
        "readelf",
        &["binutils"],
        "finding the CUDA libraries that torch names",
    ),
    ("ip", &["iproute2"], "tests between network namespaces"),
    ("tc", &["iproute2"], "tests over links of limited speed"),
];

/// Installs the packages whose commands are missing.
pub(super) fn install() -> Result<String> {
    let mut packages: Vec<&str> = Vec::new();
    for (command, brought_by, purpose) in COMMANDS {
        if !present(command) {
            println!("setup: {command} is missing, for {purpose}");
            packages.extend(brought_by);
        }
    }
    if venv::interpreter().is_none() {
        println!("setup: Python 3.11 or newer with venv is missing");
        packages.extend(["python3", "python3-venv"]);
    }
    packages.dedup();
    if packages.is_empty() {
        return Ok("present".to_owned());
    }
    let list = packages.join(" ");
    let prefix = privilege().with_context(|| format!("these packages are missing: {list}"))?;
    apt(&prefix, &["update", "-qq"])?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&packages);
    apt(&prefix, &install)?;
    Ok(format!("installed {list}"))
}

/// Whether the command is found, also where Debian puts administrators' commands that a user's PATH
/// may lack.
fn present(command: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|dir| dir.join(command).is_file())
}

/// The words to put before apt-get: none for root, sudo for who may use it.
fn privilege() -> Result<Vec<&'static str>> {
    if !present("apt-get") {
        bail!(
            "there is no apt-get here; install what brings the commands by your system's own means"
        );
    }
    let mut id = Command::new("id");
    id.arg("-u");
    if process::read(id)?.trim() == "0" {
        return Ok(Vec::new());
    }
    if present("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let without_asking = sudo.status().is_ok_and(|status| status.success());
        if without_asking || std::io::stdin().is_terminal() {
            return Ok(vec!["sudo"]);
        }
    }
    bail!(
        "neither root nor sudo is at hand; install them as root with apt-get install, then run this again"
    )
}

fn apt(prefix: &[&str], args: &[&str]) -> Result<()> {
    let mut words = prefix.to_owned();
    words.extend([
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-o",
        "Dpkg::Use-Pty=0",
    ]);
    words.extend(args);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(Path::new("/"));
    process::run(command)
}
