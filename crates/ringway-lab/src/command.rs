//! Programs that the lab is made with.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;

/// How long a program may take: thousands of links take seconds.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs a program to its end, with `input`; what it printed. `what` names it in errors.
pub(crate) fn run(what: &str, command: &mut Command, input: &str) -> Result<String, LabError> {
    let failed = |detail: String| LabError::Command {
        what: what.to_owned(),
        detail,
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        // A program that fails reads no further, and says why.
        thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    }
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait_with_output()));
    let output = match end.recv_timeout(LONGEST) {
        Ok(output) => output.map_err(|e| failed(e.to_string()))?,
        Err(_) => {
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::KILL);
            }
            return Err(failed(format!("it was not done within {LONGEST:?}")));
        }
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(failed(match said.is_empty() {
        true => output.status.to_string(),
        false => said.replace('\n', "; "),
    }))
}
