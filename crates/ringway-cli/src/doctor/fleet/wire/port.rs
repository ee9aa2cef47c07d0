//! The addresses of a host, and the interfaces they belong to.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    path::Path,
};

use ringway_doctor::fleet::Port;
use ringway_sys::interface_addresses;
use ringway_verbs::{
    gid::GidKind,
    sysfs::{self, DeviceFiles, PortFiles},
};
use serde::{Deserialize, Serialize};
use socket2::SockRef;

/// An address that others may ask at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::doctor::fleet) struct Address {
    pub(super) interface: String,
    pub(super) ip: IpAddr,
    pub(super) prefix: u8,
    mtu: Option<u32>,
    speed: Option<f64>,
    /// Another interface of this host is on the same network: packets leave by one of them for both, unless they are told.
    crowded: bool,
    /// The RDMA device that has this address, and its port.
    pub(super) rdma: Option<(String, u8)>,
    /// The UDP port that answers there.
    pub(super) port: u16,
}

/// Counters of errors on the wire, below /sys/class/net/INTERFACE/statistics.
const ERRORS: [&str; 5] = [
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_errors",
    "tx_carrier_errors",
    "tx_errors",
];

impl Address {
    /// The addresses of this host that others may reach, of those that are `allowed`.
    pub(super) fn all(allowed: &[IpAddr]) -> std::io::Result<Vec<Self>> {
        let all = interface_addresses()?.into_iter();
        let devices = sysfs::devices(Path::new("/")).unwrap_or_default();
        let usable = all
            .filter(|it| !it.loopback && allowed.contains(&it.address) && !link_local(it.address));
        let mut found: Vec<Self> = usable
            .map(|it| {
                let file = |file: &str| read(&it.name, file);
                // Virtual interfaces have no speed, or one that is made up.
                let card =
                    fs::exists(format!("/sys/class/net/{}/device", it.name)).unwrap_or(false);
                Self {
                    mtu: file("mtu").and_then(|mtu| u32::try_from(mtu).ok()),
                    speed: file("speed")
                        .filter(|_| card)
                        .map(|megabits| megabits as f64 * 1e6),
                    rdma: rdma_port(&devices, it.address),
                    ..Self::of(&it.name, it.address, it.prefix)
                }
            })
            .collect();
        let crowded: Vec<bool> = found
            .iter()
            .map(|it| {
                let beside = |other: &Self| other.interface != it.interface && it.near(other);
                found.iter().any(beside)
            })
            .collect();
        for (address, crowded) in found.iter_mut().zip(crowded) {
            address.crowded = crowded;
        }
        Ok(found)
    }

    /// One of which nothing else is known.
    pub(super) fn of(interface: &str, ip: IpAddr, prefix: u8) -> Self {
        Self {
            interface: interface.to_owned(),
            ip,
            prefix,
            mtu: None,
            speed: None,
            crowded: false,
            rdma: None,
            port: 0,
        }
    }

    /// Has a socket send by this interface where the kernel would take another one of the same network.
    pub(super) fn hold(&self, socket: &impl AsFd) {
        if self.crowded {
            // Linux before 5.7 lets only root: then all go by the interface of the route, as connections of any program do.
            let _ = SockRef::from(socket).bind_device(Some(self.interface.as_bytes()));
        }
    }

    /// Whether the other is on the same network.
    pub(super) fn near(&self, other: &Self) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let same = (bits(self.ip) ^ bits(other.ip)).leading_zeros() >= u32::from(self.prefix);
        self.ip.is_ipv4() == other.ip.is_ipv4() && self.prefix == other.prefix && same
    }

    /// As the report has it.
    pub(super) fn report(&self) -> Port {
        Port {
            interface: self.interface.clone(),
            address: self.ip.to_string(),
            mtu: self.mtu,
            speed: self.speed,
            errors: Vec::new(),
        }
    }

    /// The largest packet that its interface takes.
    pub(super) fn mtu(&self) -> Option<u32> {
        self.mtu
    }
}

/// The RDMA port that is up and has this address.
fn rdma_port(devices: &[DeviceFiles], ip: IpAddr) -> Option<(String, u8)> {
    devices.iter().find_map(|device| {
        let has = |port: &&PortFiles| {
            let mut gids = port.gids.iter();
            port.state == "ACTIVE"
                && gids.any(|it| it.kind == GidKind::RoceV2 && it.gid.address() == ip)
        };
        let port = device.ports.iter().find(has)?;
        Some((device.name.clone(), port.number))
    })
}

/// The address of this host that packets to another leave by.
pub(super) fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => [0, 0, 0, 0].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent: the kernel looks for a route.
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The errors on the wire that the interfaces of some addresses have counted, by interface and counter.
pub(in crate::doctor::fleet) fn errors(
    addresses: &[Address],
) -> BTreeMap<String, BTreeMap<String, u64>> {
    let of = |interface: &str| -> BTreeMap<String, u64> {
        let count = |name: &&str| {
            Some((
                (*name).to_owned(),
                read(interface, &format!("statistics/{name}"))?,
            ))
        };
        ERRORS.iter().filter_map(count).collect()
    };
    addresses
        .iter()
        .map(|it| (it.interface.clone(), of(&it.interface)))
        .collect()
}

fn read(interface: &str, file: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/{file}")).ok()?;
    text.trim().parse().ok()
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
