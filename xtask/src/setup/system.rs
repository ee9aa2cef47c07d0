//! Debian packages, told missing by the commands and files they bring.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::venv;
use crate::process;

/// Something that packages bring: a command or, by its path, a file; those packages; and what it is for.
pub(crate) type Need = (&'static str, &'static [&'static str], &'static str);

const NEEDS: [Need; 7] = [
    ("cc", &["gcc", "libc6-dev"], "linking"),
    (
        "g++",
        &["g++"],
        "the fuzzer's run-time library and the tests' accelerator",
    ),
    (
        "readelf",
        &["binutils"],
        "finding the CUDA libraries that torch names",
    ),
    ("ip", &["iproute2"], "tests between network namespaces"),
    ("tc", &["iproute2"], "tests over links of limited speed"),
    (
        "/usr/include/infiniband/verbs.h",
        &["libibverbs-dev"],
        "the test of the layouts of verbs",
    ),
    (
        "/usr/include/rdma/rdma_cma.h",
        &["librdmacm-dev"],
        "the test of the layouts of rdma_cm",
    ),
];

/// Installs the packages of what is missing.
pub(super) fn install() -> Result<String> {
    let mut packages = missing(&NEEDS);
    if venv::interpreter().is_none() {
        println!("setup: Python 3.11 or newer with venv is missing");
        packages.extend(["python3", "python3-venv"]);
    }
    get(packages)
}

/// Installs what only some stage needs, and says what it did.
pub(crate) fn need(needs: &[Need]) -> Result<String> {
    get(missing(needs))
}

/// The packages of what is missing.
fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for (what, brought_by, purpose) in needs {
        if !present(what) {
            println!("setup: {what} is missing, for {purpose}");
            packages.extend(*brought_by);
        }
    }
    packages
}

fn get(mut packages: Vec<&'static str>) -> Result<String> {
    packages.dedup();
    if packages.is_empty() {
        return Ok("present".to_owned());
    }
    let list = packages.join(" ");
    let prefix = privilege().with_context(|| format!("these packages are missing: {list}"))?;
    process::run(apt(&prefix, &["update", "-qq"]))?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&packages);
    process::run(apt(&prefix, &install))?;
    Ok(format!("installed {list}"))
}

/// Brings apt's lists of packages up to date; an error if this user may not.
pub(crate) fn apt_update() -> Result<Command> {
    Ok(apt(&privilege()?, &["update", "-qq"]))
}

/// `PATH`, and where Debian puts administrators' commands, which a user's may lack.
pub(crate) fn path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into));
    env::join_paths(dirs).unwrap_or(path)
}

/// Whether the command is found, or the file is there.
fn present(what: &str) -> bool {
    env::split_paths(&path()).any(|dir| dir.join(what).is_file())
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

fn apt(prefix: &[&str], args: &[&str]) -> Command {
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
    command
}
