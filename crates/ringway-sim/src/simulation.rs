//! What is simulated: ranks on a fabric, a network's level of fidelity, and a scenario.

use std::collections::{BTreeSet, HashMap};

use ringway_fabric::{Fabric, Hop, NodeId, Routes};
use ringway_plan::{Rank, Verified};

use crate::{
    drive::{Drive, End},
    error::SimError,
    flow::Flows,
    network::Network,
    outcome::{Elapsed, HopLoad, Outcome},
    packet::{PacketSettings, Packets},
    ports::Ports,
    program::{self, Act, Operation},
    scenario::Scenario,
    world::World,
};

/// How much of a network is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// NICs send and receive one message at a time, links between are never full: [`Ports`].
    Latency,
    /// Flows share links fairly, and switches hash them onto equal paths: [`Flows`].
    Flow,
    /// Packets wait, are marked, paused and lost, and the protocol of RoCE answers that: [`Packets`].
    Packet,
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

/// How vectors go over the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) slice_bytes: usize,
    pub(crate) streams: Streams,
    /// Whether all that takes time is kept.
    pub(crate) record: bool,
}

/// See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    fabric: &'a Fabric,
    world: &'a World,
    scenario: Scenario,
    level: Level,
    packets: PacketSettings,
    seed: u64,
    manner: Manner,
    paths: Paths,
}

