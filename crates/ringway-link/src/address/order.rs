//! In what order the addresses of a peer are tried.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ringway_sys::InterfaceAddress;

use super::{PeerAddress, is_link_local, same_subnet};

/// How promising an address is, the best first. Only the handshake decides; this decides what is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    /// Loopback of a peer in the same network stack.
    Loopback,
    /// On a subnet that this host is on too.
    Neighbour,
    /// Somewhere else.
    Routed,
    /// IPv6 link-local: reaches a neighbour by one of this host's links, unknown which.
    LinkLocal,
    /// This host has the same address, and the peer lives in another network stack: most likely a bridge that every
    /// host has, but if all else fails it may be a tunnel.
    Own,
}

/// The socket addresses to try for `peer`, the best first. `local` are this host's addresses, and `here`
/// says whether the peer shares this network stack; `None` is unknown.
pub(crate) fn routes(
    peer: &PeerAddress,
    local: &[InterfaceAddress],
    here: Option<bool>,
) -> Vec<SocketAddr> {
    let mut found: Vec<(Promise, SocketAddr)> = Vec::new();
    for candidate in &peer.addresses {
        let ip = candidate.ip;
        let at = |scope| match ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, peer.port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, peer.port, 0, scope).into(),
        };
        if ip.is_loopback() {
            if here != Some(false) {
                found.push((Promise::Loopback, at(0)));
            }
        } else if ip.is_ipv6() && is_link_local(ip) {
            let mut scopes: Vec<_> = local
                .iter()
                .filter(|l| l.address.is_ipv6() && is_link_local(l.address))
                .map(|l| l.index)
                .filter(|&index| candidate.scope == 0 || candidate.scope == index)
                .collect();
            scopes.dedup();
            found.extend(
                scopes
                    .into_iter()
                    .map(|scope| (Promise::LinkLocal, at(scope))),
            );
        } else {
            let own = local.iter().any(|l| l.address == ip);
            let neighbour = local
                .iter()
                .any(|l| !l.loopback && same_subnet(l.address, ip, l.prefix));
            let promise = match (own, here, neighbour) {
                (true, Some(false), _) => Promise::Own,
                (true, _, _) | (_, _, true) => Promise::Neighbour,
                _ => Promise::Routed,
            };
            found.push((promise, at(0)));
        }
    }
    found.sort_by_key(|&(promise, _)| promise);
    let mut routes: Vec<_> = found.into_iter().map(|(_, at)| at).collect();
    let mut seen = std::collections::HashSet::new();
    routes.retain(|at| seen.insert(*at));
    routes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Candidate;

    fn local(name: &str, index: u32, ip: &str, prefix: u8) -> InterfaceAddress {
        let address: IpAddr = ip.parse().unwrap();
        InterfaceAddress {
            name: name.into(),
            index,
            address,
            prefix,
            loopback: address.is_loopback(),
        }
    }

    fn tried(peer: &[&str], here: Option<bool>) -> Vec<String> {
        let local = [
            local("lo", 1, "127.0.0.1", 8),
            local("eth0", 2, "10.0.0.1", 24),
            local("eth0", 2, "fe80::1", 64),
            local("eth1", 3, "fe80::2", 64),
            local("docker0", 4, "172.17.0.1", 16),
        ];
        let mut address = PeerAddress::at(1, 9, []);
        address.addresses.extend(peer.iter().map(|ip| Candidate {
            ip: ip.parse().unwrap(),
            prefix: 24,
            scope: 0,
        }));
        routes(&address, &local, here)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn neighbours_first_and_no_loopback_of_other_hosts() {
        let peer = [
            "172.17.0.1",
            "fe80::9",
            "192.168.1.1",
            "10.0.0.2",
            "127.0.0.1",
        ];
        assert_eq!(
            tried(&peer, Some(false)),
            [
                "10.0.0.2:9",
                "192.168.1.1:9",
                "[fe80::9%2]:9",
                "[fe80::9%3]:9",
                "172.17.0.1:9"
            ]
        );
    }

    #[test]
    fn loopback_first_on_the_same_host() {
        let peer = ["10.0.0.1", "172.17.0.1", "127.0.0.1", "::1"];
        assert_eq!(
            tried(&peer, Some(true)),
            ["127.0.0.1:9", "[::1]:9", "10.0.0.1:9", "172.17.0.1:9"]
        );
    }

    #[test]
    fn an_address_given_twice_is_tried_once() {
        assert_eq!(tried(&["10.0.0.2", "10.0.0.2"], None), ["10.0.0.2:9"]);
    }
}
