//! 2D torus: rings along the rows and the columns of a grid.
//!
//! An all_reduce does one half of the vector rows first and the other columns first, each in a lane, so that links in both
//! directions of the grid are in use all the time. Ranks beyond the last full row join a rank of the grid.

use super::{
    Algorithm, Topology,
    flow::{Flow, Move},
};
use crate::{
    programs::Programs,
    schedule::{Collective, Lane, Op, Order, Program, Rank, Schedule, Space, Span},
};

struct Grid {
    line: Vec<Rank>,
    width: usize,
    height: usize,
}

impl Grid {
    fn at(&self, x: usize, y: usize) -> Rank {
        self.line[y % self.height * self.width + x % self.width]
    }

    /// Ranks beyond the grid, each with the rank of the grid that it joins.
    fn beyond(&self) -> impl Iterator<Item = (Rank, Rank)> {
        let (grid, beyond) = self.line.split_at(self.width * self.height);
        grid.iter().copied().cycle().zip(beyond.iter().copied())
    }

    fn cells(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..self.height).flat_map(move |y| (0..width).map(move |x| (x, y)))
    }
}

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let (width, height) = topology.grid();
    let n = topology.ranks();
    let grid = Grid {
        line: topology.line(),
        width,
        height,
    };
    let (chunks, moves) = match collective {
        Collective::AllReduce if width * height == n => return all_reduce(grid),
        Collective::AllReduce => (2 * width * height, halves(&grid)),
        _ => (n, parts(&grid)),
    };
    Flow::new(collective, Algorithm::Torus, n, chunks).run(&moves)
}

/// What the rank at place 0 of a full grid does in an all_reduce by [`halves`], which all others do from theirs.
fn all_reduce(grid: Grid) -> Schedule {
    let (width, height) = (grid.width, grid.height);
    let n = width * height;
    let mut owners = Vec::with_capacity(2 * n);
    owners.extend((0..width).flat_map(|x| (0..height).map(move |y| y * width + x)));
    owners.extend(0..n);
    let one = Program {
        scratch: Vec::new(),
        lanes: vec![
            half(0, (width, 1), (height, width)),
            half(n, (height, width), (width, 1)),
        ],
    };
    Schedule {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Torus.to_string(),
        chunks: 2 * n,
        programs: Programs::turned(one, grid.line, width, &owners),
    }
}

/// One half, whose chunk `base + i * short + j` belongs to the place i steps along its `long` rings and j along its `short` ones: how
/// many there are, and how far they lead in places.
fn half(
    base: usize,
    (long, long_step): (usize, usize),
    (short, short_step): (usize, usize),
) -> Lane {
    let mut lane = Lane::default();
    // What lies so many steps behind: a row of chunks, and one of the own row.
    let row = |space, behind: usize| Span {
        space,
        chunk: base + (long - behind % long) % long * short,
        count: short,
    };
    let own = |space, behind: usize| Span {
        space,
        chunk: base + (short - behind % short) % short,
        count: 1,
    };
    // Before anything has been reduced, all is in the input.
    let reduced = match long {
        1 => Space::Input,
        _ => Space::Output,
    };
    for round in (0..long - 1).rev() {
        let sent = match round + 2 == long {
            true => Space::Input,
            false => Space::Output,
        };
        lane.push(Op::Send {
            peer: (long - 1) * long_step,
            src: row(sent, round + 1),
        });
        lane.push(Op::RecvReduce {
            peer: long_step,
            own: row(Space::Input, round),
            dst: row(Space::Output, round),
            order: Order::RemoteFirst,
        });
    }
    for round in (0..short - 1).rev() {
        let sent = match round + 2 == short {
            true => reduced,
            false => Space::Output,
        };
        lane.push(Op::Send {
            peer: (short - 1) * short_step,
            src: own(sent, round + 1),
        });
        lane.push(Op::RecvReduce {
            peer: short_step,
            own: own(reduced, round),
            dst: own(Space::Output, round),
            order: Order::RemoteFirst,
        });
    }
    for round in 0..short - 1 {
        lane.push(Op::Send {
            peer: short_step,
            src: own(Space::Output, round),
        });
        lane.push(Op::Recv {
            peer: (short - 1) * short_step,
            dst: own(Space::Output, round + 1),
        });
    }
    for round in 0..long - 1 {
        lane.push(Op::Send {
            peer: long_step,
            src: row(Space::Output, round),
        });
        lane.push(Op::Recv {
            peer: (long - 1) * long_step,
            dst: row(Space::Output, round + 1),
        });
    }
    lane
}

/// An all_gather of two halves: the first along columns then rows, the second the other way round. Backwards, as
/// in the first part of an all_reduce, the first half goes along rows first.
fn halves(grid: &Grid) -> Vec<Move> {
    let (width, height) = (grid.width, grid.height);
    let mut moves = Vec::new();
    for lane in 0..2 {
        let base = lane * width * height;
        // In the second half rows and columns change places.
        let (long, short) = if lane == 0 {
            (width, height)
        } else {
            (height, width)
        };
        let at = |i: usize, j: usize| {
            if lane == 0 {
                grid.at(i, j)
            } else {
                grid.at(j, i)
            }
        };
        // The rank at (i, j) has chunk i * short + j at first.
        for round in 0..short - 1 {
            for (i, j) in (0..long).flat_map(|i| (0..short).map(move |j| (i, j))) {
                let chunk = base + i * short + (j + short - round) % short;
                moves.push(Move {
                    lane,
                    ..Move::new(at(i, j), at(i, j + 1), chunk..chunk + 1)
                });
            }
        }
        for round in 0..long - 1 {
            for (i, j) in (0..long).flat_map(|i| (0..short).map(move |j| (i, j))) {
                let start = base + (i + long - round) % long * short;
                moves.push(Move {
                    lane,
                    ..Move::new(at(i, j), at(i + 1, j), start..start + short)
                });
            }
        }
        for (inner, outer) in grid.beyond() {
            moves.push(Move {
                lane,
                ..Move::new(inner, outer, base..base + width * height)
            });
        }
    }
    moves
}

/// An all_gather of ranks' parts: along rows, then whole rows along columns.
fn parts(grid: &Grid) -> Vec<Move> {
    let (width, height) = (grid.width, grid.height);
    let mut parts: Vec<Vec<usize>> = (0..grid.line.len()).map(|r| vec![r]).collect();
    let mut moves = Vec::new();
    for (inner, outer) in grid.beyond() {
        moves.push(Move::new(outer, inner, outer..outer + 1));
        parts[inner].push(outer);
    }
    for round in 0..width - 1 {
        for (x, y) in grid.cells() {
            let mut chunks = parts[grid.at(x + width - round, y)].clone();
            chunks.sort_unstable();
            moves.extend(Move::of(grid.at(x, y), grid.at(x + 1, y), &chunks));
        }
    }
    let rows: Vec<_> = (0..height)
        .map(|y| {
            let mut row: Vec<_> = (0..width)
                .flat_map(|x| parts[grid.at(x, y)].clone())
                .collect();
            row.sort_unstable();
            row
        })
        .collect();
    for round in 0..height - 1 {
        for (x, y) in grid.cells() {
            let row = &rows[(y + height - round) % height];
            moves.extend(Move::of(grid.at(x, y), grid.at(x, y + 1), row));
        }
    }
    for (inner, outer) in grid.beyond() {
        let others: Vec<_> = (0..grid.line.len()).filter(|&c| c != outer).collect();
        moves.extend(Move::of(inner, outer, &others));
    }
    moves
}
