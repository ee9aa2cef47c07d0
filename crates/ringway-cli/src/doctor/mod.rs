//! `ringway doctor`: what is wrong with a host for RDMA over Ethernet, and what mends it.

mod fleet;
mod watch;

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use ringway_doctor::host::{self, Group, Root};

use crate::output::{self, Output};

/// The exit code if the doctor itself cannot do its work.
const FAILED: u8 = 3;

/// Find what is wrong with this host for RDMA over Ethernet, and what mends it.
///
/// Nothing is changed. Each finding has its evidence, the command that mends it and the one that undoes that. As an
/// ordinary user what only root may read is told, with the command to run.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Exit code: 0 without warnings, 1 with warnings, 2 with errors, 3 if it could not look.\n\n\
                  Examples:\n  ringway doctor\n  ringway doctor --only qos --json | jq '.findings[].remedy'\n  \
                  srun ringway doctor --only memory              # in the job itself: limits differ there\n  \
                  ringway doctor record /tmp/host17              # for a support ticket; then, elsewhere:\n  \
                  ringway doctor --root /tmp/host17 --html host17.html\n  \
                  srun --ntasks-per-node=1 ringway doctor --fleet"
)]
pub(crate) struct Doctor {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Args)]
struct Look {
    /// Look at a recording in place of this machine: a directory with its /sys, /proc, /etc and outputs of commands.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// One group of checks: devices, links, gids, memory, pcie, cpu, qos, sysctls, containers, overlays or slurm.
    #[arg(long, value_name = "GROUP")]
    only: Option<Group>,
    /// All hosts of a job side by side, and the wires between them: to be started as the job is, on all its hosts.
    ///
    /// What differs between hosts comes first; then their processors and memory, then bandwidth, latency, loss, marks and
    /// packet sizes of each pair, and who is to blame for what is slow: a host, its NIC or cable, or a switch. Rank 0 prints.
    #[arg(long, conflicts_with_all = ["root", "only", "html"])]
    fleet: bool,
    /// With --fleet: which devices RDMA is measured with, beside TCP and UDP.
    #[arg(
        long,
        value_name = "DEVICES",
        default_value = "nics",
        requires = "fleet"
    )]
    rdma: fleet::Rdma,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Write a page to this file, too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write what the checks read into a directory, without what is private: for a support ticket, or for tests.
    ///
    /// Host names, MAC and public IP addresses, GUIDs and serial numbers are replaced, the same by the same everywhere.
    #[command(
        after_help = "Example:\n  ringway doctor record /tmp/host17 && tar -C /tmp -czf host17.tgz host17"
    )]
    Record {
        /// A directory that is new or empty.
        dir: PathBuf,
        /// Record what a recording holds, in place of this machine.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Watch the counters of RDMA ports while a job runs, and say what is behind those that rise.
    Watch(watch::Watch),
}

impl Doctor {
    pub(crate) fn execute(self) -> ExitCode {
        let done = match self.command {
            None => self.look.execute(),
            Some(Command::Record { dir, root }) => record(root.as_deref(), &dir),
            Some(Command::Watch(watch)) => watch.execute(),
        };
        // 1 and 2 say what was found.
        done.map_or_else(|error| output::fail(&error, FAILED), ExitCode::from)
    }
}

/// This machine, or the recording that `--root` names.
pub(crate) fn open(root: Option<&Path>) -> Result<Root> {
    match root {
        None => Ok(Root::live()),
        Some(dir) => Root::recorded(dir).with_context(|| {
            format!(
                "--root {}: expected a directory that ringway doctor record has written",
                dir.display()
            )
        }),
    }
}

impl Look {
    fn execute(self) -> Result<u8> {
        if self.fleet {
            return fleet::execute(self.json, self.rdma);
        }
        let root = open(self.root.as_deref())?;
        let page = self
            .html
            .map(|path| Output::open("--html", &path))
            .transpose()?;
        let report = host::diagnose(&root, self.only);
        if let Some(page) = page {
            page.write(&report.html(&title(&root))?)?;
        }
        if self.json {
            output::print_json(&report)?;
        } else {
            let terminal = std::io::stdout().is_terminal();
            let colour = terminal && std::env::var_os("NO_COLOR").is_none();
            output::print(&report.text(colour))?;
        }
        Ok(report.exit_code())
    }
}

fn title(root: &Root) -> String {
    let name = root.text("proc/sys/kernel/hostname");
    format!(
        "RDMA over Ethernet: {}",
        name.as_deref().unwrap_or("a recorded host")
    )
}

fn record(root: Option<&Path>, dir: &Path) -> Result<u8> {
    let files = host::record(open(root)?, dir)?;
    output::print(&format!(
        "recorded {files} files in {}\nnames, addresses and serial numbers are replaced; look through it before you give it away\n\
         to see what it says: ringway doctor --root {}\n",
        dir.display(),
        dir.display()
    ))?;
    Ok(0)
}
