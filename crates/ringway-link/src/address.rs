//! Where a rank can be reached: what it publishes, and in what order others try it.
//!
//! Nobody can tell from an address whether it reaches the peer: the same bridge address exists on every host,
//! and names of interfaces mean nothing elsewhere. So a rank publishes all it has, and others probe.

mod filter;
mod order;

use std::{fs, io, net::IpAddr};

use ringway_plan::Rank;
use ringway_sys::{InterfaceAddress, interface_addresses};

pub use filter::{BadFilter, InterfaceFilter};
pub(crate) use order::routes;

use crate::session::codec::{Reader, Truncated};

/// The most addresses of one rank.
pub const MAX_ADDRESSES: usize = 64;

const FORMAT: u8 = 1;

/// An address that may reach a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub ip: IpAddr,
    /// The number of leading bits of its subnet; all of them if unknown.
    pub prefix: u8,
    /// For link-local IPv6: the interface *of this host* to reach it by, or 0 to try all.
    pub scope: u32,
}

/// All that is to be known to connect to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The rank.
    pub rank: Rank,
    /// Its process (see [`crate::session::Identity`]), or 0 for any.
    pub nonce: u64,
    /// The network stack that it lives in, or 0 if unknown: the same for processes that share loopback.
    pub network: u128,
    /// The port it listens on.
    pub port: u16,
    /// Its addresses, loopback last.
    pub addresses: Vec<Candidate>,
}

/// Why bytes are no published address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// They end early.
    #[error("a published address is cut short")]
    Truncated,
    /// They are of another format.
    #[error(
        "a published address has format {0}, expected {FORMAT}: install the same Ringway everywhere"
    )]
    Format(u8),
    /// They are not what any rank publishes.
    #[error("a published address is broken: {0}")]
    Broken(&'static str),
}

impl From<Truncated> for BadAddress {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl PeerAddress {
    /// A rank known by addresses alone, such as that of a launcher's master.
    pub fn at(rank: Rank, port: u16, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = addresses
            .into_iter()
            .take(MAX_ADDRESSES)
            .map(|ip| Candidate {
                ip,
                prefix: if ip.is_ipv4() { 32 } else { 128 },
                scope: 0,
            })
            .collect();
        Self {
            rank,
            nonce: 0,
            network: 0,
            port,
            addresses,
        }
    }

    /// The bytes to publish.
    pub fn encode(&self) -> Vec<u8> {
        let rank = u32::try_from(self.rank).unwrap_or(u32::MAX);
        let count = self.addresses.len().min(MAX_ADDRESSES);
        let mut bytes = vec![FORMAT, u8::try_from(count).unwrap_or(u8::MAX)];
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.extend_from_slice(&rank.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend_from_slice(&self.network.to_le_bytes());
        for candidate in &self.addresses[..count] {
            match candidate.ip {
                IpAddr::V4(ip) => {
                    bytes.extend_from_slice(&[4, candidate.prefix]);
                    bytes.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.extend_from_slice(&[6, candidate.prefix]);
                    bytes.extend_from_slice(&ip.octets());
                }
            }
        }
        bytes
    }

    /// Reads what [`PeerAddress::encode`] wrote. Scopes are not published: they mean something on one host only.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadAddress> {
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            FORMAT => {}
            other => return Err(BadAddress::Format(other)),
        }
        let count = usize::from(reader.u8()?);
        if count > MAX_ADDRESSES {
            return Err(BadAddress::Broken("more addresses than any rank has"));
        }
        let port = reader.u16()?;
        let rank = Rank::try_from(reader.u32()?)
            .map_err(|_| BadAddress::Broken("a rank beyond all numbers"))?;
        let nonce = reader.u64()?;
        let network = u128::from_le_bytes(reader.array()?);
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let (family, prefix) = (reader.u8()?, reader.u8()?);
            let (ip, bits) = match family {
                4 => (IpAddr::from(reader.array::<4>()?), 32),
                6 => (IpAddr::from(reader.array::<16>()?), 128),
                _ => return Err(BadAddress::Broken("an address of an unknown family")),
            };
            if prefix > bits {
                return Err(BadAddress::Broken("a subnet longer than its address"));
            }
            addresses.push(Candidate {
                ip,
                prefix,
                scope: 0,
            });
        }
        if !reader.rest().is_empty() {
            return Err(BadAddress::Broken("bytes after the last address"));
        }
        Ok(Self {
            rank,
            nonce,
            network,
            port,
            addresses,
        })
    }
}

