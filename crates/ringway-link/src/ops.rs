//! Which messages are expected, which are here already, and which wait to be sent: by operation, so that ending one
//! forgets all of its messages at once. What is known of a message is the transport's affair: `I` of one to this rank, `O`
//! of one from it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

use ringway_plan::Rank;

use crate::{Event, MessageKey};

/// How many ended operations are remembered, to drop what arrives late.
const REMEMBERED: usize = 4096;

/// How many empty tables are kept for operations to come.
const SPARE: usize = 16;

/// A hash map for keys of this program's own making.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// A message of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) peer: Rank,
    pub(crate) message: u32,
    pub(crate) slice: u32,
    pub(crate) lane: u16,
}

impl Slot {
    pub(crate) const fn new(peer: Rank, key: &MessageKey) -> Self {
        Self {
            peer,
            message: key.message,
            slice: key.slice,
            lane: key.lane,
        }
    }

    /// The message's key in an operation.
    pub(crate) const fn key(&self, group: u64, op: u32) -> MessageKey {
        MessageKey {
            group,
            op,
            lane: self.lane,
            message: self.message,
            slice: self.slice,
        }
    }
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Op<I, O> {
    /// This rank's, once begun.
    pub(crate) fingerprint: Option<u32>,
    /// Those of peers whose messages came before it was begun.
    early: Vec<(Rank, u32)>,
    /// Peers whose fingerprint differs.
    mismatched: Vec<Rank>,
    /// Peers that were told that this rank waits for them.
    told: Vec<Rank>,
    /// Peers to and from whom its messages go over TCP, of a transport that has another way.
    pub(crate) on_tcp: Vec<Rank>,
    pub(crate) inbound: Table<Slot, I>,
    pub(crate) outbound: Table<Slot, O>,
}

/// What a peer's fingerprint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreement {
    /// The same operation, as far as known.
    Same,
    /// Another one, as is known already.
    Differs,
    /// Another one, and this is the first sign of it.
    DiffersNewly,
}

impl<I, O> Default for Op<I, O> {
    fn default() -> Self {
        Self {
            fingerprint: None,
            early: Vec::new(),
            mismatched: Vec::new(),
            told: Vec::new(),
            on_tcp: Vec::new(),
            inbound: Table::default(),
            outbound: Table::default(),
        }
    }
}

impl<I, O> Op<I, O> {
    /// Compares a peer's fingerprint with this rank's, now or when it is begun.
    fn compare(&mut self, peer: Rank, fingerprint: u32) -> Agreement {
        match self.fingerprint {
            Some(own) if own == fingerprint => Agreement::Same,
            Some(_) if self.mismatched.contains(&peer) => Agreement::Differs,
            Some(_) => {
                self.mismatched.push(peer);
                Agreement::DiffersNewly
            }
            None => {
                if !self.early.contains(&(peer, fingerprint)) {
                    self.early.push((peer, fingerprint));
                }
                Agreement::Same
            }
        }
    }
}

/// All operations.
#[derive(Debug)]
pub(crate) struct Ops<I, O> {
    live: Table<(u64, u32), Op<I, O>>,
    ended: HashSet<(u64, u32), BuildHasherDefault<KeyHasher>>,
    /// Those of `ended`, the oldest first.
    order: VecDeque<(u64, u32)>,
    spare: Vec<Op<I, O>>,
}

impl<I, O> Default for Ops<I, O> {
    fn default() -> Self {
        Self {
            live: Table::default(),
            ended: HashSet::default(),
            order: VecDeque::new(),
            spare: Vec::new(),
        }
    }
}

impl<I, O> Ops<I, O> {
    /// Begins an operation. Returns the peers that are known to have begun another one, each with its fingerprint.
    pub(crate) fn begin(&mut self, group: u64, op: u32, fingerprint: u32) -> Vec<(Rank, u32)> {
        if self.ended.remove(&(group, op)) {
            self.order.retain(|old| *old != (group, op));
        }
        let op = Self::live(&mut self.live, &mut self.spare, group, op);
        op.fingerprint = Some(fingerprint);
        if op.early.is_empty() {
            return Vec::new();
        }
        let early = std::mem::take(&mut op.early);
        early
            .into_iter()
            .filter(|&(peer, other)| op.compare(peer, other) == Agreement::DiffersNewly)
            .collect()
    }

