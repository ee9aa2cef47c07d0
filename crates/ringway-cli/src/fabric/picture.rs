//! A fabric as a picture: a row for each tier, links between the rows; what is many is folded.

use std::collections::BTreeMap;

use ringway_fabric::{Fabric, NodeId, Tier, show_rate};

use crate::svg::{Anchor, COLOURS, Svg};

/// Boxes in a row, at most: beyond, neighbours are folded into one.
const MOST: usize = 24;

const WIDTH: f64 = 1200.0;
const TOP: f64 = 60.0;
const ROW: f64 = 150.0;
const BOX: f64 = 26.0;

/// Nodes that are drawn as one.
struct Cell {
    label: String,
    at: (f64, f64),
    width: f64,
    colour: &'static str,
}

/// The fabric; with `load`, the part of its rate that each direction of each link carries
/// ([`ringway_fabric::Hop::index`]), as colours from grey to red.
pub(crate) fn draw(fabric: &Fabric, load: Option<&[f64]>) -> String {
    let (cells, cell_of) = match fabric.switches().count() {
        0 => grid(fabric),
        _ => rows(fabric),
    };
    let bottom = cells.iter().map(|c| c.at.1).fold(TOP, f64::max);
    let mut svg = Svg::new(WIDTH + 40.0, bottom + 2.0 * BOX + 20.0);
    let title = format!(
        "{}: {} hosts, {} switches, {} links",
        fabric.name(),
        fabric.hosts(),
        fabric.switches().count(),
        fabric.links().len()
    );
    svg.text((12.0, 24.0), Anchor::Start, "title", &title);
    for ((one, other), bundle) in bundles(fabric, &cell_of, load) {
        let (a, b) = (&cells[one], &cells[other]);
        let (upper, lower) = if a.at.1 <= b.at.1 { (a, b) } else { (b, a) };
        let ends = match upper.at.1 < lower.at.1 {
            true => ((upper.at.0, upper.at.1 + BOX), lower.at),
            // Within a row: from side to side.
            false => (
                (upper.at.0, upper.at.1 + BOX / 2.0),
                (lower.at.0, lower.at.1 + BOX / 2.0),
            ),
        };
        let links = bundle.count;
        let mut meaning = format!(
            "{} to {}: {links} links, {}",
            a.label,
            b.label,
            show_rate(bundle.rate)
        );
        let mut colour = "#8886".to_owned();
        if load.is_some() {
            meaning += &format!(", the busiest {:.0} % busy", bundle.load * 100.0);
            colour = heat(bundle.load);
        }
        let width = 1.0 + (bundle.count as f64).log2().min(5.0) / 2.0 + 2.0 * bundle.load;
        svg.line(ends.0, ends.1, width, &colour, &meaning);
    }
    for cell in &cells {
        let corner = (cell.at.0 - cell.width / 2.0, cell.at.1);
        svg.rect(corner, (cell.width, BOX), cell.colour, &cell.label);
        if cell.width > 7.0 * cell.label.len() as f64 {
            svg.text(
                (cell.at.0, cell.at.1 + 17.0),
                Anchor::Middle,
                "",
                &cell.label,
            );
        } else {
            // Too narrow for its name: below, where it is short enough for every second box.
            let short = cell.label.chars().count() <= 5;
            if short {
                svg.text(
                    (cell.at.0, cell.at.1 + BOX + 14.0),
                    Anchor::Middle,
                    "",
                    &cell.label,
                );
            }
        }
    }
    svg.finish()
}

/// Links between the same two cells.
#[derive(Default)]
struct Bundle {
    count: usize,
    rate: f64,
    load: f64,
}

fn bundles(
    fabric: &Fabric,
    cell_of: &[usize],
    load: Option<&[f64]>,
) -> BTreeMap<(usize, usize), Bundle> {
    let mut bundles: BTreeMap<(usize, usize), Bundle> = BTreeMap::new();
    for (i, link) in fabric.links().iter().enumerate() {
        let (a, b) = (cell_of[link.a.0], cell_of[link.b.0]);
        let bundle = bundles.entry((a.min(b), a.max(b))).or_default();
        bundle.count += 1;
        bundle.rate += link.rate;
        if let Some(load) = load {
            bundle.load = bundle.load.max(load[2 * i]).max(load[2 * i + 1]);
        }
    }
    bundles.retain(|(a, b), _| a != b);
    bundles
}

