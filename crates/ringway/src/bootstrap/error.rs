//! Why a rank could not join its job.

use std::time::Duration;

use ringway_plan::Rank;

use super::StoreError;

/// Joining the job failed. Each says what was expected, what was found, and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Another process has the number already.
    #[error(
        "rank {rank} is there twice: {first} has joined, and {second} has come with the same number; give every process \
         a number of its own, and every job a master port of its own"
    )]
    Duplicate {
        /// The number.
        rank: Rank,
        /// The process that joined first.
        first: String,
        /// The process that came with the same number.
        second: String,
    },
    /// Variables of the environment are missing, wrong or contradict each other.
    #[error("{variable}: expected {expected}, found {found}; {remedy}")]
    Environment {
        /// The variable.
        variable: String,
        /// What it should say.
        expected: String,
        /// What it says.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// No port to listen on.
    #[error("rank {rank} cannot listen on {place}: {detail}; {remedy}")]
    Listen {
        /// This rank.
        rank: Rank,
        /// The address or the ports.
        place: String,
        /// What the operating system said.
        detail: String,
        /// What to do.
        remedy: String,
    },
    /// Ranks have not come in time.
    #[error("{missing} of {size} {verb} not joined within {waited:.1?}; {present}{note}")]
    Missing {
        /// `rank 3` or `ranks 3, 5`.
        missing: String,
        /// The ranks of the world.
        size: usize,
        /// `has` or `have`.
        verb: &'static str,
        /// How long was waited.
        waited: Duration,
        /// The ranks that have come.
        present: String,
        /// What else was seen, and what to do.
        note: String,
    },
    /// This process was started without saying as which rank.
    #[error(
        "no launcher found: neither RINGWAY_RANK, RANK (torchrun), SLURM_PROCID, OMPI_COMM_WORLD_RANK nor PMI_RANK is \
         set; start the program with `ringway run -n N -- PROGRAM`, torchrun, srun or mpirun"
    )]
    NoLauncher,
    /// The rendezvous refused this rank.
    #[error("the rendezvous at {place} refused rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: Rank,
        /// Where.
        place: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The store failed.
    #[error("rank {rank} cannot meet the others: {source}")]
    Store {
        /// This rank.
        rank: Rank,
        /// What failed.
        source: StoreError,
    },
    /// The rendezvous does not answer.
    #[error("rank {rank} did not reach rank 0 at {place} within {waited:.1?}: {detail}; {remedy}")]
    Unreachable {
        /// This rank.
        rank: Rank,
        /// Where rank 0 should be.
        place: String,
        /// How long was tried.
        waited: Duration,
        /// What came of it.
        detail: String,
        /// What to do.
        remedy: String,
    },
}
