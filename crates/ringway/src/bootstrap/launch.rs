//! How this process was started: by whom, as which rank of how many, and where the ranks meet.

use std::{fmt, sync::Arc};

use ringway_plan::Rank;

use super::Store;

/// What a process knows about its job before it has met the others.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// Its number in the world.
    pub rank: Rank,
    /// How many ranks the world has.
    pub size: usize,
    /// Its number among the ranks of its host, where the launcher says.
    pub local_rank: Option<usize>,
    /// The job's name by the launcher, to keep jobs apart that meet at the same place; may be empty.
    pub job: String,
    /// Where the ranks meet.
    pub rendezvous: Rendezvous,
}

/// Who started the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// The caller says, not the environment.
    Caller,
    /// `mpiexec` of MPICH, Intel MPI or another with a PMI.
    Mpich,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `ringway run`, or `RINGWAY_*` variables set by hand.
    Ringway,
    /// `srun` of Slurm.
    Slurm,
    /// `torchrun`, or its variables set by hand.
    Torchrun,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "the caller",
            Self::Mpich => "mpiexec of MPICH or Intel MPI",
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Ringway => "RINGWAY_* variables",
            Self::Slurm => "Slurm's srun",
            Self::Torchrun => "torchrun",
        })
    }
}

/// Where the ranks of a job meet.
#[derive(Clone)]
pub enum Rendezvous {
    /// Rank 0 serves a store of Ringway's own at this place, which all ranks reach.
    Master {
        /// A host name or address.
        host: String,
        /// The TCP port.
        port: u16,
    },
    /// A store that is there already.
    Store(Arc<dyn Store>),
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master { host, port } => write!(f, "Master({host}:{port})"),
            Self::Store(store) => write!(f, "Store({})", store.describe()),
        }
    }
}
