//! The cost of each algorithm in closed form.
//!
//! Every algorithm is a sum of *rounds*, in which each rank sends one message and receives one, and *bursts*,
//! in which it exchanges messages with many ranks at once. Slices let rounds overlap: the next
//! begins when the first slice has arrived, unless the link or the processor is still busy.

use super::{Cost, Link, Machine, Time};
use crate::{algorithm::Algorithm, generate::Topology, schedule::Collective};

/// Estimates the time of `collective` by `algorithm` for a vector of `bytes`, among the hosts of `topology`, out
/// of place; `None` if the algorithm does not do it. Takes about a microsecond, whatever the ranks.
pub fn estimate(
    collective: Collective,
    algorithm: Algorithm,
    bytes: usize,
    topology: &Topology,
    machine: &Machine,
) -> Option<Cost> {
    Ranks::new(topology, machine)
        .time(collective, algorithm, bytes as u64)
        .map(Cost::from)
}

/// The ranks, as if all hosts had as many as the largest.
pub(super) struct Ranks<'a> {
    machine: &'a Machine,
    topology: &'a Topology,
    all: u64,
    hosts: u64,
    per_host: u64,
    grid: (u64, u64),
}

/// A link that `flows` messages share.
#[derive(Clone, Copy)]
struct Way {
    link: Link,
    flows: u64,
}

impl Way {
    /// How long it takes to move bytes and to reduce others.
    fn with(&self, wire: Time, work: Time) -> Time {
        if self.link.by_processor {
            wire + work
        } else {
            wire.max(work)
        }
    }
}

/// Whether what arrives is reduced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arriving {
    Kept,
    Reduced,
}

use Arriving::{Kept, Reduced};

impl<'a> Ranks<'a> {
    pub(super) fn new(topology: &'a Topology, machine: &'a Machine) -> Self {
        let hosts = topology.hosts();
        let (width, height) = topology.grid();
        Self {
            machine,
            topology,
            all: topology.ranks() as u64,
            hosts: hosts.len() as u64,
            per_host: hosts.iter().map(Vec::len).max().unwrap_or(1) as u64,
            grid: (width as u64, height as u64),
        }
    }

    pub(super) fn time(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        n: u64,
    ) -> Option<Time> {
        use Algorithm as A;
        use Collective as C;
        if !algorithm.supports(collective) {
            return None;
        }
        if self.all == 1 {
            let bytes = if collective == C::Barrier { 0 } else { n };
            return Some(Time::default().reduction(self.machine.reduction(bytes)));
        }
        let part = n.div_ceil(self.all);
        Some(match (collective, algorithm) {
            (C::Barrier, A::Direct) => self.burst(0, Kept),
            (C::Barrier, A::Tree) => self.levels(0, Kept) + self.levels(0, Kept),
            (C::Barrier, _) => self.parts(0, Kept),

            (C::AllReduce, A::Direct) => self.burst(part, Reduced) + self.burst(part, Kept),
            (C::AllReduce, A::OneShot) => self.burst(n, Reduced),
            (C::AllReduce, A::Tree) => {
                // The way down follows the way up at the distance of a slice.
                self.levels(n, Reduced) + self.levels(n.min(self.machine.slice_bytes as u64), Kept)
            }
            (C::AllReduce, A::DoubleTree) => {
                self.double_tree(n, false, Reduced) + self.double_tree(n, false, Kept)
            }
            (C::AllReduce, A::HalvingDoubling) => {
                let bytes = |distance| n / (2 * distance);
                self.fold(1 << self.all.ilog2(), n)
                    + self.doubling(bytes, Reduced)
                    + self.doubling(bytes, Kept)
            }
            (C::AllReduce, A::RecursiveDoubling) => {
                let odd = self.all.ilog2() % 2 == 1;
                let copy = if odd { self.machine.reduction(n) } else { 0 };
                self.fold(1 << self.all.ilog2(), n) + self.doubling(|_| n, Reduced).reduction(copy)
            }
            (C::AllReduce, A::Hierarchical) => {
                let near = n.div_ceil(self.per_host);
                let above = self.topology.level_sizes();
                self.inside(near, Reduced)
                    + self.levels_above(&above, n, Reduced)
                    + self.levels_above(&above, n, Kept)
                    + self.inside(near, Kept)
            }
            (C::AllReduce, A::Torus) => {
                let (width, height) = self.grid;
                self.fold(width * height, n)
                    + self.torus_halves(n, Reduced)
                    + self.torus_halves(n, Kept)
            }
            (C::AllReduce, A::Ring) => self.ring(part, Reduced) + self.ring(part, Kept),

            (C::AllGather | C::ReduceScatter, _) => {
                let arriving = if collective == C::AllGather {
                    Kept
                } else {
                    Reduced
                };
                match algorithm {
                    A::Direct => self.burst(part, arriving),
                    A::Hierarchical => {
                        self.rounds(self.far(self.per_host), self.hosts - 1, part, arriving)
                            + self.inside(part, arriving)
                    }
                    A::Ring => self.ring(part, arriving),
                    A::Torus => {
                        let (width, height) = self.grid;
                        let row = if width == self.per_host {
                            self.near()
                        } else {
                            self.far(1)
                        };
                        self.rounds(row, width - 1, part, arriving)
                            + self.rounds(self.far(width), height - 1, width * part, arriving)
                            + self.beyond(part, n, arriving)
                    }
                    _ => self.parts(part, arriving),
                }
            }

            (C::Broadcast { .. } | C::Reduce { .. }, _) => {
                let arriving = if collective.reduces() { Reduced } else { Kept };
                match algorithm {
                    A::Direct => self.root(n, arriving),
                    A::DoubleTree => self.double_tree(n, true, arriving),
                    A::HalvingDoubling => self.halves_of(n, arriving) + self.parts(part, arriving),
                    A::Hierarchical => {
                        let rail = n.div_ceil(self.per_host);
                        let far = self.far(self.per_host);
                        self.inside(rail, arriving)
                            + self.chain(far, self.hosts - 1, rail, arriving)
                            + self.inside(rail, arriving)
                    }
                    A::Ring => {
                        let far = self.chain(self.far(1), self.hosts - 1, n, arriving);
                        far + self.hops(self.near(), self.all - self.hosts, n, arriving)
                    }
                    _ => self.levels(n, arriving),
                }
            }

            (C::Gather { .. } | C::Scatter { .. }, A::Tree) => self.halves_of(n, Kept),
            (C::Gather { .. } | C::Scatter { .. }, _) => self.root(part, Kept),
            (C::AllToAll, _) => self.burst(part, Kept),
        })
    }

