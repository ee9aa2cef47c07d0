//! Hierarchical: inside hosts directly, between hosts around rings, one for each *rail*. `all_reduce` goes through any
//! number of levels, see [`nested`](super::nested).
//!
//! There are as many rails as the largest host has members; member i of a host of m members takes rails i, i + m,
//! i + 2m ..., so that all members of all hosts take part whatever the sizes of hosts.

use std::ops::Range;

use super::{
    Algorithm, Topology,
    flow::{Flow, Move, trim},
    nested,
};
use crate::schedule::{Collective, Rank, Schedule};

struct Hosts {
    members: Vec<Vec<Rank>>,
    rails: usize,
}

impl Hosts {
    fn on_rail(&self, host: usize, rail: usize) -> Rank {
        let members = &self.members[host % self.members.len()];
        members[rail % members.len()]
    }

    /// From who holds `chunks` in a host to its other members.
    fn inside(&self, host: usize, from: Rank, chunks: Range<usize>) -> impl Iterator<Item = Move> {
        let others = self.members[host].iter().filter(move |&&r| r != from);
        others.map(move |&to| Move::new(from, to, chunks.clone()))
    }
}

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let members = topology.groups();
    let rails = members.iter().map(Vec::len).max().unwrap_or(1);
    let hosts = Hosts { members, rails };
    let n = topology.ranks();
    let (chunks, moves) = match collective {
        Collective::AllReduce => return nested::all_reduce(topology),
        Collective::Broadcast { root } | Collective::Reduce { root } => (
            rails,
            trim(&from_root(&hosts, root), n, rails, &[(root, 0..rails)]),
        ),
        _ => (n, parts(&hosts)),
    };
    Flow::new(collective, Algorithm::Hierarchical, n, chunks).run(&moves)
}

/// Chunk r starts at rank r, travels the rail of its rank's number in its host, and is handed out on arrival.
fn parts(hosts: &Hosts) -> Vec<Move> {
    let count = hosts.members.len();
    let mut moves = Vec::new();
    for round in 0..count {
        for home in 0..count {
            for (rail, &chunk) in hosts.members[home].iter().enumerate() {
                let at = hosts.on_rail(home + round, rail);
                if round + 1 < count {
                    moves.push(Move::new(
                        at,
                        hosts.on_rail(home + round + 1, rail),
                        chunk..chunk + 1,
                    ));
                }
                moves.extend(hosts.inside((home + round) % count, at, chunk..chunk + 1));
            }
        }
    }
    moves
}

/// Chunk `rail` goes from the root to the rail's member in its host, from host to host, and is handed out there.
fn from_root(hosts: &Hosts, root: Rank) -> Vec<Move> {
    let count = hosts.members.len();
    let home = hosts
        .members
        .iter()
        .position(|h| h.contains(&root))
        .unwrap_or(0);
    let mut moves = Vec::new();
    for rail in 0..hosts.rails {
        let first = hosts.on_rail(home, rail);
        if first != root {
            moves.push(Move::new(root, first, rail..rail + 1));
        }
    }
    for host in home..home + count {
        for rail in 0..hosts.rails {
            let at = hosts.on_rail(host, rail);
            if host + 1 < home + count {
                moves.push(Move::new(at, hosts.on_rail(host + 1, rail), rail..rail + 1));
            }
            moves.extend(hosts.inside(host % count, at, rail..rail + 1));
        }
    }
    moves
}
