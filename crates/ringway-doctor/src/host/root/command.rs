//! Commands that only look.

use std::{
    io::Read as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::Unread;

/// How long a command may take: a doctor who waits for a driver that hangs helps nobody.
const PATIENCE: Duration = Duration::from_millis(900);

/// The standard output of a command, in the language that is parsed.
pub(super) fn run(command: &[&str]) -> Result<String, Unread> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Unread::Absent);
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env("PATH", path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Unread::of(&error))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let out = scope.spawn(|| text(stdout));
        let err = scope.spawn(|| text(stderr));
        let ended = wait(&mut child);
        let (out, err) = (out.join(), err.join());
        let words = err.unwrap_or_default();
        match ended {
            Some(true) => Ok(out.unwrap_or_default()),
            Some(false) => Err(failure(&words)),
            None => Err(Unread::Failed(format!(
                "no answer in {} ms",
                PATIENCE.as_millis()
            ))),
        }
    })
}

/// Where commands are looked for. Tools for administrators are not in the path of an ordinary user.
fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin:/usr/local/sbin")
}

/// Whether there is such a command.
pub(super) fn installed(program: &str) -> bool {
    path()
        .split(':')
        .any(|dir| Path::new(dir).join(program).is_file())
}

fn text(pipe: Option<impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What came before an error is all there is.
        let _ = pipe.take(super::LARGEST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether it succeeded; `None` if it had to be stopped.
fn wait(child: &mut Child) -> Option<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

fn failure(words: &str) -> Unread {
    let line = words.lines().map(str::trim).find(|line| !line.is_empty());
    let lower = words.to_ascii_lowercase();
    let denied = [
        "not permitted",
        "permission denied",
        "must be root",
        "as root",
    ];
    if denied.iter().any(|it| lower.contains(it)) {
        Unread::Denied
    } else {
        Unread::Failed(line.unwrap_or("it failed without a word").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_fails_or_is_missing() {
        assert_eq!(run(&["printf", "a b"]), Ok("a b".to_owned()));
        assert_eq!(run(&["ringway-no-such-command"]), Err(Unread::Absent));
        let late = run(&["sleep", "30"]).unwrap_err().to_string();
        assert!(late.starts_with("no answer"), "{late}");
        let refused = run(&["sh", "-c", "echo Operation not permitted >&2; exit 1"]);
        assert_eq!(refused, Err(Unread::Denied));
        let failed = run(&["sh", "-c", "echo; echo no such device >&2; exit 1"]);
        assert_eq!(failed, Err(Unread::Failed("no such device".to_owned())));
    }
}
