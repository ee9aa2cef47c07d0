//! `ringway fabric show`.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use clap::Args;
use ringway_fabric::{Fabric, Role, show_latency, show_rate};

use super::{picture, read};
use crate::{
    output::{self, Output},
    table::{Side, table},
};

/// Show a fabric as a table, or draw it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric show fabric.yaml\n  ringway fabric show fabric.yaml --svg fabric.svg"
)]
pub(crate) struct Show {
    /// The fabric file.
    fabric: PathBuf,
    /// Draw it to this SVG file; large groups are folded.
    #[arg(long, conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn execute(self) -> Result<()> {
        let fabric = read(&self.fabric)?;
        if let Some(path) = self.svg {
            Output::open("--svg", &path)?.write(&picture::draw(&fabric, None))?;
            output::print(&format!("drew {}\n", path.display()))
        } else if self.json {
            output::print_json(&as_json(&fabric))
        } else {
            output::print(&as_text(&fabric))
        }
    }
}

/// Links between the same two groups, of one rate and latency.
struct Bundle {
    from: String,
    to: String,
    rate: f64,
    latency: std::time::Duration,
    count: usize,
}

fn bundles(fabric: &Fabric) -> Vec<Bundle> {
    let mut bundles: BTreeMap<(usize, usize, u64, u128), Bundle> = BTreeMap::new();
    for link in fabric.links() {
        let (from, to) = (fabric.group(link.a), fabric.group(link.b));
        let key = (
            from.nodes.start,
            to.nodes.start,
            link.rate as u64,
            link.latency.as_nanos(),
        );
        let bundle = bundles.entry(key).or_insert_with(|| Bundle {
            from: from.name.clone(),
            to: to.name.clone(),
            rate: link.rate,
            latency: link.latency,
            count: 0,
        });
        bundle.count += 1;
    }
    bundles.into_values().collect()
}

fn as_text(fabric: &Fabric) -> String {
    let groups: Vec<Vec<String>> = fabric
        .groups()
        .iter()
        .map(|group| {
            let (role, detail) = match &group.role {
                Role::Host(kind) => {
                    let forwards = if kind.forwards { ", forwards" } else { "" };
                    let (gpus, nics, numa) = (kind.gpus, kind.nics, kind.numa);
                    (
                        "host",
                        format!("{gpus} GPUs, {nics} NICs, {numa} NUMA nodes{forwards}"),
                    )
                }
                Role::Switch { tier, ports } => {
                    let ports = ports.map_or_else(String::new, |p| format!("{p} ports"));
                    (tier.name(), ports)
                }
            };
            let count = group.nodes.len().to_string();
            vec![group.name.clone(), role.to_owned(), count, detail]
        })
        .collect();
    let links: Vec<Vec<String>> = bundles(fabric)
        .into_iter()
        .map(|b| {
            let (rate, latency) = (show_rate(b.rate), show_latency(b.latency));
            vec![b.from, b.to, b.count.to_string(), rate, latency]
        })
        .collect();
    let group_columns = [
        ("group", Side::Left),
        ("role", Side::Left),
        ("count", Side::Right),
        ("", Side::Left),
    ];
    let link_columns = [
        ("from", Side::Left),
        ("to", Side::Left),
        ("links", Side::Right),
        ("rate", Side::Right),
        ("latency", Side::Right),
    ];
    format!(
        "{}\n\n{}\n{}",
        fabric.name(),
        table(&group_columns, &groups),
        table(&link_columns, &links)
    )
}

fn as_json(fabric: &Fabric) -> serde_json::Value {
    let groups: Vec<_> = fabric
        .groups()
        .iter()
        .map(|group| match &group.role {
            Role::Host(kind) => serde_json::json!({
                "name": group.name, "count": group.nodes.len(), "role": "host",
                "gpus": kind.gpus, "nics": kind.nics, "numa": kind.numa, "forwards": kind.forwards,
            }),
            Role::Switch { tier, ports } => serde_json::json!({
                "name": group.name, "count": group.nodes.len(), "role": tier.name(), "ports": ports,
            }),
        })
        .collect();
    let links: Vec<_> = bundles(fabric)
        .into_iter()
        .map(|b| {
            serde_json::json!({
                "from": b.from, "to": b.to, "count": b.count,
                "bytes_per_second": b.rate, "latency_ns": b.latency.as_nanos() as u64,
            })
        })
        .collect();
    serde_json::json!({"fabric": fabric.name(), "groups": groups, "links": links})
}
