//! `ringway doctor watch`.

use std::{
    io::IsTerminal as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use ringway_doctor::{
    Report,
    host::{
        Root,
        watch::{PortCounters, Ports, Sample, explain},
    },
};

use crate::{output, size};

/// Watch the counters of RDMA ports while a job runs, and say what is behind those that rise.
///
/// A line for each port and interval: gigabits per second in and out, and the causes that were seen. At the end, what all of it
/// says, with the counters and what to do.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 without warnings, 1 with warnings, 2 with errors, 3 if it could not look.\n\n\
                        Examples:\n  ringway doctor watch\n  ringway doctor watch --interval 5 --seconds 600 --json > counters.json"
)]
pub(crate) struct Watch {
    /// Seconds between two looks.
    #[arg(long, default_value = "1", value_parser = size::seconds)]
    interval: f64,
    /// For how many seconds.
    #[arg(long, default_value = "10", value_parser = size::seconds)]
    seconds: f64,
    /// As JSON, at the end.
    #[arg(long)]
    json: bool,
}

impl Watch {
    pub(crate) fn execute(self) -> Result<u8> {
        let start = Instant::now();
        let ports = Ports::of(&Root::live());
        if ports.is_empty() {
            bail!(
                "there is no RDMA port to watch: ringway doctor says why, and how to get one (in software: modprobe rdma_rxe)"
            );
        }
        let first = ports.sample(&Root::live());
        if !self.json {
            let names = first.keys().map(String::len).max().unwrap_or(0);
            output::print(&format!(
                "{:>7}  {:names$}  {:>9}  {:>9}  causes\n",
                "seconds", "port", "in Gb/s", "out Gb/s"
            ))?;
        }
        let (mut last, mut at) = (first.clone(), start);
        while start.elapsed().as_secs_f64() < self.seconds {
            let left = self.seconds - start.elapsed().as_secs_f64();
            thread::sleep(Duration::from_secs_f64(self.interval.min(left).max(0.0)));
            let now = ports.sample(&Root::live());
            let elapsed = at.elapsed();
            at = Instant::now();
            if !self.json {
                output::print(&lines(&last, &now, start.elapsed(), elapsed))?;
            }
            last = now;
        }
        let mut report = Report {
            findings: explain(&first, &last, start.elapsed()),
            checks: ringway_doctor::host::watch::CAUSES.len(),
            ..Report::default()
        };
        report.sort();
        if self.json {
            output::print_json(&report)?;
        } else {
            let terminal = std::io::stdout().is_terminal();
            let colour = terminal && std::env::var_os("NO_COLOR").is_none();
            output::print(&format!("\n{}", report.text(colour)))?;
        }
        Ok(report.exit_code())
    }
}

/// A line for each port.
fn lines(before: &Sample, now: &Sample, total: Duration, elapsed: Duration) -> String {
    let findings = explain(before, now, elapsed);
    let names = now.keys().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (port, counters) in now {
        let Some(old) = before.get(port) else {
            continue;
        };
        let causes: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.subject == *port)
            .map(|finding| finding.check.trim_start_matches("watch."))
            .collect();
        let rate = |name| gigabits(counters, old, name, elapsed);
        text += &format!(
            "{:7.1}  {port:names$}  {:>9}  {:>9}  {}\n",
            total.as_secs_f64(),
            rate("port_rcv_data"),
            rate("port_xmit_data"),
            causes.join(", ")
        );
    }
    text
}

/// The rate of a counter of words of 4 bytes; soft RoCE has none.
fn gigabits(now: &PortCounters, before: &PortCounters, name: &str, elapsed: Duration) -> String {
    if !now.rdma.contains_key(name) {
        return "-".to_owned();
    }
    let bits = now.rise(before, name) as f64 * 32.0;
    format!("{:.2}", bits / elapsed.as_secs_f64().max(1e-3) / 1e9)
}
