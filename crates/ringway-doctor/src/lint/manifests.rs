//! What manifests of Kubernetes say: which networks and devices there are, and what the pods of jobs get of them.

use super::source::{At, Place};

/// The manifests of a file.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    /// Attachments of Multus.
    pub(super) networks: Vec<Network>,
    /// Resources that the device plugin is told of, as pods name them.
    pub(super) offered: Vec<At<String>>,
    /// Resources that pods ask for.
    pub(super) wanted: Vec<Wanted>,
    /// Networks that pods attach to.
    pub(super) attached: Vec<At<String>>,
    /// Where the first network is, the first list of the device plugin, and the first pods.
    pub(super) networks_at: Option<Place>,
    pub(super) lists_at: Option<Place>,
    pub(super) pods_at: Option<Place>,
    /// By job, how many hosts it has, by all who say it.
    pub(super) jobs: Vec<Vec<Hosts>>,
    /// Whether pods may lock memory.
    pub(super) locks: bool,
    /// The interfaces that ranks take inside their pods: RINGWAY_INTERFACES.
    pub(super) interfaces: Option<At<String>>,
}

/// A network of the job's.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) name: Option<At<String>>,
    /// Whether it is one of RDMA devices: of virtual functions.
    pub(super) rdma: bool,
    pub(super) resource: Option<At<String>>,
    /// The subnet of its addresses.
    pub(super) range: Option<At<String>>,
}

/// A resource in the limits of pods.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) resource: At<String>,
    /// How many of it, as the manifest says it.
    pub(super) count: String,
}

/// How many hosts a job has.
#[derive(Debug)]
pub(super) struct Hosts {
    /// Who says it.
    pub(super) who: &'static str,
    /// As it is said: `4`, or `1:4` of a job that goes on with fewer.
    pub(super) said: At<String>,
    pub(super) least: u32,
    pub(super) most: u32,
}

impl Hosts {
    /// From a number, or two: torchrun's `--nnodes=MIN:MAX`. None from what a shell or the cluster puts there.
    pub(super) fn parse(who: &'static str, said: &str, place: Place) -> Option<Self> {
        let (least, most) = said.split_once(':').unwrap_or((said, said));
        Some(Self {
            who,
            said: At::new(said.to_owned(), place),
            least: least.trim().parse().ok()?,
            most: most.trim().parse().ok()?,
        })
    }
}
