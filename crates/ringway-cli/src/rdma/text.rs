//! For people.

use std::fmt::Write as _;

use ringway_verbs::{
    Mtu,
    gid::{self, Wish},
    sysfs::{DeviceFiles, PortFiles},
};

use super::look::Found;

pub(super) fn report(found: &Found, counters: bool) -> String {
    let mut out = String::new();
    for device in &found.devices {
        let closed = found.closed.get(&device.name).map(String::as_str);
        let _ = write_device(&mut out, device, closed, counters);
    }
    if let Some(absence) = &found.absence {
        let _ = writeln!(out, "{absence}");
    }
    let addresses: Vec<_> = found
        .addresses
        .iter()
        .map(|it| format!("{} ({})", it.address, it.name))
        .collect();
    let _ = writeln!(
        out,
        "software: RoCE v2 over UDP sockets, without device, driver or rights\n  addresses  {}",
        addresses.join(", ")
    );
    let _ = match &found.library {
        Ok(fork) => writeln!(out, "libibverbs: loaded\n  fork  {fork}"),
        Err(error) => writeln!(out, "libibverbs: {error}"),
    };
    let _ = writeln!(out, "locked memory: {}", found.memlock);
    out
}

fn write_device(
    out: &mut String,
    device: &DeviceFiles,
    closed: Option<&str>,
    counters: bool,
) -> std::fmt::Result {
    write!(out, "{}", device.name)?;
    if let Some(kind) = &device.kind {
        write!(out, ": {kind}")?;
    }
    if let Some(firmware) = &device.firmware {
        write!(out, ", firmware {firmware}")?;
    }
    writeln!(out)?;
    if let Some(error) = closed {
        writeln!(out, "  cannot be opened: {error}")?;
    }
    for port in &device.ports {
        write_port(out, port, counters)?;
    }
    Ok(())
}

fn write_port(out: &mut String, port: &PortFiles, counters: bool) -> std::fmt::Result {
    write!(
        out,
        "  port {}  {}, {}, {}",
        port.number, port.state, port.physical, port.link_layer
    )?;
    if let Some(rate) = port.rate {
        write!(out, ", {} Gb/s", rate as f64 / 1e9)?;
    }
    writeln!(out)?;
    match port.mtu {
        Some((interface, Some(mtu))) => {
            write!(out, "    MTU    {mtu}, of the interface's {interface}")?;
            if mtu < Mtu::B4096 {
                write!(
                    out,
                    "; 4096 needs 4192 or more on all hosts and switches: ip link set ... mtu 9000"
                )?;
            }
            writeln!(out)?;
        }
        Some((interface, None)) => writeln!(
            out,
            "    MTU    none: the interface's {interface} is too small for RoCE"
        )?,
        None => {}
    }
    let choice = gid::choose(&port.gids, Wish::default());
    let chosen = choice.as_ref().ok().map(|choice| choice.entry.index);
    for entry in &port.gids {
        let mark = if chosen == Some(entry.index) {
            '*'
        } else {
            ' '
        };
        writeln!(
            out,
            "    GID  {mark} {:3}  {:10}  {}{}",
            entry.index,
            entry.kind,
            entry.gid,
            entry
                .netdev
                .as_ref()
                .map_or_else(String::new, |netdev| format!(" ({netdev})"))
        )?;
    }
    match choice {
        Ok(choice) => {
            if let Some(note) = choice.note {
                writeln!(out, "    note   {note}")?;
            }
        }
        Err(error) => writeln!(out, "    cannot be used: {error}")?,
    }
    if counters {
        for (name, value) in port.counters.iter().filter(|(_, value)| **value != 0) {
            writeln!(out, "    {name}  {value}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringway_verbs::{
        ForkSafety, Memlock,
        gid::{Gid, GidEntry, GidKind},
    };

    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            index,
            gid: Gid::from(address.parse::<std::net::IpAddr>().unwrap()),
            kind,
            netdev: Some("eth1".to_owned()),
        }
    }

    fn found(gids: Vec<GidEntry>) -> Found {
        let port = PortFiles {
            number: 1,
            state: "ACTIVE".to_owned(),
            physical: "LinkUp".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: Some(2_500_000_000),
            mtu: Some((1500, Some(Mtu::B1024))),
            gids,
            counters: BTreeMap::from([
                ("out_of_sequence".to_owned(), 3),
                ("rnr_nak".to_owned(), 0),
            ]),
        };
        Found {
            devices: vec![DeviceFiles {
                name: "mlx5_0".to_owned(),
                kind: Some("MT4125".to_owned()),
                firmware: Some("22.35.1012".to_owned()),
                ports: vec![port],
            }],
            closed: BTreeMap::from([("mlx5_0".to_owned(), "no permission".to_owned())]),
            library: Ok(ForkSafety::Unneeded),
            memlock: Memlock::default(),
            addresses: Vec::new(),
            absence: None,
        }
    }

    #[test]
    fn a_device_with_the_gid_that_would_be_used() {
        let gids = vec![
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(3, "10.0.0.1", GidKind::RoceV2),
        ];
        let text = report(&found(gids), true);
        let expected = "\
mlx5_0: MT4125, firmware 22.35.1012
  cannot be opened: no permission
  port 1  ACTIVE, LinkUp, Ethernet, 2.5 Gb/s
    MTU    1024, of the interface's 1500; 4096 needs 4192 or more on all hosts and switches: ip link set ... mtu 9000
    GID      1  RoCE v2     fe80::1 (eth1)
    GID  *   3  RoCE v2     10.0.0.1 (eth1)
    out_of_sequence  3
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("locked memory: unlimited\n"), "{text}");
    }

    #[test]
    fn a_port_that_cannot_be_used_says_why() {
        let text = report(&found(vec![entry(0, "10.0.0.1", GidKind::RoceV1)]), false);
        assert!(
            text.contains("cannot be used: the port has GIDs of RoCE v1 only"),
            "{text}"
        );
        assert!(!text.contains("out_of_sequence"), "{text}");
        let text = report(&found(vec![entry(0, "fe80::1", GidKind::RoceV2)]), false);
        assert!(text.contains("note   only link-local"), "{text}");
    }
}
