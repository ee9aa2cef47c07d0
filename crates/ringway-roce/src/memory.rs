//! Registered memory: who may do what with which bytes.
//!
//! The crate never touches raw memory. Its caller implements [`Region`] for whatever it has, and registers regions
//! in a [`ProtectionDomain`], which checks key, access right and bounds of every single packet before the region is
//! called.

use std::{collections::HashMap, fmt, ops::BitOr};

use thiserror::Error;

use crate::hash;

/// The key of a region, local and remote alike: lkey and rkey.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub u32);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Access rights, a set. Reading locally needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// No right but reading locally.
    pub const NONE: Self = Self(0);
    /// Receives, and answers to READs and atomics, may be written here.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may WRITE.
    pub const REMOTE_WRITE: Self = Self(2);
    /// The peer may READ.
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may do atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Everything.
    pub const ALL: Self = Self(15);

    /// Whether all rights of `other` are in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The bytes of a region, which the crate's caller provides. Offsets count from the region's start, and are in
/// bounds: [`ProtectionDomain`] has checked them.
pub trait Region {
    /// The length in bytes, which never changes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies out.
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies in.
    fn write(&mut self, offset: u64, from: &[u8]);

    /// Adds to eight aligned bytes, a number in the machine's byte order, wrapping around. Returns the number before.
    fn fetch_add(&mut self, offset: u64, add: u64) -> u64;

    /// Stores `swap` in eight aligned bytes if the number there is `compare`. Returns the number before.
    fn compare_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64;
}

/// Memory of one's own, for tests and for small things.
impl Region for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let start = offset as usize;
        into.copy_from_slice(&self[start..start + into.len()]);
    }

    fn write(&mut self, offset: u64, from: &[u8]) {
        let start = offset as usize;
        self[start..start + from.len()].copy_from_slice(from);
    }

    fn fetch_add(&mut self, offset: u64, add: u64) -> u64 {
        let before = number_at(self, offset);
        self.write(offset, &before.wrapping_add(add).to_ne_bytes());
        before
    }

    fn compare_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64 {
        let before = number_at(self, offset);
        if before == compare {
            self.write(offset, &swap.to_ne_bytes());
        }
        before
    }
}

fn number_at(bytes: &Vec<u8>, offset: u64) -> u64 {
    let mut number = [0; 8];
    bytes.read(offset, &mut number);
    u64::from_ne_bytes(number)
}

/// Why memory can't be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// Who lets the peer write must let local operations write.
    #[error("remote write or atomic access also needs local write access")]
    NeedsLocalWrite,
    /// The region would reach beyond the last address.
    #[error("a region of {length} bytes at {base:#x} goes beyond the last address")]
    TooLong {
        /// The address of the first byte.
        base: u64,
        /// The length in bytes.
        length: u64,
    },
    /// Another region has this key.
    #[error("another region has key {0}; choose another key")]
    Taken(Key),
}

/// Why an access to memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// No region has this key, or no longer.
    #[error("no region has key {0}")]
    UnknownKey(Key),
    /// The region was registered without the right.
    #[error("the region of key {key} doesn't give the right {needed:?}")]
    Denied {
        /// The region's key.
        key: Key,
        /// The right that is missing.
        needed: Access,
    },
    /// The bytes aren't all in the region.
    #[error("{length} bytes at {address:#x} are not in the region of key {key}")]
    OutOfBounds {
        /// The region's key.
        key: Key,
        /// The address of the first byte.
        address: u64,
        /// The length in bytes.
        length: u64,
    },
    /// An atomic operation needs eight bytes that are aligned, as an address and in the region.
    #[error("an atomic operation at {address:#x}, which is not aligned to 8 bytes")]
    Misaligned {
        /// The address of the first byte.
        address: u64,
    },
}

/// Regions whose keys are valid together; all queue pairs that use it may use its regions.
#[derive(Debug)]
pub struct ProtectionDomain<R> {
    regions: HashMap<Key, Entry<R>, hash::Build>,
}

#[derive(Debug)]
struct Entry<R> {
    region: R,
    base: u64,
    access: Access,
}

impl<R> Default for ProtectionDomain<R> {
    fn default() -> Self {
        Self {
            regions: HashMap::default(),
        }
    }
}

