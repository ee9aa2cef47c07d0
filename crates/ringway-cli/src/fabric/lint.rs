//! `ringway fabric lint`.

use std::{
    fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use clap::Args;
use ringway_doctor::lint::{Input, Kind, lint};

use crate::{input, output};

/// The most that is read of a file, in bytes.
const LARGEST: u64 = 64 << 20;

/// Contradictions between the configurations of switches, hosts and applications.
#[derive(Debug, Args)]
#[command(
    after_help = "Files are configurations as the systems show them (config_db.json; `show running-config` of NX-OS, EOS, Onyx \
                  and OS10; Junos in `set` or braces; NVUE as YAML or `nv set`), scripts and systemd units of hosts, directories that \
                  `ringway doctor record` wrote, settings of applications (NCCL_*, UCX_*, RINGWAY_* variables, ringway.yaml, \
                  scripts for Slurm, manifests of Kubernetes), and an intent, which all are then compared with. What a file is, is found out; SYSTEM:FILE says it.\n\n\
                  The exit code is 0 without warnings, 1 with warnings, 2 with errors, 3 if a file \
                  cannot be read.\n\n\
                  Examples:\n  ringway fabric lint leaf1.cfg leaf2.json host.sh job.env\n  \
                  ringway fabric lint lossless.yaml switches/*.cfg --json | jq '.findings[].problem'\n  \
                  ringway fabric lint nxos:leaf1.txt host17/"
)]
pub(crate) struct Lint {
    /// Files and directories; nxos:, sonic:, eos:, nvue:, onyx:, os10:, junos:, host:, host-unit:, k8s:, slurm:, env: or
    /// intent: in front says what it is.
    #[arg(required = true)]
    files: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Lint {
    pub(crate) fn execute(self) -> ExitCode {
        // 1 and 2 say what was found.
        self.look().unwrap_or_else(|error| output::fail(&error, 3))
    }

    fn look(self) -> Result<ExitCode> {
        let mut inputs = Vec::new();
        for file in &self.files {
            add(file, &mut inputs)?;
        }
        let report = lint(&inputs);
        if self.json {
            output::print_json(&report)?;
        } else {
            let terminal = std::io::stdout().is_terminal();
            let colour = terminal && std::env::var_os("NO_COLOR").is_none();
            output::print(&report.text(colour))?;
        }
        Ok(ExitCode::from(report.exit_code()))
    }
}

/// The file, or the files of the directory, that an argument names.
fn add(argument: &str, inputs: &mut Vec<Input>) -> Result<()> {
    let told = argument
        .split_once(':')
        .and_then(|(kind, path)| Some((Kind::parse(kind)?, path)));
    let (kind, path) = match told {
        Some((kind, path)) => (Some(kind), Path::new(path)),
        None => (None, Path::new(argument)),
    };
    if !path.is_dir() {
        inputs.push(Input {
            kind,
            ..Input::new(path.display().to_string(), read(path)?)
        });
        return Ok(());
    }
    let tree = ["sys", "proc", "commands"]
        .iter()
        .any(|part| path.join(part).is_dir());
    let mut all = Vec::new();
    walk(path, &mut all, 0)?;
    all.sort();
    for file in all {
        let inside = file
            .strip_prefix(path)
            .unwrap_or(&file)
            .display()
            .to_string();
        let text = match read(&file) {
            Ok(text) => text,
            // Files of a recording that are no text say nothing here.
            Err(_) if tree => continue,
            Err(error) => return Err(error),
        };
        inputs.push(Input {
            kind,
            tree: tree.then(|| (path.display().to_string(), inside)),
            ..Input::new(file.display().to_string(), text)
        });
    }
    Ok(())
}

fn walk(directory: &Path, out: &mut Vec<PathBuf>, depth: usize) -> Result<()> {
    const DEEPEST: usize = 24;
    let entries = fs::read_dir(directory)
        .with_context(|| format!("the directory {} cannot be read", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        // A recording's links lead within it, to what is found without them.
        let kind = entry.file_type()?;
        if kind.is_dir() && depth < DEEPEST {
            walk(&entry.path(), out, depth + 1)?;
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Arc<str>> {
    Ok(input::text(path, "configuration", LARGEST)?.into())
}