impl<'a> Simulation<'a> {
    /// On the level of flows, with nothing happening, slices of 128 KiB and one stream for each pair of ranks and lane.
    pub fn new(fabric: &'a Fabric, world: &'a World) -> Self {
        Self {
            fabric,
            world,
            scenario: Scenario::default(),
            level: Level::Flow,
            packets: PacketSettings::default(),
            seed: 0,
            manner: Manner {
                slice_bytes: 128 << 10,
                streams: Streams {
                    count: 1,
                    common: false,
                },
                record: false,
            },
            paths: Paths::new(),
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

    /// With other settings of switches and NICs, for the level of packets.
    #[must_use]
    pub const fn with_packets(mut self, packets: PacketSettings) -> Self {
        self.packets = packets;
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
        self.manner.slice_bytes = slice_bytes.max(8);
        self
    }

    /// With so many streams for each pair of ranks and lane, as queue pairs with a UDP source port each: they take slices in
    /// turns, and may take different paths. 0 counts as 1.
    #[must_use]
    pub fn with_streams(mut self, streams: u32) -> Self {
        let (count, common) = (streams.max(1), false);
        self.manner.streams = Streams { count, common };
        self
    }

    /// With so many streams for each pair of ranks, which all lanes share, as connections of TCP. 0 counts as 1.
    #[must_use]
    pub fn with_connections(mut self, connections: u32) -> Self {
        let (count, common) = (connections.max(1), true);
        self.manner.streams = Streams { count, common };
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
        self.manner.record = true;
        self
    }

    /// Runs `schedule` on a vector of `bytes`, out of place. `bytes` are rounded up as [`Operation`] says.
    pub fn run(&self, schedule: &Verified, bytes: usize) -> Result<Outcome, SimError> {
        self.run_one(Operation::new(schedule, bytes))
    }

    /// Runs one operation.
    pub fn run_one(&self, operation: Operation<'_>) -> Result<Outcome, SimError> {
        let end = self.end(&[operation], &[Act::Start(0), Act::Wait(0)])?;
        Ok(Outcome {
            end: end.end,
            bytes: operation.bytes(),
            messages: end.messages,
            hops: self.loads(&end),
            records: end.records,
            packets: end.packets,
            ranks: self.world.ranks(),
            collective: operation.schedule().collective,
        })
    }

    /// Runs a program that all ranks have: operations, which share the network where several are under way, and computation.
    /// Every operation is started once, and messages of a pair of ranks follow each other in the order in which they can go.
    pub fn run_program(
        &self,
        operations: &[Operation<'_>],
        acts: &[Act],
    ) -> Result<Elapsed, SimError> {
        let end = self.end(operations, acts)?;
        Ok(Elapsed {
            end: end.end.at,
            messages: end.messages,
            hops: self.loads(&end),
            operations: end.operations,
        })
    }

    fn end(&self, operations: &[Operation<'_>], acts: &[Act]) -> Result<End, SimError> {
        let n = self.world.ranks();
        program::check(operations.len(), acts)?;
        for operation in operations {
            if operation.schedule().ranks() != n {
                return Err(SimError::Ranks {
                    schedule: operation.schedule().ranks(),
                    world: n,
                });
            }
        }
        self.check_paths(operations)?;
        match self.level {
            Level::Latency => {
                if !self.scenario.changes.is_empty() || !self.scenario.background.is_empty() {
                    return Err(SimError::Level);
                }
                let network = Ports::new(self.fabric, self.world, &self.scenario);
                self.drive(network, operations, acts)
            }
            Level::Flow => {
                let network = Flows::new(self.fabric, self.world, &self.scenario, self.seed)
                    .with_paths(self.paths.clone());
                self.drive(network, operations, acts)
            }
            Level::Packet => {
                let record = self.manner.record;
                for operation in operations {
                    let slice = self.manner.slice_bytes.max(operation.bytes().div_ceil(32));
                    let longest = slice.min(operation.bytes());
                    if longest > Packets::LONGEST {
                        return Err(SimError::Setting {
                            what: "longest message",
                            found: longest.to_string(),
                            expected: "1 GiB at most for packets: a smaller --slice, or a vector of up to 32 GiB".to_owned(),
                        });
                    }
                }
                let network = Packets::new(
                    self.fabric,
                    self.world,
                    &self.scenario,
                    self.packets,
                    self.seed,
                    record,
                )?;
                self.drive(network, operations, acts)
            }
        }
    }

    /// What links have carried.
    fn loads(&self, end: &End) -> Vec<HopLoad> {
        let seconds = end.end.at.seconds();
        let rate = |hop: usize| self.fabric.links()[hop / 2].rate;
        let on_the_wire = |hop: usize| {
            let ports = end.packets.as_ref().map(|p| &p.ports);
            ports.map(|ports| ports[hop].wire_bytes as f64)
        };
        let load = |(hop, &bytes): (usize, &f64)| HopLoad {
            hop,
            bytes,
            busy: if seconds > 0.0 {
                on_the_wire(hop).unwrap_or(bytes) / (rate(hop) * seconds)
            } else {
                0.0
            },
        };
        end.carried.iter().enumerate().map(load).collect()
    }

    fn drive<N: Network>(
        &self,
        network: N,
        operations: &[Operation<'_>],
        acts: &[Act],
    ) -> Result<End, SimError> {
        let drive = Drive::new(
            self.fabric,
            self.world,
            &self.scenario,
            network,
            (operations, acts),
            self.manner,
        );
        drive.run()
    }

    /// Ranks reach those that they send to, when all links are up.
    fn check_paths(&self, operations: &[Operation<'_>]) -> Result<(), SimError> {
        let mut pairs = BTreeSet::new();
        let mut last: Option<&Verified> = None;
        for operation in operations {
            let schedule = operation.schedule();
            if last
                .replace(schedule)
                .is_some_and(|last| std::ptr::eq(last, schedule))
            {
                continue;
            }
            pairs.extend(schedule.programs.traffic().into_keys());
        }
        let routes = Routes::new(self.fabric);
        for (rank, peer) in pairs {
            let (from, to) = (self.world.place(rank), self.world.place(peer));
            if routes.hops(self.fabric, from.port(), to.port()).is_none() {
                return Err(SimError::Unreachable {
                    from: self.fabric.node_name(NodeId(from.host)),
                    to: self.fabric.node_name(NodeId(to.host)),
                });
            }
        }
        Ok(())
    }
}
