//! Schedules written by hand, for what generators do not make: scratch, `after`, odd spans.

use ringway_plan::{
    Collective, Lane, Op, Order, Program, Rank, Schedule, Span, Step, StepRef, Verified, verify,
};

fn schedule(name: &str, collective: Collective, chunks: usize, programs: Vec<Program>) -> Verified {
    let algorithm = name.to_owned();
    let schedule = Schedule {
        collective,
        algorithm,
        chunks,
        programs: programs.into(),
    };
    verify(schedule).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn program(lanes: Vec<Vec<Op>>, scratch: Vec<usize>) -> Program {
    let lane = |ops: Vec<Op>| Lane {
        steps: ops.into_iter().map(Step::from).collect(),
    };
    Program {
        scratch,
        lanes: lanes.into_iter().map(lane).collect(),
    }
}

/// The ring, in `lanes` lanes that each have chunks of their own.
pub(crate) fn ring(n: usize, lanes: usize) -> Verified {
    let own = |rank: Rank, lane: usize| {
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let chunk = |step: usize| lane * n + (rank + 2 * n - step) % n;
        let mut ops = Vec::new();
        for step in 0..n - 1 {
            let src = match step {
                0 => Span::input(chunk(0), 1),
                _ => Span::output(chunk(step), 1),
            };
            ops.push(Op::Send { peer: next, src });
            let c = chunk(step + 1);
            let (own, dst) = (Span::input(c, 1), Span::output(c, 1));
            ops.push(Op::RecvReduce {
                peer: previous,
                own,
                dst,
                order: Order::RemoteFirst,
            });
        }
        for step in 0..n - 1 {
            ops.push(Op::Send {
                peer: next,
                src: Span::output(chunk(step + n - 1), 1),
            });
            ops.push(Op::Recv {
                peer: previous,
                dst: Span::output(chunk(step + n), 1),
            });
        }
        if n == 1 {
            ops.push(Op::Copy {
                src: Span::input(lane, 1),
                dst: Span::output(lane, 1),
            });
        }
        ops
    };
    let programs = (0..n).map(|r| program((0..lanes).map(|l| own(r, l)).collect(), vec![]));
    schedule("ring", Collective::AllReduce, n * lanes, programs.collect())
}

/// A chain that passes a vector of several chunks on in spans that differ from those it arrives in.
pub(crate) fn chain(n: usize) -> Verified {
    let chunks = 6;
    let own = |rank: Rank| {
        let mut ops = Vec::new();
        if rank == 0 {
            ops.push(Op::Copy {
                src: Span::input(0, chunks),
                dst: Span::output(0, chunks),
            });
        } else {
            let width = if rank % 2 == 1 { 3 } else { 2 };
            for c in (0..chunks).step_by(width) {
                ops.push(Op::Recv {
                    peer: rank - 1,
                    dst: Span::output(c, width),
                });
            }
        }
        if rank + 1 < n {
            let width = if rank % 2 == 1 { 2 } else { 3 };
            for c in (0..chunks).step_by(width) {
                ops.push(Op::Send {
                    peer: rank + 1,
                    src: Span::output(c, width),
                });
            }
        }
        program(vec![ops], vec![])
    };
    schedule(
        "chain",
        Collective::Broadcast { root: 0 },
        chunks,
        (0..n).map(own).collect(),
    )
}

/// All send everything to rank 0, which receives into scratch in lanes of their own, and adds up in the
/// first lane, `after` the others.
pub(crate) fn gather_and_add(n: usize) -> Verified {
    let own = |rank: Rank| {
        if rank > 0 {
            let mut lanes = vec![vec![]; n];
            lanes[rank].push(Op::Send {
                peer: 0,
                src: Span::input(0, 2),
            });
            return program(lanes, vec![]);
        }
        let receive = |r: usize| {
            vec![Op::Recv {
                peer: r,
                dst: Span::scratch(2 * (r - 1), 2),
            }]
        };
        let mut lanes = vec![vec![Op::Copy {
            src: Span::input(0, 2),
            dst: Span::output(0, 2),
        }]];
        lanes.extend((1..n).map(receive));
        let mut root = program(lanes, [0, 1].repeat(n - 1));
        for r in 1..n {
            let dst = Span::output(0, 2);
            let op = Op::Reduce {
                a: dst,
                b: Span::scratch(2 * (r - 1), 2),
                dst,
            };
            let after = vec![StepRef { lane: r, step: 0 }];
            root.lanes[0].steps.push(Step { op, after });
        }
        root
    };
    schedule(
        "gather and add",
        Collective::Reduce { root: 0 },
        2,
        (0..n).map(own).collect(),
    )
}

/// The dissemination barrier: a lane for each round, each `after` the signal received in the round before.
pub(crate) fn barrier(n: usize) -> Verified {
    let none = Span::output(0, 0);
    let own = |rank: Rank| {
        let mut own = Program::default();
        for round in 0..n.next_power_of_two().trailing_zeros() as usize {
            let far = 1 << round;
            let after: Vec<StepRef> = round
                .checked_sub(1)
                .map(|lane| StepRef { lane, step: 1 })
                .into_iter()
                .collect();
            let send = Op::Send {
                peer: (rank + far) % n,
                src: none,
            };
            let receive = Op::Recv {
                peer: (rank + n - far) % n,
                dst: none,
            };
            let steps = [send, receive].map(|op| Step {
                op,
                after: after.clone(),
            });
            own.lanes.push(Lane {
                steps: steps.into(),
            });
        }
        own
    };
    schedule(
        "dissemination",
        Collective::Barrier,
        n,
        (0..n).map(own).collect(),
    )
}

/// Everyone sends to everyone.
pub(crate) fn all_to_all(n: usize) -> Verified {
    let own = |rank: Rank| {
        let mut ops = vec![Op::Copy {
            src: Span::input(rank, 1),
            dst: Span::output(rank, 1),
        }];
        for far in 1..n {
            let (to, from) = ((rank + far) % n, (rank + n - far) % n);
            ops.push(Op::Send {
                peer: to,
                src: Span::input(to, 1),
            });
            ops.push(Op::Recv {
                peer: from,
                dst: Span::output(from, 1),
            });
        }
        program(vec![ops], vec![])
    };
    schedule("direct", Collective::AllToAll, n, (0..n).map(own).collect())
}
