//! GIDs, as /sys/class/infiniband/*/ports/*/gids and gid_attrs have them.

use std::{fmt, net::Ipv6Addr};

/// What packets a GID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// RoCE v1, which no router forwards; the kernel's word is the same for InfiniBand.
    V1,
    /// RoCE v2.
    V2,
    /// The kernel would not say, as in some containers.
    Unknown,
}

/// An address of an RDMA port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The index in the table.
    pub index: u32,
    /// The address; IPv4 is mapped into IPv6.
    pub address: Ipv6Addr,
    /// What it is for.
    pub kind: GidKind,
    /// The network interface it belongs to.
    pub netdev: Option<String>,
}

impl Gid {
    /// From the texts of `gids/N`, `gid_attrs/types/N` and `gid_attrs/ndevs/N`; `None` if the entry is empty.
    pub fn parse(
        index: u32,
        address: &str,
        kind: Option<&str>,
        netdev: Option<String>,
    ) -> Option<Self> {
        let address: Ipv6Addr = address.trim().parse().ok()?;
        if address.is_unspecified() {
            return None;
        }
        let kind = match kind.map(str::trim) {
            Some("RoCE v2") => GidKind::V2,
            Some(_) => GidKind::V1,
            None => GidKind::Unknown,
        };
        Some(Self {
            index,
            address,
            kind,
            netdev,
        })
    }

    /// Whether packets to it leave their link.
    pub fn routable(&self) -> bool {
        let link_local_v4 = self
            .address
            .to_ipv4_mapped()
            .is_some_and(|address| address.is_link_local() || address.is_unspecified());
        !self.address.is_unicast_link_local() && !link_local_v4
    }

    /// Whether it is an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.address.to_ipv4_mapped().is_some()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address.to_ipv4_mapped() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_link() {
        let routable = |address: &str| {
            Gid::parse(0, address, Some("RoCE v2"), None)
                .unwrap()
                .routable()
        };
        assert!(routable("0000:0000:0000:0000:0000:ffff:0a00:0001"));
        assert!(routable("2001:db8::1") && routable("fd00::1"));
        assert!(!routable("fe80::1") && !routable("::ffff:169.254.1.1"));
        assert_eq!(Gid::parse(0, "::", None, None), None);
        assert_eq!(Gid::parse(0, "x", None, None), None);
        let kind = |kind| Gid::parse(0, "::1", kind, None).unwrap().kind;
        assert_eq!(kind(Some("IB/RoCE v1\n")), GidKind::V1);
        assert_eq!(kind(None), GidKind::Unknown);
    }
}
