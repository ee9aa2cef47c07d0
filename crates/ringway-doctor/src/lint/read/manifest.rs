//! Manifests of Kubernetes: what a job sets for its ranks, and which networks and devices its pods get.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{
    super::{
        model::{Marking, Needs},
        notes::Notes,
        source::{At, Place},
        statement::{self, Statement},
    },
    application,
};

/// A network of the job's: an attachment of Multus.
#[derive(Debug, Default)]
struct Network {
    name: Option<At<String>>,
    /// Whether it is one of RDMA devices: of virtual functions.
    rdma: bool,
    resource: Option<At<String>>,
    range: Option<At<String>>,
}

#[derive(Debug, Default)]
struct Raw {
    networks: Vec<Network>,
    /// Resources that the device plugin is told of, as pods name them.
    offered: Vec<At<String>>,
    /// Those that pods ask for, networks that they attach to, and how many of each resource they ask for.
    wanted: Vec<At<String>>,
    attached: Vec<At<String>>,
    counts: Vec<(String, At<String>)>,
    /// Where there are networks, lists of the device plugin, and pods.
    kinds: [Option<Place>; 3],
    /// Hosts of each job, by who says it.
    hosts: Vec<Vec<(&'static str, At<String>)>>,
    locks: bool,
    variables: Vec<(String, At<String>)>,
}

/// Places in `Raw::kinds`.
const NETWORKS: usize = 0;
const LISTS: usize = 1;
const PODS: usize = 2;

/// Reads manifests, several in a file by `---`.
pub(in super::super) fn read(text: &str, file: Place, notes: &mut Notes) -> (Needs, Vec<Marking>) {
    let mut needs = Needs::new("the job", file);
    let mut raw = Raw::default();
    for (document, before) in documents(text) {
        match statement::tree(document) {
            Ok(mut statements) => {
                for statement in &mut statements {
                    statement.line += before;
                }
                one(&statements, file, &mut needs, &mut raw);
            }
            Err((line, error)) => notes.error(
                "file.syntax",
                "manifest",
                error,
                "the cluster refuses the file",
                [file.line((line + before).max(1))],
                "correct the syntax: kubectl apply --dry-run=server -f FILE",
            ),
        }
    }
    judge(&raw, notes);
    let pairs = raw
        .variables
        .iter()
        .filter(|(name, _)| name != "RINGWAY_INTERFACES");
    let pairs = pairs.map(|(name, value)| (name.as_str(), value.value.as_str(), value.place));
    let markings = application::settings(pairs, &mut needs, notes);
    let inside = raw
        .variables
        .iter()
        .find(|(name, _)| name == "RINGWAY_INTERFACES");
    if let Some((_, value)) = inside {
        within_pods(value, &raw, notes);
    }
    (needs, markings)
}

/// The documents of a file, and how many lines are before each.
fn documents(text: &str) -> Vec<(&str, u32)> {
    let (mut all, mut begin, mut at, mut before) = (Vec::new(), 0, 0, 0);
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        at += line.len();
        if line.trim_end() == "---" {
            all.push((&text[begin..at - line.len()], before));
            (begin, before) = (at, number);
        }
    }
    all.push((&text[begin..], before));
    all.retain(|(document, _)| !document.trim().is_empty());
    all
}

/// The words behind a path, if the statement is there.
fn behind<'s>(statement: &'s Statement, path: &[&str]) -> Option<&'s [String]> {
    let words = &statement.words;
    let there = words.len() >= path.len() && words.iter().zip(path).all(|(a, b)| a == b);
    there.then(|| &words[path.len()..])
}

