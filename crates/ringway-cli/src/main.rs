//! The `ringway` command: start ranks, measure collectives and RDMA, look at schedules, fabrics and settings.
#![forbid(unsafe_code)]
// Results go through `output::print`, which does not panic where nobody reads them.
#![warn(clippy::print_stdout)]

mod bench;
mod config;
mod doctor;
mod env;
mod explain;
mod fabric;
mod input;
mod lab;
mod launch;
mod machine;
mod output;
mod perf;
mod picture;
mod plan;
mod processors;
mod rdma;
mod replay;
mod run;
mod sim;
mod size;
mod step;
mod svg;
mod table;
mod twin;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Collective communication for distributed training: run, measure, and look inside.
#[derive(Debug, Parser)]
#[command(
    name = "ringway",
    version,
    max_term_width = 110,
    after_help = "Exit code: 0, or 1 after an error, unless a command's own help says more; 141 if the reader of the standard \
                  output has gone, as in `ringway plan list | head -1`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a collective, with nccl-tests' flags and columns.
    Bench(bench::Bench),
    /// Show the settings, and where each comes from.
    Config(config::Config),
    /// Find what is wrong with this host for RDMA over Ethernet, and what mends it.
    Doctor(doctor::Doctor),
    /// Show the environment variables that this host is right for, and why.
    Env(env::Env),
    /// Explain which algorithm is the quickest for a size on a fabric, and why.
    Explain(explain::Explain),
    /// Describe the network under a job, check it, place ranks on it, configure its switches and hosts.
    Fabric(fabric::Fabric),
    /// Run programs on a fabric that is made of network namespaces, on this machine.
    Lab(lab::Lab),
    /// Measure RDMA between two hosts, with perftest's tests and columns.
    Perf(perf::Perf),
    /// Show or verify the schedule of a collective.
    Plan(plan::Plan),
    /// Show the RDMA devices of this machine.
    Rdma(rdma::Rdma),
    /// Simulate a recorded job on another fabric.
    Replay(replay::Replay),
    /// Start a program as several ranks on this machine.
    Run(run::Run),
    /// Run a collective on a fabric, in virtual time.
    Sim(sim::Sim),
    /// Run collectives in a lab and in the simulator, and compare.
    Twin(twin::Twin),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Bench(bench) => bench.execute(),
        Command::Config(config) => config.execute().map(|()| ExitCode::SUCCESS),
        Command::Doctor(doctor) => Ok(doctor.execute()),
        Command::Env(env) => env.execute().map(|()| ExitCode::SUCCESS),
        Command::Explain(explain) => explain.execute().map(|()| ExitCode::SUCCESS),
        Command::Fabric(fabric) => fabric.execute(),
        Command::Lab(lab) => lab.execute(),
        Command::Perf(perf) => perf.execute().map(|()| ExitCode::SUCCESS),
        Command::Plan(plan) => plan.execute().map(|()| ExitCode::SUCCESS),
        Command::Rdma(rdma) => rdma.execute().map(|()| ExitCode::SUCCESS),
        Command::Replay(replay) => replay.execute().map(|()| ExitCode::SUCCESS),
        Command::Run(run) => run.execute(),
        Command::Sim(sim) => sim.execute().map(|()| ExitCode::SUCCESS),
        Command::Twin(twin) => twin.execute(),
    };
    result.unwrap_or_else(|error| output::fail(&error, 1))
}
