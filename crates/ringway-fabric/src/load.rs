//! How long a schedule keeps each link busy, without running it.

use std::collections::BTreeMap;

use ringway_plan::Schedule;

use crate::{
    model::{Fabric, NodeId},
    routes::{Port, Routes},
};

/// Two hosts that are to talk and cannot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no path from {from} to {to}; `ringway fabric check` says what is missing")]
pub struct NoPath {
    /// The sender's host.
    pub from: String,
    /// The receiver's host.
    pub to: String,
}

/// By [`Hop::index`](crate::Hop::index): the seconds that a link is busy for each byte of the vector, if switches spread
/// flows evenly over equal paths. The largest is a bound of the operation's time that no order of messages can beat.
/// `ports[rank]` is where a rank's messages enter and leave the fabric; between ranks of a host they do not.
///
/// # Errors
/// Ranks that the schedule has talk to each other cannot.
///
/// # Panics
/// There are fewer ports than ranks.
pub fn expected_load(
    fabric: &Fabric,
    ports: &[Port],
    schedule: &Schedule,
) -> Result<Vec<f64>, NoPath> {
    let mut parts: BTreeMap<(Port, Port), usize> = BTreeMap::new();
    for ((from, to), chunks) in schedule.programs.traffic() {
        if ports[from].host != ports[to].host {
            *parts.entry((ports[from], ports[to])).or_default() += chunks;
        }
    }
    let routes = Routes::new(fabric);
    let mut load = vec![0.0; 2 * fabric.links().len()];
    for ((from, to), chunks) in parts {
        if routes.hops(fabric, from, to).is_none() {
            return Err(NoPath {
                from: fabric.node_name(NodeId(from.host)),
                to: fabric.node_name(NodeId(to.host)),
            });
        }
        let part = chunks as f64 / schedule.chunks as f64;
        for (hop, share) in routes.spread(fabric, from, to) {
            load[hop.index()] += part * share / fabric.links()[hop.link].rate;
        }
    }
    Ok(load)
}
