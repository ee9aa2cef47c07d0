//! Model checking and fuzzing, each built its own way in its own target directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::NEXTEST;
use super::count::Counts;
use super::stage::Runner;
use crate::{process, repo};

/// How long all fuzz targets together run.
const FUZZ_SECONDS: usize = 100;

/// What `cargo fuzz` passes to rustc, without a sanitizer: the parsers are safe Rust, and so stable
/// Rust will do.
const COVERAGE: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
];

/// Runs the tests in modules called `model` of every crate that depends on loom. Under `cfg(loom)`
/// they are the only ones that can run: loom's types work within a model only.
pub(super) fn loom(runner: &Runner) -> Result<Counts> {
    let crates = crates_with_loom()?;
    if crates.is_empty() {
        println!("no crate depends on loom");
        return Ok(Counts::default());
    }
    let mut nextest = repo::cargo(["nextest", "run", "--release", "--lib", "--no-fail-fast"]);
    for name in &crates {
        nextest.args(["--package", name]);
    }
    nextest.args([
        "--status-level",
        "slow",
        "--filterset",
        "test(/(^|::)model::/)",
    ]);
    nextest
        .arg("--target-dir")
        .arg(repo::target().join("loom"))
        .env("RUSTFLAGS", "--cfg loom");
    runner.count(nextest, &NEXTEST)
}

fn crates_with_loom() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repo::root().join("crates"))? {
        let path = entry?.path();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
        if manifest.lines().any(|line| line.starts_with("loom")) {
            found.extend(
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
    }
    found.sort();
    Ok(found)
}

/// Builds the targets of `fuzz/` and runs each for some seconds on what its corpus holds.
pub(super) fn fuzz(runner: &Runner) -> Result<Counts> {
    let dir = repo::root().join("fuzz");
    if !dir.join("Cargo.toml").exists() {
        println!("there are no fuzz targets");
        return Ok(Counts::default());
    }
    let triple = host_triple()?;
    let target = repo::target().join("fuzz");
    let mut build = repo::cargo([
        "build",
        "--release",
        "--bins",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ]);
    // With a target triple named, build scripts and procedural macros are left without
    // instrumentation.
    build
        .args(["--target", &triple, "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", COVERAGE.join(" "));
    runner.check(build)?;

    let mut counts = Counts::default();
    let targets = fuzz_targets(&dir)?;
    let seconds = (FUZZ_SECONDS / targets.len().max(1)).max(1);
    for name in targets {
        let binary = target.join(&triple).join("release").join(&name);
        match smoke(runner, &dir, &binary, &name, seconds) {
            Ok(said) => {
                println!("{name}: {seconds} s, {} inputs", inputs(&said));
                counts = counts + Counts::one_passed();
            }
            Err(error) => {
                println!("{name}: {error:#}");
                runner.failed(name);
                counts = counts + Counts::one_failed();
            }
        }
    }
    Ok(counts)
}

/// How many inputs a target was run on, from libFuzzer's statistics.
fn inputs(said: &str) -> &str {
    said.lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("no known number of", str::trim)
}

/// Runs one target for so many seconds; what it said.
fn smoke(runner: &Runner, dir: &Path, binary: &Path, name: &str, seconds: usize) -> Result<String> {
    let corpus = dir.join("corpus").join(name);
    let artifacts = dir.join("artifacts").join(name);
    for made in [&corpus, &artifacts] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let mut fuzz = Command::new(binary);
    fuzz.current_dir(dir)
        .arg(format!("-max_total_time={seconds}"));
    fuzz.args([
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-verbosity=0",
        "-print_final_stats=1",
    ]);
    fuzz.arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(&corpus);
    let seeds = dir.join("seeds").join(name);
    if seeds.is_dir() {
        fuzz.arg(&seeds);
    }
    runner.quiet(fuzz)
}

/// The names of the files in `fuzz_targets/`, as `cargo fuzz` lays them out.
fn fuzz_targets(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir.join("fuzz_targets")).context("cannot list fuzz/fuzz_targets")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    names.sort();
    Ok(names)
}

fn host_triple() -> Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.arg("-vV").current_dir(repo::root());
    let text = process::read(rustc)?;
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(triple) => Ok(triple.to_owned()),
        None => bail!("`rustc -vV` names no host: {text}"),
    }
}
