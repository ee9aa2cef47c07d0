//! What applications put into the ToS byte: Ringway's settings, and the variables of NCCL and UCX.

use super::super::{
    model::Marking,
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
pub(in super::super) fn read(text: &str, file: Place, notes: &mut Notes) -> Vec<Marking> {
    let mut markings: Vec<Marking> = Vec::new();
    let (mut nccl, mut gin) = (None, None);
    for (line, number) in text.lines().zip(1..) {
        let place = file.line(number);
        let line = line.split(" #").next().unwrap_or("").trim();
        if line.starts_with('#') {
            continue;
        }
        let line = line
            .trim_start_matches("export ")
            .trim_start_matches("- ")
            .trim();
        let pair = line.split_once('=').or_else(|| line.split_once(':'));
        let Some((name, value)) = pair else { continue };
        let (name, value) = (name.trim(), value.trim().trim_matches(['"', '\'']));
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
