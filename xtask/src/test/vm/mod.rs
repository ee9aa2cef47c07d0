//! Tests on real RDMA devices of Linux: soft RoCE, in a virtual machine with Debian's kernel.
//!
//! Executables of the workspace run in it unchanged: the machine's user space is of the same Debian release as the one
//! that has built them. To run more, add test targets to [`TESTS`] and anything else to [`SCRIPTS`].

mod capture;
mod image;
mod machine;

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
};

use anyhow::{Context, Result, bail};

use self::{
    image::Image,
    machine::{Machine, Outcome, Scenario},
};
use super::{LIBTEST, count::Counts, stage::Runner};
use crate::{demo, process, repo};

/// Names, scripts that end with 0 if all is well, and seconds that each may take. The command is there, as `ringway` and
/// `ringway-release`, and Debian's ibverbs-utils, rdmacm-utils, perftest, iproute2 and tcpdump. They run before the tests. The
/// limits are for what hangs: a busy host takes three times as long as an idle one.
const SCRIPTS: [(&str, &str, u64); 7] = [
    (
        "list",
        "/share/bin/ringway rdma list | tee /tmp/list && grep 'GID  [*] .* RoCE v2 .* 10.0.0.1 (rank0)' /tmp/list",
        30,
    ),
    ("perf", include_str!("perf.sh"), 240),
    ("capture", include_str!("capture.sh"), 120),
    ("doctor", include_str!("doctor.sh"), 240),
    ("bench", include_str!("bench.sh"), 600),
    ("loss", include_str!("loss.sh"), 600),
    ("chaos", include_str!("chaos.sh"), 900),
];

/// Test targets whose ignored tests need the machine, with the seconds that each may take there.
const TESTS: [(&str, u64); 6] = [
    ("live", 120),
    ("verbs", 120),
    ("soft_roce", 240),
    ("soft_cm", 240),
    ("transport_contract", 180),
    ("rxe", 240),
];

pub(super) fn run(runner: &Runner) -> Result<Counts> {
    if let Some(reason) = Image::impossible() {
        runner.note(format!("skipped: {reason}"));
        return Ok(Counts::skipped((SCRIPTS.len() + TESTS.len()) as u64));
    }
    // Two runs at once would make the same image, and share a directory and the processors.
    let dir = repo::target().join("vm");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let lock = File::create(dir.join("lock")).context("cannot write target/vm/lock")?;
    lock.lock().context("cannot lock target/vm/lock")?;
    let image = Image::get(runner, &dir)?;
    let scripts = SCRIPTS.map(|(name, script, seconds)| Scenario {
        name: name.to_owned(),
        script: script.to_owned(),
        seconds,
    });
    let tests = TESTS.map(|(target, seconds)| Scenario {
        name: target.to_owned(),
        script: format!("/share/bin/{target} --ignored --test-threads=1"),
        seconds,
    });
    let machine = Machine {
        devices: 8,
        mtu: 4200, // for packets of 4096 bytes of payload
        binaries: executables()?,
    };
    let scenarios: Vec<Scenario> = scripts.into_iter().chain(tests).collect();
    let mut sum = Counts::default();
    for outcome in machine.run(runner, &dir, &image, &scenarios)? {
        let name = &outcome.name;
        let (said, captured) = capture::split(&outcome.text);
        println!(
            "-- {name} in the virtual machine, {} s\n{}",
            outcome.seconds,
            said.trim()
        );
        sum = sum + judge(runner, &outcome)?;
        if let Some(captured) = captured {
            sum = sum + capture::check(runner, &dir, captured)?;
        }
    }
    Ok(sum)
}

/// The tests of a scenario, or the one that a script is.
fn judge(runner: &Runner, outcome: &Outcome) -> Result<Counts> {
    let name = &outcome.name;
    for test in (LIBTEST.failures)(&outcome.text) {
        runner.failed(test);
    }
    let is_script = SCRIPTS.iter().any(|(script, ..)| script == name);
    let counts = (LIBTEST.counts)(&outcome.text);
    match (outcome.code, counts) {
        (Some(0), _) if is_script => Ok(Counts::one_passed()),
        (Some(0), Some(counts)) if counts.passed > 0 => Ok(counts),
        (Some(0), _) => bail!("{name} ran no test in the virtual machine"),
        (code, counts) => {
            let why = code.map_or_else(
                || "did not end".to_owned(),
                |code| format!("ended with {code}"),
            );
            println!("{name} {why} in the virtual machine");
            if is_script {
                runner.failed(name.clone());
            }
            let counts = counts.unwrap_or_default();
            Ok(Counts {
                failed: counts.failed.max(1),
                ..counts
            })
        }
    }
}

/// The executables with their names, built as the other tests are. Cargo builds the command for its integration tests,
/// of which `rdma` is one. Beside perftest stands the release build, which other stages need as well: as `ringway-release`, as
/// all other scripts shall meet what only a debug build checks.
fn executables() -> Result<Vec<(PathBuf, String)>> {
    let mut build = repo::cargo([
        "test",
        "--workspace",
        "--exclude",
        "ringway-python",
        "--no-run",
        "--message-format=json",
        "--test=rdma",
    ]);
    for (target, _) in TESTS {
        build.args(["--test", target]);
    }
    build.stderr(Stdio::inherit());
    let mut release = demo::build_launcher();
    release.stderr(Stdio::inherit());
    process::run(release)?;
    let messages: Vec<serde_json::Value> = process::read(build)?
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let built = |name: &str, kind: &str| {
        let path = messages
            .iter()
            .filter(|message| {
                message["target"]["name"] == name && message["target"]["kind"][0] == kind
            })
            .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
            .with_context(|| format!("cargo built no executable {name}"))?;
        Ok((path, name.to_owned()))
    };
    TESTS
        .into_iter()
        .map(|(target, _)| built(target, "test"))
        .chain([
            built("ringway", "bin"),
            Ok((repo::ringway(), "ringway-release".to_owned())),
            // Debian's busybox has none.
            Ok((PathBuf::from("/usr/bin/chrt"), "chrt".to_owned())),
        ])
        .collect()
}
