//! Ring: every rank talks to its neighbours only.
//!
//! Chunk by chunk around the ring, n - 1 rounds for each half of an all_reduce, each rank sending (n - 1) / n of the vector in
//! each, to the same neighbour in both: over TCP a stream that carries one half only starts afresh each time. With several
//! channels, odd ones run backwards, each in a lane of its own. Broadcast and reduce are a chain, which slices make a
//! pipeline.

use super::{
    Algorithm, Topology,
    flow::{Flow, Move},
};
use crate::{
    programs::Programs,
    schedule::{Collective, Lane, Op, Order, Program, Rank, Schedule, Span},
};

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let (n, channels) = (topology.ranks(), topology.channels());
    let line = topology.line();
    let (chunks, moves) = match collective {
        Collective::Broadcast { root } | Collective::Reduce { root } => (1, chain(&line, root)),
        Collective::AllReduce => return all_reduce(line, channels),
        _ => (n * channels, around(&line, channels)),
    };
    let flow = Flow::new(collective, Algorithm::Ring, n, chunks);
    match collective {
        Collective::ReduceScatter => flow.in_turns(2).run(&moves),
        _ => flow.run(&moves),
    }
}

/// What the rank at place 0 does, which all others do from theirs. Chunks are numbered by their owner's place, so that neighbours'
/// lie side by side.
fn all_reduce(line: Vec<Rank>, channels: usize) -> Schedule {
    let n = line.len();
    let lane = |channel: usize| {
        let is_mirrored = channel % 2 == 1;
        // The chunk that the place so many behind owns, and the ranks before and behind.
        let chunk = |behind: usize| match is_mirrored {
            false => (n - behind % n) % n * channels + channel,
            true => behind % n * channels + channel,
        };
        let (next, previous) = match is_mirrored {
            false => (1, n - 1),
            true => (n - 1, 1),
        };
        let mut lane = Lane::default();
        for round in 0..n - 1 {
            let (sent, reduced) = (chunk(round + 1), chunk(round + 2));
            let src = match round {
                0 => Span::input(sent, 1),
                _ => Span::output(sent, 1),
            };
            lane.push(Op::Send { peer: next, src });
            lane.push(Op::RecvReduce {
                peer: previous,
                own: Span::input(reduced, 1),
                dst: Span::output(reduced, 1),
                order: Order::RemoteFirst,
            });
        }
        for round in 0..n - 1 {
            let (src, dst) = (
                Span::output(chunk(round), 1),
                Span::output(chunk(round + 1), 1),
            );
            lane.push(Op::Send { peer: next, src });
            lane.push(Op::Recv {
                peer: previous,
                dst,
            });
        }
        lane
    };
    let one = Program {
        scratch: Vec::new(),
        lanes: (0..channels).map(lane).collect(),
    };
    let owners: Vec<usize> = (0..n * channels).map(|chunk| chunk / channels).collect();
    Schedule {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring.to_string(),
        chunks: n * channels,
        programs: Programs::turned(one, line, n, &owners),
    }
}

/// Moves that take each chunk around the ring; a rank's chunks start at it.
fn around(line: &[Rank], channels: usize) -> Vec<Move> {
    let n = line.len();
    let mut moves = Vec::with_capacity(n * n * channels);
    for round in 0..n - 1 {
        for at in 0..n {
            for channel in 0..channels {
                // Backwards is the same in a mirror.
                let seat = |i: usize| {
                    if channel % 2 == 0 {
                        i % n
                    } else {
                        n - 1 - i % n
                    }
                };
                let chunk = line[seat(at + n - round)] * channels + channel;
                let (from, to) = (line[seat(at)], line[seat(at + 1)]);
                moves.push(Move {
                    lane: channel,
                    ..Move::new(from, to, chunk..chunk + 1)
                });
            }
        }
    }
    moves
}

fn chain(line: &[Rank], root: Rank) -> Vec<Move> {
    let n = line.len();
    let start = line.iter().position(|&r| r == root).unwrap_or(0);
    (start..start + n - 1)
        .map(|i| Move::new(line[i % n], line[(i + 1) % n], 0..1))
        .collect()
}
