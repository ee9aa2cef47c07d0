//! Hash maps by numbers of a program's own making.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A hash map whose keys are small numbers, or tuples of them. The default hasher guards against keys that somebody has chosen
/// so that they collide; these nobody has, and it is several times slower.
pub type KeyMap<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// See [`KeyMap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, word: u64) {
        // The odd constant nearest to 2^64 divided by the golden ratio; folded, so that low bits depend on all.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
