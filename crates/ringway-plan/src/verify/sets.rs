//! Sets of ranks, as unions of disjoint ones.

use crate::{key_map::KeyMap, schedule::Rank};

/// A set, by number: first each rank alone, then unions.
pub(super) type Set = u32;

/// Every set there is, each union of two once: what chunks have in common is kept and computed once for all of them.
pub(super) struct Sets {
    ranks: usize,
    /// `words` words of bits for each union, and how many ranks it has.
    bits: Vec<u64>,
    words: usize,
    counts: Vec<u32>,
    unions: KeyMap<u64, Set>,
}

impl Sets {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks,
            bits: Vec::new(),
            words: ranks.div_ceil(64),
            counts: Vec::new(),
            unions: KeyMap::default(),
        }
    }

    fn word(&self, set: Set, word: usize) -> u64 {
        match (set as usize).checked_sub(self.ranks) {
            None if set as usize / 64 == word => 1 << (set % 64),
            None => 0,
            Some(at) => self.bits[at * self.words + word],
        }
    }

    pub(super) fn has(&self, set: Set, rank: Rank) -> bool {
        self.word(set, rank / 64) >> (rank % 64) & 1 == 1
    }

    pub(super) fn is_full(&self, set: Set) -> bool {
        match (set as usize).checked_sub(self.ranks) {
            None => self.ranks == 1,
            Some(at) => self.counts[at] as usize == self.ranks,
        }
    }

    /// The union of two sets, or a rank that is in both.
    pub(super) fn union(&mut self, a: Set, b: Set) -> Result<Set, Rank> {
        let key = u64::from(a) << 32 | u64::from(b);
        if let Some(&known) = self.unions.get(&key) {
            return Ok(known);
        }
        let mut count = 0;
        for word in 0..self.words {
            let (in_a, in_b) = (self.word(a, word), self.word(b, word));
            if in_a & in_b != 0 {
                self.bits.truncate(self.counts.len() * self.words);
                return Err(word * 64 + (in_a & in_b).trailing_zeros() as usize);
            }
            self.bits.push(in_a | in_b);
            count += (in_a | in_b).count_ones();
        }
        let set = (self.ranks + self.counts.len()) as Set;
        self.counts.push(count);
        self.unions.insert(key, set);
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_are_what_they_are_of() {
        let mut sets = Sets::new(130);
        let mut all = 0;
        for rank in 1..130 {
            assert!(!sets.is_full(all));
            all = sets.union(all, rank).unwrap();
            assert!(sets.has(all, rank as Rank) && !sets.has(all, rank as Rank + 1));
        }
        assert!(sets.is_full(all));
        assert_eq!(sets.union(129, all), Err(129));
        let some = sets.union(3, 127).unwrap();
        assert!(sets.has(some, 3) && sets.has(some, 127) && !sets.has(some, 0));
        assert_eq!(sets.union(3, 127), Ok(some));
        assert_eq!(sets.union(64, some), sets.union(64, some));
        assert_eq!(sets.union(127, some), Err(127));
    }
}
