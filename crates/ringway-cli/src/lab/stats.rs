//! `ringway lab stats`.

use anyhow::Result;
use clap::Args;
use ringway_fabric::show_rate;
use ringway_lab::{HopStats, Lab, Registry};
use serde_json::{Value, json};

use super::Which;
use crate::{
    output::{print, print_json},
    table::{Side, table},
};

/// Show what links have carried.
///
/// Bytes and packets of each direction of each link since the lab was made, headers included, as its queue counts them;
/// packets that found the queue full; bytes that wait in it now.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway lab stats\n  ringway lab stats leaf0 spine1-leaf3 --json"
)]
pub(crate) struct Stats {
    #[command(flatten)]
    which: Which,
    /// Only these links, such as leaf0-spine1, or nodes such as spine1 for all links of them.
    links: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Stats {
    pub(crate) fn execute(self) -> Result<()> {
        let registry = Registry::open()?;
        let lab = registry.find(&self.which.find(&registry)?)?.lab()?;
        let mut stats = lab.stats()?;
        if !self.links.is_empty() {
            let mut wanted = Vec::new();
            for what in &self.links {
                wanted.extend(lab.links(what)?);
            }
            stats.retain(|s| wanted.contains(&s.hop.link));
        }
        if self.json {
            return print_json(&as_json(&lab, &stats));
        }
        let row = |s: &HopStats| {
            vec![
                s.hop.name(lab.fabric()),
                state(&lab, s.hop.link),
                s.bytes.to_string(),
                s.packets.to_string(),
                s.dropped.to_string(),
                s.queued.to_string(),
            ]
        };
        let columns = [
            ("link", Side::Left),
            ("rate", Side::Right),
            ("bytes", Side::Right),
            ("packets", Side::Right),
            ("dropped", Side::Right),
            ("queued", Side::Right),
        ];
        print(&table(&columns, &stats.iter().map(row).collect::<Vec<_>>()))
    }
}

fn state(lab: &Lab, link: usize) -> String {
    match lab.down().contains(&link) {
        true => "cut".to_owned(),
        false => show_rate(lab.rates()[link]),
    }
}

/// For programs: bytes per second, bytes, packets.
pub(super) fn as_json(lab: &Lab, stats: &[HopStats]) -> Value {
    let link = |s: &HopStats| {
        json!({
            "link": s.hop.name(lab.fabric()),
            "up": !lab.down().contains(&s.hop.link),
            "rate": lab.rates()[s.hop.link],
            "bytes": s.bytes,
            "packets": s.packets,
            "dropped": s.dropped,
            "queued": s.queued,
        })
    };
    stats.iter().map(link).collect()
}
