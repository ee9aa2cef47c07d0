//! `ringway rdma`: what RDMA there is on this machine.

mod json;
mod look;
mod text;

use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::output;

/// Show the RDMA devices of this machine.
#[derive(Debug, Args)]
pub(crate) struct Rdma {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Devices, ports, GIDs and which of them would be used; if there are none, why, and how to get one.
    #[command(
        after_help = "The GID marked with * is the one that would be used: RoCE v2, routable, IPv4 before IPv6.\n\n\
                      Examples:\n  ringway rdma list\n  ringway rdma list --counters\n  \
                      ringway rdma list --json | jq '.devices[].ports[].gids'"
    )]
    List {
        /// Counters that are not zero, too: the ports' standard ones and the driver's own.
        #[arg(long)]
        counters: bool,
        /// As JSON, with all counters.
        #[arg(long)]
        json: bool,
    },
}

impl Rdma {
    pub(crate) fn execute(self) -> Result<()> {
        let Command::List { counters, json } = self.command;
        let found = look::look(Path::new("/"))?;
        if json {
            output::print_json(&json::report(&found))
        } else {
            output::print(&text::report(&found, counters))
        }
    }
}
