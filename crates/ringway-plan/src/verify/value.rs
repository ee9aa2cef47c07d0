//! Values as the trees of reductions that made them.

use super::{
    graph::NONE,
    sets::{Set, Sets},
};
use crate::{key_map::KeyMap, schedule::Rank};

/// A value, by number: first one for each rank and chunk of the vector, its input; then one for each
/// reduction of two values. Equal trees have equal numbers.
pub(super) type Value = u32;

/// Every value there is.
pub(super) struct Values {
    ranks: usize,
    chunks: usize,
    /// Whose contributions are in each reduction. Chunks go alike ways, so that their reductions have the same sets: kept by
    /// themselves, these would take ranks / 64 words for each reduction of each chunk.
    contributors: Vec<Set>,
    sets: Sets,
    /// The vector's chunk of each reduction.
    chunk: Vec<u32>,
    known: KeyMap<u64, Value>,
}

/// Two values that cannot be reduced.
pub(super) enum Clash {
    Chunks(usize, usize),
    Twice(Rank),
}

impl Values {
    pub(super) fn new(ranks: usize, chunks: usize) -> Self {
        Self {
            ranks,
            chunks,
            contributors: Vec::new(),
            sets: Sets::new(ranks),
            chunk: Vec::new(),
            known: KeyMap::default(),
        }
    }

    pub(super) const fn input(&self, rank: Rank, chunk: usize) -> Value {
        (rank * self.chunks + chunk) as Value
    }

    const fn reduction(&self, value: Value) -> Option<usize> {
        (value as usize).checked_sub(self.ranks * self.chunks)
    }

    pub(super) fn chunk(&self, value: Value) -> usize {
        match self.reduction(value) {
            None => value as usize % self.chunks,
            Some(at) => self.chunk[at] as usize,
        }
    }

    fn contributors(&self, value: Value) -> Set {
        match self.reduction(value) {
            None => (value as usize / self.chunks) as Set,
            Some(at) => self.contributors[at],
        }
    }

    pub(super) fn is_complete(&self, value: Value) -> bool {
        self.sets.is_full(self.contributors(value))
    }

    pub(super) fn reduce(&mut self, a: Value, b: Value) -> Result<Value, Clash> {
        let key = u64::from(a) << 32 | u64::from(b);
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        let (chunk, other) = (self.chunk(a), self.chunk(b));
        if chunk != other {
            return Err(Clash::Chunks(chunk, other));
        }
        let (in_a, in_b) = (self.contributors(a), self.contributors(b));
        let union = self.sets.union(in_a, in_b).map_err(Clash::Twice)?;
        self.contributors.push(union);
        let value = (self.ranks * self.chunks + self.chunk.len()) as Value;
        self.chunk.push(chunk as u32);
        self.known.insert(key, value);
        Ok(value)
    }

    pub(super) fn describe(&self, value: Value) -> String {
        if value == NONE {
            return "undefined memory".to_owned();
        }
        let chunk = self.chunk(value);
        let Some(_) = self.reduction(value) else {
            return format!(
                "chunk {chunk} of rank {}'s input",
                value as usize / self.chunks
            );
        };
        let missing: Vec<_> = {
            let set = self.contributors(value);
            let missing = |&rank: &Rank| !self.sets.has(set, rank);
            (0..self.ranks).filter(missing).collect()
        };
        match missing[..] {
            [] => format!("chunk {chunk} of every rank reduced"),
            [only] => format!("chunk {chunk} of every rank but {only} reduced"),
            [first, .., last] => {
                let count = self.ranks - missing.len();
                format!(
                    "chunk {chunk} of {count} ranks reduced, {first} and {last} among those that are missing"
                )
            }
        }
    }
}
