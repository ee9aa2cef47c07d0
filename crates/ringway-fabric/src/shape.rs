//! The usual topologies, as fabric files with comments.

use std::fmt::Write as _;

/// A topology and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// k pods of k/2 leaves and k/2 spines of k ports, and (k/2)^2 cores: k^3/4 hosts, nowhere oversubscribed (Al-Fares,
    /// Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008).
    FatTree {
        /// Ports of a switch; even.
        k: usize,
        /// Of a host.
        gpus: usize,
    },
    /// Every leaf to every spine.
    LeafSpine {
        /// In all; a multiple of the leaves.
        hosts: usize,
        /// How many.
        leaves: usize,
        /// How many.
        spines: usize,
        /// Of a host.
        gpus: usize,
    },
    /// NIC k of every host on a leaf of its own, so that GPUs of the same number are two hops apart.
    RailOptimised {
        /// In all; a multiple of the blocks.
        hosts: usize,
        /// NICs, and GPUs, of a host: leaves of a block.
        rails: usize,
        /// Sets of hosts with leaves of their own.
        blocks: usize,
        /// How many.
        spines: usize,
    },
    /// Pods of leaves under two spines, and cores above them, with fewer links at each tier: the data centre of before.
    ThreeTier {
        /// In all; a multiple of all leaves.
        hosts: usize,
        /// How many.
        pods: usize,
        /// Of a pod.
        leaves: usize,
        /// Hosts' rate by uplinks' rate at the leaves, 1 or more: 4 is 4:1.
        oversubscription: usize,
        /// Of a host.
        gpus: usize,
    },
    /// Hosts linked to their neighbours in two or three dimensions; no switches.
    Torus {
        /// Hosts in each dimension.
        size: Vec<usize>,
        /// Of a host.
        gpus: usize,
    },
}

/// Why there is no such fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadShape {
    /// Hosts that cannot be dealt out evenly.
    #[error(
        "{hosts} hosts cannot be dealt out evenly over {parts} {what}; choose a multiple of {parts}"
    )]
    Division {
        /// How many.
        hosts: usize,
        /// Over how many.
        parts: usize,
        /// What the parts are.
        what: &'static str,
    },
    /// A number that no fabric has.
    #[error("{what} is {found}; expected {expected}")]
    Number {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        found: usize,
        /// What can be.
        expected: &'static str,
    },
}

/// The rate of every link, unless the shape says otherwise.
const RATE_GBIT: usize = 400;

/// Of a cut-through switch and its cable.
const LATENCY: &str = "600ns";

impl Shape {
    /// The fabric file: links of 400 Gbit/s and 600 ns, to be edited.
    pub fn file(&self) -> Result<String, BadShape> {
        match *self {
            Self::FatTree { k, gpus } => fat_tree(k, gpus),
            Self::LeafSpine {
                hosts,
                leaves,
                spines,
                gpus,
            } => leaf_spine(hosts, leaves, spines, gpus),
            Self::RailOptimised {
                hosts,
                rails,
                blocks,
                spines,
            } => rail_optimised(hosts, rails, blocks, spines),
            Self::ThreeTier {
                hosts,
                pods,
                leaves,
                oversubscription,
                gpus,
            } => three_tier(hosts, pods, leaves, oversubscription, gpus),
            Self::Torus { ref size, gpus } => torus(size, gpus),
        }
    }
}

const HEAD: &str = "\
# A fabric: hosts, switches, and the links between them. docs/fabric.md explains every key.
# Check it with `ringway fabric check FILE`, look at it with `ringway fabric show FILE`.
";

/// The hosts' entry; its last lines are the defaults, for editing.
fn hosts(count: usize, gpus: usize, nics: usize) -> String {
    let numa = if gpus > 1 { 2 } else { 1 };
    format!(
        "hosts:
  - name: host            # host0 to host{last}
    count: {count}
    gpus: {gpus}               # each is a rank
    nics: {nics}               # one for each link; NIC k is on rail k
    numa: {numa}               # GPUs and NICs are spread evenly, or say gpu_numa: [0, ...] and nic_numa
    local: {{rate: 300GB/s, latency: 1us}}   # between GPUs of a host, each way
    overhead: 1us         # what a message costs its sender
    reduce: 500GB/s       # what a rank reduces or copies
",
        last = count - 1
    )
}

fn link(from: &str, to: &str, join: &str, gbit: usize) -> String {
    format!(
        "  - {{from: {from}, to: {to}, join: {join}, rate: {gbit}Gbit/s, latency: {LATENCY}}}\n"
    )
}

