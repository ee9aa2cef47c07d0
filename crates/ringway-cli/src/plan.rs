//! `ringway plan`: schedules for people to read, and to prove.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ringway_plan::{Algorithm, Collective, Schedule, Topology, Verified, generate, verify};

use crate::{output, picture};

/// Show or verify the schedule of a collective.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Which algorithm can do which collective.
    #[command(after_help = "Example:\n  ringway plan list | grep reduce_scatter")]
    List,
    /// Print a schedule as a table, or as JSON; or draw who sends what when.
    #[command(
        after_help = "Examples:\n  ringway plan show all-reduce ring --ranks 4\n  ringway plan show all-reduce hierarchical --hosts 4,4,2\n  ringway plan show broadcast tree --ranks 8 --svg tree.svg"
    )]
    Show {
        #[command(flatten)]
        which: Which,
        /// Draw it to this SVG file.
        #[arg(long, conflicts_with = "json")]
        svg: Option<PathBuf>,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prove a schedule: each contribution once, no deadlock, no race, the same bits on all ranks.
    #[command(after_help = "Example:\n  ringway plan verify all-reduce double-tree --ranks 17")]
    Verify(Which),
}

/// Which schedule.
#[derive(Debug, Args)]
struct Which {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all or barrier.
    collective: String,
    /// ring, tree, double_tree, recursive_doubling, halving_doubling, hierarchical, torus, direct or one_shot.
    algorithm: Algorithm,
    /// How many ranks, all on one host.
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// How many ranks on each host, in place of --ranks.
    #[arg(long, value_delimiter = ',')]
    hosts: Option<Vec<usize>>,
    /// The root of broadcast, reduce, gather and scatter.
    #[arg(long, default_value_t = 0)]
    root: usize,
}

impl Which {
    fn verified(&self) -> Result<Verified> {
        let collective = Collective::parse(&self.collective, self.root)?;
        let topology = match &self.hosts {
            None => Topology::single_host(self.ranks),
            Some(hosts) => {
                let host_of = |(host, &ranks): (usize, &usize)| std::iter::repeat_n(host, ranks);
                Topology::new(hosts.iter().enumerate().flat_map(host_of).collect())
            }
        };
        if topology.ranks() > 4096 {
            bail!(
                "{} ranks are too many to show: expected 4096 at most",
                topology.ranks()
            );
        }
        Ok(verify(generate(collective, self.algorithm, &topology)?)?)
    }
}

impl Plan {
    pub(crate) fn execute(self) -> Result<()> {
        match self.command {
            Command::List => {
                let mut text = String::new();
                for algorithm in Algorithm::ALL {
                    let able = Collective::all(0)
                        .into_iter()
                        .filter(|&c| algorithm.supports(c));
                    let names: Vec<_> = able.map(Collective::name).collect();
                    text += &format!("{algorithm:20} {}\n", names.join(", "));
                }
                output::print(&text)
            }
            Command::Show { which, svg, json } => {
                let schedule = which.verified()?;
                if let Some(path) = svg {
                    if schedule.ranks() > 64 {
                        bail!(
                            "{} ranks are too many for a picture: expected 64 at most",
                            schedule.ranks()
                        );
                    }
                    fs::write(&path, picture::draw(&schedule))
                        .with_context(|| format!("writing {}", path.display()))?;
                    output::print(&format!("drew {}\n", path.display()))
                } else if json {
                    output::print_json(&as_json(&schedule))
                } else {
                    output::print(&schedule.table().to_string())
                }
            }
            Command::Verify(which) => {
                let schedule = which.verified()?;
                output::print(&format!(
                    "verified: {} by {} on {} ranks, {} chunks, {} steps\n",
                    schedule.collective,
                    schedule.algorithm,
                    schedule.ranks(),
                    schedule.chunks,
                    schedule.steps()
                ))
            }
        }
    }
}

/// Programs of lanes of steps, each as the table prints it.
fn as_json(schedule: &Schedule) -> serde_json::Value {
    let programs: Vec<Vec<Vec<String>>> = schedule
        .programs
        .iter()
        .map(|p| {
            p.lanes
                .iter()
                .map(|l| l.steps.iter().map(|s| s.op.to_string()).collect())
                .collect()
        })
        .collect();
    serde_json::json!({
        "collective": schedule.collective.name(),
        "root": schedule.collective.root(),
        "algorithm": schedule.algorithm,
        "ranks": schedule.ranks(),
        "chunks": schedule.chunks,
        "programs": programs,
    })
}
