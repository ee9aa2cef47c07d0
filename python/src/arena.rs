//! Memory that the ranks of a host share, as an object of the buffer protocol.

use std::{ffi::c_int, ptr};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

use crate::{guard::Guarded, kind::Kind};

/// Elements in memory that the ranks of this host reach without a copy.
#[pyclass(frozen, module = "ringway._ringway")]
pub(crate) struct ArenaBuffer {
    buffer: Guarded<ringway::ArenaBuffer<u8>>,
    kind: Kind,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl ArenaBuffer {
    /// `buffer` as elements of `kind`.
    pub(crate) fn new(buffer: ringway::ArenaBuffer<u8>, kind: Kind) -> Self {
        let size = kind.size();
        let count = (buffer.len() / size).cast_signed();
        Self {
            buffer: Guarded::new(buffer),
            kind,
            shape: [count],
            strides: [size.cast_signed()],
        }
    }
}

#[pymethods]
impl ArenaBuffer {
    fn __len__(&self) -> usize {
        self.shape[0].cast_unsigned()
    }

    /// Whether peers on this host reach the memory; without shared memory it is ordinary.
    #[getter]
    fn is_shared(&self) -> bool {
        self.buffer.is_shared()
    }

    fn __repr__(&self) -> String {
        format!(
            "ArenaBuffer({}, dtype={:?})",
            self.shape[0],
            self.kind.name()
        )
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        _flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let this = slf.get();
        let filled = ffi::Py_buffer {
            buf: this.buffer.handle().as_ptr().cast(),
            // The view owns a reference, so that shape, strides and memory outlive it.
            obj: slf.clone().into_ptr(),
            len: this.buffer.len().cast_signed(),
            itemsize: this.strides[0],
            readonly: 0,
            ndim: 1,
            format: this.kind.format().as_ptr().cast_mut(),
            shape: this.shape.as_ptr().cast_mut(),
            strides: this.strides.as_ptr().cast_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        };
        // SAFETY: the interpreter hands over a view that is valid for writes. All that it points to belongs to the object
        // that it now has a reference to, which is frozen.
        unsafe { view.write(filled) };
        Ok(())
    }
}