fn one(statements: &[Statement], file: Place, needs: &mut Needs, raw: &mut Raw) {
    let kind = statements
        .iter()
        .find_map(|it| Some((behind(it, &["kind"])?.first()?, it.line)));
    let (kind, line) = kind.map_or(("", 1), |(kind, line)| (kind.as_str(), line));
    match kind {
        "ConfigMap" => {
            for statement in statements {
                let Some([text]) = behind(statement, &["data", "config.json"]) else {
                    continue;
                };
                // In a block the text begins in the next line.
                let first = statement.line + u32::from(text.contains('\n'));
                let place = |value: &str| {
                    let value = format!("\"{value}\"");
                    let line = text.lines().position(|line| line.contains(&value));
                    file.line(first + line.map_or(0, |line| u32::try_from(line).unwrap_or(0)))
                };
                if offered(text, place, needs, raw) {
                    raw.kinds[LISTS].get_or_insert(file.line(line));
                }
            }
        }
        "NetworkAttachmentDefinition" => {
            raw.kinds[NETWORKS].get_or_insert(file.line(line));
            network(statements, file, needs, raw);
        }
        _ => {
            if statements
                .iter()
                .any(|it| it.words.iter().any(|word| word == "containers"))
            {
                raw.kinds[PODS].get_or_insert(file.line(line));
            }
            job(statements, file, raw);
        }
    }
}

/// Texts that are JSON in a value of YAML, with the line before their first.
fn embedded(statements: &[Statement], path: &[&str]) -> Vec<(Vec<Statement>, u32)> {
    let texts = statements
        .iter()
        .filter_map(|it| Some((behind(it, path)?.first()?, it.line)));
    let parsed = texts.filter_map(|(text, line)| {
        // In a block the text begins in the next line.
        let before = if text.contains('\n') {
            line
        } else {
            line.saturating_sub(1)
        };
        Some((statement::tree(text).ok()?, before))
    });
    parsed.collect()
}

/// What the SR-IOV device plugin is told (sriov-network-device-plugin, README: its default prefix is `intel.com`).
#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "resourceList")]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource_name: String,
    resource_prefix: Option<String>,
    #[serde(default)]
    selectors: Selectors,
}

/// One set, or several.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Selectors {
    #[default]
    None,
    Several(Vec<Selector>),
    One(Selector),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    pf_names: Vec<String>,
    #[serde(default)]
    is_rdma: bool,
}

/// The list of the SR-IOV device plugin; other maps say nothing.
fn offered(text: &str, place: impl Fn(&str) -> Place, needs: &mut Needs, raw: &mut Raw) -> bool {
    let Ok(plugin) = serde_json::from_str::<Plugin>(text) else {
        return false;
    };
    for resource in plugin.resources {
        let name = &resource.resource_name;
        let prefix = resource.resource_prefix.as_deref().unwrap_or("intel.com");
        let whole = format!("{prefix}/{name}");
        raw.offered.push(At::new(whole, place(name)));
        let selectors = match resource.selectors {
            Selectors::None => Vec::new(),
            Selectors::Several(several) => several,
            Selectors::One(one) => vec![one],
        };
        let interfaces = selectors
            .into_iter()
            .filter(|it| it.is_rdma)
            .flat_map(|it| it.pf_names);
        for interface in interfaces {
            // `eth1#0-3` are some of its virtual functions.
            let name = interface.split('#').next().unwrap_or("").to_owned();
            needs.interfaces.push(At::new(name, place(&interface)));
        }
    }
    true
}

fn network(statements: &[Statement], file: Place, needs: &mut Needs, raw: &mut Raw) {
    let mut network = Network::default();
    for statement in statements {
        let at = |value: &String| At::new(value.clone(), file.line(statement.line));
        let resource = ["metadata", "annotations", "k8s.v1.cni.cncf.io/resourceName"];
        if let Some([name]) = behind(statement, &["metadata", "name"]) {
            network.name = Some(at(name));
        } else if let Some([name]) = behind(statement, &resource) {
            network.resource = Some(at(name));
        }
    }
    let mut mtus = Vec::new();
    network.rdma = network.resource.is_some();
    for (config, before) in embedded(statements, &["spec", "config"]) {
        for statement in &config {
            let place = file.line(before + statement.line);
            let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["mtu", mtu] | ["plugins", "mtu", mtu] => {
                    mtus.extend(mtu.parse().ok().map(|mtu| At::new(mtu, place)));
                }
                ["type", "sriov" | "rdma"] | ["plugins", "type", "sriov" | "rdma"] => {
                    network.rdma = true;
                }
                ["ipam", "range", range] | ["plugins", "ipam", "range", range] => {
                    network.range = Some(At::new((*range).to_owned(), place));
                }
                _ => {}
            }
        }
    }
    // What others have is the cluster's own business.
    if network.rdma {
        needs.mtus.append(&mut mtus);
    } else {
        network.range = None;
    }
    raw.networks.push(network);
}

