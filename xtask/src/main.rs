//! Tasks of the repository: `cargo xtask setup | demo | test | bench | fmt`.
//!
//! Each task runs [`setup`] first, which installs what is missing and otherwise takes a second or
//! two.

#![forbid(unsafe_code)]

mod bench;
mod demo;
mod fmt;
mod process;
mod python;
mod repo;
mod setup;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::builder::PossibleValuesParser;

/// Everything that is done with a checkout, from a fresh machine on.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
enum Task {
    /// Install what building and testing need: Debian packages, cargo-nextest, a Python environment
    /// in .venv
    Setup,
    /// Train a network on 2 ranks over Ringway and over Gloo; writes report/demo.html
    Demo,
    /// Run every check; the last line printed is `N passed, N failed`
    Test {
        /// Only these stages; those they need are taken to have passed
        #[arg(value_parser = PossibleValuesParser::new(test::stages()))]
        stages: Vec<String>,
    },
    /// Measure all-reduce over shared memory and TCP on 2 and 4 ranks; writes report/bench.md
    Bench,
    /// Format Rust and Python sources
    Fmt,
}

fn main() -> ExitCode {
    let done: Result<ExitCode> = match Task::parse() {
        Task::Setup => setup::run().map(|()| ExitCode::SUCCESS),
        Task::Demo => demo::run().map(|()| ExitCode::SUCCESS),
        Task::Test { stages } => test::run(&stages),
        Task::Bench => bench::run().map(|()| ExitCode::SUCCESS),
        Task::Fmt => fmt::run().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
