//! Recursive doubling and halving: partners at distance 1, 2, 4 ...

use super::{
    Algorithm, Topology, barrier,
    flow::{Flow, Move, trim},
};
use crate::schedule::{Collective, Lane, Op, Order, Program, Rank, Schedule, Span};

/// Ranks in pairs and alone, such that a power of two of them takes part in the exchange. Each second of a
/// pair adds what it has to the first of the pair beforehand, and gets the result from it afterwards.
struct Fold {
    /// Those that take part, in order.
    active: Vec<Rank>,
    /// First and second of each pair.
    pairs: Vec<(Rank, Rank)>,
}

impl Fold {
    fn new(line: &[Rank]) -> Self {
        let power = 1 << line.len().ilog2();
        let (paired, alone) = line.split_at(2 * (line.len() - power));
        let pairs: Vec<_> = paired.chunks_exact(2).map(|p| (p[0], p[1])).collect();
        let active = pairs
            .iter()
            .map(|&(first, _)| first)
            .chain(alone.iter().copied())
            .collect();
        Self { active, pairs }
    }
}

/// Few rounds, and each byte only where it is needed.
pub(super) fn halving(collective: Collective, topology: &Topology) -> Schedule {
    let n = topology.ranks();
    let flow = |chunks| Flow::new(collective, Algorithm::HalvingDoubling, n, chunks);
    match collective {
        Collective::AllReduce => {
            let fold = Fold::new(&topology.line());
            let chunks = fold.active.len();
            let mut moves = near_last(&fold.active);
            moves.extend(
                fold.pairs
                    .iter()
                    .map(|&(first, second)| Move::new(first, second, 0..chunks)),
            );
            flow(chunks).run(&moves)
        }
        Collective::Broadcast { root } | Collective::Reduce { root } => {
            let mut moves = scatter(n, root);
            moves.extend(all_parts(n));
            flow(n).run(&trim(&moves, n, n, &[(root, 0..n)]))
        }
        _ => flow(n).run(&all_parts(n)),
    }
}

/// An all_gather among `active`, a power of two of ranks, that does its largest exchange last and with the
/// nearest: the chunk of the rank at place p is p with its bits reversed, so that what a rank has lies side by side.
fn near_last(active: &[Rank]) -> Vec<Move> {
    let power = active.len();
    let bits = power.trailing_zeros();
    let mut moves = Vec::new();
    for done in 0..bits {
        let (distance, size) = (power >> (done + 1), 1 << done);
        for (place, &rank) in active.iter().enumerate() {
            let label = if bits == 0 {
                0
            } else {
                place.reverse_bits() >> (usize::BITS - bits)
            };
            let start = label & !(size - 1);
            moves.push(Move::new(
                rank,
                active[place ^ distance],
                start..start + size,
            ));
        }
    }
    moves
}

/// An all_gather in which rank r has chunk r at first: between partners for powers of two, else each rank to the
/// one 1, 2, 4 ... before it, around the circle.
fn all_parts(n: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut distance = 1;
    while distance < n {
        for rank in 0..n {
            if n.is_power_of_two() {
                let start = rank & !(distance - 1);
                moves.push(Move::new(rank, rank ^ distance, start..start + distance));
            } else {
                let to = (rank + n - distance) % n;
                let end = rank + distance.min(n - distance);
                moves.push(Move::new(rank, to, rank..end.min(n)));
                if end > n {
                    moves.push(Move::new(rank, to, 0..end - n));
                }
            }
        }
        distance *= 2;
    }
    moves
}

/// Takes each rank its chunk, halving what is still to be handed on.
fn scatter(n: usize, root: Rank) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut distance = n.next_power_of_two() / 2;
    while distance > 0 {
        for at in (0..n).step_by(2 * distance).filter(|at| at + distance < n) {
            let (from, to) = ((root + at) % n, (root + at + distance) % n);
            let mut chunks: Vec<_> = (at + distance..n.min(at + 2 * distance))
                .map(|c| (root + c) % n)
                .collect();
            chunks.sort_unstable();
            moves.extend(Move::of(from, to, &chunks));
        }
        distance /= 2;
    }
    moves
}

/// The fewest rounds: whole vectors between partners.
pub(super) fn recursive(collective: Collective, topology: &Topology) -> Schedule {
    let n = topology.ranks();
    match collective {
        Collective::Barrier => barrier::dissemination(topology),
        Collective::AllGather => {
            Flow::new(collective, Algorithm::RecursiveDoubling, n, n).run(&all_parts(n))
        }
        _ => all_reduce(n, &Fold::new(&topology.line())),
    }
}

/// Each round needs a place for its result other than what is still being sent, or both partners would wait
/// for the other to be done: input, scratch, output, scratch, output ..., the last being output.
fn all_reduce(n: usize, fold: &Fold) -> Schedule {
    let rounds = fold.active.len().ilog2();
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let (odd, even) = (Span::scratch(0, 1), output);
    let mut lanes = vec![Lane::default(); n];
    let mut start = vec![input; n];
    for &(first, second) in &fold.pairs {
        lanes[second].push(Op::Send {
            peer: first,
            src: input,
        });
        let own = input;
        lanes[first].push(Op::RecvReduce {
            peer: second,
            own,
            dst: output,
            order: Order::LocalFirst,
        });
        start[first] = output;
    }
    for round in 0..rounds {
        let distance = 1 << round;
        for (place, &rank) in fold.active.iter().enumerate() {
            let peer = fold.active[place ^ distance];
            let own = match round {
                0 => start[rank],
                _ if round % 2 == 1 => odd,
                _ => even,
            };
            let dst = if round % 2 == 0 { odd } else { even };
            // The lower half of the exchange stands first, on both sides.
            let order = if place & distance == 0 {
                Order::LocalFirst
            } else {
                Order::RemoteFirst
            };
            lanes[rank].push(Op::Send { peer, src: own });
            lanes[rank].push(Op::RecvReduce {
                peer,
                own,
                dst,
                order,
            });
        }
    }
    if rounds % 2 == 1 {
        for &rank in &fold.active {
            lanes[rank].push(Op::Copy {
                src: odd,
                dst: output,
            });
        }
    }
    for &(first, second) in &fold.pairs {
        lanes[first].push(Op::Send {
            peer: second,
            src: output,
        });
        lanes[second].push(Op::Recv {
            peer: first,
            dst: output,
        });
    }
    let active: std::collections::HashSet<_> = fold.active.iter().collect();
    let program = |(rank, lane)| {
        let scratch = if rounds > 0 && active.contains(&rank) {
            vec![0]
        } else {
            Vec::new()
        };
        Program {
            scratch,
            lanes: vec![lane],
        }
    };
    Schedule {
        collective: Collective::AllReduce,
        algorithm: Algorithm::RecursiveDoubling.to_string(),
        chunks: 1,
        programs: lanes.into_iter().enumerate().map(program).collect(),
    }
}
