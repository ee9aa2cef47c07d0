//! The launch as the environment tells it.
//!
//! | launcher | variables | rank 0 serves the rendezvous at |
//! |---|---|---|
//! | Ringway | `RINGWAY_RANK`, `RINGWAY_WORLD_SIZE` | `RINGWAY_MASTER` |
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT`; one port further if torchrun's own store has that one |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK` | on one host: itself, a port from the job's number |
//! | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` | as Open MPI |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` | the first host, a port from the job's number |
//!
//! `RINGWAY_MASTER` and `RINGWAY_MASTER_PORT` overrule the place of every launcher; MPI's and Slurm's ranks also
//! heed `MASTER_ADDR` and `MASTER_PORT`. Launchers nest (torchrun under srun, say): the innermost counts, which
//! is the first of the table that is there. It is an error if an outer one contradicts it.

use ringway_plan::Rank;

use super::{BootstrapError, Launch, Launcher, Rendezvous, codec::fnv1a, expand_hostlist};
use crate::settings::Environment;

/// Ranks that a world may have, at most.
pub(super) const MOST_RANKS: usize = 1 << 16;

/// Where derived ports begin, and how many there are: below those that Linux gives to outgoing connections.
const DERIVED_PORTS: (u64, u64) = (15_000, 16_384);

/// The variables of a launcher.
struct Family {
    launcher: Launcher,
    rank: &'static str,
    size: &'static [&'static str],
    local: &'static str,
}

