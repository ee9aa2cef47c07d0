//! Manifests of Kubernetes: what a job sets for its ranks, and which networks and devices its pods get.

use std::collections::HashMap;

use serde::Deserialize;

use super::{
    super::{
        manifests::{Hosts, Manifests, Network, Wanted},
        model::{Marking, Needs},
        notes::Notes,
        source::{At, Place},
        statement::{self, Statement},
    },
    application,
};

/// After so many documents with wrong syntax a file is no manifest, and what is said of them would fill memory.
const MOST_ERRORS: usize = 20;

/// Reads manifests, several in a file by `---` or in a list.
pub(in super::super) fn read(
    text: &str,
    file: Place,
    notes: &mut Notes,
) -> (Needs, Vec<Marking>, Manifests) {
    let mut reader = Reader {
        file,
        needs: Needs::new("the job", file),
        found: Manifests::default(),
        variables: Vec::new(),
    };
    let mut errors = 0;
    for (document, before) in documents(text) {
        match statement::objects(document) {
            Ok(objects) => {
                for mut statements in objects {
                    for statement in &mut statements {
                        statement.line += before;
                    }
                    reader.object(&statements);
                }
            }
            Err((line, error)) => {
                notes.error(
                    "file.syntax",
                    "manifest",
                    error,
                    "the cluster refuses the file",
                    [file.line((line + before).max(1))],
                    "correct the syntax: kubectl apply --dry-run=server -f FILE",
                );
                errors += 1;
                if errors == MOST_ERRORS {
                    break;
                }
            }
        }
    }
    let Reader {
        mut needs,
        found,
        variables,
        ..
    } = reader;
    let pairs = variables.iter();
    let pairs = pairs.map(|(name, value)| (name.as_str(), value.value.as_str(), value.place));
    let markings = application::settings(pairs, &mut needs, notes);
    (needs, markings, found)
}

/// The documents of a file that are not empty, and how many lines are before each.
fn documents(text: &str) -> impl Iterator<Item = (&str, u32)> {
    let mut lines = text.split_inclusive('\n').zip(1..);
    let (mut begin, mut at, mut before) = (0, 0, 0);
    let all = std::iter::from_fn(move || {
        let here = before;
        for (line, number) in lines.by_ref() {
            at += line.len();
            if line.trim_end() == "---" {
                let document = &text[begin..at - line.len()];
                (begin, before) = (at, number);
                return Some((document, here));
            }
        }
        // The last one has no line behind it.
        let document = &text[begin..];
        begin = text.len();
        (!document.is_empty()).then_some((document, here))
    });
    all.filter(|(document, _)| !document.trim().is_empty())
}

/// The words behind a path, if the statement is there.
fn behind<'s>(statement: &'s Statement, path: &[&str]) -> Option<&'s [String]> {
    let words = &statement.words;
    let there = words.len() >= path.len() && words.iter().zip(path).all(|(a, b)| a == b);
    there.then(|| &words[path.len()..])
}

/// What was read of a file so far.
struct Reader {
    file: Place,
    needs: Needs,
    found: Manifests,
    /// Those of ranks, with their values.
    variables: Vec<(String, At<String>)>,
}

impl Reader {
    fn object(&mut self, statements: &[Statement]) {
        let kind = statements
            .iter()
            .find_map(|it| Some((behind(it, &["kind"])?.first()?, it.line)));
        let (kind, line) = kind.map_or(("", 1), |(kind, line)| (kind.as_str(), line));
        let place = self.file.line(line);
        match kind {
            "ConfigMap" => {
                for statement in statements {
                    if let Some([text]) = behind(statement, &["data", "config.json"])
                        && self.plugin(text, statement.line)
                    {
                        self.found.lists_at.get_or_insert(place);
                    }
                }
            }
            "NetworkAttachmentDefinition" => {
                self.found.networks_at.get_or_insert(place);
                self.network(statements);
            }
            _ => {
                let mut words = statements.iter().flat_map(|it| &it.words);
                if words.any(|word| word == "containers") {
                    self.found.pods_at.get_or_insert(place);
                }
                self.job(statements);
            }
        }
    }

