//! GIDs: the addresses of RDMA ports, and which of them to use.

mod choose;
mod table;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub use choose::{Choice, Family, GidError, Wish, choose};
pub use table::read_table;

/// 16 bytes in network order. Over Ethernet it is an IPv6 address, or an IPv4 address in IPv6's mapped form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the entry holds nothing.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// The address that it is: IPv4 if mapped.
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether it is of use on one link only: fe80::/10, or 169.254.0.0/16 (RFC 3927).
    pub fn is_link_local(self) -> bool {
        match self.address() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// How packets to and from a GID are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, not Ethernet.
    Infiniband,
    /// RoCE v1: Ethernet frames, which no router forwards.
    RoceV1,
    /// RoCE v2: UDP port 4791 over IP.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Infiniband => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Where it is. The kernel moves entries when addresses come and go: never keep an index, look for the GID again.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// How packets are made.
    pub kind: GidKind,
    /// The network interface that has the address, where there is one.
    pub netdev: Option<String>,
}
