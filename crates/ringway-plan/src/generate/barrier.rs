//! Barriers: rounds of signals.

use super::{Algorithm, Topology};
use crate::schedule::{Collective, Lane, Op, Program, Rank, Schedule, Span, Step, StepRef};

/// A barrier of rounds: a rank sends its signals of a round when it has received those of all rounds before.
/// Each round has a lane of its own, because steps of one lane that touch nothing are not ordered.
pub(super) fn generate(
    algorithm: Algorithm,
    ranks: usize,
    rounds: &[Vec<(Rank, Rank)>],
) -> Schedule {
    let lanes = vec![Lane::default(); rounds.len()];
    let mut programs = vec![
        Program {
            scratch: Vec::new(),
            lanes
        };
        ranks
    ];
    let mut heard: Vec<Vec<StepRef>> = vec![Vec::new(); ranks];
    let none = Span::output(0, 0);
    for (lane, round) in rounds.iter().enumerate() {
        for &(from, to) in round {
            let op = Op::Send {
                peer: to,
                src: none,
            };
            programs[from].lanes[lane].steps.push(Step {
                op,
                after: heard[from].clone(),
            });
        }
        for &(from, to) in round {
            let steps = &mut programs[to].lanes[lane].steps;
            heard[to].push(StepRef {
                lane,
                step: steps.len(),
            });
            steps.push(
                Op::Recv {
                    peer: from,
                    dst: none,
                }
                .into(),
            );
        }
    }
    let algorithm = algorithm.to_string();
    Schedule {
        collective: Collective::Barrier,
        algorithm,
        chunks: ranks,
        programs: programs.into(),
    }
}

/// Everyone signals everyone.
pub(super) fn direct(topology: &Topology) -> Schedule {
    let n = topology.ranks();
    let all = (1..n)
        .flat_map(|d| (0..n).map(move |r| (r, (r + d) % n)))
        .collect();
    generate(Algorithm::Direct, n, &[all])
}

/// Dissemination: in round k to the rank 2^k further on. Recursive doubling for any number of ranks.
pub(super) fn dissemination(topology: &Topology) -> Schedule {
    let (n, line) = (topology.ranks(), topology.line());
    let distances = (0..usize::BITS).map(|k| 1 << k).take_while(|&d| d < n);
    let round = |d| (0..n).map(|i| (line[i], line[(i + d) % n])).collect();
    let rounds: Vec<_> = distances.map(round).collect();
    generate(Algorithm::RecursiveDoubling, n, &rounds)
}
