//! What links have carried.

use ringway_fabric::{Fabric, Hop, NodeId};
use serde::Deserialize;

use crate::{address::interface, error::LabError};

/// What one direction of a link has carried, as its token bucket counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopStats {
    /// Which.
    pub hop: Hop,
    /// Of frames, headers included.
    pub bytes: u64,
    /// How many; trains of TCP count by their packets.
    pub packets: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Bytes that wait in the queue now.
    pub queued: u64,
}

/// One of `tc -s -j qdisc show`.
#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    bytes: u64,
    packets: u64,
    drops: u64,
    backlog: u64,
}

/// From what `tc` prints in a node.
pub(crate) fn read(fabric: &Fabric, node: NodeId, text: &str) -> Result<Vec<HopStats>, LabError> {
    let disciplines: Vec<serde_json::Value> =
        serde_json::from_str(text).map_err(|e| LabError::Command {
            what: format!("reading what tc prints in {}", fabric.node_name(node)),
            detail: e.to_string(),
        })?;
    let shaped: Vec<Qdisc> = disciplines
        .into_iter()
        .filter_map(|q| serde_json::from_value(q).ok())
        .filter(|q: &Qdisc| q.kind == "tbf" || q.kind == "htb")
        .collect();
    let of = |link: usize| {
        let name = interface(fabric, node, link)?;
        let found = shaped.iter().find(|q| q.dev == name)?;
        let backwards = fabric.links()[link].a != node;
        Some(HopStats {
            hop: Hop { link, backwards },
            bytes: found.bytes,
            packets: found.packets,
            dropped: found.drops,
            queued: found.backlog,
        })
    };
    let links = fabric.links_of(node).iter();
    Ok(links.filter_map(|&(link, _)| of(link)).collect())
}