    const fn near(&self) -> Way {
        Way {
            link: self.machine.intra,
            flows: 1,
        }
    }

    /// Between hosts, with so many ranks of each host sending at once; within the host if there is one.
    const fn far(&self, flows: u64) -> Way {
        match self.hosts {
            1 => self.near(),
            _ => Way {
                link: self.machine.inter,
                flows: flows.div_ceil(self.machine.cards as u64),
            },
        }
    }

    /// To the rank `distance` further on: how many of a host's ranks leave it.
    const fn distant(&self, distance: u64) -> Way {
        match distance < self.per_host {
            true if self.per_host.is_multiple_of(2 * distance) => self.near(),
            true => self.far(distance),
            false => self.far(self.per_host),
        }
    }

    /// What a message keeps busy and how long its first slice takes, without the link's latency.
    fn message(&self, way: Way, bytes: u64) -> (Time, Time) {
        let slice = self.machine.slice_bytes as u64;
        let first = bytes.min(slice);
        let over = |slices: u64, bytes: u64| {
            let time = Time::default().latency(way.flows * slices * way.link.overhead);
            time.wire(way.flows.saturating_mul(way.link.wire(bytes)))
        };
        (over(bytes.div_ceil(slice).max(1), bytes), over(1, first))
    }

    fn work(&self, bytes: u64, arriving: Arriving) -> Time {
        let bytes = if arriving == Reduced { bytes } else { 0 };
        Time::default().reduction(self.machine.reduction(bytes))
    }

    /// How long the first slice takes to the next rank, ready to go on.
    fn hop(&self, way: Way, bytes: u64, arriving: Arriving) -> Time {
        let slice = bytes.min(self.machine.slice_bytes as u64);
        self.message(way, bytes).1.latency(way.link.latency) + self.work(slice, arriving)
    }

    /// What is left of a message when its first slice has come.
    fn rest(&self, way: Way, bytes: u64, arriving: Arriving) -> Time {
        let slice = bytes.min(self.machine.slice_bytes as u64);
        let (busy, first) = self.message(way, bytes);
        way.with(busy.less(first), self.work(bytes - slice, arriving))
    }

    /// The first slice, so many hops on.
    fn hops(&self, way: Way, count: u64, bytes: u64, arriving: Arriving) -> Time {
        self.hop(way, bytes, arriving).times(count)
    }

