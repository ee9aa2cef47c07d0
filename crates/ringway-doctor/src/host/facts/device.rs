//! RDMA devices and their ports, as /sys/class/infiniband has them.

use crate::host::{
    Root,
    parse::{Gid, Version},
};

const CLASS: &str = "sys/class/infiniband";

/// An RDMA device.
pub(in crate::host) struct Device {
    pub(in crate::host) name: String,
    /// Where its files are.
    pub(in crate::host) dir: String,
    /// The driver of the card; `None` for a device in software.
    pub(in crate::host) driver: Option<String>,
    /// The address of the card.
    pub(in crate::host) address: Option<String>,
    /// The bridges above the card, the root's first.
    pub(in crate::host) bridges: Vec<String>,
    /// Soft RoCE or soft iWARP.
    pub(in crate::host) software: bool,
    /// A part of a card that was given to a container or a virtual machine.
    pub(in crate::host) virtual_function: bool,
    /// The model: `MT4129`.
    pub(in crate::host) model: Option<String>,
    /// The firmware's version.
    pub(in crate::host) firmware: Option<Version>,
    pub(in crate::host) ports: Vec<Port>,
}

/// A port.
pub(in crate::host) struct Port {
    pub(in crate::host) number: u32,
    /// Where its files are.
    pub(in crate::host) dir: String,
    /// `4: ACTIVE`.
    pub(in crate::host) state: String,
    /// `5: LinkUp`.
    pub(in crate::host) physical: String,
    /// Ethernet, not InfiniBand.
    pub(in crate::host) ethernet: bool,
    /// `400 Gb/sec (4X NDR)`.
    pub(in crate::host) rate: Option<String>,
    pub(in crate::host) gids: Vec<Gid>,
    /// Its network interfaces.
    pub(in crate::host) netdevs: Vec<String>,
}

impl Device {
    pub(in crate::host) fn is_mlx5(&self) -> bool {
        self.driver.as_deref() == Some("mlx5_core")
    }

    /// As people call a port of it.
    pub(in crate::host) fn port(&self, port: &Port) -> String {
        format!("{} port {}", self.name, port.number)
    }
}

impl Port {
    pub(in crate::host) fn active(&self) -> bool {
        self.state.contains("ACTIVE")
    }

    /// The rate in Gb/s.
    pub(in crate::host) fn gigabits(&self) -> Option<f64> {
        self.rate.as_ref()?.split(' ').next()?.parse().ok()
    }
}

pub(super) fn devices(root: &Root) -> Vec<Device> {
    root.names(CLASS)
        .into_iter()
        .map(|name| device(root, name))
        .collect()
}

fn device(root: &Root, name: String) -> Device {
    let dir = format!("{CLASS}/{name}");
    let file = |path: &str| root.text(&format!("{dir}/{path}")).ok();
    let uevent = file("device/uevent").unwrap_or_default();
    let said = |key: &str| {
        let line = uevent.lines().find_map(|line| line.strip_prefix(key))?;
        line.strip_prefix('=').map(str::to_owned)
    };
    let software = !root.exists(&format!("{dir}/device"));
    let place = root.resolve(&format!("{dir}/device"));
    let mut parents: Vec<String> = place
        .split('/')
        .filter(|part| is_address(part))
        .map(str::to_owned)
        .collect();
    let address = parents.pop().or_else(|| said("PCI_SLOT_NAME"));
    let ports = root
        .names(&format!("{dir}/ports"))
        .iter()
        .filter_map(|number| port(root, &dir, number.parse().ok()?))
        .collect();
    Device {
        driver: root
            .link_name(&format!("{dir}/device/driver"))
            .or_else(|| said("DRIVER")),
        address,
        bridges: parents,
        software,
        virtual_function: root.exists(&format!("{dir}/device/physfn")),
        model: file("hca_type"),
        firmware: file("fw_ver").as_deref().and_then(Version::parse),
        ports,
        name,
        dir,
    }
}

fn port(root: &Root, device: &str, number: u32) -> Option<Port> {
    let dir = format!("{device}/ports/{number}");
    let file = |path: &str| root.text(&format!("{dir}/{path}")).ok();
    let gids = gids(root, &dir);
    let mut netdevs: Vec<String> = gids.iter().filter_map(|gid| gid.netdev.clone()).collect();
    netdevs.dedup();
    if netdevs.is_empty() {
        // Soft RoCE names the interface it is on; a card has a directory of them.
        netdevs.extend(root.text(&format!("{device}/parent")));
        let net = root.names(&format!("{device}/device/net"));
        netdevs.extend(net.into_iter().filter(|name| {
            let place = root.number(&format!("sys/class/net/{name}/dev_port"));
            place.is_none_or(|place| place + 1 == u64::from(number))
        }));
    }
    Some(Port {
        number,
        state: file("state")?,
        physical: file("phys_state").unwrap_or_default(),
        ethernet: file("link_layer").is_none_or(|layer| layer == "Ethernet"),
        rate: file("rate"),
        gids,
        netdevs,
        dir,
    })
}

/// The entries that are used. Linux puts an address at the first entry that is free (ib_cache_gid_add), so that behind a long
/// row of empty ones there is nothing; cards have tables of a thousand, each entry is a file, and listing them takes longer than
/// all checks.
fn gids(root: &Root, port: &str) -> Vec<Gid> {
    const EMPTY: usize = 64;
    let mut found = Vec::new();
    let mut empty = 0;
    for index in 0.. {
        let file = |path: &str| root.text(&format!("{port}/{path}/{index}")).ok();
        let address = file("gids").unwrap_or_default();
        let entry = |kind: Option<&str>, netdev| Gid::parse(index, &address, kind, netdev);
        // Types of entries that are not used cannot be read (EINVAL); most entries are not.
        if entry(None, None).is_some() {
            empty = 0;
            found.extend(entry(
                file("gid_attrs/types").as_deref(),
                file("gid_attrs/ndevs"),
            ));
            continue;
        }
        empty += 1;
        if empty == EMPTY {
            break;
        }
    }
    found
}

/// Whether it is the address of a PCI function: `0000:17:00.0`.
fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    parts.len() == 4
        && parts
            .iter()
            .zip([4, 2, 2, 1])
            .all(|(part, len)| part.len() >= len && part.bytes().all(|c| c.is_ascii_hexdigit()))
}
