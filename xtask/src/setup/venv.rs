//! The Python environment: exactly the packages of `xtask/requirements.txt`.

use std::fs::{self, File};
use std::io::IsTerminal;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{process, repo};

/// What an interpreter must be able to do: run ours, and make an environment with pip in it.
const FIT: &str = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))";

/// The first interpreter that is fit: the user's, else the system's.
pub(super) fn interpreter() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let mut probe = Command::new(python);
        probe
            .args(["-c", FIT])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    })
}

/// Makes the environment anew unless the one there is complete and was made from the same inputs.
///
/// The commands that write into it get the lock as standard input, which they do not read: should
/// this process be killed, the lock stays held until they too have ended.
pub(super) fn install(lock: &File) -> Result<String> {
    let python = interpreter().context("Python 3.11 or newer with venv is still missing")?;
    let venv = repo::venv();
    let stamp = venv.join("made-from");
    let inputs = inputs(python)?;
    let works = venv.join("bin/python").exists();
    if works && fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == inputs) {
        return Ok("present".to_owned());
    }
    if venv.exists() {
        // Cut short, or made from other versions. Starting afresh costs little: pip keeps what it
        // has downloaded.
        println!("setup: .venv is incomplete or out of date, making it anew");
        fs::remove_dir_all(&venv).with_context(|| format!("cannot remove {}", venv.display()))?;
    }
    let mut make = Command::new(python);
    make.args(["-m", "venv"]).arg(&venv);
    make.stdin(lock.try_clone()?);
    process::run(make)?;

    println!("setup: installing PyTorch and tools, about 0.7 GB to download the first time");
    let mut pip = repo::venv_command("python");
    pip.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-deps",
    ]);
    if !std::io::stdout().is_terminal() {
        pip.args(["--quiet", "--progress-bar", "off"]);
    }
    pip.args(["--requirement", "xtask/requirements.txt"]);
    pip.stdin(lock.try_clone()?);
    process::run(pip)?;

    let mut stubs = repo::venv_command("python");
    stubs.arg("xtask/torch_stubs.py");
    stubs.stdin(lock.try_clone()?);
    process::run(stubs).context("PyTorch does not work in .venv")?;

    // Written last: only a complete environment has it.
    fs::write(&stamp, inputs).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok("made in .venv".to_owned())
}

/// All that decides what the environment is: the interpreter, the pins and the script that finishes
/// torch.
fn inputs(python: &str) -> Result<String> {
    let mut version = Command::new(python);
    version.args(["-c", "import sys; print(sys.version, sys.base_prefix)"]);
    let mut text = process::read(version)?;
    for name in ["xtask/requirements.txt", "xtask/torch_stubs.py"] {
        let path = repo::root().join(name);
        text += &fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}
