//! Floats to bytes and back.

use std::{ops::Range, slice};

/// The first byte of what a rank sends that has nothing to send. No compressor's bytes begin with it.
pub(crate) const POISON: u8 = 0xff;

/// Turns floats into fewer bytes, and back into floats that are about the same.
///
/// The first byte of an encoded vector is never 0xff: that is what a rank sends in place of gradients that are not finite.
pub trait Compressor: Send {
    /// The bytes of any encoded vector of so many elements; `None` if that depends on the elements.
    fn fixed_len(&self, elements: usize) -> Option<usize>;

    /// No encoded vector of so many elements has more bytes.
    fn most_len(&self, elements: usize) -> usize;

    /// Encodes `parts` of `vector`, which is finite, each apart, and appends them to `out`; subtracts from `vector` what
    /// [`Self::decode`] makes of them. What is chosen (the largest elements, say) is chosen over the whole vector. Of the same
    /// `noise` come the same bytes.
    fn encode(&mut self, vector: &mut [f32], parts: &[Range<usize>], noise: u64, out: &mut Encoded);

    /// Whether the bytes are an encoded vector of so many elements.
    ///
    /// # Errors
    /// They are not, and [`Self::decode`] would say so.
    fn check(&self, bytes: &[u8], elements: usize) -> Result<(), DecodeError>;

    /// Decodes one encoded vector, as long as `vector`.
    ///
    /// # Errors
    /// The bytes are no such vector; what `vector` then holds is not specified.
    fn decode(&self, bytes: &[u8], vector: &mut [f32], load: Load) -> Result<(), DecodeError>;
}

/// What becomes of decoded elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Times this, they take the place of the vector's.
    Replace(f32),
    /// They are added to the vector's.
    Add,
}

/// Encoded vectors, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Where each vector ends.
    ends: Vec<usize>,
}

impl Encoded {
    /// None.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Ends a vector: bytes from here on are another's.
    pub fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of each.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let start = |i: usize| i.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |i| &self.bytes[start(i)..self.ends[i]])
    }
}

/// The bytes are no encoded vector of this codec and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are too few, or too many.
    #[error("{found} bytes; expected {expected}")]
    Length {
        /// By what the bytes say of themselves.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{field} is {value}; expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
}

/// Reads little-endian numbers from the front of bytes.
pub(crate) struct Reader<'a>(slice::Iter<'a, u8>, usize);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.iter(), bytes.len())
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.0.as_slice();
        let Some((front, rest)) = left.split_at_checked(len) else {
            let read = self.1 - left.len();
            return Err(DecodeError::Length {
                expected: read.saturating_add(len),
                found: self.1,
            });
        };
        self.0 = rest.iter();
        Ok(front)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        let (low, high) = (self.u32()?, self.u32()?);
        Ok(u64::from(low) | u64::from(high) << 32)
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        let left = self.0.len();
        if left == 0 {
            Ok(())
        } else {
            Err(DecodeError::Length {
                expected: self.1 - left,
                found: self.1,
            })
        }
    }
}
