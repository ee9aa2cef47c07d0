//! A quick hash for maps whose keys this side or its device has chosen: a peer can only look them up.

use std::hash::{BuildHasherDefault, Hasher};

/// Makes the hashers of a map.
pub type Build = BuildHasherDefault<Multiply>;

/// One multiplication (Fibonacci hashing, Knuth, The Art of Computer Programming, volume 3, 6.4).
#[derive(Debug, Default)]
pub struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The maps take the low bits for the place, where a product is poor.
        self.0 ^= self.0 >> 32;
    }
}
