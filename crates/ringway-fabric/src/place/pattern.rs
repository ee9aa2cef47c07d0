//! How many bytes go from which host to which.

use std::collections::BTreeMap;

use ringway_plan::{Schedule, Topology};

/// The bytes between hosts in the course of a schedule, as parts of the vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    hosts: usize,
    /// From, to, part of the vector.
    flows: Vec<(usize, usize, f64)>,
    /// The flows of each host.
    of: Vec<Vec<usize>>,
}

impl Pattern {
    /// Of a schedule that was generated for the hosts of `topology`; what stays in a host does not count. Steps that are not
    /// at the same time are added up: what counts is how long a link is busy in all.
    pub fn new(schedule: &Schedule, topology: &Topology) -> Self {
        let members = topology.hosts();
        let mut host_of = vec![0; schedule.ranks()];
        for (host, ranks) in members.iter().enumerate() {
            for &rank in ranks {
                host_of[rank] = host;
            }
        }
        let mut bytes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for ((from, to), chunks) in schedule.programs.traffic() {
            if host_of[from] != host_of[to] {
                let part = chunks as f64 / schedule.chunks as f64;
                *bytes.entry((host_of[from], host_of[to])).or_default() += part;
            }
        }
        Self::of_flows(members.len(), bytes)
    }

    /// Of a ring through `hosts` hosts that goes both ways around.
    pub fn ring(hosts: usize) -> Self {
        let next = |host: usize| (host + 1) % hosts.max(1);
        let both = (0..hosts).flat_map(|host| [(host, next(host)), (next(host), host)]);
        let bytes = both.filter(|(a, b)| a != b).map(|pair| (pair, 1.0));
        Self::of_flows(hosts, bytes.collect())
    }

    fn of_flows(hosts: usize, bytes: BTreeMap<(usize, usize), f64>) -> Self {
        let flows: Vec<_> = bytes
            .into_iter()
            .map(|((a, b), part)| (a, b, part))
            .collect();
        let mut of = vec![Vec::new(); hosts];
        for (i, &(from, to, _)) in flows.iter().enumerate() {
            of[from].push(i);
            of[to].push(i);
        }
        Self { hosts, flows, of }
    }

    /// How many hosts it is for.
    pub const fn hosts(&self) -> usize {
        self.hosts
    }

    /// From, to, and the part of the vector that goes there.
    pub fn flows(&self) -> &[(usize, usize, f64)] {
        &self.flows
    }

    /// The flows that begin or end at a host, as indices of [`Pattern::flows`].
    pub(super) fn of(&self, host: usize) -> &[usize] {
        &self.of[host]
    }
}
