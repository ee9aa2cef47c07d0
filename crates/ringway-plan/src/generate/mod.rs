//! Generators: from a collective, an algorithm and the machines to a schedule.

mod barrier;
mod direct;
mod doubling;
mod flow;
mod hierarchical;
mod nested;
mod ring;
mod topology;
mod torus;
mod tree;

pub use topology::Topology;

use crate::{
    algorithm::Algorithm,
    schedule::{Collective, Op, Program, Rank, Schedule, Span},
};

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// A topology without ranks.
    #[error("expected a topology of at least one rank, found none; name the host of each rank")]
    NoRanks,
    /// The root is not a rank.
    #[error("the root of {collective} is rank {root}, expected a rank below {ranks}")]
    Root {
        /// The collective.
        collective: Collective,
        /// Its root.
        root: Rank,
        /// The number of ranks.
        ranks: usize,
    },
    /// The algorithm is not for the collective.
    #[error("algorithm {algorithm} does not do {collective}; choose one of {others}")]
    Unsupported {
        /// The collective.
        collective: Collective,
        /// The algorithm that was asked for.
        algorithm: Algorithm,
        /// Those that do it, separated by commas.
        others: String,
    },
}

/// The schedule by which `algorithm` does `collective` among the ranks of `topology`. With one rank, all
/// algorithms are a copy.
pub fn generate(
    collective: Collective,
    algorithm: Algorithm,
    topology: &Topology,
) -> Result<Schedule, GenerateError> {
    let ranks = topology.ranks();
    if ranks == 0 {
        return Err(GenerateError::NoRanks);
    }
    if let Some(root) = collective.root().filter(|&root| root >= ranks) {
        return Err(GenerateError::Root {
            collective,
            root,
            ranks,
        });
    }
    if !algorithm.supports(collective) {
        let others = Algorithm::ALL
            .into_iter()
            .filter(|a| a.supports(collective));
        let others = others.map(Algorithm::name).collect::<Vec<_>>().join(", ");
        return Err(GenerateError::Unsupported {
            collective,
            algorithm,
            others,
        });
    }
    if ranks == 1 {
        return Ok(alone(collective, algorithm));
    }
    Ok(match algorithm {
        Algorithm::Direct => direct::generate(collective, topology),
        Algorithm::DoubleTree => tree::double(collective, topology),
        Algorithm::HalvingDoubling => doubling::halving(collective, topology),
        Algorithm::Hierarchical => hierarchical::generate(collective, topology),
        Algorithm::OneShot => direct::one_shot(topology),
        Algorithm::RecursiveDoubling => doubling::recursive(collective, topology),
        Algorithm::Ring => ring::generate(collective, topology),
        Algorithm::Torus => torus::generate(collective, topology),
        Algorithm::Tree => tree::generate(collective, topology),
    })
}

fn alone(collective: Collective, algorithm: Algorithm) -> Schedule {
    let mut program = Program::default();
    if collective != Collective::Barrier {
        let op = Op::Copy {
            src: Span::input(0, 1),
            dst: Span::output(0, 1),
        };
        program.lanes.push(crate::schedule::Lane {
            steps: vec![op.into()],
        });
    }
    Schedule {
        collective,
        algorithm: algorithm.to_string(),
        chunks: 1,
        programs: vec![program].into(),
    }
}