impl<R: Region> ProtectionDomain<R> {
    /// A domain without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a region under a key, which it returns. Whoever knows the key has the remote rights of `access`, so
    /// that it had better be a random number. `base` is the address of the first byte: its virtual address, or 0 for
    /// a zero-based region, whose addresses are offsets.
    pub fn register(
        &mut self,
        key: Key,
        region: R,
        base: u64,
        access: Access,
    ) -> Result<Key, RegisterError> {
        let remote_change =
            access.0 & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0 != Access::NONE.0;
        if remote_change && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::NeedsLocalWrite);
        }
        let length = region.len();
        if base.checked_add(length).is_none() {
            return Err(RegisterError::TooLong { base, length });
        }
        if self.regions.contains_key(&key) {
            return Err(RegisterError::Taken(key));
        }
        let entry = Entry {
            region,
            base,
            access,
        };
        self.regions.insert(key, entry);
        Ok(key)
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Takes a region back; its key is refused from now on.
    pub fn deregister(&mut self, key: Key) -> Option<R> {
        self.regions.remove(&key).map(|entry| entry.region)
    }

    /// The region of a key.
    pub fn region(&self, key: Key) -> Option<&R> {
        self.entry(key).map(|entry| &entry.region)
    }

    /// Whether `length` bytes at `address` may be used so.
    pub fn check(
        &self,
        key: Key,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<(), AccessError> {
        let entry = self.entry(key).ok_or(AccessError::UnknownKey(key))?;
        entry.offset(key, address, length, needed).map(|_| ())
    }

    /// Copies out of a region. `needed` is [`Access::NONE`] for the region's owner, [`Access::REMOTE_READ`] for its
    /// peer.
    pub fn read(
        &self,
        key: Key,
        address: u64,
        into: &mut [u8],
        needed: Access,
    ) -> Result<(), AccessError> {
        let entry = self.entry(key).ok_or(AccessError::UnknownKey(key))?;
        let offset = entry.offset(key, address, into.len() as u64, needed)?;
        entry.region.read(offset, into);
        Ok(())
    }

    /// Copies into a region.
    pub fn write(
        &mut self,
        key: Key,
        address: u64,
        from: &[u8],
        needed: Access,
    ) -> Result<(), AccessError> {
        let entry = self.entry_mut(key).ok_or(AccessError::UnknownKey(key))?;
        let offset = entry.offset(key, address, from.len() as u64, needed)?;
        entry.region.write(offset, from);
        Ok(())
    }

    /// Adds to a number, for the peer. Returns the number before.
    pub fn fetch_add(&mut self, key: Key, address: u64, add: u64) -> Result<u64, AccessError> {
        let entry = self.entry_mut(key).ok_or(AccessError::UnknownKey(key))?;
        let offset = entry.number(key, address)?;
        Ok(entry.region.fetch_add(offset, add))
    }

    /// Compares and swaps a number, for the peer. Returns the number before.
    pub fn compare_swap(
        &mut self,
        key: Key,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let entry = self.entry_mut(key).ok_or(AccessError::UnknownKey(key))?;
        let offset = entry.number(key, address)?;
        Ok(entry.region.compare_swap(offset, compare, swap))
    }

    fn entry(&self, key: Key) -> Option<&Entry<R>> {
        self.regions.get(&key)
    }

    fn entry_mut(&mut self, key: Key) -> Option<&mut Entry<R>> {
        self.regions.get_mut(&key)
    }
}

