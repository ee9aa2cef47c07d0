//! Numbers at fixed places of a message.

use std::net::Ipv6Addr;

/// What a management datagram carries after its header.
pub(super) const BODY: usize = 232;

/// The body of a message. All offsets are constants of this module's users, and in it.
pub(super) struct Fields<B>(pub(super) B);

impl Fields<&[u8; BODY]> {
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    pub(super) const fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    /// Three bytes.
    pub(super) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at)) >> 8
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn gid(&self, at: usize) -> Ipv6Addr {
        self.bytes(at).into()
    }
}

impl Fields<[u8; BODY]> {
    pub(super) const fn zero() -> Self {
        Self([0; BODY])
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Three bytes, and one after them.
    pub(super) fn put_u24_u8(&mut self, at: usize, long: u32, short: u8) {
        self.put(at, &(long << 8 | u32::from(short)).to_be_bytes());
    }
}
