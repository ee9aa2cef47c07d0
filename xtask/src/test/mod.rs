//! `cargo xtask test`: every check of the repository, as stages.
//!
//! A stage that fails does not stop those that do not need it. Tests are counted as their runners
//! report them; a stage without tests of its own (a linter, a build) counts as one.

mod count;
mod failures;
mod rust;
mod slow;
mod stage;
mod vm;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{demo, process, python, repo};
use count::Counts;
use stage::{Report, Runner, Stage, State, Verdict};

/// All stages together end before this, whatever hangs.
const BUDGET: Duration = Duration::from_secs(55 * 60);

const STAGES: [Stage; 15] = [
    Stage::new("setup", &[], 20, install),
    Stage::new("rustfmt", &[], 2, rust::format),
    Stage::new("clippy", &[], 15, rust::clippy),
    Stage::new("tests", &[], 25, rust::tests),
    Stage::new("doctests", &[], 10, rust::doctests),
    Stage::new("rustdoc", &[], 10, rust::documentation),
    Stage::new("ruff", &["setup"], 2, ruff),
    Stage::new("mypy", &["setup"], 5, mypy),
    Stage::new("wheel", &["setup"], 10, wheel),
    Stage::new("pytest", &["wheel"], 10, pytest),
    Stage::new("vectors", &[], 5, vectors),
    Stage::new("digits", &["wheel"], 10, digits),
    Stage::new("loom", &[], 10, slow::loom),
    Stage::new("vm", &[], 20, vm::run),
    Stage::new("fuzz", &[], 20, slow::fuzz),
];

const NEXTEST: Report = Report {
    counts: count::nextest,
    failures: failures::nextest,
};

const LIBTEST: Report = Report {
    counts: count::libtest,
    failures: failures::libtest,
};

const PYTEST: Report = Report {
    counts: count::pytest,
    failures: failures::pytest,
};

/// The stages' names, in their order.
pub(crate) fn stages() -> [&'static str; STAGES.len()] {
    STAGES.each_ref().map(Stage::name)
}

/// Runs the stages named, or all where none is, prints the table and, as the last line, the sums.
pub(crate) fn run(names: &[String]) -> Result<ExitCode> {
    let start = Instant::now();
    let mut verdicts: Vec<Verdict> = Vec::new();
    let wanted = |stage: &&Stage| names.is_empty() || names.iter().any(|name| name == stage.name());
    for stage in STAGES.iter().filter(wanted) {
        let verdict = stage.judge(&verdicts, start + BUDGET);
        println!("== {verdict}");
        verdicts.push(verdict);
    }
    println!(
        "\n{} stages, {:.0} s:",
        verdicts.len(),
        start.elapsed().as_secs_f64()
    );
    for verdict in &verdicts {
        println!("  {verdict}");
    }
    for verdict in verdicts.iter().filter(|v| !v.failures.is_empty()) {
        println!("failed in {}:", verdict.name());
        for name in &verdict.failures {
            println!("  {name}");
        }
    }
    let sum = verdicts
        .iter()
        .fold(Counts::default(), |sum, verdict| sum + verdict.counts);
    println!("{} passed, {} failed", sum.passed, sum.failed);
    let good = sum.failed == 0
        && verdicts
            .iter()
            .all(|verdict| verdict.state == State::Passed);
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn install(runner: &Runner) -> Result<Counts> {
    let mut setup = std::process::Command::new(std::env::current_exe()?);
    setup.arg("setup");
    runner.check(setup)
}

fn ruff(runner: &Runner) -> Result<Counts> {
    let mut check = repo::venv_command("ruff");
    check.arg("check").args(python::RUFF_PATHS);
    let mut format = repo::venv_command("ruff");
    format.args(["format", "--check"]).args(python::RUFF_PATHS);
    Ok(runner.check(check)? + runner.check(format)?)
}

fn mypy(runner: &Runner) -> Result<Counts> {
    let mut mypy = repo::venv_command("mypy");
    mypy.current_dir(repo::root().join("python"));
    runner.check(mypy)
}

fn wheel(runner: &Runner) -> Result<Counts> {
    for command in python::wheel_commands()? {
        runner.check(command)?;
    }
    Ok(Counts::one_passed())
}

fn pytest(runner: &Runner) -> Result<Counts> {
    let mut pytest = repo::venv_command("pytest");
    pytest
        .args(["-q", "-ra", "--color=no"])
        .current_dir(repo::root().join("python"));
    runner.count(pytest, &PYTEST)
}

/// No vector instruction of the release build is a function of its own: where inlining fails, each costs a call and
/// kernels run at a twentieth of their speed, with the right results.
fn vectors(runner: &Runner) -> Result<Counts> {
    runner.check(demo::build_launcher())?;
    let mut symbols = std::process::Command::new("nm");
    symbols.arg("--defined-only").arg(repo::ringway());
    let symbols = process::read(symbols)?;
    let called: Vec<&str> = symbols
        .lines()
        .filter(|line| {
            ["_mm_", "_mm256_", "_mm512_"]
                .iter()
                .any(|name| line.contains(name))
        })
        .collect();
    if !called.is_empty() {
        bail!(
            "vector instructions that were not inlined; is there a closure between them and the function that enables \
             them?\n{}",
            called.join("\n")
        );
    }
    Ok(Counts::one_passed())
}

/// The demo's training over Ringway: the path from a user's script down to the transports.
fn digits(runner: &Runner) -> Result<Counts> {
    runner.check(demo::build_launcher())?;
    runner.check(demo::train("ringway")?)?;
    let accuracy = demo::records("ringway")?.run.accuracy;
    if accuracy < demo::LEAST_ACCURACY {
        bail!(
            "{:.2} % of the held-out digits recognised, at least {:.0} % are expected",
            accuracy * 100.0,
            demo::LEAST_ACCURACY * 100.0
        );
    }
    Ok(Counts::one_passed())
}