    /// A message handed on from rank to rank, so many times.
    fn chain(&self, way: Way, count: u64, bytes: u64, arriving: Arriving) -> Time {
        match count {
            0 => self.rest(self.near(), bytes, arriving),
            _ => self.hops(way, count, bytes, arriving) + self.rest(way, bytes, arriving),
        }
    }

    /// `count` rounds in which every rank sends `bytes` and receives as much, from which it makes what
    /// it sends in the next.
    fn rounds(&self, way: Way, count: u64, bytes: u64, arriving: Arriving) -> Time {
        let hop = self.hop(way, bytes, arriving);
        match count {
            0 => Time::default(),
            _ => {
                let busy = self.message(way, bytes).0;
                let each = way.with(busy, self.work(bytes, arriving)).max(hop);
                each.times(count - 1) + hop + self.rest(way, bytes, arriving)
            }
        }
    }

    /// Around a ring, host by host: links between hosts set the pace, but each chunk meets few of them.
    fn ring(&self, part: u64, arriving: Arriving) -> Time {
        let (far, rounds) = (self.far(1), self.all - 1);
        let crossings = if self.hosts == 1 {
            0
        } else {
            self.hosts.min(rounds)
        };
        let hops = self.hops(far, crossings, part, arriving)
            + self.hops(self.near(), rounds - crossings, part, arriving);
        let busy = far.with(self.message(far, part).0, self.work(part, arriving));
        let paced = busy.times(rounds - 1) + self.hop(far, part, arriving);
        hops.max(paced) + self.rest(far, part, arriving)
    }

    /// Around the rings of each level above hosts, of groups of so many members, of which each is shared by all positions
    /// below.
    fn levels_above(&self, above: &[usize], n: u64, arriving: Arriving) -> Time {
        let mut positions = self.per_host;
        let mut time = Time::default();
        for members in above.iter().map(|&members| members as u64) {
            positions *= members;
            time = time
                + self.rounds(
                    self.far(self.per_host),
                    members - 1,
                    n / positions,
                    arriving,
                );
        }
        time
    }

    /// Rounds with the rank 1, 2, 4 ... further on.
    fn doubling(&self, bytes: impl Fn(u64) -> u64, arriving: Arriving) -> Time {
        let distances = (0..self.all.ilog2()).map(|bit| 1 << bit);
        let rounds = distances.map(|d| self.anew(self.distant(d), bytes(d), arriving));
        rounds.fold(Time::default(), |sum, round| sum + round)
    }

    /// A round with another rank than the one before.
    fn anew(&self, way: Way, bytes: u64, arriving: Arriving) -> Time {
        let round = self.rounds(way, 1, bytes, arriving);
        round.wire(round.wire.saturating_mul(way.link.unsteady) / 1000)
    }

    /// Where `core` of the ranks do an all_reduce: the others join one each, and get the result from it.
    fn fold(&self, core: u64, n: u64) -> Time {
        let way = if self.per_host > 1 {
            self.near()
        } else {
            self.far(1)
        };
        match core == self.all {
            true => Time::default(),
            false => self.rounds(way, 1, n, Reduced) + self.rounds(way, 1, n, Kept),
        }
    }

    /// All ranks' parts, by doubling.
    fn parts(&self, part: u64, arriving: Arriving) -> Time {
        let all = self.all;
        let rounds = (0..all.next_power_of_two().ilog2())
            .map(|bit| 1_u64 << bit)
            .map(|distance| {
                let bytes = distance.min(all - distance) * part;
                self.anew(self.distant(distance), bytes, arriving)
            });
        rounds.fold(Time::default(), |sum, round| sum + round)
    }

    /// A binomial tree from the root that hands on half of what is left.
    fn halves_of(&self, n: u64, arriving: Arriving) -> Time {
        let mut time = Time::default();
        let mut left = self.all.next_power_of_two() / 2;
        while left > 0 {
            let bytes = n * left.min(self.all - left) / self.all;
            let way = if left >= self.per_host {
                self.far(1)
            } else {
                self.near()
            };
            time = time + self.rounds(way, 1, bytes, arriving);
            left /= 2;
        }
        time
    }

    /// A binomial tree of hosts, and one in each host: the root sends to a child in each round.
    fn levels(&self, n: u64, arriving: Arriving) -> Time {
        let depth = |count: u64| u64::from(count.next_power_of_two().ilog2());
        self.rounds(self.far(1), depth(self.hosts), n, arriving)
            + self.rounds(self.near(), depth(self.per_host), n, arriving)
    }

