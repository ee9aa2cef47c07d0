//! Manifests of Kubernetes against each other: names that do not meet, and numbers that differ.

use std::collections::{HashMap, HashSet};

use super::super::{
    manifests::{Hosts, Manifests},
    model::Fabric,
    notes::Notes,
    source::{At, Place},
};

pub(super) fn judge(fabric: &Fabric, notes: &mut Notes) {
    for manifests in &fabric.manifests {
        let kinds = [manifests.networks_at, manifests.lists_at, manifests.pods_at];
        if kinds.into_iter().flatten().count() > 1 {
            notes.judged("job");
        }
        let named = Named::of(manifests);
        references(manifests, &named, notes);
        networks_without_resource(manifests, notes);
        devices(manifests, notes);
        subnets(manifests, notes);
        let wanted = manifests.wanted.iter().map(|it| &it.resource);
        let mut rdma = wanted.filter(|it| named.is_ours(it) || it.value.starts_with("rdma/"));
        if let Some(device) = rdma.next() {
            memlock(manifests, device, notes);
            // Other jobs may have many pods one after the other.
            if let Some((a, b)) = manifests.jobs.iter().find_map(|job| apart(job)) {
                hosts(a, b, notes);
            }
        }
        interfaces(manifests, notes);
    }
}

/// Names of a kind, in order.
struct Names<'m> {
    all: Vec<&'m At<String>>,
    known: HashSet<&'m str>,
}

impl<'m> FromIterator<&'m At<String>> for Names<'m> {
    fn from_iter<I: IntoIterator<Item = &'m At<String>>>(names: I) -> Self {
        let all: Vec<_> = names.into_iter().collect();
        let known = all.iter().map(|it| it.value.as_str()).collect();
        Self { all, known }
    }
}

impl Names<'_> {
    fn has(&self, name: &At<String>) -> bool {
        self.known.contains(name.value.as_str())
    }
}

/// All names that manifests have for networks and for resources.
struct Named<'m> {
    networks: Names<'m>,
    /// Networks of RDMA devices.
    ours: Names<'m>,
    attached: Names<'m>,
    /// Resources: of the device plugin's list, of networks, and of pods.
    offered: Names<'m>,
    resources: Names<'m>,
    wanted: Names<'m>,
}

impl<'m> Named<'m> {
    fn of(manifests: &'m Manifests) -> Self {
        let networks = manifests.networks.iter();
        let ours = networks.clone().filter(|it| it.rdma);
        Self {
            ours: ours.filter_map(|it| it.name.as_ref()).collect(),
            attached: manifests.attached.iter().collect(),
            offered: manifests.offered.iter().collect(),
            resources: networks
                .clone()
                .filter_map(|it| it.resource.as_ref())
                .collect(),
            networks: networks.filter_map(|it| it.name.as_ref()).collect(),
            wanted: manifests.wanted.iter().map(|it| &it.resource).collect(),
        }
    }

    /// Whether a resource is one of network devices: GPUs are not, nor those of a plugin that shares them among all pods.
    fn is_ours(&self, resource: &At<String>) -> bool {
        self.offered.has(resource) || self.resources.has(resource)
    }
}

/// Names that are used in one manifest, and that another does not have.
fn references(manifests: &Manifests, named: &Named<'_>, notes: &mut Notes) {
    let devices = named.wanted.all.iter().copied();
    let devices: Names<'_> = devices.filter(|it| named.is_ours(it)).collect();
    for (uses, those, kind, problem) in [
        (
            &named.attached,
            &named.networks,
            manifests.networks_at,
            "network {}: no attachment of these manifests has that name",
        ),
        (
            &named.ours,
            &named.attached,
            manifests.pods_at,
            "network {}: the pods do not attach to it",
        ),
        (
            &named.resources,
            &named.offered,
            manifests.lists_at,
            "resource {}: the device plugin's list does not have it",
        ),
        (
            &named.resources,
            &named.wanted,
            manifests.pods_at,
            "resource {}: the pods do not ask for it in their limits",
        ),
        (
            &devices,
            &named.resources,
            manifests.networks_at,
            "resource {}: no network takes its devices",
        ),
    ] {
        // What is in no manifest here may be in the cluster.
        let Some(kind) = kind else {
            continue;
        };
        for used in uses.all.iter().filter(|used| !those.has(used)) {
            notes.error(
                "job.reference",
                used.value.as_str(),
                problem.replace("{}", &used.value),
                "the pods do not start, or start without the device that data should take",
                [used.place, those.all.first().map_or(kind, |it| it.place)],
                "correct the name; ringway fabric k8s INTENT.yaml prints manifests that fit each other",
            );
        }
    }
}

