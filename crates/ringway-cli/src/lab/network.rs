//! A lab that is about to be made, and its process while it runs.

use std::{fs, path::PathBuf, process::ExitCode, sync::atomic::Ordering, thread, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ringway_lab::{Entry, Inside, Lab, Queues, Registry, Sandbox, Settings};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    fabric,
    launch::{exit_code, stop_signals},
    size,
};

/// What the network is to be.
#[derive(Clone, Debug, Args)]
pub(crate) struct Network {
    /// The fabric file, see `ringway fabric new`.
    pub(crate) fabric: PathBuf,
    /// TCP's congestion control in all hosts, such as bbr or cubic; the machine's unless said.
    #[arg(long, value_parser = word)]
    congestion: Option<String>,
    /// Buffers of each TCP connection, such as 128K, which bound what it has under way: less than queues hold is as in a network
    /// without loss. The kernel's choice unless said.
    #[arg(long, value_parser = window)]
    window: Option<u32>,
    /// Bytes of a packet, at most.
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: u32,
    /// Other hashes of switches, and so other paths.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// In what packets wait for a link: `one` queue, which drops what is too much, or `fair`, a queue for each connection, in turns,
    /// so that all have equal shares and nothing is lost, as in a lossless network with congestion control.
    #[arg(long, default_value = "one", value_parser = queues)]
    queues: Queues,
}

fn queues(text: &str) -> Result<Queues, String> {
    match text {
        "one" => Ok(Queues::One),
        "fair" => Ok(Queues::Fair),
        _ => Err("expected one or fair".to_owned()),
    }
}

fn window(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    let fits = u32::try_from(bytes)
        .ok()
        .filter(|bytes| (16 << 10..=1 << 30).contains(bytes));
    fits.ok_or_else(|| "expected 16K to 1G".to_owned())
}

/// What can stand in a script as it is.
fn word(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match !text.is_empty() && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("expected a name such as bbr, cubic or reno".to_owned()),
    }
}

impl Network {
    pub(crate) fn settings(&self) -> Result<Settings> {
        const SYSTEM: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
        let congestion = match &self.congestion {
            Some(name) => name.clone(),
            None => fs::read_to_string(SYSTEM)
                .context(SYSTEM)?
                .trim()
                .to_owned(),
        };
        Ok(Settings {
            mtu: self.mtu,
            congestion,
            window: self.window,
            seed: self.seed,
            queues: self.queues,
        })
    }

    /// Starts this command again as the lab's process, with `--inside` after the word `verb`, and notes the lab as `name`.
    pub(crate) fn start(&self, verb: &str, name: &str, tied: bool) -> Result<(Sandbox, Entry)> {
        let registry = Registry::open()?;
        registry.check_free(name)?;
        fabric::read(&self.fabric)?;
        let text = fs::read_to_string(&self.fabric).context("reading the fabric file again")?;
        let settings = self.settings()?;
        let mut arguments: Vec<String> = std::env::args().skip(1).collect();
        let at = arguments.iter().position(|a| a == verb).unwrap_or(0);
        arguments.insert(at + 1, "--inside".to_owned());
        let mut sandbox = Sandbox::start(&arguments, tied)?;
        let entry = Entry::new(name, sandbox.pid(), sandbox.is_user(), &text, settings);
        if let Err(error) = registry.add(&entry) {
            sandbox.stop(Signal::KILL);
            return Err(error.into());
        }
        Ok((sandbox, entry))
    }

    /// Makes the network, in the lab's process, and says so to who waits for it. If it cannot be made, the process ends.
    pub(crate) fn build(&self) -> Result<Lab> {
        let mut inside = Inside::enter()?;
        let build = || -> Result<Lab> {
            let fabric = fabric::read(&self.fabric)?;
            Ok(Lab::build(fabric, self.settings()?)?)
        };
        match build() {
            Ok(lab) => {
                inside.ready();
                Ok(lab)
            }
            Err(error) => {
                inside.failed(&format!("{error:#}"));
                // Who waits for it says why.
                std::process::exit(1);
            }
        }
    }
}

/// Waits until a lab ends, and forgets it. Signals that come are handed on.
pub(crate) fn supervise(mut sandbox: Sandbox, entry: &Entry) -> Result<ExitCode> {
    let came = stop_signals()?;
    let status = loop {
        if let Some(status) = sandbox.ended().context("waiting for the lab")? {
            break status;
        }
        match came.swap(0, Ordering::Relaxed) as i32 {
            SIGINT => sandbox.stop(Signal::INT),
            SIGTERM => sandbox.stop(Signal::TERM),
            _ => thread::sleep(Duration::from_millis(10)),
        }
    };
    Registry::open()?.remove(entry);
    Ok(exit_code(status))
}
