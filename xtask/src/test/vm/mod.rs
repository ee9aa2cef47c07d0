//! Tests on real RDMA devices of Linux: soft RoCE, in a virtual machine with Debian's kernel.
//!
//! Test binaries of the workspace run in it unchanged: the machine's user space is of the same Debian release as the one
//! that has built them. To add some, name them in [`TESTS`]; for anything else, add a [`Scenario`].

mod image;
mod machine;

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, Result, bail};

use self::{
    image::Image,
    machine::{Machine, Scenario},
};
use super::{LIBTEST, count::Counts, stage::Runner};
use crate::{process, repo};

/// Test targets whose ignored tests need the machine, with the seconds that each may take there.
const TESTS: [(&str, u64); 2] = [("live", 60), ("verbs", 60)];

pub(super) fn run(runner: &Runner) -> Result<Counts> {
    if let Some(reason) = Image::impossible() {
        runner.note(format!("skipped: {reason}"));
        return Ok(Counts::skipped(TESTS.len() as u64));
    }
    let image = Image::get(runner)?;
    let binaries = executables()?;
    let scenarios = TESTS.map(|(target, seconds)| Scenario {
        name: target.to_owned(),
        script: format!("/share/bin/{target} --ignored --test-threads=1"),
        seconds,
    });
    let machine = Machine {
        devices: 2,
        mtu: 4200, // for packets of 4096 bytes of payload
        binaries,
    };
    let outcomes = machine.run(runner, &image, &scenarios)?;
    let mut sum = Counts::default();
    for outcome in outcomes {
        println!(
            "-- {} in the virtual machine\n{}",
            outcome.name,
            outcome.text.trim()
        );
        for name in (LIBTEST.failures)(&outcome.text) {
            runner.failed(name);
        }
        let mut counts = (LIBTEST.counts)(&outcome.text).unwrap_or_default();
        match outcome.code {
            Some(0) if counts.passed > 0 => {}
            Some(0) => bail!("{} ran no test in the virtual machine", outcome.name),
            code => {
                let why = code.map_or_else(
                    || "did not end".to_owned(),
                    |code| format!("ended with {code}"),
                );
                println!("{} {why} in the virtual machine", outcome.name);
                counts.failed = counts.failed.max(1);
            }
        }
        sum = sum + counts;
    }
    Ok(sum)
}

/// The executables of the test targets with their names, built as the other tests are.
fn executables() -> Result<Vec<(PathBuf, String)>> {
    let mut build = repo::cargo([
        "test",
        "--workspace",
        "--exclude",
        "ringway-python",
        "--no-run",
        "--message-format=json",
    ]);
    for (target, _) in TESTS {
        build.args(["--test", target]);
    }
    build.stderr(Stdio::inherit());
    let messages: Vec<serde_json::Value> = process::read(build)?
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let built = |target: &str| {
        messages
            .iter()
            .filter(|message| message["target"]["name"] == target)
            .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
            .with_context(|| format!("cargo built no executable of the test {target}"))
    };
    TESTS
        .into_iter()
        .map(|(target, _)| Ok((built(target)?, target.to_owned())))
        .collect()
}
