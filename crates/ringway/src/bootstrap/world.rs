//! Who takes part: what every rank knows of every other once all have joined.

use std::{fmt, sync::Arc};

use ringway_link::{Listener, PeerAddress};
use ringway_plan::Rank;

use super::Store;

/// What processes that can share memory have in common: the running kernel, the network namespace and the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

impl HostId {
    /// Of a place of a running kernel, by their hashes.
    pub(super) const fn new(kernel: u64, place: u64) -> Self {
        Self(kernel << 32 | place & 0xffff_ffff)
    }

    /// The same for processes that run on the same processors, be it in containers that share nothing else.
    pub const fn machine(self) -> u64 {
        self.0 >> 32
    }
}

/// One rank as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub rank: Rank,
    /// The name of its host.
    pub host: String,
    /// Equal for ranks that can share memory.
    pub host_id: HostId,
    /// Its process.
    pub pid: u32,
    /// Where it may be reached.
    pub address: PeerAddress,
    /// Whether the kernel of its host has RDMA devices, be it that they can be used or not.
    pub has_nic: bool,
}

impl Member {
    /// A random number of this process of this rank.
    pub const fn instance(&self) -> u64 {
        self.address.nonce
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} (host {}, pid {})",
            self.rank, self.host, self.pid
        )
    }
}

/// All ranks of a job, seen from one of them.
#[derive(Clone)]
pub struct World {
    /// This rank's number.
    pub rank: Rank,
    /// All ranks, by number; this one too.
    pub members: Arc<[Member]>,
    /// Where ranks leave values for each other.
    pub store: Arc<dyn Store>,
    /// This rank's port, by which it is connected to the others.
    pub listener: Arc<Listener>,
}

impl World {
    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Whether any rank's host has RDMA devices.
    pub(crate) fn has_nics(&self) -> bool {
        self.members.iter().any(|member| member.has_nic)
    }

    /// This rank.
    pub fn me(&self) -> &Member {
        &self.members[self.rank]
    }

    /// The ranks on this rank's host, by number; this one too.
    pub fn local_ranks(&self) -> Vec<Rank> {
        let host = self.me().host_id;
        self.members
            .iter()
            .filter(|m| m.host_id == host)
            .map(|m| m.rank)
            .collect()
    }

    /// How many ranks this one shares the machine's processors with, itself included.
    pub fn machine_ranks(&self) -> usize {
        let machine = self.me().host_id.machine();
        let here = |m: &&Member| m.host_id.machine() == machine;
        self.members.iter().filter(here).count()
    }

    /// The ranks of each host, by number, hosts in the order of their first rank.
    pub fn hosts(&self) -> Vec<Vec<Rank>> {
        let mut hosts: Vec<(HostId, Vec<Rank>)> = Vec::new();
        for m in self.members.iter() {
            match hosts.iter_mut().find(|(id, _)| *id == m.host_id) {
                Some((_, ranks)) => ranks.push(m.rank),
                None => hosts.push((m.host_id, vec![m.rank])),
            }
        }
        hosts.into_iter().map(|(_, ranks)| ranks).collect()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank)
            .field("members", &self.members)
            .field("store", &self.store.describe())
            .finish_non_exhaustive()
    }
}
