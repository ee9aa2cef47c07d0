//! What the host, or the program that asks, lives in.

use std::collections::BTreeMap;

use crate::host::Root;

/// What it lives in, as far as checks go.
pub(in crate::host) struct Surroundings {
    /// Docker, Podman or Kubernetes.
    pub(in crate::host) container: bool,
    /// A pod of Kubernetes.
    pub(in crate::host) kubernetes: bool,
    /// A job of Slurm.
    pub(in crate::host) slurm: bool,
    /// A service of systemd.
    pub(in crate::host) service: bool,
    /// A virtual machine.
    pub(in crate::host) guest: bool,
    /// A job: what is in the environment is what the application has.
    pub(in crate::host) job: bool,
}

impl Surroundings {
    pub(super) fn look(root: &Root, environment: &BTreeMap<String, String>) -> Self {
        let has = |name: &str| environment.contains_key(name);
        let kubernetes = has("KUBERNETES_SERVICE_HOST");
        let slurm = has("SLURM_JOB_ID");
        let cpus = root.text("proc/cpuinfo").unwrap_or_default();
        let flags = cpus.lines().find(|line| line.starts_with("flags"));
        Self {
            container: kubernetes || root.exists(".dockerenv") || root.exists("run/.containerenv"),
            kubernetes,
            slurm,
            service: has("INVOCATION_ID"),
            guest: flags.is_some_and(|flags| flags.contains(" hypervisor")),
            job: slurm
                || has("WORLD_SIZE")
                || has("OMPI_COMM_WORLD_RANK")
                || environment
                    .keys()
                    .any(|name| name.starts_with("NCCL_") || name.starts_with("UCX_")),
        }
    }
}
