//! `ringway fabric place`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_fabric::{Distances, Matrix, Pattern, Placement, Start, place, random_order};
use ringway_plan::{Algorithm, Collective, Topology, generate};
use serde::Deserialize;

use super::read;
use crate::{
    input, output,
    table::{Side, table},
};

/// Find the order of hosts by which an algorithm loads the links least.
///
/// The order that is best has the least on its most loaded link, then the fewest links between neighbours. Up to 8 hosts,
/// all orders are tried; beyond, a local search improves the given order or one of nearest neighbours. The outcome depends on
/// nothing but the arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric place fabric.yaml ring\n  ringway fabric place fabric.yaml hierarchical --group 8 --from random:1\n  ringway fabric place fabric.yaml ring --list > hosts\n  ringway fabric place matrix.json ring --matrix\n\nA matrix is JSON, entry [i][j] from host i to host j:\n  {\"bytes_per_second\": [[0, 1e9], [1e9, 0]], \"latency_seconds\": [[0, 1e-5], [1e-5, 0]]}"
)]
pub(crate) struct Place {
    /// The fabric file; with --matrix, a file of measured rates.
    fabric: PathBuf,
    /// ring, tree, double_tree, recursive_doubling, halving_doubling, hierarchical, torus, direct or one_shot.
    algorithm: Algorithm,
    /// The collective.
    #[arg(long, default_value = "all-reduce")]
    collective: String,
    /// Hosts of a group of the hierarchical algorithm.
    #[arg(long)]
    group: Option<usize>,
    /// Width of the grid of the torus algorithm.
    #[arg(long)]
    torus_width: Option<usize>,
    /// The order that is there: `file`, or `random:SEED`.
    #[arg(long, default_value = "file", value_parser = order)]
    from: Order,
    /// The file is a matrix of measured rates.
    #[arg(long)]
    matrix: bool,
    /// Print nothing but the hosts in their new order, one a line.
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// An order of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    File,
    Random(u64),
}

impl Order {
    pub(crate) fn of(self, hosts: usize) -> Vec<usize> {
        match self {
            Self::File => (0..hosts).collect(),
            Self::Random(seed) => random_order(hosts, seed),
        }
    }
}

/// From `file` or `random:SEED`.
pub(crate) fn order(text: &str) -> Result<Order, String> {
    let seed = |text: &str| text.parse().ok().map(Order::Random);
    match text {
        "file" => Some(Order::File),
        _ => text.strip_prefix("random:").and_then(seed),
    }
    .ok_or_else(|| "expected `file`, or `random:SEED` such as random:1".to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixFile {
    bytes_per_second: Vec<Vec<f64>>,
    latency_seconds: Option<Vec<Vec<f64>>>,
}

impl Place {
    pub(crate) fn execute(self) -> Result<()> {
        if self.matrix {
            let path = self.fabric.display().to_string();
            let text = input::text(&self.fabric, "matrix", super::LARGEST)?;
            let file: MatrixFile = serde_json::from_str(&text).with_context(|| path.clone())?;
            let matrix =
                Matrix::new(file.bytes_per_second, file.latency_seconds).with_context(|| path)?;
            self.show(&mut Distances::measured(&matrix))
        } else {
            let fabric = read(&self.fabric)?;
            self.show(&mut Distances::of(&fabric))
        }
    }

    fn show(&self, distances: &mut Distances<'_>) -> Result<()> {
        let hosts = distances.hosts();
        if !(2..=4096).contains(&hosts) {
            bail!("{hosts} hosts; expected 2 to 4096");
        }
        let mut topology = Topology::uniform(hosts, 1);
        if let Some(group) = self.group {
            topology = topology.with_group(group);
        }
        if let Some(width) = self.torus_width {
            topology = topology.with_torus_width(width);
        }
        let collective = Collective::parse(&self.collective, 0)?;
        let schedule = generate(collective, self.algorithm, &topology)?;
        let pattern = Pattern::new(&schedule, &topology);
        let placement = place(&pattern, distances, &self.from.of(hosts));
        if let Some((from, to)) = distances.unreachable(&pattern, &placement.best.order) {
            bail!(
                "there is no path from {} to {}, in the best order either; `ringway fabric check` says what is missing",
                distances.host_name(from),
                distances.host_name(to)
            );
        }
        let names: Vec<String> = placement
            .best
            .order
            .iter()
            .map(|&h| distances.host_name(h))
            .collect();
        if self.list {
            output::print(&format!("{}\n", names.join("\n")))
        } else if self.json {
            output::print_json(&as_json(&placement, distances, &names))
        } else {
            output::print(&as_text(&placement, distances, &names, self.matrix))
        }
    }
}

fn as_text(
    placement: &Placement,
    distances: &Distances<'_>,
    names: &[String],
    measured: bool,
) -> String {
    let rows: Vec<Vec<String>> = [("given", &placement.given), ("found", &placement.best)]
        .into_iter()
        .map(|(name, placed)| {
            vec![
                name.to_owned(),
                format!("{:.2}", placed.load.seconds_per_byte * 1e12),
                distances.link_name(placed.load.busiest),
                format!("{:.2}", placed.load.mean_hops),
            ]
        })
        .collect();
    let columns = [
        ("order", Side::Left),
        ("busiest link, ms/GB", Side::Right),
        ("which", Side::Left),
        (
            if measured {
                "mean distance"
            } else {
                "mean hops"
            },
            Side::Right,
        ),
    ];
    let how = match (placement.start, placement.settled) {
        (Start::Exact, _) => "the best of all orders".to_owned(),
        (start, settled) => {
            let start = match start {
                Start::Nearest => "an order of nearest neighbours",
                _ => "the given order",
            };
            let end = match settled {
                true => "until none was left",
                false => "until the work ran out",
            };
            format!("{start}, {} improvements {end}", placement.moves)
        }
    };
    format!("{}\n{how}:\n{}\n", table(&columns, &rows), names.join(" "))
}

fn as_json(
    placement: &Placement,
    distances: &Distances<'_>,
    names: &[String],
) -> serde_json::Value {
    let load = |load: &ringway_fabric::Load| {
        serde_json::json!({
            "busiest_seconds_per_byte": load.seconds_per_byte,
            "busiest": distances.link_name(load.busiest),
            "mean_hops": load.mean_hops,
        })
    };
    serde_json::json!({
        "order": names,
        "given": load(&placement.given.load),
        "found": load(&placement.best.load),
        "exact": placement.start == Start::Exact,
        "improvements": placement.moves,
        "settled": placement.settled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_named() {
        assert_eq!(order("file"), Ok(Order::File));
        assert_eq!(order("random:12"), Ok(Order::Random(12)));
        assert!(order("random").is_err());
        assert_eq!(Order::File.of(3), [0, 1, 2]);
    }
}