    /// Whether a peer, by the fingerprint that came with a message, takes part in the same operation; if not, that is
    /// an event, once. Not in one that has ended.
    pub(crate) fn agrees(
        &mut self,
        peer: Rank,
        key: &MessageKey,
        fingerprint: u32,
        events: &mut Vec<Event>,
    ) -> bool {
        let agreement = self.open(key).map(|op| op.compare(peer, fingerprint));
        if agreement == Some(Agreement::DiffersNewly) {
            events.push(Event::Mismatch {
                peer,
                group: key.group,
                op: key.op,
                theirs: fingerprint,
            });
        }
        agreement == Some(Agreement::Same)
    }

    /// Takes the messages from a peer out of an operation.
    pub(crate) fn forget_from(&mut self, peer: Rank, group: u64, op: u32) -> Vec<(Slot, I)> {
        self.live
            .get_mut(&(group, op))
            .map(|op| op.inbound.extract_if(|slot, _| slot.peer == peer).collect())
            .unwrap_or_default()
    }

    /// The operation of a message, unless it has ended.
    #[inline]
    pub(crate) fn open(&mut self, key: &MessageKey) -> Option<&mut Op<I, O>> {
        self.unended(key.group, key.op)
    }

    /// An operation, unless it has ended.
    #[inline]
    pub(crate) fn unended(&mut self, group: u64, op: u32) -> Option<&mut Op<I, O>> {
        // Live ones first: the set of ended ones is asked only for what nobody here knows.
        if !self.live.contains_key(&(group, op)) && self.ended.contains(&(group, op)) {
            return None;
        }
        Some(Self::live(&mut self.live, &mut self.spare, group, op))
    }

    /// The operation of a message, if it has begun and not ended.
    #[inline]
    pub(crate) fn begun(&mut self, key: &MessageKey) -> Option<(&mut Op<I, O>, u32)> {
        let op = self.live.get_mut(&(key.group, key.op))?;
        let fingerprint = op.fingerprint?;
        Some((op, fingerprint))
    }

    /// An operation that is known and has not ended.
    pub(crate) fn get(&self, group: u64, op: u32) -> Option<&Op<I, O>> {
        self.live.get(&(group, op))
    }

