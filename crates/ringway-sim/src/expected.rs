//! How long a schedule keeps each link busy, without running it.

use ringway_fabric::{Fabric, NoPath, Port};
use ringway_plan::Schedule;

use crate::{error::SimError, world::World};

/// [`ringway_fabric::expected_load`] of the ranks of a world.
pub fn expected_load(
    fabric: &Fabric,
    world: &World,
    schedule: &Schedule,
) -> Result<Vec<f64>, SimError> {
    let ports: Vec<Port> = (0..world.ranks()).map(|r| world.place(r).port()).collect();
    ringway_fabric::expected_load(fabric, &ports, schedule)
        .map_err(|NoPath { from, to }| SimError::Unreachable { from, to })
}
