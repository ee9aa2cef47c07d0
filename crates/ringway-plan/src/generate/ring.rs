//! Ring: every rank talks to its neighbours only.
//!
//! Chunk by chunk around the ring, n - 1 rounds for each half of an all_reduce, each rank sending (n - 1) / n of the vector in
//! each, to the same neighbour in both: over TCP a stream that carries one half only starts afresh each time. With several
//! channels, odd ones run backwards, each in a lane of its own. Broadcast and reduce are a chain, which slices make a
//! pipeline.

use super::{
    Algorithm, Topology,
    flow::{Flow, Move, Way},
};
use crate::schedule::{Collective, Rank, Schedule};

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let (n, channels) = (topology.ranks(), topology.channels());
    let line = topology.line();
    let (chunks, moves) = match collective {
        Collective::Broadcast { root } | Collective::Reduce { root } => (1, chain(&line, root)),
        // Any labels do for an all_reduce; the owner's place keeps neighbours side by side.
        Collective::AllReduce => (n * channels, around(&line, channels, Way::On, |p| p)),
        _ => (
            n * channels,
            around(&line, channels, Way::On, |place| line[place]),
        ),
    };
    let flow = Flow::new(collective, Algorithm::Ring, n, chunks);
    match collective {
        Collective::ReduceScatter => flow.in_turns(2).run(&moves),
        // What comes to the owners against the way back goes the same way as what leaves them.
        Collective::AllReduce => flow.run_both(&around(&line, channels, Way::Back, |p| p), &moves),
        _ => flow.run(&moves),
    }
}

/// Moves that take each chunk around the ring; the chunks of part p start at the rank whose part it is.
fn around(line: &[Rank], channels: usize, way: Way, part: impl Fn(usize) -> usize) -> Vec<Move> {
    let n = line.len();
    let mut moves = Vec::with_capacity(n * n * channels);
    for round in 0..n - 1 {
        for at in 0..n {
            for channel in 0..channels {
                // Backwards is the same in a mirror.
                let seat = |i: usize| {
                    if (channel % 2 == 0) == (way == Way::On) {
                        i % n
                    } else {
                        n - 1 - i % n
                    }
                };
                let chunk = part(seat(at + n - round)) * channels + channel;
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
