//! What applications put into the ToS byte, and which devices they take: Ringway's settings, and the variables of NCCL and UCX.

use super::super::{
    model::{DeviceName, Marking, Needs},
    notes::Notes,
    source::{At, Place},
};
use crate::variable;

/// The ToS byte of Ringway's data: DSCP 26 and ECT(0).
const RINGWAY: u32 = 106;

/// The variables that set a ToS byte, and what they are if they are not set.
const VARIABLES: [(&str, Option<u32>); 4] = [
    ("NCCL_IB_TC", Some(0)),
    ("NCCL_IB_FIFO_TC", None),
    ("NCCL_GIN_IB_TC", None),
    ("UCX_IB_TRAFFIC_CLASS", None),
];

/// Reads lines such as `export NCCL_IB_TC=106`, and those of `ringway.yaml`.
pub(in super::super) fn read(text: &str, file: Place, notes: &mut Notes) -> (Needs, Vec<Marking>) {
    let mut needs = Needs::new("the application", file);
    let pairs = text.lines().zip(1..).filter_map(|(line, number)| {
        let line = line.split(" #").next().unwrap_or("").trim();
        if line.starts_with('#') {
            return None;
        }
        let line = line
            .trim_start_matches("export ")
            .trim_start_matches("- ")
            .trim();
        let (name, value) = line.split_once('=').or_else(|| line.split_once(':'))?;
        let value = value.trim().trim_matches(['"', '\'']);
        Some((name.trim(), value, file.line(number)))
    });
    let markings = settings(pairs, &mut needs, notes);
    (needs, markings)
}

/// Devices that a variable names, if it does so one by one, and not by what a shell puts there.
fn named(value: &str) -> impl Iterator<Item = &str> {
    let list = if value.starts_with('^') { "" } else { value };
    let names = list.split(',').map(str::trim);
    names.filter(|it| !it.is_empty() && !it.contains('$'))
}

/// The devices and interfaces in a variable.
fn names(name: &str, value: &str, place: Place, needs: &mut Needs) {
    match name {
        // `=` asks for the whole name (NCCL, Environment Variables: NCCL_IB_HCA).
        "NCCL_IB_HCA" | "UCX_NET_DEVICES" => {
            needs.more_devices |= value.contains('$');
            let exact = value.strip_prefix('=');
            let whole = exact.is_some() || name.starts_with("UCX");
            for device in named(exact.unwrap_or(value)) {
                let (name, port) = device.split_once(':').unwrap_or((device, ""));
                // UCX names network interfaces, too: without a port.
                if !port.is_empty() || !whole || exact.is_some() {
                    let name = name.to_owned();
                    let port = port.parse().ok();
                    needs
                        .devices
                        .push(At::new(DeviceName { name, whole, port }, place));
                }
            }
        }
        "RINGWAY_INTERFACES" | "interfaces" => {
            // What is excluded, by `^` before an item of the list, is not needed.
            let items = value.split(',').map(str::trim);
            for item in items.filter(|it| !it.is_empty() && !it.starts_with('^')) {
                // Addresses and subnets say nothing of names, and may be those of any interface.
                let unnamed = item == "all" || item.contains(['$', '/', ':']);
                if unnamed || item.parse::<std::net::IpAddr>().is_ok() {
                    needs.more_interfaces = true;
                } else {
                    needs.interfaces.push(At::new(item.to_owned(), place));
                }
            }
        }
        _ => {}
    }
}

/// What names and values say, and which devices and interfaces they need.
pub(super) fn settings<'t>(
    pairs: impl Iterator<Item = (&'t str, &'t str, Place)>,
    needs: &mut Needs,
    notes: &mut Notes,
) -> Vec<Marking> {
    let mut markings: Vec<Marking> = Vec::new();
    let (mut nccl, mut gin) = (None, None);
    for (name, value, place) in pairs {
        names(name, value, place, needs);
        if name.starts_with("NCCL_") {
            nccl.get_or_insert(place);
        }
        if name.starts_with("NCCL_GIN") {
            gin.get_or_insert(place);
        }
        let rdma = value.split(',').any(|transport| transport.trim() == "rdma");
        if matches!(name, "RINGWAY_TRANSPORTS" | "transports") && rdma {
            markings.push(Marking {
                name: name.to_owned(),
                tos: At::new(RINGWAY, place),
                set: true,
            });
        }
        if matches!(name, "NCCL_IB_GID_INDEX" | "UCX_IB_GID_INDEX") && matches!(value, "0" | "1") {
            notes.warning(
                "application.gid",
                name,
                format!("{name} is {value}: the first two entries of a port are link-local as a rule"),
                "link-local addresses do not cross routers: connections to other racks time out (error 12)",
                [place],
                "leave it out, so that a routable RoCE v2 address is chosen; ringway rdma list shows which",
            );
        }
        let Some((known, _)) = VARIABLES.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        if value == "auto" {
            continue;
        }
        match variable::number(known, value).filter(|tos| *tos < 256) {
            // RFC 3168: both bits of ECN say that the packet met congestion.
            Some(tos) if tos & 3 == 3 => notes.error(
                "application.value",
                name,
                format!("{name} is {value}: its last two bits say that each packet has met congestion"),
                "the receiver answers every packet with a notification, and the sender slows down for nothing",
                [place],
                format!("write {}: the same DSCP, ECN-capable", tos - 1),
            ),
            Some(tos) => markings.push(Marking {
                name: (*known).to_owned(),
                tos: At::new(tos, place),
                set: true,
            }),
            None => notes.error(
                "application.value",
                name,
                format!("{name} is `{value}`, expected a ToS byte from 0 to 255"),
                "the library refuses it, or takes 0",
                [place],
                "write 106: DSCP 26 x 4 + 2 (ECN-capable)",
            ),
        }
    }
    let set =
        |markings: &[Marking], name: &str| markings.iter().any(|marking| marking.name == name);
    for (name, default) in VARIABLES {
        if let (Some(default), Some(place), false) = (default, nccl, set(&markings, name)) {
            markings.push(Marking {
                name: name.to_owned(),
                tos: At::new(default, place),
                set: false,
            });
        }
    }
    // Queue pairs that the GPU drives by itself do not get what the host sets for all.
    if let (Some(place), false) = (gin, set(&markings, "NCCL_GIN_IB_TC")) {
        markings.push(Marking {
            name: "NCCL_GIN_IB_TC".to_owned(),
            tos: At::new(0, place),
            set: false,
        });
    }
    markings
}
