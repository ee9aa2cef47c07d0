//! How much memory the process may register.
//!
//! Registered memory is locked in RAM and counts against `RLIMIT_MEMLOCK`, whose default of 64 KiB to 8 MiB is the most
//! common reason why RDMA fails on a new machine. The kernel's only word for it is "cannot allocate memory", so the limit
//! is looked at first.

use std::{fmt, fs, path::Path};

use thiserror::Error;

/// The bit of CAP_IPC_LOCK, which lifts the limit (capability.h).
const CAP_IPC_LOCK: u32 = 14;

/// What bears on the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memlock {
    /// The soft limit in bytes; `None` is unlimited.
    pub limit: Option<u64>,
    /// The bytes that the process has registered already: `VmPin` of /proc/self/status. What `mlock` has locked (`VmLck`)
    /// counts against the same limit, but on its own (Linux, drivers/infiniband/core/umem.c).
    pub used: u64,
    /// Whether the process has CAP_IPC_LOCK: then there is no limit.
    pub privileged: bool,
    /// What has started the process, and so what can raise the limit.
    pub surroundings: Surroundings,
}

/// What a process lives in, as far as limits go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Surroundings {
    /// A login or a shell.
    #[default]
    Login,
    /// Docker or Podman.
    Container,
    /// A pod of Kubernetes.
    Kubernetes,
    /// A job of Slurm.
    Slurm,
    /// A service of systemd.
    Service,
}

impl Surroundings {
    /// How the limit is raised here.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Login => {
                "put \"* soft memlock unlimited\" and \"* hard memlock unlimited\" into \
                 /etc/security/limits.d/90-rdma.conf and log in again (for this shell only, as root: ulimit -l unlimited)"
            }
            Self::Container => {
                "start the container with --ulimit memlock=-1 (or --cap-add IPC_LOCK)"
            }
            Self::Kubernetes => {
                "give the pod the capability: securityContext: {capabilities: {add: [IPC_LOCK]}}"
            }
            Self::Slurm => {
                "set LimitMEMLOCK=infinity in slurmd's unit and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, and \
                 restart slurmd"
            }
            Self::Service => {
                "set LimitMEMLOCK=infinity in the service's unit, then systemctl daemon-reload and restart it"
            }
        }
    }
}

/// The limit is too low.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "cannot register {needed} bytes: the limit of locked memory is {limit} bytes, {used} of them used; {}",
    surroundings.remedy()
)]
pub struct MemlockError {
    /// The bytes asked for.
    pub needed: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The bytes in use.
    pub used: u64,
    /// What raises it.
    pub surroundings: Surroundings,
}

impl Memlock {
    /// What is so for this process. `root` is the root of the file system (of a recorded one in tests), `variable` looks
    /// up the environment. What cannot be read is taken as no limit: registration itself will tell.
    pub fn read(root: &Path, variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let status = text("proc/self/status");
        let kibibytes = |name: &str| field(&status, name)?.split(' ').next()?.parse::<u64>().ok();
        let capabilities =
            field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let exists = |path: &str| root.join(path).exists();
        let surroundings = if variable("KUBERNETES_SERVICE_HOST").is_some() {
            Surroundings::Kubernetes
        } else if variable("SLURM_JOB_ID").is_some() {
            Surroundings::Slurm
        } else if exists(".dockerenv") || exists("run/.containerenv") {
            Surroundings::Container
        } else if variable("INVOCATION_ID").is_some() {
            Surroundings::Service
        } else {
            Surroundings::Login
        };
        Self {
            limit: soft_limit(&text("proc/self/limits")),
            used: kibibytes("VmPin").unwrap_or(0) * 1024,
            privileged: capabilities.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
            surroundings,
        }
    }

    /// What is so for this process now.
    pub fn of_process() -> Self {
        Self::read(Path::new("/"), |name| std::env::var(name).ok())
    }

    /// Whether `needed` more bytes can be registered.
    ///
    /// # Errors
    /// If the limit is too low, with the remedy.
    pub fn check(&self, needed: u64) -> Result<(), MemlockError> {
        match self.limit {
            Some(limit) if !self.privileged && self.used.saturating_add(needed) > limit => {
                Err(MemlockError {
                    needed,
                    limit,
                    used: self.used,
                    surroundings: self.surroundings,
                })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            _ if self.privileged => f.write_str("unlimited (CAP_IPC_LOCK)"),
            None => f.write_str("unlimited"),
            Some(limit) => write!(f, "{limit} bytes, {} used", self.used),
        }
    }
}

/// The value of `name:` in /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

/// The soft limit in /proc/PID/limits: `Max locked memory         8388608              8388608              bytes`.
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::Tree;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                          Max processes             unlimited            unlimited            processes \n\
                          Max locked memory         65536                8388608              bytes     \n";

    fn tree(limits: &str, capabilities: &str) -> Tree {
        let tree = Tree::new();
        tree.file("proc/self/limits", limits);
        let status = format!(
            "Name:\tx\nVmLck:\t       4 kB\nVmPin:\t      12 kB\nCapEff:\t{capabilities}\n"
        );
        tree.file("proc/self/status", &status);
        tree
    }

    #[test]
    fn a_low_limit_is_told_with_what_raises_it_here() {
        let tree = tree(LIMITS, "0000000000000000");
        let read =
            |name: &'static str| Memlock::read(tree.root(), move |n| (n == name).then(String::new));
        let login = read("HOME");
        assert_eq!((login.limit, login.used), (Some(65536), 12288));
        assert_eq!(login.check(53248), Ok(()));
        let error = login.check(53249).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot register 53249 bytes: the limit of locked memory is 65536 bytes, 12288 of them used; "),
            "{error}"
        );
        assert!(error.contains("limits.d"), "{error}");
        let remedy = |name| read(name).check(1 << 20).unwrap_err().to_string();
        assert!(remedy("KUBERNETES_SERVICE_HOST").contains("IPC_LOCK"));
        assert!(remedy("SLURM_JOB_ID").contains("slurm.conf"));
        assert!(remedy("INVOCATION_ID").contains("LimitMEMLOCK"));
        tree.file(".dockerenv", "");
        assert!(remedy("HOME").contains("--ulimit memlock=-1"));
    }

    #[test]
    fn no_limit_and_the_capability_allow_everything() {
        let unlimited = LIMITS.replace("65536    ", "unlimited");
        let tree_without = tree(&unlimited, "0000000000000000");
        let without = Memlock::read(tree_without.root(), |_| None);
        assert_eq!(without.limit, None);
        assert_eq!(without.check(u64::MAX), Ok(()));
        let tree_with = tree(LIMITS, "00000000a80465fb");
        let with = Memlock::read(tree_with.root(), |_| None);
        assert!(with.privileged);
        assert_eq!(with.check(u64::MAX), Ok(()));
        assert_eq!(with.to_string(), "unlimited (CAP_IPC_LOCK)");
    }
}
