//! Child processes: run, read, and watched against a deadline.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const POLL: Duration = Duration::from_millis(50);
/// How long output of a process that has ended is waited for, should a grandchild still hold the
/// pipe.
const DRAIN: Duration = Duration::from_secs(2);

/// The command as one would type it: the program without its directory.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Runs to the end with the terminal's input and output; an error if it fails.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(&command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(&command));
    }
    Ok(())
}

/// Standard output of a command that succeeds; an error with its standard error otherwise.
pub(crate) fn read(mut command: Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start `{}`", shown(&command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` failed: {}: {}",
            shown(&command),
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What a watched command came to.
pub(crate) struct Finished {
    /// Standard output and error, interleaved as written.
    pub(crate) text: String,
    /// Why it counts as failed; `None` after exit status 0.
    pub(crate) failure: Option<String>,
}

/// Runs to the end or to the deadline, when it and its descendants are killed. Output is kept, and
/// passed on line by line to `echo`.
pub(crate) fn watch(
    mut command: Command,
    deadline: Instant,
    echo: &mut dyn FnMut(&str),
) -> Result<Finished> {
    let name = shown(&command);
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{name}`"))?;
    drop(command); // and with it our writing end of the pipe, so that the end of output is seen

    let (text, killed) = pass_on(&mut child, reader, deadline, echo)?;
    let status = reap(&mut child, deadline)?;
    let failure = match status {
        _ if killed => Some(format!("`{name}` was killed at its deadline")),
        Some(status) if status.success() => None,
        Some(status) => Some(format!("`{name}` failed: {status}")),
        None => Some(format!(
            "`{name}` closed its output but was still there at its deadline"
        )),
    };
    Ok(Finished { text, failure })
}

/// Passes on and keeps the output until it ends; true if the deadline came first.
fn pass_on(
    child: &mut Child,
    reader: PipeReader,
    deadline: Instant,
    echo: &mut dyn FnMut(&str),
) -> Result<(String, bool)> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                break;
            }
        }
    });
    let mut text = String::new();
    let mut ended = None;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => {
                echo(&line);
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((text, false)),
            Err(RecvTimeoutError::Timeout) => {
                if ended.is_none() && child.try_wait()?.is_some() {
                    ended = Some(Instant::now());
                }
                if ended.is_some_and(|at: Instant| at.elapsed() > DRAIN) {
                    return Ok((text, false));
                }
            }
        }
        if Instant::now() >= deadline {
            kill_tree(child)?;
            return Ok((text, true));
        }
    }
}

/// Waits for the exit status; `None`, and the child killed, at the deadline.
fn reap(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            kill_tree(child)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Kills the child and all that descend from it. Not by process group: children stay in ours, so
/// that Ctrl-C reaches them.
fn kill_tree(child: &Child) -> Result<()> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().parse::<u32>();
        let (Ok(pid), Ok(stat)) = (pid, fs::read_to_string(entry.path().join("stat"))) else {
            continue;
        };
        if let Some(parent) = parent_in_stat(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![child.id()];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    let pids: Vec<String> = found.iter().map(u32::to_string).collect();
    // One of them may have ended meanwhile, which makes `kill` fail and is as good.
    Command::new("sh")
        .args(["-c", &format!("kill -KILL {} 2>/dev/null", pids.join(" "))])
        .status()
        .context("cannot start `sh` to kill a command at its deadline")?;
    Ok(())
}

/// The parent's id in a line of /proc/PID/stat, whose second field is a name that may hold blanks
/// and parentheses.
fn parent_in_stat(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_of_both_streams_and_the_status_are_kept() {
        let deadline = Instant::now() + Duration::from_secs(20);
        let done = watch(sh("echo one; echo two >&2; exit 3"), deadline, &mut |_| {}).unwrap();
        assert_eq!(done.text, "one\ntwo\n");
        assert!(done.failure.unwrap().contains("exit status: 3"));
        assert!(
            watch(sh("true"), deadline, &mut |_| {})
                .unwrap()
                .failure
                .is_none()
        );
    }

    #[test]
    fn a_command_past_its_deadline_is_killed_with_its_children() {
        let start = Instant::now();
        let done = watch(
            sh("sleep 77 & echo $!; wait"),
            start + Duration::from_millis(300),
            &mut |_| {},
        )
        .unwrap();
        assert!(done.failure.unwrap().contains("deadline"));
        assert!(start.elapsed() < Duration::from_secs(10));
        // Gone, or dead and not yet reaped by init; a signal takes a moment to arrive.
        let stat = format!("/proc/{}/stat", done.text.trim());
        let alive = || fs::read_to_string(&stat).is_ok_and(|state| !state.contains(") Z"));
        while alive() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the grandchild is still there"
            );
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_open_does_not_hold_us() {
        let start = Instant::now();
        let done = watch(
            sh("sleep 9 & echo started"),
            start + Duration::from_secs(60),
            &mut |_| {},
        )
        .unwrap();
        assert_eq!(done.text, "started\n");
        assert!(done.failure.is_none());
        assert!(start.elapsed() < Duration::from_secs(8));
    }

    #[test]
    fn the_parent_is_found_behind_an_awkward_name() {
        assert_eq!(parent_in_stat("12 (a) b (c) S 34 12 12 0"), Some(34));
        assert_eq!(parent_in_stat("nonsense"), None);
    }
}
