//! `ringway lab exec` and `rsh`: commands in a host.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_lab::{Registry, within};

use super::Which;

/// Run a command in a host or switch.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway lab exec host0 -- ping -c 3 host7\n  ringway lab exec leaf0 -- ip route\n  ringway lab exec --name other host3 -- sh"
)]
pub(crate) struct Exec {
    #[command(flatten)]
    which: Which,
    /// The host or switch.
    node: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Within a lab, run a command in another host, as ssh would: for mpirun and the like.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ringway lab exec host0 -- mpirun --host host0,host1 --mca plm_rsh_agent 'ringway lab rsh' ./program"
)]
pub(crate) struct Rsh {
    /// ssh's flag without X11, which says nothing here.
    #[arg(short = 'x', hide = true)]
    _no_x11: bool,
    /// The host.
    host: String,
    /// The command, for a shell.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Becomes a command.
fn become_command(words: &[String]) -> Result<ExitCode> {
    let [program, arguments @ ..] = words else {
        bail!("no command to run");
    };
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("starting `{program}`"))
}

impl Exec {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        let registry = Registry::open()?;
        let lab = registry.find(&self.which.find(&registry)?)?.lab()?;
        let mut words = lab.within(lab.node(&self.node)?);
        words.extend(self.command);
        become_command(&words)
    }
}

impl Rsh {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        if !Path::new("/run/netns").join(&self.host).exists() {
            bail!(
                "there is no host `{}` here; this command is for programs in a lab, of its hosts",
                self.host
            );
        }
        let mut words = within(&self.host);
        words.extend(["sh".to_owned(), "-c".to_owned(), self.command.join(" ")]);
        become_command(&words)
    }
}