/// All addresses of this host that `filter` lets pass, loopback last.
///
/// # Errors
/// If the kernel does not tell its interfaces.
pub fn candidates(filter: &InterfaceFilter) -> io::Result<Vec<Candidate>> {
    let mut all = interface_addresses()?;
    all.retain(|a| filter.allows(a) && !a.address.is_unspecified() && !a.address.is_multicast());
    all.sort_by_key(|a| (a.loopback, is_link_local(a.address)));
    all.truncate(MAX_ADDRESSES);
    let candidate = |a: &InterfaceAddress| Candidate {
        ip: a.address,
        prefix: a.prefix,
        scope: 0,
    };
    Ok(all.iter().map(candidate).collect())
}

/// The network stack that this process lives in: equal in two processes exactly if they share loopback. 0 if the
/// system does not tell.
pub fn network_id() -> u128 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/net");
    let (Ok(boot), Ok(namespace)) = (boot, namespace) else {
        return 0;
    };
    let name = format!("{} {}", boot.trim(), namespace.display());
    u128::from_le_bytes(crate::session::JobId::from_name(&name).0)
}

pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether the first `prefix` bits of two addresses of one family are the same.
fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (a, b, bits) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let host_bits = bits - u32::from(prefix).min(bits);
    (a ^ b).checked_shr(host_bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn loopback_is_published_last() {
        let all = candidates(&InterfaceFilter::default()).unwrap();
        let first = all.iter().position(|c| c.ip.is_loopback()).unwrap();
        assert!(all[first..].iter().all(|c| c.ip.is_loopback()));
        assert!(candidates(&"nothing0".parse().unwrap()).unwrap().is_empty());
    }

    #[test]
    fn one_network_has_one_id() {
        assert_ne!(network_id(), 0);
        assert_eq!(network_id(), network_id());
    }

    #[test]
    fn subnets_are_compared_by_prefix() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        assert!(same_subnet(ip("10.1.2.3"), ip("10.1.9.9"), 16));
        assert!(!same_subnet(ip("10.1.2.3"), ip("10.1.9.9"), 24));
        assert!(same_subnet(ip("10.1.2.3"), ip("99.1.9.9"), 0));
        assert!(same_subnet(ip("fd00::1"), ip("fd00::2"), 64));
        assert!(!same_subnet(ip("fd00::1"), ip("fd00::2"), 128));
        assert!(!same_subnet(ip("fd00::1"), ip("10.1.2.3"), 0));
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        prop_oneof![
            (any::<[u8; 4]>(), 0_u8..=32).prop_map(|(ip, p)| (IpAddr::from(ip), p)),
            (any::<[u8; 16]>(), 0_u8..=128).prop_map(|(ip, p)| (IpAddr::from(ip), p)),
        ]
        .prop_map(|(ip, prefix)| Candidate {
            ip,
            prefix,
            scope: 0,
        })
    }

    proptest! {
        #[test]
        fn published_addresses_survive_the_wire(
            rank in 0_usize..1 << 20, nonce: u64, network: u128, port: u16,
            addresses in proptest::collection::vec(candidate(), 0..MAX_ADDRESSES),
        ) {
            let address = PeerAddress { rank, nonce, network, port, addresses };
            let bytes = address.encode();
            prop_assert_eq!(PeerAddress::decode(&bytes), Ok(address));
            for cut in 0..bytes.len() {
                prop_assert!(PeerAddress::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = PeerAddress::decode(&bytes);
        }
    }
}
