//! Devices and ports as the kernel shows them in files, for people and for checks: needs no library, no device node and
//! no rights.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    gid::{GidEntry, read_table},
    mtu::Mtu,
};

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFiles {
    /// The name, as `ibv_devices` shows it.
    pub name: String,
    /// The driver's or the software's word for the kind of hardware: `hca_type`, or the PCI driver's name.
    pub kind: Option<String>,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// Its ports, from 1.
    pub ports: Vec<PortFiles>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFiles {
    /// The number.
    pub number: u8,
    /// The state: ACTIVE, DOWN and so on.
    pub state: String,
    /// The cable's state: LinkUp, Disabled and so on.
    pub physical: String,
    /// Ethernet or InfiniBand.
    pub link_layer: String,
    /// The rate in bits per second.
    pub rate: Option<u64>,
    /// The network interface's MTU in bytes, and the RoCE MTU that fits into it.
    pub mtu: Option<(u32, Option<Mtu>)>,
    /// The GIDs, without holes.
    pub gids: Vec<GidEntry>,
    /// Counters by name. Those named `port_*_data` count words of 4 bytes.
    pub counters: BTreeMap<String, u64>,
}

/// All devices below `root`, the root of the file system (of a recorded one in tests), by name.
///
/// # Errors
/// If there are devices that cannot be read. A kernel without RDMA has none.
pub fn devices(root: &Path) -> io::Result<Vec<DeviceFiles>> {
    let class = root.join("sys/class/infiniband");
    let mut found = Vec::new();
    for name in names(&class)? {
        let dir = class.join(&name);
        let mut ports = Vec::new();
        for port in names(&dir.join("ports"))? {
            if let Ok(number) = port.parse() {
                ports.push(port_files(root, &name, number));
            }
        }
        ports.sort_by_key(|port| port.number);
        let driver = fs::read_link(dir.join("device/driver")).ok();
        found.push(DeviceFiles {
            kind: text(&dir.join("hca_type"))
                .or_else(|| Some(driver?.file_name()?.to_str()?.to_owned())),
            firmware: text(&dir.join("fw_ver")),
            ports,
            name,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn port_files(root: &Path, device: &str, number: u8) -> PortFiles {
    let dir = port_dir(root, device, number);
    let word = |file: &str| text(&dir.join(file)).unwrap_or_else(|| "unknown".to_owned());
    // "4: ACTIVE"
    let state = |file: &str| {
        let word = word(file);
        word.split_once(": ")
            .map_or_else(|| word.clone(), |(_, name)| name.to_owned())
    };
    let gids = read_table(root, device, number).unwrap_or_default();
    let netdev = gids.iter().find_map(|entry| entry.netdev.as_ref());
    let interface = netdev.and_then(|name| {
        text(&root.join("sys/class/net").join(name).join("mtu"))?
            .parse::<u32>()
            .ok()
    });
    PortFiles {
        number,
        state: state("state"),
        physical: state("phys_state"),
        link_layer: word("link_layer"),
        rate: text(&dir.join("rate")).and_then(|text| parse_rate(&text)),
        mtu: interface.map(|bytes| (bytes, Mtu::fitting(bytes))),
        gids,
        counters: counters(root, device, number),
    }
}

/// A port's counters by name: the standard's and the driver's own.
pub fn counters(root: &Path, device: &str, port: u8) -> BTreeMap<String, u64> {
    let dir = port_dir(root, device, port);
    let mut counters = BTreeMap::new();
    for kind in ["counters", "hw_counters"] {
        for name in names(&dir.join(kind)).unwrap_or_default() {
            // `lifespan` is a setting: for how many milliseconds the driver answers from its cache.
            let value = text(&dir.join(kind).join(&name)).and_then(|value| value.parse().ok());
            if let (Some(value), true) = (value, name != "lifespan") {
                counters.insert(name, value);
            }
        }
    }
    counters
}

fn port_dir(root: &Path, device: &str, port: u8) -> PathBuf {
    root.join("sys/class/infiniband")
        .join(device)
        .join("ports")
        .join(port.to_string())
}

/// `100 Gb/sec (4X EDR)`, `2.5 Gb/sec (1X SDR)`: bits per second.
fn parse_rate(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    if !unit.starts_with("Gb/sec") {
        return None;
    }
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u64 = tenths.get(..1)?.parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 1_000_000_000 + tenths * 100_000_000)
}

/// The names in a directory; none if it is not there.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The contents of a file, trimmed; `None` if it is empty or cannot be read.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::Tree;

    #[test]
    fn a_nic_as_mlx5_shows_it() {
        let tree = Tree::new();
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        tree.file("sys/class/infiniband/mlx5_0/hca_type", "MT4125\n");
        tree.file("sys/class/infiniband/mlx5_0/fw_ver", "22.35.1012\n");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("counters/port_xmit_data", "17\n"),
            ("hw_counters/out_of_sequence", "3\n"),
            ("hw_counters/lifespan", "10\n"),
        ] {
            tree.file(&format!("{port}/{file}"), text);
        }
        tree.file("sys/class/net/eth1/mtu", "9000\n");
        let gid = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        tree.gid("mlx5_0", 1, 3, gid, Some("RoCE v2"), Some("eth1"));
        let devices = devices(tree.root()).unwrap();
        assert_eq!(devices.len(), 1);
        let device = &devices[0];
        assert_eq!(device.kind.as_deref(), Some("MT4125"));
        let port = &device.ports[0];
        assert_eq!(
            (port.state.as_str(), port.physical.as_str()),
            ("ACTIVE", "LinkUp")
        );
        assert_eq!(port.rate, Some(100_000_000_000));
        assert_eq!(port.mtu, Some((9000, Some(Mtu::B4096))));
        assert_eq!(port.gids[0].netdev.as_deref(), Some("eth1"));
        let counters: Vec<_> = port
            .counters
            .iter()
            .map(|(k, v)| (k.as_str(), *v))
            .collect();
        assert_eq!(counters, [("out_of_sequence", 3), ("port_xmit_data", 17)]);
    }

    #[test]
    fn no_rdma_in_the_kernel_is_no_error() {
        assert_eq!(devices(Tree::new().root()).unwrap(), []);
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        assert_eq!(parse_rate("400 Gb/sec (4X NDR)"), Some(400_000_000_000));
        assert_eq!(parse_rate("fast"), None);
    }
}
