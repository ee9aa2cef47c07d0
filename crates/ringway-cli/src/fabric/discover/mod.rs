//! `ringway fabric discover`: a fabric file of what is there.

mod cluster;
mod file;
mod job;
mod look;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ringway::bootstrap::{BootstrapError, Launch};
use ringway_doctor::host::Root;

use crate::output;
use file::{Found, Links, by_lldp};

/// Write a fabric file of what this host shows, or, as all ranks of a job, of what its hosts show and links do.
///
/// Of a host: NUMA nodes, GPUs, network cards with their rates, and the switches that LLDP names (`lldpcli`): the fastest cards are its rails. In a job, pairs of hosts exchange
/// messages, all hosts at once, each with each other: hosts between which that goes quicker are taken to be in one rack. Every
/// value in the file says whether it was read, measured or guessed. What is above the racks nobody can see from hosts: it is
/// written as one spine that lets pass what was measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric discover > fabric.yaml\n  ringway fabric discover --root recording/\n  srun ringway fabric discover > fabric.yaml\n  ringway lab run fabric.yaml -- ringway fabric discover"
)]
pub(crate) struct Discover {
    /// Look at this directory in place of `/`, such as one that `ringway doctor record` has written.
    #[arg(long)]
    root: Option<PathBuf>,
    /// Of this host only, also in a job.
    #[arg(long)]
    here: bool,
    /// As JSON: the file's text.
    #[arg(long)]
    json: bool,
}

impl Discover {
    pub(crate) fn execute(self) -> Result<()> {
        let root = match &self.root {
            None => Root::live(),
            Some(path) => Root::recorded(path).with_context(|| path.display().to_string())?,
        };
        let host = look::host(&root);
        let launch = match self.here || self.root.is_some() {
            true => None,
            false => match Launch::detect() {
                Ok(launch) => Some(launch).filter(|launch| launch.size > 1),
                // Outside of a job there is none to join.
                Err(BootstrapError::NoLauncher) => None,
                Err(error) => {
                    return Err(error).context("joining a job (--here looks at this host only)");
                }
            },
        };
        let found = match launch {
            None => {
                let switches = host.rails().iter().map(|nic| nic.switch.clone());
                let named = by_lldp(&[switches.map(Option::unwrap_or_default).collect()]);
                Found {
                    names: vec![look::name(&root)],
                    leaves_are: match named {
                        Some(_) => "read, by LLDP",
                        None => "guessed",
                    },
                    leaves: named.unwrap_or_else(|| vec![vec![0; host.rails().len().max(1)]]),
                    links: Links::read(&host),
                    host,
                }
            }
            Some(launch) => match job::measure(launch, host)? {
                Some(found) => found,
                // Rank 0 writes for all.
                None => return Ok(()),
            },
        };
        let text = found.text();
        match self.json {
            true => output::print_json(&serde_json::json!({ "file": text })),
            false => output::print(&text),
        }
    }
}
