//! Protection domains.

use std::{fmt, ptr::NonNull, sync::Arc};

use crate::{context::Context, error::VerbsError, ffi};

/// What regions and queue pairs are of: a queue pair reaches the regions of its own domain only.
pub struct ProtectionDomain {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for Send.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    ///
    /// # Errors
    /// If the device has none left.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().verbs.ibv_alloc_pd)(context.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_alloc_pd", context.name()));
        };
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    /// The device.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) const fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.context.name())
            .finish()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold an `Arc` of the domain, so nothing uses it any more.
        let code = unsafe { (self.context.library().verbs.ibv_dealloc_pd)(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(
                device = self.context.name(),
                code,
                "a protection domain could not be freed"
            );
        }
    }
}
