//! `ringway fabric path`.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_fabric::{Port, Routes, show_latency, show_rate};

use super::read;
use crate::{
    output,
    table::{Side, table},
};

/// Show the equal paths between two hosts, and which of them flows take.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway fabric path fabric.yaml host0 host9 --flows 8")]
pub(crate) struct Path {
    /// The fabric file.
    fabric: PathBuf,
    /// The sending host.
    from: String,
    /// The receiving host.
    to: String,
    /// Which NIC of each, from 0.
    #[arg(long, default_value_t = 0)]
    nic: usize,
    /// How many flows, of different UDP source ports.
    #[arg(long, default_value_t = 16)]
    flows: u64,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Path {
    pub(crate) fn execute(self) -> Result<()> {
        let fabric = read(&self.fabric)?;
        let port = |name: &str| {
            let host = fabric.node(name).filter(|n| n.0 < fabric.hosts());
            let host = host
                .with_context(|| format!("there is no host `{name}` in the fabric"))?
                .0;
            anyhow::Ok(Port {
                host,
                nic: self.nic,
            })
        };
        let (from, to) = (port(&self.from)?, port(&self.to)?);
        if from == to {
            bail!(
                "{} to itself crosses no link; expected two hosts",
                self.from
            );
        }
        let routes = Routes::new(&fabric);
        let mut taken: BTreeMap<Vec<ringway_fabric::Hop>, u64> = BTreeMap::new();
        for flow in 0..self.flows {
            let Some(path) = routes.path(&fabric, from, to, flow) else {
                bail!(
                    "there is no path from NIC {nic} of {} to NIC {nic} of {}; `ringway fabric check` says what is missing",
                    self.from,
                    self.to,
                    nic = self.nic
                );
            };
            *taken.entry(path).or_default() += 1;
        }
        let paths = routes.paths(&fabric, from, to);
        let rows = taken.iter().map(|(path, flows)| {
            let names: Vec<String> = path.iter().map(|h| h.name(&fabric)).collect();
            let links = || path.iter().map(|h| &fabric.links()[h.link]);
            let rate = links().map(|l| l.rate).fold(f64::MAX, f64::min);
            let latency: std::time::Duration = links().map(|l| l.latency).sum();
            (*flows, rate, latency, names)
        });
        if self.json {
            let rows: Vec<_> = rows
                .map(|(flows, rate, latency, hops)| {
                    serde_json::json!({
                        "flows": flows,
                        "bytes_per_second": rate,
                        "latency_ns": latency.as_nanos() as u64,
                        "hops": hops,
                    })
                })
                .collect();
            let all = serde_json::json!({"equal_paths": paths, "taken": rows});
            return output::print_json(&all);
        }
        let heading = format!(
            "{} equal paths from {} to {}; {} flows take {} of them\n\n",
            paths,
            self.from,
            self.to,
            self.flows,
            taken.len()
        );
        let columns = [
            ("flows", Side::Right),
            ("rate", Side::Right),
            ("latency", Side::Right),
            ("path", Side::Left),
        ];
        let rows: Vec<_> = rows
            .map(|(flows, rate, latency, hops)| {
                let (rate, latency) = (show_rate(rate), show_latency(latency));
                vec![flows.to_string(), rate, latency, hops.join(" ")]
            })
            .collect();
        output::print(&(heading + &table(&columns, &rows)))
    }
}