impl<R: Region> Entry<R> {
    /// The offset of an address in the region, if all bytes from there are in it and the right is given.
    fn offset(
        &self,
        key: Key,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<u64, AccessError> {
        if !self.access.contains(needed) {
            return Err(AccessError::Denied { key, needed });
        }
        address
            .checked_sub(self.base)
            .filter(|offset| {
                offset
                    .checked_add(length)
                    .is_some_and(|end| end <= self.region.len())
            })
            .ok_or(AccessError::OutOfBounds {
                key,
                address,
                length,
            })
    }

    /// The offset of a number for atomic operations.
    fn number(&self, key: Key, address: u64) -> Result<u64, AccessError> {
        let offset = self.offset(key, address, 8, Access::REMOTE_ATOMIC)?;
        if !address.is_multiple_of(8) || !offset.is_multiple_of(8) {
            return Err(AccessError::Misaligned { address });
        }
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn domain(base: u64, access: Access) -> (ProtectionDomain<Vec<u8>>, Key) {
        let mut domain = ProtectionDomain::new();
        let key = domain.register(Key(7), vec![0; 64], base, access).unwrap();
        (domain, key)
    }

    #[test]
    fn bounds_are_the_regions() {
        let (mut domain, key) = domain(0x1000, Access::ALL);
        domain
            .write(key, 0x1000 + 60, &[1; 4], Access::REMOTE_WRITE)
            .unwrap();
        assert_eq!(domain.region(key).unwrap()[60..], [1; 4]);
        for (address, length) in [
            (0xfff, 1),
            (0x1000 + 61, 4),
            (0x1000 + 64, 1),
            (u64::MAX, 1),
            (0x1000, u64::MAX),
        ] {
            assert_eq!(
                domain.check(key, address, length, Access::REMOTE_WRITE),
                Err(AccessError::OutOfBounds {
                    key,
                    address,
                    length
                })
            );
        }
        // Nothing at the end is still inside.
        assert_eq!(domain.check(key, 0x1000 + 64, 0, Access::NONE), Ok(()));
    }

    #[test]
    fn zero_based_addresses_are_offsets() {
        let (mut domain, key) = domain(0, Access::ALL);
        domain.write(key, 8, &[7], Access::REMOTE_WRITE).unwrap();
        let mut byte = [0];
        domain.read(key, 8, &mut byte, Access::REMOTE_READ).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn rights_are_asked_for_one_by_one() {
        let (mut domain, key) = domain(0, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let needed = Access::REMOTE_WRITE;
        let denied = Err(AccessError::Denied { key, needed });
        assert_eq!(domain.write(key, 0, &[1], needed), denied);
        assert_eq!(domain.write(key, 0, &[1], Access::LOCAL_WRITE), Ok(()));
        let needed = Access::REMOTE_ATOMIC;
        let denied = Err(AccessError::Denied { key, needed });
        assert_eq!(domain.fetch_add(key, 0, 1), denied);
        assert_eq!(domain.compare_swap(key, 0, 1, 2), denied);
    }

    #[test]
    fn a_key_dies_with_its_region() {
        let (mut domain, old) = domain(0, Access::ALL);
        assert_eq!(domain.deregister(old), Some(vec![0; 64]));
        assert_eq!(domain.deregister(old), None);
        let new = Key(8);
        domain.register(new, vec![0; 8], 0, Access::ALL).unwrap();
        let check = domain.check(old, 0, 1, Access::NONE);
        assert_eq!(check, Err(AccessError::UnknownKey(old)));
        assert_eq!(domain.deregister(old), None);
        assert_eq!(domain.check(new, 0, 8, Access::ALL), Ok(()));
    }

    #[test]
    fn what_cannot_be_registered() {
        let mut domain = ProtectionDomain::new();
        assert_eq!(
            domain.register(Key(1), vec![0; 8], 0, Access::REMOTE_WRITE),
            Err(RegisterError::NeedsLocalWrite)
        );
        let (base, length) = (u64::MAX - 4, 8);
        assert_eq!(
            domain.register(Key(1), vec![0; 8], base, Access::ALL),
            Err(RegisterError::TooLong { base, length })
        );
        assert!(domain.is_empty());
        for expected in [Ok(Key(1)), Err(RegisterError::Taken(Key(1)))] {
            assert_eq!(
                domain.register(Key(1), vec![0; 8], 0, Access::ALL),
                expected
            );
        }
        assert_eq!(domain.len(), 1);
    }

    #[test]
    fn atomics_return_what_was_there() {
        let (mut domain, key) = domain(0, Access::ALL);
        assert_eq!(domain.fetch_add(key, 8, u64::MAX), Ok(0));
        assert_eq!(domain.fetch_add(key, 8, 2), Ok(u64::MAX));
        assert_eq!(domain.compare_swap(key, 8, 5, 9), Ok(1));
        assert_eq!(domain.compare_swap(key, 8, 1, 9), Ok(1));
        assert_eq!(domain.fetch_add(key, 8, 0), Ok(9));
        assert_eq!(
            domain.fetch_add(key, 12, 1),
            Err(AccessError::Misaligned { address: 12 })
        );
    }

    proptest! {
        /// A region would panic if it were called out of its bounds.
        #[test]
        fn no_access_leaves_the_region(base: u64, address: u64, near in 0u64..80, length in 0usize..80) {
            let mut domain = ProtectionDomain::new();
            let Ok(key) = domain.register(Key(1), vec![0; 64], base, Access::ALL) else { return Ok(()) };
            for address in [address, base.wrapping_add(near), base.wrapping_sub(near)] {
                let mut bytes = vec![1; length];
                let inside = u128::from(address) >= u128::from(base)
                    && u128::from(address) + length as u128 <= u128::from(base) + 64;
                prop_assert_eq!(domain.read(key, address, &mut bytes, Access::REMOTE_READ).is_ok(), inside);
                prop_assert_eq!(domain.write(key, address, &bytes, Access::REMOTE_WRITE).is_ok(), inside);
            }
        }
    }
}
