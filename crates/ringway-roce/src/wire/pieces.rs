//! A few bytes put together of parts, without an allocation.

/// At most `N` bytes.
pub(super) struct Pieces<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Pieces<N> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    /// Appends a part, for which `N` leaves room.
    pub(super) fn push(&mut self, part: &[u8]) {
        self.bytes[self.length..][..part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
