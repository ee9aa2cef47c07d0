//! The cost model's choice for a fabric.

use anyhow::{Context, Result};
use ringway_fabric::{Fabric, machine};
use ringway_plan::{Algorithm, Collective, DataType, Machine, Topology, choose, estimate};

/// The quickest algorithm on a fabric whose links nobody shares; where vectors of `f32` go from host to host as `wire`, with that.
pub(crate) fn choose_on(
    fabric: &Fabric,
    collective: Collective,
    bytes: usize,
    topology: &Topology,
    wire: Option<DataType>,
) -> Result<Algorithm> {
    let machine = machine(fabric).context("the fabric has no hosts")?;
    let choice = choose(collective, bytes, topology, &machine);
    if wire.is_none() {
        return Ok(choice.algorithm);
    }
    let times = choice.candidates.into_iter().map(|(algorithm, cost)| {
        let narrow = halved(collective, algorithm, bytes, topology, &machine);
        (narrow.map_or(cost.total, |cost| cost.total), algorithm)
    });
    Ok(times
        .min()
        .map_or(choice.algorithm, |(_, algorithm)| algorithm))
}

/// Whether the setting `wire_between_hosts` means vectors of `f32` in a collective by an algorithm.
pub(crate) fn is_halved(collective: Collective, algorithm: Algorithm, topology: &Topology) -> bool {
    (collective, algorithm) == (Collective::AllReduce, Algorithm::Hierarchical)
        && topology.hosts().len() > 1
}

/// What the model says of it then.
pub(crate) fn halved(
    collective: Collective,
    algorithm: Algorithm,
    bytes: usize,
    topology: &Topology,
    machine: &Machine,
) -> Option<ringway_plan::Cost> {
    let narrow = machine.with_half_between_hosts();
    is_halved(collective, algorithm, topology)
        .then(|| estimate(collective, algorithm, bytes, topology, &narrow))?
}

/// `f16` or `bf16`, of a flag.
pub(crate) fn half(text: &str) -> Result<DataType, String> {
    let dtype = text.parse().ok();
    dtype
        .filter(|dtype| matches!(dtype, DataType::F16 | DataType::Bf16))
        .ok_or_else(|| "expected f16 or bf16".to_owned())
}
