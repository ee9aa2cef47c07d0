//! `ringway lab cut`, `heal` and `rate`.

use anyhow::{Result, bail};
use clap::Args;
use ringway_fabric::{parse_rate, show_rate};
use ringway_lab::{Lab, LabError, Registry};
use serde_json::json;

use super::Which;
use crate::output::{print, print_json};

/// Take links away; then switches route around them.
///
/// It takes some tenths of a second until they do.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway lab cut leaf0-spine1\n  ringway lab cut spine1 host3-leaf0"
)]
pub(crate) struct Cut {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    what: What,
}

/// Give links back that were cut.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway lab heal leaf0-spine1")]
pub(crate) struct Heal {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    what: What,
}

/// Give links another rate.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway lab rate leaf0-spine1 20Mbit/s\n  ringway lab rate spine0 50%      # of what the file says\n  ringway lab rate spine0 100%"
)]
pub(crate) struct Rate {
    #[command(flatten)]
    which: Which,
    /// A link such as leaf0-spine1, or a node such as spine1 for all links of it.
    link: String,
    /// Such as 20Mbit/s, or 50% of what the file says; in each direction.
    #[arg(value_parser = new_rate)]
    rate: NewRate,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Which links.
#[derive(Debug, Args)]
struct What {
    /// Links such as leaf0-spine1, or nodes such as spine1 for all links of them.
    #[arg(required = true)]
    links: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
enum NewRate {
    /// Bytes per second.
    Absolute(f64),
    /// The part of what the file says.
    Part(f64),
}

fn new_rate(text: &str) -> Result<NewRate, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_rate(text)
            .map(NewRate::Absolute)
            .map_err(|e| format!("{e}, or a part of what the file says, such as 50%"));
    };
    let part = percent.parse().ok().map(|p: f64| p / 100.0);
    part.filter(|part| (1e-3..=1e3).contains(part))
        .map(NewRate::Part)
        .ok_or_else(|| "expected a part of what the file says, such as 50%".to_owned())
}

/// Changes the links that are named; says what was `done` to which.
fn change(
    which: &Which,
    what: &[String],
    as_json: bool,
    done: &str,
    change: impl FnOnce(&mut Lab, &[usize]) -> Result<(), LabError>,
) -> Result<()> {
    let registry = Registry::open()?;
    let mut names = Vec::new();
    registry.change(&which.find(&registry)?, |lab| {
        let mut links = Vec::new();
        for what in what {
            links.extend(lab.links(what)?);
        }
        names = links.iter().map(|&l| lab.fabric().link_name(l)).collect();
        change(lab, &links)
    })?;
    match as_json {
        true => print_json(&json!({ "links": names, "done": done })),
        false => print(&format!("{} {done}\n", names.join(", "))),
    }
}

impl Cut {
    pub(crate) fn execute(self) -> Result<()> {
        let What { links, json } = self.what;
        change(&self.which, &links, json, "cut", |lab, links| {
            lab.cut(links)
        })
    }
}

impl Heal {
    pub(crate) fn execute(self) -> Result<()> {
        let What { links, json } = self.what;
        change(&self.which, &links, json, "healed", |lab, links| {
            lab.heal(links)
        })
    }
}

impl Rate {
    pub(crate) fn execute(self) -> Result<()> {
        let done = match self.rate {
            NewRate::Absolute(rate) if !(1e3..=1e12).contains(&rate) => {
                bail!("{}: expected 8kbit/s to 8Tbit/s", show_rate(rate))
            }
            NewRate::Absolute(rate) => format!("at {}", show_rate(rate)),
            NewRate::Part(part) => format!("at {} % of its rate", part * 100.0),
        };
        change(&self.which, &[self.link], self.json, &done, |lab, links| {
            links.iter().try_for_each(|&link| {
                let rate = match self.rate {
                    NewRate::Absolute(rate) => rate,
                    NewRate::Part(part) => lab.fabric().links()[link].rate * part,
                };
                lab.set_rate(&[link], rate)
            })
        })
    }
}
