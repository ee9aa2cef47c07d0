//! Which addresses of two hosts are measured with each other.

use super::port::{Address, source};

/// Addresses on the same network, a pair for each interface of this host: with the other's interface of the same name if there
/// is one, else with one that has no partner yet. Without a network that both are on, two addresses between which there is a
/// route.
pub(super) fn ways<'a>(own: &'a [Address], peer: &'a [Address]) -> Vec<(&'a Address, &'a Address)> {
    let mut found: Vec<(&Address, &Address)> = Vec::new();
    // IPv4 first: both families of an interface lead the same way.
    for v4 in [true, false] {
        for choice in [Choice::SameName, Choice::Free, Choice::Any] {
            for from in own.iter().filter(|it| it.ip.is_ipv4() == v4) {
                if found
                    .iter()
                    .any(|(known, _)| known.interface == from.interface)
                {
                    continue;
                }
                let near = peer.iter().filter(|to| from.near(to) && from.ip != to.ip);
                let fits = |to: &&Address| match choice {
                    Choice::SameName => to.interface == from.interface,
                    Choice::Free => found
                        .iter()
                        .all(|(_, known)| known.interface != to.interface),
                    Choice::Any => true,
                };
                if let Some(to) = near.clone().find(fits) {
                    found.push((from, to));
                }
            }
        }
    }
    if found.is_empty() {
        let routed = peer.iter().filter_map(|to| {
            let from = source(to.ip)?;
            Some((own.iter().find(|own| own.ip == from)?, to))
        });
        found.extend(routed.filter(|(from, to)| from.ip != to.ip).take(1));
    }
    found
}

/// With whom an interface is paired, the best first.
#[derive(Clone, Copy)]
enum Choice {
    SameName,
    Free,
    Any,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addresses: &[(&str, &str)]) -> Vec<Address> {
        let address =
            |&(interface, ip): &(&str, &str)| Address::of(interface, ip.parse().unwrap(), 24);
        addresses.iter().map(address).collect()
    }

    #[track_caller]
    fn check(own: &[(&str, &str)], peer: &[(&str, &str)], expected: &[(&str, &str)]) {
        let (own, peer) = (host(own), host(peer));
        let ways = ways(&own, &peer);
        let found: Vec<(String, String)> = ways
            .iter()
            .map(|(from, to)| (from.ip.to_string(), to.ip.to_string()))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn each_interface_has_a_partner_of_its_own() {
        // Rails of one subnet, whose addresses come in another order on the other host.
        check(
            &[("eth2", "10.0.0.1"), ("eth3", "10.0.0.2")],
            &[("eth3", "10.0.0.4"), ("eth2", "10.0.0.3")],
            &[("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.4")],
        );
        // Names that have nothing to do with each other.
        check(
            &[("ens1", "10.0.0.1"), ("ens2", "10.0.0.2")],
            &[("ib0", "10.0.0.3"), ("ib1", "10.0.0.4")],
            &[("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.4")],
        );
        // More here than there: all are measured.
        check(
            &[("eth2", "10.0.0.1"), ("eth3", "10.0.0.2")],
            &[("eth3", "10.0.0.3")],
            &[("10.0.0.2", "10.0.0.3"), ("10.0.0.1", "10.0.0.3")],
        );
        // Both families, and several networks.
        check(
            &[
                ("eth0", "192.168.7.1"),
                ("eth2", "10.0.0.1"),
                ("eth2", "fd00::1"),
            ],
            &[
                ("eth2", "fd00::2"),
                ("eth2", "10.0.0.2"),
                ("eth0", "192.168.7.2"),
            ],
            &[("192.168.7.1", "192.168.7.2"), ("10.0.0.1", "10.0.0.2")],
        );
    }
}