    /// All such operations, each with its group and number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((u64, u32), &Op<I, O>)> {
        self.live.iter().map(|(&number, op)| (number, op))
    }

    /// How many operations are known.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    /// Peers that are waited for, as `waits` says of a message, and have not been told of anything: one message of each
    /// operation, with its fingerprint. Each is named once.
    pub(crate) fn untold(&mut self, waits: impl Fn(&I) -> bool) -> Vec<(Rank, MessageKey, u32)> {
        let mut untold = Vec::new();
        for (&(group, number), op) in &mut self.live {
            let Some(fingerprint) = op.fingerprint else {
                continue;
            };
            for (slot, inbound) in &op.inbound {
                if waits(inbound) && !op.told.contains(&slot.peer) {
                    op.told.push(slot.peer);
                    untold.push((slot.peer, slot.key(group, number), fingerprint));
                }
            }
        }
        untold
    }

    /// Calls `each` for a peer's messages of the operations that have begun: with the fingerprint, and whether it is
    /// known of the message to this rank, and of the one from it.
    pub(crate) fn each_of(&self, peer: Rank, mut each: impl FnMut(MessageKey, u32, bool, bool)) {
        for (&(group, number), op) in &self.live {
            let Some(fingerprint) = op.fingerprint else {
                continue;
            };
            for slot in op.inbound.keys().filter(|slot| slot.peer == peer) {
                each(slot.key(group, number), fingerprint, true, false);
            }
            for slot in op.outbound.keys().filter(|slot| slot.peer == peer) {
                each(slot.key(group, number), fingerprint, false, true);
            }
        }
    }

    /// Takes a peer's messages out of the operations of which `of` says so by group and number.
    pub(crate) fn take_peer(
        &mut self,
        peer: Rank,
        of: impl Fn(u64, u32) -> bool,
    ) -> Vec<(MessageKey, Option<I>, Option<O>)> {
        let mut taken = Vec::new();
        let live = self.live.iter_mut();
        for (&(group, number), op) in live.filter(|(op, _)| of(op.0, op.1)) {
            let inbound = op.inbound.extract_if(|slot, _| slot.peer == peer);
            taken.extend(inbound.map(|(slot, it)| (slot.key(group, number), Some(it), None)));
            let outbound = op.outbound.extract_if(|slot, _| slot.peer == peer);
            taken.extend(outbound.map(|(slot, it)| (slot.key(group, number), None, Some(it))));
        }
        taken
    }

    #[inline]
    fn live<'a>(
        live: &'a mut Table<(u64, u32), Op<I, O>>,
        spare: &mut Vec<Op<I, O>>,
        group: u64,
        op: u32,
    ) -> &'a mut Op<I, O> {
        live.entry((group, op))
            .or_insert_with(|| spare.pop().unwrap_or_default())
    }

    /// Ends an operation; what arrives for it later is dropped.
    pub(crate) fn end(&mut self, group: u64, op: u32) -> Option<Op<I, O>> {
        if self.ended.insert((group, op)) {
            self.order.push_back((group, op));
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
        self.live.remove(&(group, op))
    }

    /// Takes back the tables of an ended operation, for the next.
    pub(crate) fn recycle(&mut self, mut op: Op<I, O>) {
        if self.spare.len() < SPARE {
            op.fingerprint = None;
            op.early.clear();
            op.mismatched.clear();
            op.told.clear();
            op.on_tcp.clear();
            op.inbound.clear();
            op.outbound.clear();
            self.spare.push(op);
        }
    }
}

/// Mixes the few integers of a key: keys are made from schedules by ranks that trust each other, so what a hash must
/// be is quick.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl KeyHasher {
    #[inline]
    const fn mix(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes the low bits to choose a bucket; the product is best in the high ones.
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(op: u32) -> MessageKey {
        MessageKey {
            group: 1,
            op,
            lane: 0,
            message: 0,
            slice: 0,
        }
    }

    #[test]
    fn fingerprints_are_compared_before_and_after_the_beginning() {
        let mut ops = Ops::<(), ()>::default();
        let early = ops.open(&key(5)).unwrap();
        assert_eq!(early.compare(1, 77), Agreement::Same);
        assert_eq!(early.compare(1, 77), Agreement::Same);
        assert_eq!(early.compare(2, 88), Agreement::Same);
        assert_eq!(ops.begin(1, 5, 88), [(1, 77)]);
        let (op, _) = ops.begun(&key(5)).unwrap();
        assert_eq!(op.compare(1, 77), Agreement::Differs);
        assert_eq!(op.compare(3, 77), Agreement::DiffersNewly);
        assert_eq!(op.compare(3, 77), Agreement::Differs);
        assert_eq!(op.compare(2, 88), Agreement::Same);
    }

    #[test]
    fn ended_operations_are_remembered_until_begun_again_or_very_old() {
        let mut ops = Ops::<(), ()>::default();
        ops.begin(1, 0, 7);
        assert!(ops.end(1, 0).is_some());
        assert!(ops.open(&key(0)).is_none());
        ops.begin(1, 0, 7);
        assert!(ops.open(&key(0)).is_some());
        for op in 0..=u32::try_from(REMEMBERED).unwrap() {
            ops.end(1, op);
        }
        assert!(ops.open(&key(1)).is_none());
        assert!(ops.open(&key(0)).is_some());
    }
}
