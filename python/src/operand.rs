//! Objects of the buffer protocol (NumPy arrays, `array.array`, `memoryview`, arena buffers) as an operation's memory.

use pyo3::{buffer::PyUntypedBuffer, prelude::*};
use ringway::Memory;

use crate::{error::Class, kind::Kind};

/// An object's memory, pinned.
#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) kind: Kind,
    pub(crate) memory: Memory,
    /// Keeps the memory where it is.
    pub(crate) pin: PyUntypedBuffer,
}

/// What an operation does to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Operand {
    /// Pins the memory of `object`, an operation's `what`. With `kind`, its bytes are taken for elements of that kind.
    pub(crate) fn pin(
        object: &Bound<'_, PyAny>,
        what: &str,
        access: Access,
        kind: Option<Kind>,
    ) -> PyResult<Self> {
        let pin = PyUntypedBuffer::get(object).map_err(|error| {
            let class = object.get_type();
            Class::Argument.error(format!(
                "{what}: expected an object with the buffer protocol, such as a NumPy array, found {class}: {error}"
            ))
        })?;
        if !pin.is_c_contiguous() {
            return Err(Class::Argument.error(format!(
                "{what}: expected contiguous memory, found strides {:?} for shape {:?}; hand over a copy \
                 (numpy.ascontiguousarray)",
                pin.strides(),
                pin.shape()
            )));
        }
        if access == Access::Write && pin.readonly() {
            return Err(Class::Argument.error(format!(
                "{what} is read-only, and the operation writes to it"
            )));
        }
        let found = || Kind::of_format(pin.format(), pin.item_size());
        let kind = kind.or_else(found).ok_or_else(|| {
            Class::Argument.error(format!(
                "{what} has elements of format {:?}; expected numbers in this machine's byte order, or dtype=... to say \
                 what its bytes are",
                pin.format()
            ))
        })?;
        let bytes = pin.len_bytes();
        // SAFETY: the exporter guarantees the range until the pin is released, and whoever runs the operation keeps the pin
        // until it has ended. Bytes are touched through raw pointers only.
        let memory = unsafe { Memory::new(pin.buf_ptr().cast(), bytes) };
        if !bytes.is_multiple_of(kind.size()) {
            return Err(Class::Argument.error(format!(
                "{what} has {bytes} bytes, which is no multiple of the {} bytes of {}",
                kind.size(),
                kind.name()
            )));
        }
        Ok(Self { kind, memory, pin })
    }
}
