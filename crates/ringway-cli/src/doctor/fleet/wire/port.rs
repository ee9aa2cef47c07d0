//! The addresses of a host, and the interfaces they belong to.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use ringway_doctor::fleet::Port;
use ringway_sys::interface_addresses;
use serde::{Deserialize, Serialize};

/// An address that others may ask at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::doctor::fleet) struct Address {
    pub(super) interface: String,
    pub(super) ip: IpAddr,
    pub(super) prefix: u8,
    mtu: Option<u32>,
    speed: Option<f64>,
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
        let usable = all
            .filter(|it| !it.loopback && allowed.contains(&it.address) && !link_local(it.address));
        Ok(usable
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
                    interface: it.name,
                    ip: it.address,
                    prefix: it.prefix,
                    port: 0,
                }
            })
            .collect())
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
