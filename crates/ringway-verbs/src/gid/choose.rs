//! Which GID a port uses: by what it is, never by its number.

use std::{fmt, net::IpAddr};

use thiserror::Error;

use super::{GidEntry, GidKind};

/// The family of IP addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4, which most fabrics use.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// What is wanted of a GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The family that both sides speak. The other is taken if there is no GID of this one.
    pub family: Family,
    /// Exactly this address, for instance the one through which the peer was reached.
    pub address: Option<IpAddr>,
}

/// The GID to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The entry.
    pub entry: GidEntry,
    /// What is not as it was wished for, in words for people.
    pub note: Option<String>,
}

/// Why no GID can be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GidError {
    /// The table is empty.
    #[error(
        "the port has no GID: its network interface has no address or is another network namespace's; give the interface \
         an address (ip addr add ... dev ...), in a container also the interface itself"
    )]
    None,
    /// Only RoCE v1.
    #[error(
        "the port has GIDs of RoCE v1 only: {found}; expected RoCE v2, which is routed; use a driver and firmware that \
         offer it"
    )]
    OnlyV1 {
        /// What is there.
        found: String,
    },
    /// InfiniBand.
    #[error(
        "the port has InfiniBand GIDs only: {found}; expected RoCE v2: set the port to Ethernet"
    )]
    Infiniband {
        /// What is there.
        found: String,
    },
    /// The address that was asked for has no RoCE v2 GID.
    #[error(
        "no RoCE v2 GID of the port has the address {wanted}, found {found}; is the address another device's, or new?"
    )]
    Address {
        /// The address.
        wanted: IpAddr,
        /// What is there.
        found: String,
    },
}

/// Chooses from a port's table (holes left out).
///
/// Only RoCE v2. A routable address before a link-local one, which is taken only if there is nothing else; then the
/// wished family before the other; then the lowest number. With [`Wish::address`], that address or none.
///
/// # Errors
/// If there is none, with what is there and the remedy.
pub fn choose(table: &[GidEntry], wish: Wish) -> Result<Choice, GidError> {
    let v2 = || table.iter().filter(|entry| entry.kind == GidKind::RoceV2);
    if v2().next().is_none() {
        let found = listed(table);
        return Err(match table.first() {
            None => GidError::None,
            Some(_) if table.iter().all(|e| e.kind == GidKind::Infiniband) => {
                GidError::Infiniband { found }
            }
            Some(_) => GidError::OnlyV1 { found },
        });
    }
    if let Some(wanted) = wish.address {
        let entry = v2().find(|entry| entry.gid.address() == wanted);
        return entry
            .map(|entry| Choice {
                entry: entry.clone(),
                note: None,
            })
            .ok_or_else(|| GidError::Address {
                wanted,
                found: listed(table),
            });
    }
    let other_family = |entry: &GidEntry| Family::of(entry.gid.address()) != wish.family;
    let best =
        v2().min_by_key(|entry| (entry.gid.is_link_local(), other_family(entry), entry.index));
    let Some(entry) = best else {
        return Err(GidError::None);
    };
    let note = if entry.gid.is_link_local() {
        Some(format!(
            "only link-local RoCE v2 GIDs: {} reaches no peer behind a router; give the interface{} an address",
            entry.gid,
            entry
                .netdev
                .as_ref()
                .map_or_else(String::new, |name| format!(" {name}"))
        ))
    } else if other_family(entry) {
        Some(format!(
            "no RoCE v2 GID of family {}, so {} is taken; peers must have one of its family too",
            wish.family, entry.gid
        ))
    } else {
        None
    };
    Ok(Choice {
        entry: entry.clone(),
        note,
    })
}

/// The entries in words.
fn listed(table: &[GidEntry]) -> String {
    let words: Vec<_> = table
        .iter()
        .map(|entry| format!("{} ({}, index {})", entry.gid, entry.kind, entry.index))
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::Gid;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            index,
            gid: Gid::from(address.parse::<IpAddr>().unwrap()),
            kind,
            netdev: Some("eth1".to_owned()),
        }
    }

    fn chosen(table: &[GidEntry], wish: Wish) -> (u32, Option<String>) {
        let choice = choose(table, wish).unwrap();
        (choice.entry.index, choice.note)
    }

    const V6: Wish = Wish {
        family: Family::V6,
        address: None,
    };

    #[test]
    fn a_usual_table_of_a_nic_gives_the_routable_ipv4_of_v2() {
        use GidKind::{RoceV1, RoceV2};
        let table = [
            entry(0, "fe80::1", RoceV1),
            entry(1, "fe80::1", RoceV2),
            entry(2, "10.0.0.1", RoceV1),
            entry(3, "10.0.0.1", RoceV2),
            entry(4, "fd00::1", RoceV2),
        ];
        assert_eq!(chosen(&table, Wish::default()), (3, None));
        assert_eq!(chosen(&table, V6), (4, None));
        // The other way around: after an address was taken away and given again, the numbers are others.
        let moved = [entry(0, "10.0.0.1", RoceV2), entry(5, "fe80::1", RoceV2)];
        assert_eq!(chosen(&moved, Wish::default()), (0, None));
        let (index, note) = chosen(&moved, V6);
        assert_eq!(index, 0);
        assert!(note.unwrap().contains("no RoCE v2 GID of family IPv6"));
    }

    #[test]
    fn link_local_is_the_last_resort_and_said() {
        let table = [
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "169.254.7.7", GidKind::RoceV2),
        ];
        let (index, note) = chosen(&table, Wish::default());
        assert_eq!(index, 2);
        assert!(note.unwrap().contains("give the interface eth1 an address"));
        assert_eq!(chosen(&table, V6).0, 1);
    }

    #[test]
    fn an_address_is_taken_or_refused() {
        let table = [
            entry(1, "10.0.0.1", GidKind::RoceV2),
            entry(2, "10.0.1.1", GidKind::RoceV2),
        ];
        let wish = |address: &str| Wish {
            address: Some(address.parse().unwrap()),
            ..Wish::default()
        };
        assert_eq!(chosen(&table, wish("10.0.1.1")), (2, None));
        let error = choose(&table, wish("10.0.2.1")).unwrap_err().to_string();
        assert!(error.contains("10.0.2.1"), "{error}");
        assert!(error.contains("10.0.0.1 (RoCE v2, index 1)"), "{error}");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        assert_eq!(choose(&[], Wish::default()), Err(GidError::None));
        let v1 = [entry(0, "10.0.0.1", GidKind::RoceV1)];
        assert!(matches!(
            choose(&v1, Wish::default()),
            Err(GidError::OnlyV1 { .. })
        ));
        let ib = [entry(0, "fe80::1", GidKind::Infiniband)];
        assert!(matches!(
            choose(&ib, Wish::default()),
            Err(GidError::Infiniband { .. })
        ));
    }
}