fn leaf_spine(count: usize, leaves: usize, spines: usize, gpus: usize) -> Result<String, BadShape> {
    counted(&[("gpus", gpus), ("leaves", leaves), ("spines", spines)])?;
    dealt(count, leaves, "leaves")?;
    let mut text = format!("{HEAD}fabric: leaf-spine\n\n{}", hosts(count, gpus, 1));
    let each = count / leaves;
    let _ = write!(
        text,
        "
switches:
  - {{name: leaf, count: {leaves}, tier: leaf, ports: {down}}}    # {each} hosts and {spines} spines each
  - {{name: spine, count: {spines}, tier: spine, ports: {leaves}}}

links:
  # {each} hosts to each leaf, in order
",
        down = each + spines
    );
    text += &link("host", "leaf", &format!("{{blocks: {leaves}}}"), RATE_GBIT);
    text += "  # every leaf to every spine\n";
    text += &link("leaf", "spine", "full", RATE_GBIT);
    Ok(text)
}

fn three_tier(
    count: usize,
    pods: usize,
    leaves: usize,
    oversubscription: usize,
    gpus: usize,
) -> Result<String, BadShape> {
    counted(&[
        ("gpus", gpus),
        ("pods", pods),
        ("leaves", leaves),
        ("oversubscription", oversubscription),
    ])?;
    dealt(count, pods * leaves, "leaves")?;
    let each = count / (pods * leaves);
    // Two uplinks from each leaf, and from each spine to the two cores, carry what the tier below may send.
    let up = (each * RATE_GBIT).div_ceil(2 * oversubscription);
    let core = (leaves * up).div_ceil(2 * oversubscription);
    let mut text = format!("{HEAD}fabric: three-tier\n\n{}", hosts(count, gpus, 1));
    let _ = write!(
        text,
        "
switches:
  - {{name: leaf, count: {}, tier: leaf}}     # {leaves} in each of {pods} pods
  - {{name: spine, count: {}, tier: spine}}   # 2 in each pod
  - {{name: core, count: 2, tier: core}}

links:
  # {each} hosts to each leaf, in order
",
        pods * leaves,
        pods * 2
    );
    text += &link(
        "host",
        "leaf",
        &format!("{{blocks: {}}}", pods * leaves),
        RATE_GBIT,
    );
    let _ = writeln!(
        text,
        "  # within each pod every leaf to every spine, {oversubscription}:1 oversubscribed"
    );
    text += &link("leaf", "spine", &format!("{{blocks: {pods}}}"), up);
    let _ = writeln!(
        text,
        "  # every spine to every core, again {oversubscription}:1"
    );
    text += &link("spine", "core", "full", core);
    Ok(text)
}

fn fat_tree(k: usize, gpus: usize) -> Result<String, BadShape> {
    counted(&[("gpus", gpus)])?;
    if !(2..=64).contains(&k) || k % 2 == 1 {
        return Err(BadShape::Number {
            what: "k",
            found: k,
            expected: "an even number from 2 to 64",
        });
    }
    let half = k / 2;
    let mut text = format!(
        "{HEAD}fabric: fat-tree-{k}\n\n{}",
        hosts(k * half * half, gpus, 1)
    );
    let _ = write!(
        text,
        "
switches:
  - {{name: leaf, count: {pods}, tier: leaf, ports: {k}}}     # {half} in each of {k} pods
  - {{name: spine, count: {pods}, tier: spine, ports: {k}}}   # {half} in each pod
  - {{name: core, count: {cores}, tier: core, ports: {k}}}

links:
  # {half} hosts to each leaf, in order
",
        pods = k * half,
        cores = half * half
    );
    text += &link(
        "host",
        "leaf",
        &format!("{{blocks: {}}}", k * half),
        RATE_GBIT,
    );
    text += "  # within each pod every leaf to every spine\n";
    text += &link("leaf", "spine", &format!("{{blocks: {k}}}"), RATE_GBIT);
    let _ = writeln!(
        text,
        "  # spine i of every pod to cores i * {half} to i * {half} + {}",
        half - 1
    );
    text += &link("spine", "core", &format!("{{stripes: {half}}}"), RATE_GBIT);
    Ok(text)
}