/// A job, or whatever else has pods.
fn job(statements: &[Statement], file: Place, raw: &mut Raw) {
    let mut variable: Option<String> = None;
    let mut hosts = Vec::new();
    for statement in statements {
        let place = file.line(statement.line);
        let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
        let at = |value: &str| At::new(value.to_owned(), place);
        match words.as_slice() {
            ["spec", key @ ("completions" | "parallelism"), number] => {
                let who = if *key == "completions" {
                    "completions"
                } else {
                    "parallelism"
                };
                hosts.push((who, at(number)));
            }
            [.., "annotations", "k8s.v1.cni.cncf.io/networks", networks] => {
                raw.attached
                    .extend(attached(networks).into_iter().map(|it| At::new(it, place)));
            }
            [.., "command" | "args", word] => {
                let number = word.strip_prefix("--nnodes=");
                hosts.extend(number.map(|number| ("torchrun's --nnodes", at(number))));
            }
            [.., "env", "name", name] => variable = Some((*name).to_owned()),
            [.., "env", "value", value] => {
                raw.variables
                    .extend(variable.take().map(|name| (name, at(value))));
            }
            [.., "capabilities", "add", "IPC_LOCK"] | [.., "privileged", "true"] => {
                raw.locks = true
            }
            [.., "resources", "limits", resource, count] if resource.contains('/') => {
                raw.wanted.push(at(resource));
                raw.counts.push(((*resource).to_owned(), at(count)));
            }
            _ => {}
        }
    }
    raw.hosts.push(hosts);
}

/// The networks that an annotation names: `namespace/name@interface`, or a list in JSON (Multus, quickstart).
fn attached(networks: &str) -> Vec<String> {
    if networks.trim_start().starts_with('[') {
        let leaves = statement::tree(networks).unwrap_or_default().into_iter();
        return leaves
            .filter_map(|leaf| Some(behind(&leaf, &["name"])?.first()?.clone()))
            .collect();
    }
    let names = networks.split(',').map(|name| {
        let name = name.split('@').next().unwrap_or("");
        name.rsplit('/').next().unwrap_or("").trim().to_owned()
    });
    names.filter(|it| !it.is_empty()).collect()
}

