//! What a codec is saved as: little-endian fields, one after the other.

use crate::{DecodeError, compressor::Reader};

/// Why a saved state is not this codec's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes are cut short, or none of these.
    #[error("a codec's state: {0}")]
    Malformed(#[from] DecodeError),
    /// It is another codec's.
    #[error("the state of a codec `{found}`; expected one of `{expected}`")]
    Other {
        /// What the codec is.
        expected: String,
        /// What the state is of.
        found: String,
    },
    /// It has another number of elements.
    #[error("a state of {found} elements; expected {expected}")]
    Length {
        /// Of the codec's tensors.
        expected: usize,
        /// Of the state.
        found: usize,
    },
}

pub(crate) fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    put_u64(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

pub(crate) fn put_floats(bytes: &mut Vec<u8>, values: &[f32]) {
    put_u64(bytes, values.len() as u64);
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
}

pub(crate) fn take_bytes<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = reader.u64()?;
    reader.bytes(usize::try_from(len).unwrap_or(usize::MAX))
}

/// As many floats as are there.
pub(crate) fn take_floats(reader: &mut Reader<'_>) -> Result<Vec<f32>, DecodeError> {
    let len = usize::try_from(reader.u64()?).unwrap_or(usize::MAX);
    let (floats, _) = reader.bytes(len.saturating_mul(4))?.as_chunks::<4>();
    Ok(floats.iter().map(|x| f32::from_le_bytes(*x)).collect())
}

/// Floats in place of `values`, of which there must be as many.
pub(crate) fn take_floats_into(
    reader: &mut Reader<'_>,
    values: &mut Vec<f32>,
) -> Result<(), StateError> {
    let found = take_floats(reader)?;
    if found.len() != values.len() {
        return Err(StateError::Length {
            expected: values.len(),
            found: found.len(),
        });
    }
    *values = found;
    Ok(())
}