/// Cores above spines above leaves above hosts.
fn rows(fabric: &Fabric) -> (Vec<Cell>, Vec<usize>) {
    let mut rows: Vec<(Vec<NodeId>, &'static str)> = Tier::ALL
        .into_iter()
        .rev()
        .zip([COLOURS[3], COLOURS[0], COLOURS[2]])
        .map(|(tier, colour)| (fabric.tier(tier).collect(), colour))
        .collect();
    rows.push(((0..fabric.hosts()).map(NodeId).collect(), COLOURS[4]));
    rows.retain(|r| !r.0.is_empty());
    let mut cells = Vec::new();
    let mut cell_of = vec![0; fabric.nodes()];
    for (row, (nodes, colour)) in rows.into_iter().enumerate() {
        let each = nodes.len().div_ceil(MOST);
        let count = nodes.len().div_ceil(each);
        let pitch = WIDTH / count as f64;
        for (i, folded) in nodes.chunks(each).enumerate() {
            for node in folded {
                cell_of[node.0] = cells.len();
            }
            cells.push(Cell {
                label: label(fabric, folded),
                at: (20.0 + pitch * (i as f64 + 0.5), TOP + ROW * row as f64),
                width: (pitch - 6.0).min(120.0),
                colour,
            });
        }
    }
    (cells, cell_of)
}

/// Hosts that are linked to each other: as many in a row as the last dimension has.
fn grid(fabric: &Fabric) -> (Vec<Cell>, Vec<usize>) {
    let next = fabric.links_of(NodeId(0)).iter().map(|l| l.1.0);
    let width = next
        .filter(|&n| n > 1)
        .min()
        .unwrap_or_else(|| fabric.hosts());
    let nodes: Vec<NodeId> = (0..fabric.hosts()).map(NodeId).collect();
    let each = width.div_ceil(MOST);
    let across = width.div_ceil(each);
    let pitch = WIDTH / across as f64;
    let mut cells = Vec::new();
    let mut cell_of = vec![0; fabric.nodes()];
    for (y, row) in nodes.chunks(width).enumerate() {
        for (x, folded) in row.chunks(each).enumerate() {
            for node in folded {
                cell_of[node.0] = cells.len();
            }
            cells.push(Cell {
                label: label(fabric, folded),
                at: (20.0 + pitch * (x as f64 + 0.5), TOP + 70.0 * y as f64),
                width: (pitch - 20.0).min(90.0),
                colour: COLOURS[4],
            });
        }
    }
    (cells, cell_of)
}

fn label(fabric: &Fabric, folded: &[NodeId]) -> String {
    let name = |node: Option<&NodeId>| node.map_or_else(String::new, |&n| fabric.node_name(n));
    match folded.len() {
        1 => name(folded.first()),
        n => format!("{}..{} ({n})", name(folded.first()), name(folded.last())),
    }
}

/// From grey over yellow to red.
fn heat(load: f64) -> String {
    let load = load.clamp(0.0, 1.0);
    let hue = 60.0 * (1.0 - load);
    format!("hsl({hue:.0} {:.0}% 50%)", 100.0 * load.sqrt())
}

#[cfg(test)]
mod tests {
    use ringway_fabric::Shape;

    use super::*;

    #[test]
    fn many_hosts_are_folded() {
        let shape = Shape::LeafSpine {
            hosts: 4096,
            leaves: 128,
            spines: 32,
            gpus: 8,
        };
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let picture = draw(&fabric, None);
        assert!(picture.len() < 200_000, "{} bytes", picture.len());
        assert_eq!(picture.matches("<rect").count(), 24 + 22 + 16);
        assert!(picture.contains("host0..host170 (171)"));
    }

    #[test]
    fn a_torus_is_a_grid() {
        let size = vec![4, 5];
        let shape = Shape::Torus { size, gpus: 1 };
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let picture = draw(&fabric, Some(&vec![1.0; 2 * fabric.links().len()]));
        assert_eq!(picture.matches("<rect").count(), 20);
        assert!(picture.contains("the busiest 100 % busy"));
        assert!(picture.contains("hsl(0 100% 50%)"));
    }
}
