//! A fast hash for small keys that this job's own ranks make.

use std::hash::{BuildHasherDefault, Hasher};

/// A map with [`Mix`].
pub(super) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Mix>>;

/// Multiplies and folds each word (as the wyhash family does). Not for keys that an adversary
/// chooses.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Mix {
    #[inline]
    const fn add(&mut self, word: u64) {
        // Two odd constants with about as many ones as zeros: the fractional parts of the golden
        // ratio and of pi.
        let product = (self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0x243f_6a88_85a3_08d3;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::Hash};

    use super::*;

    #[test]
    fn neighbours_spread_over_the_buckets() {
        let mut low = HashSet::new();
        let mut high = HashSet::new();
        for message in 0..64u32 {
            for slice in 0..64u32 {
                let mut mix = Mix::default();
                (3u16, message, slice).hash(&mut mix);
                low.insert(mix.finish() & 0xfff);
                high.insert(mix.finish() >> 57);
            }
        }
        // 4,096 keys thrown at random into 4,096 buckets leave about a third of them empty.
        assert!(low.len() > 2400, "{}", low.len());
        assert_eq!(high.len(), 128);
    }
}
