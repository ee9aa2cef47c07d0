//! The ranks that a communicator spans, and what this process keeps for them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use ringway_link::shm::mapped::MappedGroup;
use ringway_plan::{Rank, Topology};

use crate::{
    Form,
    adapt::Adapt,
    engine::{Plans, lock},
};

/// A set of ranks of the world, in an order of its own.
pub(crate) struct Group {
    /// The same on all members; 0 is the world.
    pub(crate) id: u64,
    /// The world's rank of each member.
    pub(crate) members: Arc<[Rank]>,
    /// This rank's number in the group.
    pub(crate) rank: Rank,
    pub(crate) plans: Mutex<Plans>,
    /// Where all members share a host: the memory that they map.
    pub(crate) mapped: Option<MappedGroup>,
    next_operation: AtomicU32,
    next_split: AtomicU32,
    streams: Mutex<HashMap<Stream, Arc<Self>>>,
    adapt: OnceLock<Adapt>,
    /// Its operations are none of the program's.
    is_hidden: AtomicBool,
}

/// A stream of messages from one member to another under one tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) tag: u32,
}

impl Group {
    pub(crate) fn new(
        id: u64,
        members: Arc<[Rank]>,
        rank: Rank,
        plans: Plans,
        mapped: Option<MappedGroup>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            members,
            rank,
            plans: Mutex::new(plans),
            mapped,
            next_operation: AtomicU32::new(0),
            next_split: AtomicU32::new(0),
            streams: Mutex::default(),
            adapt: OnceLock::new(),
            is_hidden: AtomicBool::new(false),
        })
    }

    /// What adapts its plans to links that change, if anything does.
    pub(crate) fn adapting(&self) -> Option<&Adapt> {
        self.adapt.get()
    }

    /// Has its plans adapted from now on.
    pub(crate) fn adapt(&self, adapt: Adapt) {
        // Once is enough.
        let _ = self.adapt.set(adapt);
    }

    /// Has recordings leave out its operations, which are none of the program's.
    pub(crate) fn hide(&self) {
        self.is_hidden.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.is_hidden.load(Ordering::Relaxed)
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// The number of the next operation: operations are called in the same order on all members.
    pub(crate) fn number(&self) -> u32 {
        self.next_operation.fetch_add(1, Ordering::Relaxed)
    }

    /// An id for the group that this split makes of `color`; the same on all its members.
    pub(crate) fn split_id(&self, color: u64) -> u64 {
        let split = self.next_split.fetch_add(1, Ordering::Relaxed);
        mix(&[self.id, u64::from(split), color]) >> 1
    }

    /// The group of two that a stream of messages is: sender 0, receiver 1.
    pub(crate) fn stream(&self, stream: Stream) -> Arc<Self> {
        let mut streams = lock(&self.streams);
        let group = streams.entry(stream).or_insert_with(|| {
            let Stream { from, to, tag } = stream;
            let id = mix(&[self.id, from as u64, to as u64, u64::from(tag)]) | 1 << 63;
            let rank = usize::from(self.rank == to);
            let members: Arc<[Rank]> = Arc::from([self.members[from], self.members[to]]);
            let policy = lock(&self.plans).policy();
            let plans = Plans::new(
                rank,
                members.clone(),
                Topology::single_host(2),
                false,
                Form::Pair,
                usize::MAX,
                policy,
            );
            let group = Self::new(id, members, rank, plans, None);
            if self.is_hidden() {
                group.hide();
            }
            group
        });
        group.clone()
    }
}

/// Hashes words to one (splitmix64's finaliser over a running sum).
pub(crate) fn mix(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15, |hash: u64, &word| {
            let mut x = hash.wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(word);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        })
}
