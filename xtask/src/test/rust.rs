//! The stages that cargo runs. The Python crate's library has no test harness: pytest is what tests
//! it.

use anyhow::Result;

use super::count::Counts;
use super::stage::Runner;
use super::{LIBTEST, NEXTEST};
use crate::repo;

pub(super) fn format(runner: &Runner) -> Result<Counts> {
    runner.check(repo::cargo(["fmt", "--all", "--check"]))
}

pub(super) fn clippy(runner: &Runner) -> Result<Counts> {
    runner.check(repo::cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

pub(super) fn tests(runner: &Runner) -> Result<Counts> {
    let mut nextest = repo::cargo([
        "nextest",
        "run",
        "--workspace",
        "--exclude",
        "ringway-python",
    ]);
    nextest.args([
        "--no-fail-fast",
        "--status-level",
        "slow",
        "--final-status-level",
        "fail",
    ]);
    runner.count(nextest, &NEXTEST)
}

pub(super) fn doctests(runner: &Runner) -> Result<Counts> {
    let test = repo::cargo([
        "test",
        "--doc",
        "--workspace",
        "--exclude",
        "ringway-python",
        "--no-fail-fast",
    ]);
    runner.count(test, &LIBTEST)
}

pub(super) fn documentation(runner: &Runner) -> Result<Counts> {
    let mut doc = repo::cargo(["doc", "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    runner.check(doc)
}
