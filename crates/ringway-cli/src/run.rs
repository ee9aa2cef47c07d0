//! `ringway run`: a program as several ranks on this machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::launch::{Job, Output, Seat};

/// Start a program as several ranks on this machine, with the environment variables that torchrun sets.
///
/// Each line of output begins with its rank; lines beyond 64 KiB are cut. When a rank fails, the others have 5 s to end by themselves (they learn
/// of it, and say what they know), then they are stopped; the exit code is that of the rank that failed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway run -n 4 -- ./train --epochs 3\n  ringway run -n 2 -- python examples/train_digits.py"
)]
pub(crate) struct Run {
    /// How many ranks.
    #[arg(short = 'n', long = "ranks", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// The port that ranks meet at; a free one if not given.
    #[arg(long)]
    port: Option<u16>,
    /// Leave output as it is, with no rank before each line.
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl Run {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        let Self {
            ranks,
            port,
            no_prefix,
            command,
        } = self;
        Job {
            command,
            seats: Seat::here(ranks.into()),
            output: match no_prefix {
                true => Output::Plain,
                false => Output::Prefixed,
            },
            master: None,
            port,
        }
        .execute()
    }
}
