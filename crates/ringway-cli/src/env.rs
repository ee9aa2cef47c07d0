//! `ringway env`: variables for the job's environment that follow from the host.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use ringway_doctor::host::nccl;

use crate::{doctor, output};

/// Show the environment variables that this host is right for, and why.
#[derive(Debug, Args)]
pub(crate) struct Env {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// NCCL's settings for RoCE, each with its reason and what was read; what no host can tell is not set.
    ///
    /// They are this host's: names of devices and indices of GIDs differ between hosts, so let each host ask for itself.
    #[command(
        after_help = "Examples:\n  ringway env nccl\n  eval \"$(ringway env nccl --export)\"     # in the job's script, on each host\n  \
                      ringway env nccl --root /tmp/host17 --json | jq '.settings[].name'"
    )]
    Nccl {
        /// Of a recording by `ringway doctor record`, in place of this machine.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// As JSON.
        #[arg(long, conflicts_with = "export")]
        json: bool,
        /// As commands of a shell.
        #[arg(long)]
        export: bool,
    },
}

impl Env {
    pub(crate) fn execute(self) -> Result<()> {
        let Command::Nccl { root, json, export } = self.command;
        let advice = nccl::advise(&doctor::open(root.as_deref())?);
        if json {
            output::print_json(&advice)
        } else if export {
            output::print(&advice.export())
        } else {
            output::print(&advice.text())
        }
    }
}