fn rail_optimised(
    count: usize,
    rails: usize,
    blocks: usize,
    spines: usize,
) -> Result<String, BadShape> {
    counted(&[("rails", rails), ("blocks", blocks), ("spines", spines)])?;
    dealt(count, blocks, "blocks")?;
    let mut text = format!(
        "{HEAD}fabric: rail-optimised\n\n{}",
        hosts(count, rails, rails)
    );
    let _ = write!(
        text,
        "
switches:
  - {{name: leaf, count: {leaves}, tier: leaf}}     # one for each of {rails} rails in each of {blocks} blocks
  - {{name: spine, count: {spines}, tier: spine}}

links:
  # NIC k of each host to leaf k of its block of {each} hosts
",
        leaves = blocks * rails,
        each = count / blocks
    );
    text += &link("host", "leaf", &format!("{{rails: {blocks}}}"), RATE_GBIT);
    text += "  # every leaf to every spine\n";
    text += &link("leaf", "spine", "full", RATE_GBIT);
    Ok(text)
}

fn torus(size: &[usize], gpus: usize) -> Result<String, BadShape> {
    counted(&[("gpus", gpus)])?;
    if !(2..=3).contains(&size.len()) {
        return Err(BadShape::Number {
            what: "the number of dimensions",
            found: size.len(),
            expected: "2 or 3, such as 4x4 or 4x4x4",
        });
    }
    let count = size
        .iter()
        .try_fold(1_usize, |n, &d| n.checked_mul(d))
        .unwrap_or(usize::MAX);
    for &side in size {
        counted(&[("a dimension", side)])?;
    }
    counted(&[("hosts", count)])?;
    let nics = 2 * size.len();
    let mut text = format!(
        "{HEAD}fabric: torus\n\n{}    forwards: true        # hands on what is for others: there are no switches\n",
        hosts(count, gpus, nics)
    );
    let _ = write!(
        text,
        "
links:
  # each host to the next in each dimension, and the last to the first; the last dimension varies fastest
"
    );
    text += &link("host", "host", &format!("{{torus: {size:?}}}"), RATE_GBIT);
    Ok(text)
}

fn counted(numbers: &[(&'static str, usize)]) -> Result<(), BadShape> {
    match numbers.iter().find(|n| !(1..=65_536).contains(&n.1)) {
        None => Ok(()),
        Some(&(what, found)) => Err(BadShape::Number {
            what,
            found,
            expected: "1 to 65536",
        }),
    }
}

fn dealt(hosts: usize, parts: usize, what: &'static str) -> Result<(), BadShape> {
    counted(&[("hosts", hosts)])?;
    match hosts.is_multiple_of(parts) {
        true => Ok(()),
        false => Err(BadShape::Division { hosts, parts, what }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fabric, Tier};

    fn of(shape: &Shape) -> Fabric {
        let text = shape.file().unwrap();
        Fabric::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    #[test]
    fn sizes_are_those_of_the_textbook() {
        let fat = of(&Shape::FatTree { k: 8, gpus: 8 });
        assert_eq!(fat.hosts(), 128);
        assert_eq!(fat.tier(Tier::Core).count(), 16);
        assert_eq!(fat.links().len(), 3 * 128);
        for switch in fat.switches() {
            assert_eq!(fat.links_of(switch).len(), 8);
        }

        let rails = of(&Shape::RailOptimised {
            hosts: 32,
            rails: 8,
            blocks: 2,
            spines: 4,
        });
        let leaf = rails.node("leaf11").unwrap();
        let host = rails.node("host20").unwrap();
        assert_eq!(rails.links_of(host)[3].1, leaf);

        for (size, links) in [(vec![4, 4], 32), (vec![2, 4, 8], 160), (vec![3, 1], 3)] {
            let torus = of(&Shape::Torus { size, gpus: 1 });
            assert_eq!(torus.links().len(), links);
        }
        let large = of(&Shape::LeafSpine {
            hosts: 4096,
            leaves: 128,
            spines: 32,
            gpus: 8,
        });
        assert_eq!(large.links().len(), 4096 + 128 * 32);
    }

    #[test]
    fn a_file_of_4096_hosts_fits_on_a_screen() {
        let shape = Shape::LeafSpine {
            hosts: 4096,
            leaves: 128,
            spines: 32,
            gpus: 8,
        };
        assert!(shape.file().unwrap().lines().count() < 25);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let uneven = Shape::LeafSpine {
            hosts: 30,
            leaves: 4,
            spines: 2,
            gpus: 1,
        };
        let error = uneven.file().unwrap_err().to_string();
        assert!(error.contains("choose a multiple of 4"), "{error}");
        assert!(Shape::FatTree { k: 5, gpus: 1 }.file().is_err());
        let size = vec![usize::MAX, 2];
        assert!(Shape::Torus { size, gpus: 1 }.file().is_err());
    }
}
