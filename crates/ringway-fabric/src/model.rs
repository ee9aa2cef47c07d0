//! The fabric: nodes and the links between them.

use std::{fmt, ops::Range, time::Duration};

use serde::Deserialize;

use crate::{error::FabricError, expand, file};

/// A host or a switch. Hosts come first: host h of a fabric is node h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// How far a switch stands from the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Has hosts.
    Leaf,
    /// Joins leaves.
    Spine,
    /// Joins pods of leaves and spines.
    Core,
}

impl Tier {
    /// All, from the hosts up.
    pub const ALL: [Self; 3] = [Self::Leaf, Self::Spine, Self::Core];

    /// As the file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Leaf => "leaf",
            Self::Spine => "spine",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The way between GPUs of a host: each sends and receives at this rate at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// Bytes per second, in each direction.
    pub rate: f64,
    /// Of a message.
    pub latency: Duration,
}

/// What a host is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct HostKind {
    /// How many GPUs, each of which is a rank.
    pub gpus: usize,
    /// How many NICs, one for each link. NIC k is on rail k.
    pub nics: usize,
    /// How many NUMA nodes.
    pub numa: usize,
    /// The NUMA node of each GPU.
    pub gpu_numa: Vec<usize>,
    /// The NUMA node of each NIC.
    pub nic_numa: Vec<usize>,
    /// Whether it hands on what others send, as in a torus.
    pub forwards: bool,
    /// What a message costs its sender before the first byte leaves.
    pub overhead: Duration,
    /// Bytes that a rank reduces or copies per second.
    pub reduce: f64,
    /// Between its GPUs.
    pub local: Local,
}

impl HostKind {
    /// The NIC of a GPU: in turns, those of the GPU's own NUMA node if there are any.
    pub fn nic_of(&self, gpu: usize) -> usize {
        let numa = self.gpu_numa.get(gpu);
        let near: Vec<usize> = (0..self.nics)
            .filter(|&nic| self.nic_numa.get(nic) == numa)
            .collect();
        let among_equals = (0..gpu)
            .filter(|&other| self.gpu_numa.get(other) == numa)
            .count();
        match near.len() {
            0 => gpu % self.nics.max(1),
            n => near[among_equals % n],
        }
    }
}

/// What a group's members are.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Hosts.
    Host(HostKind),
    /// Switches.
    Switch {
        /// Where they stand.
        tier: Tier,
        /// How many ports each has, where the file says so.
        ports: Option<usize>,
    },
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// As the file names it; members have numbers after it if there are several.
    pub name: String,
    /// Its nodes.
    pub nodes: Range<usize>,
    /// Whether members have numbers.
    pub numbered: bool,
    /// What they are.
    pub role: Role,
}

/// A cable, with the same rate in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// One end.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
    /// Bytes per second, in each direction.
    pub rate: f64,
    /// From the first bit's leaving one end to its leaving the node at the other.
    pub latency: Duration,
}

/// Hosts, switches and links.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    name: String,
    groups: Vec<Group>,
    /// The group of each node.
    group_of: Vec<usize>,
    hosts: usize,
    links: Vec<Link>,
    /// For each node, the link and the neighbour, in the order of links.
    adjacent: Vec<Vec<(usize, NodeId)>>,
}

impl Fabric {
    /// From the text of a fabric file.
    pub fn parse(text: &str) -> Result<Self, FabricError> {
        expand::expand(file::read(text)?)
    }

    /// Of groups whose nodes follow each other, hosts first, and links between these.
    pub(crate) fn new(name: String, groups: Vec<Group>, links: Vec<Link>) -> Self {
        let group_of: Vec<usize> = groups
            .iter()
            .enumerate()
            .flat_map(|(i, g)| std::iter::repeat_n(i, g.nodes.len()))
            .collect();
        let hosts = groups
            .iter()
            .filter(|g| matches!(g.role, Role::Host(_)))
            .map(|g| g.nodes.len())
            .sum();
        let mut adjacent = vec![Vec::new(); group_of.len()];
        for (i, link) in links.iter().enumerate() {
            adjacent[link.a.0].push((i, link.b));
            adjacent[link.b.0].push((i, link.a));
        }
        Self {
            name,
            groups,
            group_of,
            hosts,
            links,
            adjacent,
        }
    }

