//! The cost model's choice for a fabric.

use anyhow::{Context, Result};
use ringway_fabric::{Fabric, machine};
use ringway_plan::{Choice, Collective, Topology, choose};

/// The quickest algorithm on a fabric whose links nobody shares.
pub(crate) fn choose_on(
    fabric: &Fabric,
    collective: Collective,
    bytes: usize,
    topology: &Topology,
) -> Result<Choice> {
    let machine = machine(fabric).context("the fabric has no hosts")?;
    Ok(choose(collective, bytes, topology, &machine))
}
