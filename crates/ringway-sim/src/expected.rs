//! How long a schedule keeps each link busy, without running it.

use std::collections::BTreeMap;

use ringway_fabric::{Fabric, NodeId, Port, Routes};
use ringway_plan::{Op, Schedule};

use crate::{error::SimError, world::World};

/// By [`ringway_fabric::Hop::index`]: the seconds that a link is busy for each byte of the vector, if switches spread
/// flows evenly over equal paths. The largest is a bound of the operation's time that no order of messages can beat.
pub fn expected_load(
    fabric: &Fabric,
    world: &World,
    schedule: &Schedule,
) -> Result<Vec<f64>, SimError> {
    let mut parts: BTreeMap<(Port, Port), usize> = BTreeMap::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        for step in program.lanes.iter().flat_map(|l| &l.steps) {
            if let Op::Send { peer, src } = step.op {
                let ends = (world.place(rank).port(), world.place(peer).port());
                *parts.entry(ends).or_default() += src.count;
            }
        }
    }
    let routes = Routes::new(fabric);
    let mut load = vec![0.0; 2 * fabric.links().len()];
    for ((from, to), chunks) in parts {
        if routes.hops(fabric, from, to).is_none() {
            return Err(SimError::Unreachable {
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