fn networks_without_resource(manifests: &Manifests, notes: &mut Notes) {
    let networks = manifests.networks.iter();
    let without = networks.filter(|it| it.rdma && it.resource.is_none());
    for name in without.filter_map(|it| it.name.as_ref()) {
        notes.error(
            "job.reference",
            name.value.as_str(),
            format!(
                "network {} names no resource that its virtual functions are of",
                name.value
            ),
            "the CNI plugin gets no device for the pod, which does not start",
            [name.place, manifests.lists_at.unwrap_or(name.place)],
            "annotations: {k8s.v1.cni.cncf.io/resourceName: PREFIX/NAME}",
        );
    }
}

/// Pods that ask for more or fewer devices than their networks take.
fn devices(manifests: &Manifests, notes: &mut Notes) {
    let mut taken: HashMap<&str, (usize, Place)> = HashMap::new();
    for resource in manifests
        .networks
        .iter()
        .filter_map(|it| it.resource.as_ref())
    {
        let taken = taken.entry(&resource.value);
        taken.or_insert((0, resource.place)).0 += 1;
    }
    for wanted in &manifests.wanted {
        let (resource, place) = (wanted.resource.value.as_str(), wanted.resource.place);
        if let Some((number, first)) = taken.get(resource)
            && wanted.count != number.to_string()
        {
            notes.error(
                "job.devices",
                resource,
                format!("the pods ask for {} of {resource}, and their networks take {number}", wanted.count),
                "a device without a network has no address, and is of no use; a network without one does not start",
                [place, *first],
                "ask for one device for each network",
            );
        }
    }
}

fn subnets(manifests: &Manifests, notes: &mut Notes) {
    let mut first: HashMap<&str, Place> = HashMap::new();
    for range in manifests.networks.iter().filter_map(|it| it.range.as_ref()) {
        let Some(before) = first.get(range.value.as_str()).copied() else {
            first.insert(&range.value, range.place);
            continue;
        };
        notes.warning(
            "job.subnet",
            range.value.as_str(),
            format!("two networks have the subnet {}", range.value),
            "any interface of a subnet answers for all: traffic of several NICs arrives at one",
            [before, range.place],
            "give each network a subnet of its own",
        );
    }
}

/// Two who say numbers of hosts of a job that no number is both.
fn apart(job: &[Hosts]) -> Option<(&Hosts, &Hosts)> {
    let most = job.iter().min_by_key(|it| it.most)?;
    // The first of several, as above.
    let least = job.iter().rev().max_by_key(|it| it.least)?;
    (least.least > most.most).then_some((least, most))
}

fn hosts(a: &Hosts, b: &Hosts, notes: &mut Notes) {
    let (first, other) = if a.said.place <= b.said.place {
        (a, b)
    } else {
        (b, a)
    };
    notes.error(
        "job.hosts",
        other.who,
        format!(
            "{} is {}, and {} is {}",
            first.who, first.said.value, other.who, other.said.value
        ),
        "ranks that nobody starts are waited for until the job fails",
        [first.said.place, other.said.place],
        "give completions, parallelism and --nnodes the same number: one pod for each host",
    );
}

fn memlock(manifests: &Manifests, device: &At<String>, notes: &mut Notes) {
    if !manifests.locks {
        notes.error(
            "job.memlock",
            device.value.as_str(),
            "the pods get an RDMA device, and may not lock memory",
            "registered memory is locked memory: beyond the limit of 64 KiB registration fails",
            [device.place],
            "securityContext: {capabilities: {add: [IPC_LOCK]}}",
        );
    }
}

/// Interfaces of pods are called `net1`, `net2` ... in the order of their networks.
fn interfaces(manifests: &Manifests, notes: &mut Notes) {
    let (Some(value), Some(first)) = (&manifests.interfaces, manifests.attached.first()) else {
        return;
    };
    let named: Vec<&str> = value.value.split(',').map(str::trim).collect();
    // Pods of several jobs, or of several kinds, attach to the same networks.
    let attached = manifests.attached.iter().map(|it| it.value.as_str());
    let networks = attached.collect::<HashSet<_>>().len();
    let there: Vec<String> = (1..=networks).map(|n| format!("net{n}")).collect();
    if named.iter().all(|it| it.starts_with("net")) && named != there {
        let there = there.join(",");
        notes.error(
            "job.interfaces",
            "RINGWAY_INTERFACES",
            format!(
                "RINGWAY_INTERFACES is {}, and the pods' networks are {there}",
                value.value
            ),
            "data takes another interface than the lossless ones, or finds none",
            [value.place, first.place],
            format!("RINGWAY_INTERFACES={there}"),
        );
    }
}
