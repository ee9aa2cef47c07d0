//! `ringway lab up`, `down` and `list`.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ringway_lab::{Entry, Registry};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Which, network::Network};
use crate::{
    output::{print, print_json},
    table::{Side, table},
};

/// How a lab is called, unless it is said.
pub(super) const NAME: &str = "lab";

/// Make a lab that stays until `ringway lab down`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ringway lab up fabric.yaml && ringway lab exec host0 -- ping -c 3 host7; ringway lab down"
)]
pub(crate) struct Up {
    #[command(flatten)]
    network: Network,
    /// How the lab is called.
    #[arg(long, default_value = NAME)]
    name: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// This is the lab's process.
    #[arg(long, hide = true)]
    inside: bool,
}

/// End a lab, with all that runs in it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway lab down")]
pub(crate) struct Down {
    #[command(flatten)]
    which: Which,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Show the labs that are up.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway lab list --json")]
pub(crate) struct List {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Up {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        if self.inside {
            return self.hold();
        }
        let (_, entry) = self.network.start("up", &self.name, false)?;
        match self.json {
            true => print_json(&as_json(&entry)?)?,
            false => print(&format!(
                "lab {} is up: {}\n",
                entry.name,
                describe(&entry)?
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Keeps the network until a signal comes.
    fn hold(self) -> Result<ExitCode> {
        let _lab = self.network.build()?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone()).context("listening for signals")?;
        }
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Down {
    pub(crate) fn execute(self) -> Result<()> {
        let registry = Registry::open()?;
        let name = self.which.find(&registry)?;
        registry.end(&name)?;
        match self.json {
            true => print_json(&json!({ "down": name })),
            false => print(&format!("lab {name} is down\n")),
        }
    }
}

impl List {
    pub(crate) fn execute(self) -> Result<()> {
        let entries = Registry::open()?.all()?;
        if self.json {
            let entries: Result<Vec<_>> = entries.iter().map(as_json).collect();
            return print_json(&entries?);
        }
        let row = |entry: &Entry| {
            Ok(vec![
                entry.name.clone(),
                entry.pid.to_string(),
                describe(entry)?,
            ])
        };
        let rows: Result<Vec<_>> = entries.iter().map(row).collect();
        let columns = [("lab", Side::Left), ("pid", Side::Right), ("", Side::Left)];
        print(&table(&columns, &rows?))
    }
}

fn describe(entry: &Entry) -> Result<String> {
    let (fabric, settings) = (entry.fabric()?, &entry.settings);
    let cut: Vec<String> = entry.down.iter().map(|&l| fabric.link_name(l)).collect();
    let cut = match cut.is_empty() {
        true => String::new(),
        false => format!("; cut: {}", cut.join(", ")),
    };
    Ok(format!(
        "{}, {} hosts, {} switches; TCP by {}, packets of {} bytes{cut}",
        fabric.name(),
        fabric.hosts(),
        fabric.nodes() - fabric.hosts(),
        settings.congestion,
        settings.mtu,
    ))
}

fn as_json(entry: &Entry) -> Result<serde_json::Value> {
    let (fabric, settings) = (entry.fabric()?, &entry.settings);
    let cut: Vec<String> = entry.down.iter().map(|&l| fabric.link_name(l)).collect();
    Ok(json!({
        "name": entry.name,
        "pid": entry.pid,
        "fabric": fabric.name(),
        "hosts": fabric.hosts(),
        "switches": fabric.nodes() - fabric.hosts(),
        "congestion": settings.congestion,
        "mtu": settings.mtu,
        "window": settings.window,
        "seed": settings.seed,
        "queues": settings.queues,
        "cut": cut,
    }))
}
