#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway run`: what it starts, prints, ends and returns.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

fn run(ranks: usize, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["run", "-n", &ranks.to_string(), "--", "sh", "-c", script]);
    command
}

fn output(ranks: usize, script: &str) -> (Output, Duration) {
    let began = Instant::now();
    (run(ranks, script).output().unwrap(), began.elapsed())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder for the numbers of processes that a script leaves.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ringway-run-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Waits for a process to have written its number.
fn process(file: &Path) -> Pid {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let number = fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = number.trim().parse().ok().and_then(Pid::from_raw) {
            return pid;
        }
        assert!(Instant::now() < end, "{} was not written", file.display());
        thread::sleep(Duration::from_millis(5));
    }
}

fn ends_soon(pid: Pid) {
    let end = Instant::now() + Duration::from_secs(8);
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    // One that nobody has waited for yet counts as ended.
    let lives = || {
        test_kill_process(pid).is_ok()
            && !fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z"))
    };
    while lives() {
        assert!(Instant::now() < end, "process {pid:?} lives on");
        thread::sleep(Duration::from_millis(10));
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

#[test]
fn lines_begin_with_their_rank_and_the_end_is_good() {
    let (output, _) = output(3, "echo $RANK of $WORLD_SIZE; printf no-newline");
    assert!(output.status.success());
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    let expected: Vec<_> = (0..3)
        .flat_map(|r| [format!("[{r}] {r} of 3"), format!("[{r}] no-newline")])
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn the_first_failure_ends_the_others_and_gives_the_exit_code() {
    let (output, took) = output(3, "test $RANK = 1 && exit 7; sleep 60");
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("rank 1 ended with exit code 7"));
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn the_killed_rank_is_named_not_those_that_end_because_of_it() {
    let (output, _) = output(
        3,
        "if test $RANK = 2; then kill -9 $$; else sleep 0.3; exit 1; fi",
    );
    assert_eq!(output.status.code(), Some(137));
    assert!(text(&output.stderr).contains("rank 2 ended with signal 9"));
}

#[test]
fn what_a_rank_started_ends_with_it() {
    let folder = folder("grandchildren");
    let script = format!(
        "sleep 300 & echo $! > {}/$RANK; test $RANK = 1 && exit 3; wait",
        folder.display()
    );
    let (output, took) = output(2, &script);
    assert_eq!(output.status.code(), Some(3));
    assert!(took < Duration::from_secs(20), "{took:?}");
    for rank in ["0", "1"] {
        ends_soon(process(&folder.join(rank)));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_pipe_that_somebody_holds_is_not_waited_for() {
    let (output, took) = output(2, "sleep 20 & echo here");
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).matches("here").count(), 2);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_signal_stops_all_even_those_that_ignore_it() {
    let folder = folder("signal");
    let script = format!(
        "trap '' TERM INT; echo $$ > {}/$RANK; while :; do sleep 1; done",
        folder.display()
    );
    let mut child = run(2, &script).stderr(Stdio::null()).spawn().unwrap();
    let ranks = ["0", "1"].map(|rank| process(&folder.join(rank)));
    kill_process(pid_of(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    ranks.into_iter().for_each(ends_soon);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ranks_end_with_a_launcher_that_is_killed() {
    let folder = folder("launcher");
    let script = format!("echo $$ > {}/$RANK; exec sleep 300", folder.display());
    let mut child = run(2, &script).spawn().unwrap();
    let ranks = ["0", "1"].map(|rank| process(&folder.join(rank)));
    child.kill().unwrap();
    child.wait().unwrap();
    ranks.into_iter().for_each(ends_soon);
    fs::remove_dir_all(folder).unwrap();
}