    /// The same hosts, switches and links, with other figures: each host's and each link's are what the functions make of
    /// them. Who is linked to whom stays.
    #[must_use]
    pub fn with(mut self, host: impl Fn(&mut HostKind), link: impl Fn(&mut Link)) -> Self {
        for group in &mut self.groups {
            if let Role::Host(kind) = &mut group.role {
                host(kind);
            }
        }
        for old in &mut self.links {
            let ends = (old.a, old.b);
            link(old);
            (old.a, old.b) = ends;
        }
        self
    }

    /// As the file names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The groups: those of hosts, then those of switches.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// How many hosts.
    pub const fn hosts(&self) -> usize {
        self.hosts
    }

    /// How many hosts and switches.
    pub const fn nodes(&self) -> usize {
        self.group_of.len()
    }

    /// The switches.
    pub fn switches(&self) -> impl Iterator<Item = NodeId> + use<> {
        (self.hosts..self.nodes()).map(NodeId)
    }

    /// The switches of a tier.
    pub fn tier(&self, tier: Tier) -> impl Iterator<Item = NodeId> {
        self.switches()
            .filter(move |&n| self.tier_of(n) == Some(tier))
    }

    /// The tier of a switch.
    pub fn tier_of(&self, node: NodeId) -> Option<Tier> {
        match self.group(node).role {
            Role::Switch { tier, .. } => Some(tier),
            Role::Host(_) => None,
        }
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links of a node, each with the node at its other end; of a host, NIC by NIC.
    pub fn links_of(&self, node: NodeId) -> &[(usize, NodeId)] {
        &self.adjacent[node.0]
    }

    /// The group of a node.
    pub fn group(&self, node: NodeId) -> &Group {
        &self.groups[self.group_of[node.0]]
    }

    /// What a host is made of.
    pub fn host(&self, host: usize) -> Option<&HostKind> {
        match &self.groups.get(*self.group_of.get(host)?)?.role {
            Role::Host(kind) => Some(kind),
            Role::Switch { .. } => None,
        }
    }

    /// Whether a node hands on what others send.
    pub fn forwards(&self, node: NodeId) -> bool {
        match &self.group(node).role {
            Role::Host(kind) => kind.forwards,
            Role::Switch { .. } => true,
        }
    }

    /// `leaf3`: the name of a node.
    pub fn node_name(&self, node: NodeId) -> String {
        let group = self.group(node);
        match group.numbered {
            true => format!("{}{}", group.name, node.0 - group.nodes.start),
            false => group.name.clone(),
        }
    }

    /// `leaf3-spine0`: the name of a link. Parallel links have the same.
    pub fn link_name(&self, link: usize) -> String {
        let Link { a, b, .. } = self.links[link];
        format!("{}-{}", self.node_name(a), self.node_name(b))
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.groups.iter().find_map(|group| {
            let rest = name.strip_prefix(group.name.as_str())?;
            let index = match group.numbered {
                true => rest.parse::<usize>().ok()?,
                false => rest.is_empty().then_some(0)?,
            };
            // `host007` is no other name of `host7`.
            let canonical = !group.numbered || index.to_string() == rest;
            (canonical && index < group.nodes.len()).then(|| NodeId(group.nodes.start + index))
        })
    }

    /// The links between two nodes.
    pub fn between(&self, a: NodeId, b: NodeId) -> Vec<usize> {
        let ends = self.links_of(a).iter();
        ends.filter(|l| l.1 == b).map(|l| l.0).collect()
    }
}
