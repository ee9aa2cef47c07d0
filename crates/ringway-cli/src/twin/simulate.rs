//! What the simulator says of the same.

use anyhow::{Context, Result};
use ringway_fabric::Fabric;
use ringway_plan::{Algorithm, Collective, Topology, generate, verify};
use ringway_sim::{Paths, Simulation, World, expected_load};

use super::probe::Calibration;

/// In which slices Ringway's TCP moves messages.
const SLICE: usize = 512 << 10;

/// The simulated twin of a lab.
pub(super) struct Simulator {
    /// With the machine's costs.
    fabric: Fabric,
    /// As the file has it.
    ideal: Fabric,
    world: World,
    /// As the ranks in the lab see it, who are not told of the fabric: nothing above hosts.
    topology: Topology,
    streams: u32,
}

/// Times of an operation.
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// How long the schedule keeps the busiest link busy at its full rate, headers and all else aside, if flows spread
    /// evenly: no time can be shorter.
    pub(super) bound: f64,
    /// By [`ringway_fabric::Hop::index`], bytes that went over each link.
    pub(super) carried: Vec<f64>,
}

impl Simulator {
    pub(super) fn new(
        fabric: &Fabric,
        hosts: &[usize],
        calibration: &Calibration,
        streams: u32,
    ) -> Result<Self> {
        Ok(Self {
            fabric: calibration.apply(fabric),
            ideal: fabric.clone(),
            world: World::new(fabric, hosts, 1)?,
            topology: Topology::new((0..hosts.len()).collect()),
            streams,
        })
    }

    pub(super) fn run(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        bytes: usize,
        paths: &Paths,
    ) -> Result<Outcome> {
        let schedule = verify(generate(collective, algorithm, &self.topology)?)?;
        let outcome = Simulation::new(&self.fabric, &self.world)
            .with_slice_bytes(SLICE)
            .with_connections(self.streams)
            .with_paths(paths.clone())
            .run(&schedule, bytes)
            .with_context(|| format!("{collective} by {algorithm} of {bytes} bytes"))?;
        let load = expected_load(&self.ideal, &self.world, &schedule)?;
        let busiest = load.into_iter().fold(0.0, f64::max);
        Ok(Outcome {
            seconds: outcome.end.at.seconds(),
            bound: busiest * bytes as f64,
            carried: outcome.hops.iter().map(|hop| hop.bytes).collect(),
        })
    }
}