    /// The list of the SR-IOV device plugin; other maps say nothing.
    fn plugin(&mut self, text: &str, line: u32) -> bool {
        let Ok(plugin) = serde_json::from_str::<Plugin>(text) else {
            return false;
        };
        // In a block the text begins in the next line.
        let first = line + u32::from(text.contains('\n'));
        let lines = quoted(text);
        let place = |value: &str| {
            let line = lines.get(value).copied().unwrap_or(0);
            self.file.line(first + line)
        };
        for resource in plugin.resources {
            let name = &resource.resource_name;
            let prefix = resource.resource_prefix.as_deref().unwrap_or("intel.com");
            let whole = format!("{prefix}/{name}");
            self.found.offered.push(At::new(whole, place(name)));
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
                self.needs.interfaces.push(At::new(name, place(&interface)));
            }
        }
        true
    }

    fn network(&mut self, statements: &[Statement]) {
        let mut network = Network::default();
        for statement in statements {
            let at = |value: &String| At::new(value.clone(), self.file.line(statement.line));
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
                let place = self.file.line(before + statement.line);
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
            self.needs.mtus.append(&mut mtus);
        } else {
            network.range = None;
        }
        self.found.networks.push(network);
    }

    /// A job, or whatever else has pods.
    fn job(&mut self, statements: &[Statement]) {
        let mut variable: Option<String> = None;
        let mut hosts = Vec::new();
        let found = &mut self.found;
        for statement in statements {
            let place = self.file.line(statement.line);
            let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
            let at = |value: &str| At::new(value.to_owned(), place);
            match words.as_slice() {
                ["spec", "completions", number] => {
                    hosts.extend(Hosts::parse("completions", number, place));
                }
                ["spec", "parallelism", number] => {
                    hosts.extend(Hosts::parse("parallelism", number, place));
                }
                [.., "annotations", "k8s.v1.cni.cncf.io/networks", networks] => {
                    let names = attached(networks).into_iter();
                    found.attached.extend(names.map(|it| At::new(it, place)));
                }
                [.., "command" | "args", word] => {
                    let number = word.strip_prefix("--nnodes=");
                    hosts.extend(
                        number.and_then(|it| Hosts::parse("torchrun's --nnodes", it, place)),
                    );
                }
                [.., "env", "name", name] => variable = Some((*name).to_owned()),
                [.., "env", "value", value] => match variable.take() {
                    // Those are the pods' interfaces, not the hosts'.
                    Some(name) if name == "RINGWAY_INTERFACES" => {
                        found.interfaces.get_or_insert(at(value));
                    }
                    Some(name) => self.variables.push((name, at(value))),
                    None => {}
                },
                [.., "capabilities", "add", "IPC_LOCK"] | [.., "privileged", "true"] => {
                    found.locks = true;
                }
                [.., "resources", "limits", resource, count] if resource.contains('/') => {
                    found.wanted.push(Wanted {
                        resource: at(resource),
                        count: (*count).to_owned(),
                    });
                }
                _ => {}
            }
        }
        if !hosts.is_empty() {
            found.jobs.push(hosts);
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

/// What stands in quotes, with the first line that it stands in, from 0.
fn quoted(text: &str) -> HashMap<&str, u32> {
    let mut lines = HashMap::new();
    for (line, number) in text.lines().zip(0..) {
        for word in line.split('"').skip(1).step_by(2) {
            lines.entry(word).or_insert(number);
        }
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn documents_have_the_lines_before_them() {
        let of = |text| documents(text).collect::<Vec<_>>();
        assert_eq!(
            of("a\n---\nb\nc\n--- \n\n---\nd"),
            [("a\n", 0), ("b\nc\n", 2), ("d", 7)]
        );
        assert!(of("---\n---\n\n---").is_empty());
        assert_eq!(of("---\na\n---\n"), [("a\n", 1)]);
        assert!(of("").is_empty());
    }
}
