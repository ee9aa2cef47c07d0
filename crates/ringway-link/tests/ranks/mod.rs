//! Ranks as processes: the test binary again, whose test `rank` is told by the environment which one it is.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// What a rank prints when it has come so far that it may be killed.
pub(crate) const READY: &str = "joined";

/// Who this process is, if it is a rank: its number, and the name by which ranks meet.
pub(crate) fn own() -> Option<(usize, String)> {
    let rank = env::var("RINGWAY_TEST_RANK").ok()?;
    let name = env::var("RINGWAY_TEST_NAME").ok()?;
    Some((rank.parse().unwrap(), name))
}

pub(crate) fn start(rank: usize, name: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "rank", "--nocapture"])
        .env("RINGWAY_TEST_RANK", rank.to_string())
        .env("RINGWAY_TEST_NAME", name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the rank is [`READY`].
pub(crate) fn ready(child: &mut Child) {
    let output = BufReader::new(child.stdout.take().unwrap());
    // The test harness may print on the same line.
    assert!(output.lines().any(|line| line.unwrap().ends_with(READY)));
}
