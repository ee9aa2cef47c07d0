//! `ringway fabric`: the network underneath, its configuration and what is wrong with it.

mod config;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Configure switches and hosts from one intent.
#[derive(Debug, Args)]
pub(crate) struct Fabric {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The configuration of a switch or host for an intent, what undoes it, and what verifies it.
    Config(config::Config),
}

impl Fabric {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        match self.command {
            Command::Config(config) => config.execute().map(|()| ExitCode::SUCCESS),
        }
    }
}
