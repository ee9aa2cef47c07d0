//! Direct: each rank exchanges with every other at once. And one_shot, where each reduces everything itself.
//!
//! All steps of a rank stand in one lane, sends first, which lets everything that does not depend on one
//! another run at once. Reductions take peers in rank order. Every schedule but one_shot's has one chunk for each
//! rank (or one), steps of one chunk and no scratch, so that it runs the `v` forms as well.

use super::{Algorithm, Topology, barrier};
use crate::schedule::{Collective, Lane, Op, Order, Program, Rank, Schedule, Span};

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let n = topology.ranks();
    let program: fn(Rank, usize, Rank) -> Lane = match collective {
        Collective::AllGather => |rank, n, _| all_gather(rank, n),
        Collective::AllReduce => |rank, n, _| all_reduce(rank, n),
        Collective::AllToAll => |rank, n, _| all_to_all(rank, n),
        Collective::Barrier => return barrier::direct(topology),
        Collective::Broadcast { .. } => broadcast,
        Collective::Gather { .. } => gather,
        Collective::Reduce { .. } => reduce,
        Collective::ReduceScatter => |rank, n, _| reduce_scatter(rank, n),
        Collective::Scatter { .. } => scatter,
    };
    let chunks = match collective {
        Collective::Broadcast { .. } | Collective::Reduce { .. } => 1,
        _ => n,
    };
    let root = collective.root().unwrap_or(0);
    let programs = (0..n).map(|rank| Program {
        scratch: Vec::new(),
        lanes: vec![program(rank, n, root)],
    });
    let algorithm = Algorithm::Direct.to_string();
    Schedule {
        collective,
        algorithm,
        chunks,
        programs: programs.collect(),
    }
}

/// The other ranks, the next first, so that not all begin with the same.
fn others(rank: Rank, n: usize) -> impl Iterator<Item = Rank> + Clone {
    (1..n).map(move |d| (rank + d) % n)
}

fn lane(steps: impl Iterator<Item = Op>) -> Lane {
    Lane {
        steps: steps.map(Into::into).collect(),
    }
}

/// `dst = own + every peer's`, in rank order but for the rank's own, which is first or second.
fn collect(rank: Rank, n: usize, own: Span, dst: Span) -> impl Iterator<Item = Op> {
    (0..n)
        .filter(move |&p| p != rank)
        .enumerate()
        .map(move |(i, peer)| match i {
            0 if peer < rank => Op::RecvReduce {
                peer,
                own,
                dst,
                order: Order::RemoteFirst,
            },
            0 => Op::RecvReduce {
                peer,
                own,
                dst,
                order: Order::LocalFirst,
            },
            _ => Op::RecvReduce {
                peer,
                own: dst,
                dst,
                order: Order::LocalFirst,
            },
        })
}

const fn input(chunk: usize) -> Span {
    Span::input(chunk, 1)
}

const fn output(chunk: usize) -> Span {
    Span::output(chunk, 1)
}

fn all_gather(rank: Rank, n: usize) -> Lane {
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(0),
    });
    let copy = Op::Copy {
        src: input(0),
        dst: output(rank),
    };
    let receives = others(rank, n).map(|peer| Op::Recv {
        peer,
        dst: output(peer),
    });
    lane(sends.chain([copy]).chain(receives))
}

fn all_reduce(rank: Rank, n: usize) -> Lane {
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(peer),
    });
    let reductions = collect(rank, n, input(rank), output(rank));
    let results = others(rank, n).map(|peer| Op::Send {
        peer,
        src: output(rank),
    });
    let receives = others(rank, n).map(|peer| Op::Recv {
        peer,
        dst: output(peer),
    });
    lane(sends.chain(reductions).chain(results).chain(receives))
}

fn all_to_all(rank: Rank, n: usize) -> Lane {
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(peer),
    });
    let copy = Op::Copy {
        src: input(rank),
        dst: output(rank),
    };
    let from = (1..n).map(|d| (rank + n - d) % n);
    let receives = from.map(|peer| Op::Recv {
        peer,
        dst: output(peer),
    });
    lane(sends.chain([copy]).chain(receives))
}

fn broadcast(rank: Rank, n: usize, root: Rank) -> Lane {
    if rank != root {
        return lane(std::iter::once(Op::Recv {
            peer: root,
            dst: output(0),
        }));
    }
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(0),
    });
    lane(sends.chain([Op::Copy {
        src: input(0),
        dst: output(0),
    }]))
}

fn gather(rank: Rank, n: usize, root: Rank) -> Lane {
    if rank != root {
        return lane(std::iter::once(Op::Send {
            peer: root,
            src: input(0),
        }));
    }
    let copy = Op::Copy {
        src: input(0),
        dst: output(rank),
    };
    let receives = others(rank, n).map(|peer| Op::Recv {
        peer,
        dst: output(peer),
    });
    lane(std::iter::once(copy).chain(receives))
}

fn reduce(rank: Rank, n: usize, root: Rank) -> Lane {
    if rank != root {
        return lane(std::iter::once(Op::Send {
            peer: root,
            src: input(0),
        }));
    }
    lane(collect(rank, n, input(0), output(0)))
}

fn reduce_scatter(rank: Rank, n: usize) -> Lane {
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(peer),
    });
    lane(sends.chain(collect(rank, n, input(rank), output(0))))
}

fn scatter(rank: Rank, n: usize, root: Rank) -> Lane {
    if rank != root {
        return lane(std::iter::once(Op::Recv {
            peer: root,
            dst: output(0),
        }));
    }
    let sends = others(rank, n).map(|peer| Op::Send {
        peer,
        src: input(peer),
    });
    lane(sends.chain([Op::Copy {
        src: input(rank),
        dst: output(0),
    }]))
}

/// Every rank gets every other's input and reduces all in rank order: ((0 + 1) + 2) + ... Only the last step
/// writes output, because in place that is still being sent until all have taken it.
pub(super) fn one_shot(topology: &Topology) -> Schedule {
    let n = topology.ranks();
    let (input, output, partial) = (input(0), output(0), Span::scratch(0, 1));
    let program = |rank| {
        let sends = others(rank, n).map(|peer| Op::Send { peer, src: input });
        // What the ranks so far add up to; it starts with rank 0's.
        let (first, mut reduced) = match rank {
            0 => (None, input),
            _ => (
                Some(Op::Recv {
                    peer: 0,
                    dst: partial,
                }),
                partial,
            ),
        };
        let reductions = (1..n).map(|next| {
            let dst = if next == n - 1 { output } else { partial };
            let so_far = std::mem::replace(&mut reduced, dst);
            match next == rank {
                true => Op::Reduce {
                    a: so_far,
                    b: input,
                    dst,
                },
                false => Op::RecvReduce {
                    peer: next,
                    own: so_far,
                    dst,
                    order: Order::LocalFirst,
                },
            }
        });
        let steps = lane(sends.chain(first).chain(reductions));
        Program {
            scratch: vec![0],
            lanes: vec![steps],
        }
    };
    Schedule {
        collective: Collective::AllReduce,
        algorithm: Algorithm::OneShot.to_string(),
        chunks: 1,
        programs: (0..n).map(program).collect(),
    }
}
