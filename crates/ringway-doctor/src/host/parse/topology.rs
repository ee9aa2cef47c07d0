//! How far GPUs and NICs are from one another, from `nvidia-smi topo -m`.

use std::collections::BTreeMap;

/// What lies between two devices, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One PCIe bridge at most (PIX).
    Bridge,
    /// Several PCIe bridges, no host bridge (PXB).
    Bridges,
    /// A host bridge (PHB).
    HostBridge,
    /// Host bridges of one NUMA node (NODE).
    Node,
    /// The link between sockets (SYS).
    System,
}

impl Distance {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "PIX" => Self::Bridge,
            "PXB" => Self::Bridges,
            "PHB" => Self::HostBridge,
            "NODE" => Self::Node,
            "SYS" => Self::System,
            _ => return None,
        })
    }

    /// The tool's word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "PIX",
            Self::Bridges => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }
}

/// The distances of GPUs from NICs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// For each GPU, what lies between it and each RDMA device.
    pub gpus: BTreeMap<String, BTreeMap<String, Distance>>,
}

impl Topology {
    /// From the table and the legend that names the NICs.
    pub fn parse(output: &str) -> Self {
        let plain = without_escapes(output);
        let mut columns: Vec<String> = Vec::new();
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        let mut names = BTreeMap::new();
        for line in plain.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(&first) = words.first() else {
                continue;
            };
            if columns.is_empty()
                && is_device(first)
                && words.get(1).is_none_or(|w| is_device(w) || *w == "CPU")
            {
                let devices = words.iter().take_while(|word| is_device(word));
                columns = devices.map(|&word| word.to_owned()).collect();
            } else if let (Some(short), Some(name)) = (first.strip_suffix(':'), words.get(1)) {
                names.insert(short.to_owned(), (*name).to_owned());
            } else if first.starts_with("GPU") && words.len() > columns.len() {
                let cells = words[1..=columns.len()].iter();
                rows.push((first.to_owned(), cells.map(|&w| w.to_owned()).collect()));
            }
        }
        let mut gpus = BTreeMap::new();
        for (gpu, cells) in rows {
            let nics = columns.iter().zip(&cells).filter_map(|(column, cell)| {
                let name = names.get(column).unwrap_or(column);
                let nic = column.starts_with("NIC") || !column.starts_with("GPU");
                Some((name.clone(), Distance::parse(cell)?)).filter(|_| nic)
            });
            gpus.insert(gpu, nics.collect());
        }
        Self { gpus }
    }
}

/// A word of the head line: `GPU0`, `NIC3`, and with older drivers the NIC's own name.
fn is_device(word: &str) -> bool {
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    letters.len() < word.len() && (letters == "GPU" || letters == "NIC" || letters.contains('_'))
}

/// Without what underlines the head line on a terminal.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            // ESC [ numbers letter
            rest.by_ref().find(char::is_ascii_alphabetic);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_by_the_names_of_the_legend() {
        let output = "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n\
                      GPU0\t X \tNV4\tPXB\tSYS\t0-23\t0\nGPU1\tNV4\t X \tSYS\tPIX\t24-47\t1\n\
                      NIC0\tPXB\tSYS\t X \tSYS\t\t\nNIC1\tSYS\tPIX\tSYS\t X \t\t\n\n\
                      Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n";
        let topology = Topology::parse(output);
        let gpu0 = &topology.gpus["GPU0"];
        assert_eq!(gpu0["mlx5_0"], Distance::Bridges);
        assert_eq!(gpu0["mlx5_bond_0"], Distance::System);
        assert_eq!(topology.gpus["GPU1"]["mlx5_bond_0"], Distance::Bridge);
        assert_eq!(gpu0.len(), 2);
    }

    #[test]
    fn older_drivers_name_the_nics_in_the_head() {
        let output = "\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nmlx5_0\tPHB\t X \n";
        let topology = Topology::parse(output);
        assert_eq!(topology.gpus["GPU0"]["mlx5_0"], Distance::HostBridge);
        assert!(Topology::parse("No devices were found").gpus.is_empty());
        assert!(Topology::parse("\x1b").gpus.is_empty());
    }
}
