//! All-reduce through the levels of a hierarchy: ranks in hosts, hosts in racks, racks in pods ...
//!
//! A group of c members has *positions*: `q * K + k`, where K is the number of members of the largest group of its level, is position
//! q of member k, or of member k modulo c where there are fewer. So every rank takes part at every level, whatever the
//! sizes. Each position of the whole has a chunk. On the way up, members of a group add up what belongs to the same
//! position of theirs, at the lowest level directly, above around rings, all positions side by side; on the way down they
//! hand it out. With hosts alone this is what NCCL and others call split-rail.

use super::{
    Algorithm, Topology,
    flow::{Flow, Move, Way},
    topology::Node,
};
use crate::schedule::{Collective, Rank, Schedule};

pub(super) fn all_reduce(topology: &Topology) -> Schedule {
    let tree = topology.tree();
    let levels = Levels {
        most: tree.widest(),
    };
    let chunks = levels.positions(0);
    let down = |way| {
        let mut moves = Vec::new();
        levels.spread(&tree, 0, 1, way, &mut moves);
        moves
    };
    let ranks = topology.ranks();
    // As in a ring, both halves go the same way around.
    Flow::new(
        Collective::AllReduce,
        Algorithm::Hierarchical,
        ranks,
        chunks,
    )
    .run_both(&down(Way::Back), &down(Way::On))
}

struct Levels {
    most: Vec<usize>,
}

impl Levels {
    /// How many positions a group of this level has.
    fn positions(&self, level: usize) -> usize {
        self.most[level..].iter().product()
    }

    /// The rank at a position of a group.
    fn at(&self, node: &Node, level: usize, position: usize) -> Rank {
        match node {
            Node::Rank(rank) => *rank,
            Node::Group(members) => {
                let (q, k) = (position / self.most[level], position % self.most[level]);
                self.at(&members[k % members.len()], level + 1, q)
            }
        }
    }

    /// From the ranks at a group's positions, each of which holds `width` chunks, to all of its ranks.
    fn spread(&self, node: &Node, level: usize, width: usize, way: Way, moves: &mut Vec<Move>) {
        let Node::Group(members) = node else {
            return;
        };
        let (count, most) = (members.len(), self.most[level]);
        let is_lowest = level + 1 == self.most.len();
        let inner = self.positions(level + 1);
        let at = |member: usize, q| self.at(&members[member % count], level + 1, q);
        let piece = |q, k| (q * most + k) * width..(q * most + k + 1) * width;
        if is_lowest {
            for k in 0..most {
                let from = at(k, 0);
                let others = (0..count)
                    .map(|member| at(member, 0))
                    .filter(|&to| to != from);
                moves.extend(others.map(|to| Move::new(from, to, piece(0, k))));
            }
        } else {
            for round in 0..count - 1 {
                for member in 0..count {
                    let (home, next) = match way {
                        Way::On => (member + count - round, member + 1),
                        Way::Back => (member + round, member + count - 1),
                    };
                    for q in 0..inner {
                        for k in (home % count..most).step_by(count) {
                            moves.push(Move::new(at(member, q), at(next, q), piece(q, k)));
                        }
                    }
                }
            }
        }
        for member in members {
            self.spread(member, level + 1, width * most, way, moves);
        }
    }
}