    /// Two binary trees of hosts' leaders, each for half of the vector, and binomial trees in hosts. A root
    /// stands above both trees.
    fn double_tree(&self, n: u64, rooted: bool, arriving: Arriving) -> Time {
        let upper = if self.hosts == 1 {
            self.all
        } else {
            self.hosts
        };
        let (depth, flows) = match (rooted, upper) {
            (_, 1) => (0, 1),
            (true, _) => (1 + (upper - 1).ilog2(), 2),
            (false, _) => (upper.ilog2(), (upper - 1).min(2)),
        };
        let far = self.far(1);
        // Slices for two children go in turns.
        let two = Way {
            flows: flows * far.flows,
            ..far
        };
        let half = n.div_ceil(2);
        let hops = self.hops(two, u64::from(depth), half, arriving);
        let top = hops + self.rest(two, half, arriving);
        match self.hosts {
            1 => top,
            _ => {
                let depth = u64::from(self.per_host.next_power_of_two().ilog2());
                let near = Way {
                    flows: 2,
                    ..self.near()
                };
                top + self.hops(near, depth, half, arriving)
            }
        }
    }

    /// Rows and columns of the grid, each for half of the vector at a time.
    fn torus_halves(&self, n: u64, arriving: Arriving) -> Time {
        let (width, height) = self.grid;
        let near = width == self.per_host && self.hosts > 1;
        let half = n.div_ceil(2);
        let row = |bytes| self.rounds(self.near(), width - 1, bytes, arriving);
        let column = |bytes| self.rounds(self.far(width), height - 1, bytes, arriving);
        if near {
            row(half / width).max(column(half / height))
                + row(half / (width * height)).max(column(half / (width * height)))
        } else {
            // Both halves share the links.
            let far = self.far(1);
            let two = Way {
                flows: 2 * far.flows,
                ..far
            };
            let (long, short) = (width.max(height), width.min(height));
            let rounds = [
                (long - 1, half / long),
                (short - 1, half / (width * height)),
            ];
            let each = |(count, bytes)| {
                let time = self.rounds(two, count, bytes, arriving);
                // The processor reduces both halves, if it moves them too.
                match far.link.by_processor {
                    true => time + self.work(count * bytes, arriving),
                    false => time,
                }
            };
            each(rounds[0]) + each(rounds[1])
        }
    }

    /// Ranks beyond the grid hand in their part, and get all.
    fn beyond(&self, part: u64, n: u64, arriving: Arriving) -> Time {
        let way = if self.per_host > 1 {
            self.near()
        } else {
            self.far(1)
        };
        match self.grid.0 * self.grid.1 == self.all {
            true => Time::default(),
            false => self.rounds(way, 1, part, arriving) + self.rounds(way, 1, n, arriving),
        }
    }

    /// `bytes` between every two ranks.
    fn burst(&self, bytes: u64, arriving: Arriving) -> Time {
        let out = self.all - self.per_host;
        let near = self.together(self.near(), self.per_host - 1, bytes, arriving);
        match out {
            0 => near,
            _ => near.max(self.together(self.far(self.per_host), out, bytes, arriving)),
        }
    }

    /// `bytes` between every two ranks of a host.
    fn inside(&self, bytes: u64, arriving: Arriving) -> Time {
        self.together(self.near(), self.per_host - 1, bytes, arriving)
    }

    /// `bytes` between one rank and each other.
    fn root(&self, bytes: u64, arriving: Arriving) -> Time {
        let out = self.all - self.per_host;
        let near = self.together(self.near(), self.per_host - 1, bytes, arriving);
        near.max(self.together(self.far(1), out, bytes, arriving))
    }

    /// `count` messages of `bytes` at once, on one link.
    fn together(&self, way: Way, count: u64, bytes: u64, arriving: Arriving) -> Time {
        if count == 0 {
            return Time::default();
        }
        let busy = self.message(way, bytes).0.times(count);
        let queues = busy.wire.saturating_mul((count - 1) * way.link.unsteady) / 1000;
        let busy = busy.wire(queues).latency(way.link.latency);
        let work = self.work(count * bytes, arriving);
        if way.link.by_processor {
            return busy + work;
        }
        let slice = bytes.min(self.machine.slice_bytes as u64);
        let all = self.hop(way, bytes, Kept) + work;
        (busy + self.work(slice, arriving)).max(all)
    }
}
