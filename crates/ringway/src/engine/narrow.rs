//! Half precision between hosts: elements of 32 bits that cross from host to host as 16.
//!
//! Sums are made of 32 bits everywhere; each message between hosts rounds what it carries, to nearest even. The rank that completes
//! a sum rounds it too, so that it has the bits that the others get. That is right for schedules in which one rank completes each
//! chunk and all others get it from there, as the hierarchical one does.

use std::sync::Arc;

use ringway_kernels::Cast;
use ringway_link::MessageKey;
use ringway_plan::{DataType, Rank, Topology};
use ringway_sys::{Memory, Staging};

/// What crosses between hosts in another type, for one operation.
pub(crate) struct Narrow {
    narrowing: Cast,
    widening: Cast,
    /// By member, whether it is on another host.
    far: Arc<[bool]>,
    /// What has not left yet.
    leaving: Vec<(Rank, MessageKey, Staging)>,
    /// Where messages belong that are asked for.
    coming: Vec<(Rank, MessageKey, Memory)>,
}

impl Narrow {
    /// For operations on `dtype` whose messages carry `wire`; `far` says which members are on other hosts. `None` if there is no
    /// cast between the two.
    pub(crate) fn new(dtype: DataType, wire: DataType, far: Arc<[bool]>) -> Option<Self> {
        Some(Self {
            narrowing: Cast::between(dtype, wire)?,
            widening: Cast::between(wire, dtype)?,
            far,
            leaving: Vec::new(),
            coming: Vec::new(),
        })
    }

    pub(super) fn is_far(&self, member: Rank) -> bool {
        self.far[member]
    }

    /// The bytes on the wire of so many in memory.
    pub(super) const fn wire_bytes(&self, bytes: usize) -> usize {
        bytes / self.narrowing.from().size() * self.narrowing.to().size()
    }

    /// What to send in place of `src`; it stays until [`Self::left`].
    pub(super) fn leave(&mut self, peer: Rank, key: MessageKey, src: Memory) -> Memory {
        let narrow = Staging::new(self.wire_bytes(src.len()));
        let memory = narrow.memory();
        memory.cast(self.narrowing, src);
        self.leaving.push((peer, key, narrow));
        memory
    }

    pub(super) fn left(&mut self, peer: Rank, key: MessageKey) {
        self.leaving.retain(|(p, k, _)| (*p, *k) != (peer, key));
    }

    /// Notes where a message belongs; the length to ask for is returned.
    pub(super) fn expect(&mut self, peer: Rank, key: MessageKey, dst: Memory) -> usize {
        self.coming.push((peer, key, dst));
        self.wire_bytes(dst.len())
    }

    /// Brings a message that has come to where it belongs. Whether it was one of [`Self::expect`]: then its view is not needed any
    /// more.
    pub(super) fn come(&mut self, peer: Rank, key: MessageKey, view: Memory) -> bool {
        let asked = |(p, k, _): &(Rank, MessageKey, Memory)| (*p, *k) == (peer, key);
        let Some(at) = self.coming.iter().position(asked) else {
            return false;
        };
        let (_, _, dst) = self.coming.swap_remove(at);
        dst.cast(self.widening, view);
        true
    }

    /// The elements of a view, in full width.
    pub(super) fn widen(&self, view: Memory) -> Staging {
        let (from, to) = (self.widening.from().size(), self.widening.to().size());
        let wide = Staging::new(view.len() / from * to);
        wide.memory().cast(self.widening, view);
        wide
    }

    /// Rounds what others will get rounded.
    pub(super) fn round(&self, memory: Memory) {
        let narrow = Staging::new(self.wire_bytes(memory.len()));
        narrow.memory().cast(self.narrowing, memory);
        memory.cast(self.widening, narrow.memory());
    }
}

/// By member, whether it is on another host than `rank`.
pub(super) fn far(topology: &Topology, rank: Rank) -> Arc<[bool]> {
    let mut far = vec![true; topology.ranks()];
    for members in topology.hosts() {
        if members.contains(&rank) {
            members.into_iter().for_each(|member| far[member] = false);
        }
    }
    far.into()
}
