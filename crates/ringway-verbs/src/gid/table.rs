//! The table of GIDs as the kernel shows it in files.

use std::{fs, io, path::Path};

use super::{Gid, GidEntry, GidKind};

/// Reads the table of port `port` of `device` below `root`, the root of the file system (of a recorded one in tests).
///
/// Holes are left out: entries of zeros, and entries whose type cannot be read. In containers the kernel answers EINVAL
/// for those that belong to another network namespace.
///
/// # Errors
/// If there is no such table.
pub fn read_table(root: &Path, device: &str, port: u8) -> io::Result<Vec<GidEntry>> {
    let dir = root
        .join("sys/class/infiniband")
        .join(device)
        .join("ports")
        .join(port.to_string());
    let mut entries = Vec::new();
    for file in fs::read_dir(dir.join("gids"))? {
        let name = file?.file_name();
        let Some(index) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let attribute = |kind: &str| {
            let path = dir.join("gid_attrs").join(kind).join(&name);
            let text = fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let gid = fs::read_to_string(dir.join("gids").join(&name))
            .ok()
            .and_then(|text| parse(text.trim()));
        let kind = attribute("types").and_then(|text| kind(&text));
        if let (Some(gid), Some(kind)) = (gid, kind)
            && !gid.is_zero()
        {
            entries.push(GidEntry {
                index,
                gid,
                kind,
                netdev: attribute("ndevs"),
            });
        }
    }
    entries.sort_by_key(|entry| entry.index);
    Ok(entries)
}

/// A GID as the kernel writes it: eight groups of four hexadecimal digits, `0000:...:0a00:0001`.
fn parse(text: &str) -> Option<Gid> {
    let address: std::net::Ipv6Addr = text.parse().ok()?;
    Some(Gid(address.octets()))
}

/// The words that the kernel has for the types (drivers/infiniband/core/cache.c).
fn kind(text: &str) -> Option<GidKind> {
    match text {
        "IB/RoCE v1" => Some(GidKind::RoceV1),
        "RoCE v2" => Some(GidKind::RoceV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::Tree;

    #[test]
    fn holes_are_skipped_and_order_is_by_number() {
        let tree = Tree::new();
        let gids = [
            (
                0,
                "fe80:0000:0000:0000:0000:00ff:fe00:0001",
                Some("IB/RoCE v1"),
                Some("rank0"),
            ),
            (
                1,
                "fe80:0000:0000:0000:0000:00ff:fe00:0001",
                Some("RoCE v2"),
                Some("rank0"),
            ),
            (
                2,
                "0000:0000:0000:0000:0000:0000:0000:0000",
                Some("RoCE v2"),
                None,
            ),
            // Another namespace's: the type cannot be read.
            (3, "0000:0000:0000:0000:0000:ffff:0a00:0009", None, None),
            (
                10,
                "0000:0000:0000:0000:0000:ffff:0a00:0001",
                Some("RoCE v2"),
                Some("rank0"),
            ),
        ];
        for (index, gid, kind, netdev) in gids {
            tree.gid("rxe0", 1, index, gid, kind, netdev);
        }
        let table = read_table(tree.root(), "rxe0", 1).unwrap();
        let read: Vec<_> = table
            .iter()
            .map(|entry| (entry.index, entry.kind))
            .collect();
        assert_eq!(
            read,
            [
                (0, GidKind::RoceV1),
                (1, GidKind::RoceV2),
                (10, GidKind::RoceV2)
            ]
        );
        assert_eq!(table[2].gid.to_string(), "10.0.0.1");
        assert_eq!(table[2].netdev.as_deref(), Some("rank0"));
        assert!(read_table(tree.root(), "rxe0", 2).is_err());
    }
}
