//! Shared objects, loaded at run time.

use std::{
    ffi::{CStr, CString, c_void},
    path::{Path, PathBuf},
    ptr::NonNull,
};

use crate::library::LoadError;

/// A shared object that stays loaded: libibverbs' drivers keep addresses in it for as long as the process lives.
pub(crate) struct Object {
    handle: NonNull<c_void>,
    path: PathBuf,
    package: &'static str,
}

impl Object {
    pub(crate) fn open(path: &Path, package: &'static str) -> Result<Self, LoadError> {
        let missing = |reason: String| LoadError::Missing {
            library: path.to_owned(),
            reason,
            package,
        };
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| missing("its path contains a zero byte".to_owned()))?;
        // SAFETY: `name` is a C string. Initialisers of the object run, which is what loading a library means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(missing(linker_error()));
        };
        Ok(Self {
            handle,
            path: path.to_owned(),
            package,
        })
    }

    /// The address of a function, whose name ends with a zero byte.
    pub(crate) fn find(&self, symbol: &'static str) -> Option<NonNull<c_void>> {
        let symbol = CStr::from_bytes_with_nul(symbol.as_bytes()).ok()?;
        // SAFETY: the handle is that of a loaded object, and `symbol` is a C string.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }

    pub(crate) fn need(
        &self,
        symbol: &'static str,
        function: &'static str,
    ) -> Result<NonNull<c_void>, LoadError> {
        self.find(symbol).ok_or_else(|| LoadError::Function {
            library: self.path.clone(),
            function,
            package: self.package,
        })
    }
}

/// What the dynamic linker says of its last failure on this thread.
fn linker_error() -> String {
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker gives no reason".to_owned();
    }
    // SAFETY: not null, so a C string that is valid until the next call on this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