/// The innermost launcher first.
const FAMILIES: [Family; 5] = [
    Family {
        launcher: Launcher::Ringway,
        rank: "RINGWAY_RANK",
        size: &["RINGWAY_WORLD_SIZE"],
        local: "RINGWAY_LOCAL_RANK",
    },
    Family {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local: "LOCAL_RANK",
    },
    Family {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Family {
        launcher: Launcher::Mpich,
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local: "MPI_LOCALRANKID",
    },
    Family {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        // A step may have fewer tasks than the job.
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local: "SLURM_LOCALID",
    },
];

/// A rank and a size, and the variables that say so.
struct Found {
    family: &'static Family,
    size_variable: &'static str,
    rank: Rank,
    size: usize,
}

impl Launch {
    /// From the process's environment.
    ///
    /// # Errors
    /// No launcher, or variables that are missing, wrong or contradict each other.
    pub fn detect() -> Result<Self, BootstrapError> {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        Self::from_environment(&Environment::current(), parent.unsigned_abs())
    }

    /// From this environment. `parent` is the number of the process that started this one: MPICH tells ranks
    /// nothing else that they have in common.
    ///
    /// # Errors
    /// As for [`Launch::detect`].
    pub fn from_environment(
        environment: &Environment,
        parent: u32,
    ) -> Result<Self, BootstrapError> {
        let mut all = Vec::new();
        for family in &FAMILIES {
            all.extend(find(environment, family)?);
        }
        let Some((inner, outer)) = all.split_first() else {
            return Err(BootstrapError::NoLauncher);
        };
        if environment.var("TORCHELASTIC_RUN_ID").is_none() {
            outer.iter().try_for_each(|outer| compare(inner, outer))?;
        }

        let launcher = inner.family.launcher;
        let local_rank = number(environment, inner.family.local)?;
        let job = job_name(environment, launcher, parent);
        let rendezvous = place(environment, inner, &job)?;
        Ok(Self {
            launcher,
            rank: inner.rank,
            size: inner.size,
            local_rank,
            job,
            rendezvous,
        })
    }
}

fn wrong(variable: &str, expected: &str, found: &str, remedy: &str) -> BootstrapError {
    BootstrapError::Environment {
        variable: variable.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn number(environment: &Environment, variable: &str) -> Result<Option<usize>, BootstrapError> {
    let Some(text) = environment.var(variable) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(wrong(
            variable,
            "a whole number from 0",
            &format!("`{text}`"),
            "correct it, or unset it if no launcher is in use",
        )),
    }
}

/// What one launcher's variables say; none if its rank is not set.
fn find(
    environment: &Environment,
    family: &'static Family,
) -> Result<Option<Found>, BootstrapError> {
    let rank = number(environment, family.rank)?;
    let mut sizes = Vec::new();
    for &variable in family.size {
        sizes.extend(number(environment, variable)?.map(|size| (variable, size)));
    }
    let (rank, (size_variable, size)) = match (rank, sizes.first()) {
        (Some(rank), Some(&size)) => (rank, size),
        (Some(rank), None) => {
            let variable = family.size[family.size.len() - 1];
            let expected = format!("the number of ranks, because {} is {rank}", family.rank);
            return Err(wrong(variable, &expected, "nothing", "set both or neither"));
        }
        // Slurm's batch scripts and others know the size without being a rank.
        (None, Some(_)) if family.launcher == Launcher::Slurm => return Ok(None),
        (None, Some((variable, size))) => {
            let expected = format!("the number of this rank, because {variable} is {size}");
            return Err(wrong(
                family.rank,
                &expected,
                "nothing",
                "set both or neither",
            ));
        }
        (None, None) => return Ok(None),
    };
    if !(1..=MOST_RANKS).contains(&size) {
        let expected = format!("a number of ranks from 1 to {MOST_RANKS}");
        return Err(wrong(
            size_variable,
            &expected,
            &size.to_string(),
            "correct it",
        ));
    }
    if rank >= size {
        return Err(wrong(
            family.rank,
            &format!(
                "a number from 0 to {}, because {size_variable} is {size}",
                size - 1
            ),
            &rank.to_string(),
            "ranks count from 0: correct one of the two",
        ));
    }
    Ok(Some(Found {
        family,
        size_variable,
        rank,
        size,
    }))
}

/// An outer launcher starts launchers, or hosts' scripts, and then counts fewer than the inner one. If it counts
/// as many, both count ranks and must agree; if it counts more, the inner variables are left over.
fn compare(inner: &Found, outer: &Found) -> Result<(), BootstrapError> {
    if inner.size > outer.size || (inner.size, inner.rank) == (outer.size, outer.rank) {
        return Ok(());
    }
    Err(wrong(
        &format!("{} and {}", inner.family.rank, inner.size_variable),
        &format!(
            "rank {} of {}, as {} and {} say",
            outer.rank, outer.size, outer.family.rank, outer.size_variable
        ),
        &format!("rank {} of {}", inner.rank, inner.size),
        &format!(
            "two launchers contradict each other: unset the variables of the one that did not start this process \
             ({} or {})",
            inner.family.launcher, outer.family.launcher
        ),
    ))
}

/// A name that all ranks of the job have, and other jobs do not.
fn job_name(environment: &Environment, launcher: Launcher, parent: u32) -> String {
    let var = |name| environment.var(name);
    if let Some(job) = var("RINGWAY_JOB") {
        return job.to_owned();
    }
    let name = match launcher {
        Launcher::Torchrun => var("TORCHELASTIC_RUN_ID")
            .map(|id| format!("{id}/{}", var("TORCHELASTIC_RESTART_COUNT").unwrap_or("0"))),
        Launcher::Slurm => var("SLURM_JOB_ID")
            .or_else(|| var("SLURM_JOBID"))
            .map(|id| format!("{id}.{}", var("SLURM_STEP_ID").unwrap_or("0"))),
        Launcher::OpenMpi => var("PMIX_NAMESPACE")
            .or_else(|| var("OMPI_MCA_ess_base_jobid"))
            .map(str::to_owned),
        // Only ranks of one host are without RINGWAY_MASTER, and they have the same parent.
        Launcher::Mpich => var("I_MPI_HYDRA_UUID")
            .map(str::to_owned)
            .or_else(|| is_local(environment, launcher).then(|| format!("parent {parent}"))),
        Launcher::Caller | Launcher::Ringway => None,
    };
    name.unwrap_or_default()
}

/// Whether the launcher says that all its ranks are on this host.
fn is_local(environment: &Environment, launcher: Launcher) -> bool {
    let (local, size) = match launcher {
        Launcher::OpenMpi => ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        Launcher::Mpich => ("MPI_LOCALNRANKS", "PMI_SIZE"),
        _ => return false,
    };
    environment.var(local).is_some() && environment.var(local) == environment.var(size)
}

/// Where the ranks meet.
fn place(
    environment: &Environment,
    found: &Found,
    job: &str,
) -> Result<Rendezvous, BootstrapError> {
    let (launcher, alone) = (found.family.launcher, found.size == 1);
    let own_port = port(environment, "RINGWAY_MASTER_PORT")?;
    if let Some(text) = environment.var("RINGWAY_MASTER") {
        let (host, in_text) = split_master(text)?;
        if let (Some(a), Some(b)) = (in_text, own_port)
            && a != b
        {
            let expected = format!("port {a}, as RINGWAY_MASTER says");
            return Err(wrong(
                "RINGWAY_MASTER_PORT",
                &expected,
                &b.to_string(),
                "set only one",
            ));
        }
        let Some(port) = in_text.or(own_port) else {
            let found = format!("`{text}`");
            return Err(wrong(
                "RINGWAY_MASTER",
                "host:port",
                &found,
                "add the port: any free one",
            ));
        };
        return Ok(Rendezvous::Master { host, port });
    }

    let torch = launcher == Launcher::Torchrun;
    // A world of one meets nobody: any free port does.
    let Some(host) = master_host(environment, launcher, alone)? else {
        let (variable, remedy) = match launcher {
            Launcher::Torchrun => (
                "MASTER_ADDR",
                "torchrun sets it; set it by hand if you start ranks by hand",
            ),
            Launcher::Ringway => (
                "RINGWAY_MASTER",
                "set it to host:port on all ranks, the host being rank 0's",
            ),
            Launcher::Slurm => (
                "SLURM_JOB_NODELIST",
                "srun sets it; or set RINGWAY_MASTER to host:port",
            ),
            _ => (
                "RINGWAY_MASTER",
                "its ranks are on several hosts: pass it with `mpirun -x RINGWAY_MASTER=host:port` (Open MPI) or \
                 `-genv RINGWAY_MASTER host:port` (MPICH, Intel MPI), the host being rank 0's",
            ),
        };
        return Err(wrong(variable, "the host of rank 0", "nothing", remedy));
    };
    let given = match (own_port, port(environment, "MASTER_PORT")?) {
        (Some(own), _) => Some(own),
        (None, Some(u16::MAX)) if torch && has_agent_store(environment) => {
            let remedy =
                "torchrun's store has that port, Ringway needs another: set RINGWAY_MASTER_PORT";
            return Err(wrong("MASTER_PORT", "a port below 65535", "65535", remedy));
        }
        (None, Some(port)) if torch && has_agent_store(environment) => Some(port + 1),
        (None, port) if launcher != Launcher::Ringway => port,
        (None, _) => None,
    };
    let derived = || match launcher {
        _ if alone => Some(0),
        Launcher::Slurm | Launcher::OpenMpi | Launcher::Mpich if !job.is_empty() => {
            Some(derive_port(job))
        }
        _ => None,
    };
    let Some(port) = given.or_else(derived) else {
        let variable = if torch {
            "MASTER_PORT"
        } else {
            "RINGWAY_MASTER_PORT"
        };
        let remedy = "set it on all ranks to a port that is free on the host of rank 0";
        return Err(wrong(
            variable,
            "the port of the rendezvous",
            "nothing",
            remedy,
        ));
    };
    Ok(Rendezvous::Master { host, port })
}

fn master_host(
    environment: &Environment,
    launcher: Launcher,
    alone: bool,
) -> Result<Option<String>, BootstrapError> {
    if launcher != Launcher::Ringway
        && let Some(host) = environment.var("MASTER_ADDR")
    {
        return Ok(Some(host.to_owned()));
    }
    if alone || is_local(environment, launcher) {
        return Ok(Some("127.0.0.1".to_owned()));
    }
    if launcher != Launcher::Slurm {
        return Ok(None);
    }
    for variable in [
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ] {
        if let Some(list) = environment.var(variable) {
            let hosts = expand_hostlist(list).map_err(|why| {
                let found = format!("`{list}`: {why}");
                wrong(
                    variable,
                    "a list of hosts such as gpu[01-04]",
                    &found,
                    "set RINGWAY_MASTER to host:port",
                )
            })?;
            return Ok(hosts.into_iter().next());
        }
    }
    Ok(None)
}

/// Whether `MASTER_PORT` is taken by torchrun's own store.
fn has_agent_store(environment: &Environment) -> bool {
    environment
        .var("TORCHELASTIC_USE_AGENT_STORE")
        .is_some_and(|v| v.eq_ignore_ascii_case("true"))
}

fn port(environment: &Environment, variable: &str) -> Result<Option<u16>, BootstrapError> {
    let Some(text) = environment.var(variable) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(port) if port > 0 => Ok(Some(port)),
        _ => {
            let found = format!("`{text}`");
            Err(wrong(
                variable,
                "a port from 1 to 65535",
                &found,
                "correct it",
            ))
        }
    }
}

/// `host`, `host:port`, `[::1]:port`, or a bare IPv6 address.
fn split_master(text: &str) -> Result<(String, Option<u16>), BootstrapError> {
    let bad = || {
        let found = format!("`{text}`");
        wrong(
            "RINGWAY_MASTER",
            "host:port, or [address]:port for IPv6",
            &found,
            "correct it",
        )
    };
    let (host, port) = if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']').ok_or_else(bad)?;
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(bad()),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port.map(str::parse) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(bad()),
    };
    if host.is_empty() || host.chars().any(char::is_whitespace) {
        return Err(bad());
    }
    Ok((host.to_owned(), port))
}

/// A port that is the same for all who know the job's name, and most likely another for another job.
fn derive_port(job: &str) -> u16 {
    let (first, count) = DERIVED_PORTS;
    u16::try_from(first + (fnv1a(job.bytes()) >> 32) % count).unwrap_or(u16::MAX)
}
