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
fn a_line_without_end_is_cut_and_not_kept() {
    let (output, _) = output(1, "head -c 200000 /dev/zero | tr '\\0' x");
    let text = text(&output.stdout);
    let lengths: Vec<_> = text.lines().map(|line| line.len() - "[0] ".len()).collect();
    assert_eq!(lengths, [65536, 65536, 65536, 200_000 - 3 * 65536]);
}

#[test]
fn options_that_it_does_not_know_are_not_taken_for_the_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command
        .args(["run", "-n", "1", "--json", "--", "echo"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("unexpected argument '--json'"));
    // The program's own are its own.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command
        .args(["run", "-n", "1", "echo", "--json", "-n"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "[0] --json -n\n");
}

#[test]
fn two_jobs_on_one_port_are_told_apart() {
    let ringway = env!("CARGO_BIN_EXE_ringway");
    let job = |port: &str, ranks: &str| {
        let mut command = Command::new(ringway);
        command.args(["run", "-n", ranks, "--port", port, "--", "sh", "-c"]);
        command
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let port = port.to_string();
    let folder = folder("jobs");
    let stop = folder.join("stop");
    // The first job's rank 0 serves the port, and its rank 1 comes after the second job has been there.
    let bench = format!("{ringway} bench barrier -n 1");
    let script = format!(
        "if test $RANK = 1; then while ! test -e {}; do sleep 0.05; done; fi; exec {bench}",
        stop.display()
    );
    let first = job(&port, "2")
        .arg(script)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(Instant::now() < end, "nobody serves the port");
        thread::sleep(Duration::from_millis(10));
    }
    let second = job(&port, "2")
        .arg(format!("exec {bench}"))
        .output()
        .unwrap();
    fs::write(&stop, "").unwrap();
    let errors = text(&second.stderr);
    assert!(!second.status.success());
    assert!(
        errors.contains("give each job a master port of its own"),
        "{errors}"
    );
    let first = first.wait_with_output().unwrap();
    assert!(first.status.success(), "{}", text(&first.stderr));
    fs::remove_dir_all(folder).unwrap();
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

/// Whichever rank it is: all of them do without, at once, and say why.
#[test]
fn ranks_do_without_shared_memory_where_one_cannot_map_it() {
    for rank in 0..2 {
        let bench = format!("{} bench barrier -n 1", env!("CARGO_BIN_EXE_ringway"));
        let limit = format!("if test $RANK = {rank}; then ulimit -v 3000000; fi; exec {bench}");
        let (output, _) = output(2, &limit);
        let (told, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{errors}");
        assert!(told.contains(" tcp "), "{told}");
        let reason = format!("rank {rank}: mmap of");
        assert_eq!(errors.matches(&reason).count(), 2, "{errors}");
    }
}

/// In a network namespace of its own, which needs root and `ip` (iproute2); without, it says so and passes.
#[test]
fn ranks_meet_where_the_loopback_interface_has_ipv6_only() {
    let probe = Command::new("unshare")
        .args(["--net", "ip", "link"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("not tested: no network namespace to be had");
        return;
    }
    let ringway = env!("CARGO_BIN_EXE_ringway");
    let alone = |prepare: &str| {
        let script = format!("{prepare}; exec {ringway} run -n 2 -- {ringway} bench barrier -n 1");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script]);
        command.output().unwrap()
    };
    let output = alone("ip link set lo up && ip address del 127.0.0.1/8 dev lo");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = alone("ip link set lo down");
    assert!(text(&output.stderr).contains("`ip link set lo up`"));
}
