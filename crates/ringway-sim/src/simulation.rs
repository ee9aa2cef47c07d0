//! What is simulated: ranks on a fabric, a network's level of fidelity, and a scenario.

use std::collections::{BTreeSet, HashMap};

use ringway_fabric::{Fabric, Hop, NodeId, Routes};
use ringway_plan::{Executor, Layout, Memory, Op, Rank, Verified};

use crate::{
    drive::{Drive, End},
    error::SimError,
    flow::Flows,
    network::Network,
    outcome::{HopLoad, Outcome},
    ports::Ports,
    scenario::Scenario,
    world::World,
};

/// A vector is cut in no more slices than this divided by the ranks, or 32 if that is more; each then stands for several. A
/// pipeline over h ranks that is cut in s slices takes longer by h / s, as in [`ringway_plan::predict`].
const SLICES: usize = 4096;

/// How much of a network is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// NICs send and receive one message at a time, links between are never full: [`Ports`].
    Latency,
    /// Flows share links fairly, and switches hash them onto equal paths: [`Flows`].
    Flow,
}

/// The paths that streams take on a network that is there: by sender, receiver and stream.
pub type Paths = HashMap<(Rank, Rank, u32), Vec<Hop>>;

/// How the messages between two ranks share connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    count: u32,
    /// Whether lanes have them in common.
    common: bool,
}

impl Streams {
    /// The stream of a slice.
    pub(crate) const fn of(self, lane: u16, message: u32, slice: u32) -> u32 {
        let turn = message.wrapping_add(slice);
        match self.common {
            true => turn.wrapping_add(lane as u32) % self.count,
            false => lane as u32 * self.count + turn % self.count,
        }
    }
}

/// See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    fabric: &'a Fabric,
    world: &'a World,
    scenario: Scenario,
    level: Level,
    seed: u64,
    slice_bytes: usize,
    streams: Streams,
    paths: Paths,
    record: bool,
}

impl<'a> Simulation<'a> {
    /// On the level of flows, with nothing happening, slices of 128 KiB and one stream for each pair of ranks and lane.
    pub fn new(fabric: &'a Fabric, world: &'a World) -> Self {
        Self {
            fabric,
            world,
            scenario: Scenario::default(),
            level: Level::Flow,
            seed: 0,
            slice_bytes: 128 << 10,
            streams: Streams {
                count: 1,
                common: false,
            },
            paths: Paths::new(),
            record: false,
        }
    }

    /// With what happens meanwhile.
    #[must_use]
    pub fn with_scenario(self, scenario: Scenario) -> Self {
        Self { scenario, ..self }
    }

    /// On another level.
    #[must_use]
    pub const fn with_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// With other UDP source ports, and so other collisions.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// In slices of so many bytes, at least 8.
    #[must_use]
    pub fn with_slice_bytes(mut self, slice_bytes: usize) -> Self {
        self.slice_bytes = slice_bytes.max(8);
        self
    }

    /// With so many streams for each pair of ranks and lane, as queue pairs with a UDP source port each: they take slices in
    /// turns, and may take different paths. 0 counts as 1.
    #[must_use]
    pub fn with_streams(mut self, streams: u32) -> Self {
        let (count, common) = (streams.max(1), false);
        self.streams = Streams { count, common };
        self
    }

    /// With so many streams for each pair of ranks, which all lanes share, as connections of TCP. 0 counts as 1.
    #[must_use]
    pub fn with_connections(mut self, connections: u32) -> Self {
        let (count, common) = (connections.max(1), true);
        self.streams = Streams { count, common };
        self
    }

    /// With paths that are known, as of connections of a network that is there, in place of those that the hash would
    /// give. Once switches reroute they count no more. For the level of flows.
    #[must_use]
    pub fn with_paths(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// With a record of all that takes time: about 56 bytes for each slice that is sent or reduced.
    #[must_use]
    pub const fn with_records(mut self) -> Self {
        self.record = true;
        self
    }

    /// Runs `schedule` on a vector of `bytes`, out of place. Where ranks have parts, `bytes` are rounded up to a multiple of
    /// the ranks.
    pub fn run(&self, schedule: &Verified, bytes: usize) -> Result<Outcome, SimError> {
        let n = self.world.ranks();
        if schedule.ranks() != n {
            return Err(SimError::Ranks {
                schedule: schedule.ranks(),
                world: n,
            });
        }
        self.check_paths(schedule)?;
        let bytes = match schedule.collective.has_parts() {
            true => bytes.next_multiple_of(n),
            false => bytes,
        };
        let end = match self.level {
            Level::Latency => {
                if !self.scenario.changes.is_empty() || !self.scenario.background.is_empty() {
                    return Err(SimError::Level);
                }
                let network = Ports::new(self.fabric, self.world, &self.scenario);
                self.drive(network, schedule, bytes)?
            }
            Level::Flow => {
                let network = Flows::new(self.fabric, self.world, &self.scenario, self.seed)
                    .with_paths(self.paths.clone());
                self.drive(network, schedule, bytes)?
            }
        };
        let seconds = end.end.at.seconds();
        let rate = |hop: usize| self.fabric.links()[hop / 2].rate;
        let load = |(hop, &bytes): (usize, &f64)| HopLoad {
            hop,
            bytes,
            busy: if seconds > 0.0 {
                bytes / (rate(hop) * seconds)
            } else {
                0.0
            },
        };
        Ok(Outcome {
            end: end.end,
            bytes,
            messages: end.messages,
            hops: end.carried.iter().enumerate().map(load).collect(),
            records: end.records,
            ranks: n,
            collective: schedule.collective,
        })
    }

    fn drive<N: Network>(
        &self,
        network: N,
        schedule: &Verified,
        bytes: usize,
    ) -> Result<End, SimError> {
        let n = self.world.ranks();
        let slice_bytes = self
            .slice_bytes
            .max(bytes.div_ceil((SLICES / n).max(32)))
            .next_multiple_of(8);
        let executor = |rank| {
            let (collective, chunks) = (schedule.collective, schedule.chunks);
            let program = &schedule.programs[rank];
            let layout = Layout::even(collective, program, n, chunks, rank, bytes, 1);
            Executor::new(schedule, rank, &layout, slice_bytes, Memory::Apart)
        };
        let executors = (0..n).map(executor).collect();
        let drive = Drive::new(
            self.fabric,
            self.world,
            &self.scenario,
            network,
            executors,
            self.streams,
            self.record,
        );
        drive.run()
    }

    /// Ranks reach those that they send to, when all links are up.
    fn check_paths(&self, schedule: &Verified) -> Result<(), SimError> {
        let routes = Routes::new(self.fabric);
        for (rank, program) in schedule.programs.iter().enumerate() {
            let ops = program.lanes.iter().flat_map(|l| &l.steps).map(|s| s.op);
            let peers: BTreeSet<Rank> = ops
                .filter_map(|op| match op {
                    Op::Send { peer, .. } => Some(peer),
                    _ => None,
                })
                .collect();
            for peer in peers {
                let (from, to) = (self.world.place(rank), self.world.place(peer));
                if routes.hops(self.fabric, from.port(), to.port()).is_none() {
                    return Err(SimError::Unreachable {
                        from: self.fabric.node_name(NodeId(from.host)),
                        to: self.fabric.node_name(NodeId(to.host)),
                    });
                }
            }
        }
        Ok(())
    }
}