/// What the manifests say of each other.
fn judge(raw: &Raw, notes: &mut Notes) {
    let resources: Vec<&At<String>> = raw
        .networks
        .iter()
        .filter_map(|it| it.resource.as_ref())
        .collect();
    let names: Vec<&At<String>> = raw
        .networks
        .iter()
        .filter_map(|it| it.name.as_ref())
        .collect();
    let offered: Vec<&At<String>> = raw.offered.iter().collect();
    // A GPU is no device of a network; nor are those of a plugin that shares them among all pods.
    let ours = |it: &&At<String>| {
        offered
            .iter()
            .chain(&resources)
            .any(|of| of.value == it.value)
    };
    let wanted: Vec<&At<String>> = raw.wanted.iter().collect();
    let devices: Vec<&At<String>> = raw.wanted.iter().filter(ours).collect();
    let attached: Vec<&At<String>> = raw.attached.iter().collect();
    let ours_named: Vec<&At<String>> = raw
        .networks
        .iter()
        .filter(|it| it.rdma)
        .filter_map(|it| it.name.as_ref())
        .collect();
    for (uses, those, kind, problem) in [
        (
            &attached,
            &names,
            NETWORKS,
            "network {}: no attachment of these manifests has that name",
        ),
        (
            &ours_named,
            &attached,
            PODS,
            "network {}: the pods do not attach to it",
        ),
        (
            &resources,
            &offered,
            LISTS,
            "resource {}: the device plugin's list does not have it",
        ),
        (
            &resources,
            &wanted,
            PODS,
            "resource {}: the pods do not ask for it in their limits",
        ),
        (
            &devices,
            &resources,
            NETWORKS,
            "resource {}: no network takes its devices",
        ),
    ] {
        // What is in no manifest here may be in the cluster.
        let Some(kind) = raw.kinds[kind] else {
            continue;
        };
        for used in uses
            .iter()
            .filter(|used| those.iter().all(|it| it.value != used.value))
        {
            notes.error(
                "job.reference",
                used.value.as_str(),
                problem.replace("{}", &used.value),
                "the pods do not start, or start without the device that data should take",
                [used.place, those.first().map_or(kind, |it| it.place)],
                "correct the name; ringway fabric k8s INTENT.yaml prints manifests that fit each other",
            );
        }
    }
    for network in raw
        .networks
        .iter()
        .filter(|it| it.rdma && it.resource.is_none())
    {
        if let Some(name) = &network.name {
            notes.error(
                "job.reference",
                name.value.as_str(),
                format!(
                    "network {} names no resource that its virtual functions are of",
                    name.value
                ),
                "the CNI plugin gets no device for the pod, which does not start",
                [name.place, raw.kinds[LISTS].unwrap_or(name.place)],
                "annotations: {k8s.v1.cni.cncf.io/resourceName: PREFIX/NAME}",
            );
        }
    }
    for (resource, count) in &raw.counts {
        let takes = resources.iter().filter(|it| it.value == *resource);
        let number = takes.clone().count();
        if let Some(first) = takes.clone().next()
            && count.value != number.to_string()
        {
            notes.error(
                "job.devices",
                resource.as_str(),
                format!("the pods ask for {} of {resource}, and their networks take {number}", count.value),
                "a device without a network has no address, and is of no use; a network without one does not start",
                [count.place, first.place],
                "ask for one device for each network",
            );
        }
    }
    for (i, network) in raw.networks.iter().enumerate() {
        let same = |other: &&Network| match (&network.range, &other.range) {
            (Some(a), Some(b)) => a.value == b.value,
            _ => false,
        };
        if let Some((a, b)) = raw.networks[..i]
            .iter()
            .find(same)
            .and_then(|it| it.range.as_ref().zip(network.range.as_ref()))
        {
            notes.warning(
                "job.subnet",
                b.value.as_str(),
                format!("two networks have the subnet {}", b.value),
                "any interface of a subnet answers for all: traffic of several NICs arrives at one",
                [a.place, b.place],
                "give each network a subnet of its own",
            );
        }
    }
    let rdma = raw
        .wanted
        .iter()
        .find(|it| ours(it) || it.value.starts_with("rdma/"));
    let mut jobs = raw.hosts.iter().filter(|_| rdma.is_some());
    if let Some(((first, a), (other, b))) = jobs.find_map(|hosts| {
        let first = hosts.first()?;
        let other = hosts.iter().find(|it| it.1.value != first.1.value)?;
        Some((first, other))
    }) {
        notes.error(
            "job.hosts",
            *other,
            format!("{first} is {}, and {other} is {}", a.value, b.value),
            "ranks that nobody starts are waited for until the job fails",
            [a.place, b.place],
            "give completions, parallelism and --nnodes the same number: one pod for each host",
        );
    }
    if let Some(device) = rdma.filter(|_| !raw.locks) {
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
fn within_pods(value: &At<String>, raw: &Raw, notes: &mut Notes) {
    let named: Vec<&str> = value.value.split(',').map(str::trim).collect();
    let pods = named.iter().all(|it| it.starts_with("net"));
    // Pods of several jobs, or of several kinds, attach to the same networks.
    let networks: BTreeSet<&str> = raw.attached.iter().map(|it| it.value.as_str()).collect();
    let there: Vec<String> = (1..=networks.len()).map(|n| format!("net{n}")).collect();
    if pods && !raw.attached.is_empty() && named != there {
        notes.error(
            "job.interfaces",
            "RINGWAY_INTERFACES",
            format!(
                "RINGWAY_INTERFACES is {}, and the pods' networks are {}",
                value.value,
                there.join(",")
            ),
            "data takes another interface than the lossless ones, or finds none",
            [value.place, raw.attached[0].place],
            format!("RINGWAY_INTERFACES={}", there.join(",")),
        );
    }
}
