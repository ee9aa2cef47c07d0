//! libibverbs and librdmacm, found and loaded when they are first needed.
//!
//! Neither is linked: a machine without them runs everything else, and is told which package to install.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use libc::sockaddr;
use thiserror::Error;

use crate::{ffi, fork::ForkSafety, object::Object};

/// Why a library cannot be used.
#[derive(Clone, Debug, Error)]
pub enum LoadError {
    /// It is not there, or something that it needs is not.
    #[error("cannot load {library}: {reason}; install it with: apt-get install {package}")]
    Missing {
        /// The file that was looked for.
        library: PathBuf,
        /// What the dynamic linker says.
        reason: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// It lacks a function.
    #[error(
        "{library} has no function {function}: expected rdma-core 32 or newer; update it with: apt-get install {package}"
    )]
    Function {
        /// The file that was loaded.
        library: PathBuf,
        /// The function's name.
        function: &'static str,
        /// The Debian package that brings it.
        package: &'static str,
    },
}

/// Declares a table of functions that is filled from a library. Those with a `?` may be missing.
macro_rules! functions {
    ($(#[$meta:meta])* $table:ident {
        $( fn $name:ident ( $($arg:ty),* ) $(-> $out:ty)?; )*
        optional:
        $( fn $may:ident ( $($may_arg:ty),* ) $(-> $may_out:ty)?; )*
    }) => {
        $(#[$meta])*
        #[allow(missing_debug_implementations, reason = "a table of addresses shows nothing")]
        pub(crate) struct $table {
            $( pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $out)?, )*
            $( pub(crate) $may: Option<unsafe extern "C" fn($($may_arg),*) $(-> $may_out)?>, )*
        }

        impl $table {
            fn fill(object: &Object) -> Result<Self, LoadError> {
                Ok(Self {
                    $( $name: {
                        let address = object.need(concat!(stringify!($name), "\0"), stringify!($name))?;
                        // SAFETY: the library's function of this name has this type, by its header.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $out)?>(address.as_ptr()) }
                    }, )*
                    $( $may: object.find(concat!(stringify!($may), "\0")).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($may_arg),*) $(-> $may_out)?>(address.as_ptr()) }
                    }), )*
                })
            }
        }
    };
}

functions! {
    /// The functions of libibverbs that are used.
    Verbs {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ffi::ibv_device;
        fn ibv_free_device_list(*mut *mut ffi::ibv_device);
        fn ibv_get_device_name(*mut ffi::ibv_device) -> *const c_char;
        fn ibv_get_device_guid(*mut ffi::ibv_device) -> u64;
        fn ibv_open_device(*mut ffi::ibv_device) -> *mut ffi::ibv_context;
        fn ibv_close_device(*mut ffi::ibv_context) -> c_int;
        fn ibv_query_device(*mut ffi::ibv_context, *mut ffi::ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ffi::ibv_context, u8, *mut ffi::ibv_port_attr) -> c_int;
        fn ibv_get_async_event(*mut ffi::ibv_context, *mut ffi::ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ffi::ibv_async_event);
        fn ibv_alloc_pd(*mut ffi::ibv_context) -> *mut ffi::ibv_pd;
        fn ibv_dealloc_pd(*mut ffi::ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ffi::ibv_pd, *mut c_void, usize, c_int) -> *mut ffi::ibv_mr;
        fn ibv_dereg_mr(*mut ffi::ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ffi::ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ffi::ibv_context, c_int, *mut c_void, *mut ffi::ibv_comp_channel, c_int) -> *mut ffi::ibv_cq;
        fn ibv_destroy_cq(*mut ffi::ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ffi::ibv_comp_channel, *mut *mut ffi::ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ffi::ibv_cq, c_uint);
        fn ibv_create_qp(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
        fn ibv_destroy_qp(*mut ffi::ibv_qp) -> c_int;
        fn ibv_modify_qp(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int) -> c_int;
        fn ibv_query_qp(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int, *mut ffi::ibv_qp_init_attr) -> c_int;
        fn ibv_fork_init() -> c_int;
        fn _ibv_query_gid_ex(*mut ffi::ibv_context, u32, u32, *mut ffi::ibv_gid_entry, u32, usize) -> c_int; // rdma-core 32, the newest of these
        fn ibv_reg_mr_iova2(*mut ffi::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ffi::ibv_mr;
        optional:
        fn ibv_is_fork_initialized() -> c_uint; // rdma-core 35
        fn ibv_reg_dmabuf_mr(*mut ffi::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ffi::ibv_mr; // rdma-core 34
    }
}

functions! {
    /// The functions of librdmacm that are used.
    ConnectionManager {
        fn rdma_create_event_channel() -> *mut ffi::rdma_event_channel;
        fn rdma_destroy_event_channel(*mut ffi::rdma_event_channel);
        fn rdma_create_id(*mut ffi::rdma_event_channel, *mut *mut ffi::rdma_cm_id, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut ffi::rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut ffi::rdma_cm_id, *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(*mut ffi::rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut ffi::rdma_cm_id, c_int) -> c_int;
        fn rdma_listen(*mut ffi::rdma_cm_id, c_int) -> c_int;
        fn rdma_connect(*mut ffi::rdma_cm_id, *mut ffi::rdma_conn_param) -> c_int;
        fn rdma_establish(*mut ffi::rdma_cm_id) -> c_int;
        fn rdma_accept(*mut ffi::rdma_cm_id, *mut ffi::rdma_conn_param) -> c_int;
        fn rdma_reject(*mut ffi::rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut ffi::rdma_cm_id) -> c_int;
        fn rdma_get_cm_event(*mut ffi::rdma_event_channel, *mut *mut ffi::rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut ffi::rdma_cm_event) -> c_int;
        fn rdma_set_option(*mut ffi::rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_init_qp_attr(*mut ffi::rdma_cm_id, *mut ffi::ibv_qp_attr, *mut c_int) -> c_int;
        optional:
    }
}

/// A loaded libibverbs, and librdmacm once it is asked for.
pub struct Library {
    pub(crate) verbs: Verbs,
    cm_path: PathBuf,
    cm: OnceLock<Result<ConnectionManager, LoadError>>,
    fork: ForkSafety,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("fork", &self.fork)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// The libraries of the system, `libibverbs.so.1` and `librdmacm.so.1`, wherever the dynamic linker finds them
    /// (`LD_LIBRARY_PATH` puts others in their place). Loaded once in a process and never unloaded.
    ///
    /// # Errors
    /// If libibverbs is missing or too old.
    pub fn load() -> Result<Arc<Self>, LoadError> {
        static SYSTEM: OnceLock<Result<Arc<Library>, LoadError>> = OnceLock::new();
        SYSTEM
            .get_or_init(|| Self::open(Path::new("libibverbs.so.1"), Path::new("librdmacm.so.1")))
            .clone()
    }

    /// The libraries at these paths. Before anything else, registered memory is made safe against `fork` as far as
    /// the system can, see [`Library::fork_safety`].
    ///
    /// # Errors
    /// If `verbs` is missing or too old. `cm` is loaded when connection management is first used.
    pub fn open(verbs: &Path, cm: &Path) -> Result<Arc<Self>, LoadError> {
        let verbs = Verbs::fill(&Object::open(verbs, "libibverbs1 ibverbs-providers")?)?;
        let fork = ForkSafety::establish(&verbs);
        Ok(Arc::new(Self {
            verbs,
            cm_path: cm.to_owned(),
            cm: OnceLock::new(),
            fork,
        }))
    }

    /// What `fork` does to registered memory in this process.
    pub const fn fork_safety(&self) -> ForkSafety {
        self.fork
    }

    /// librdmacm's functions.
    pub(crate) fn cm(&self) -> Result<&ConnectionManager, LoadError> {
        self.cm
            .get_or_init(|| ConnectionManager::fill(&Object::open(&self.cm_path, "librdmacm1")?))
            .as_ref()
            .map_err(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = Library::open(Path::new("libnothing.so.7"), Path::new("x")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, LoadError::Missing { .. }));
        assert!(text.contains("libnothing.so.7: cannot open"), "{text}");
        assert!(text.contains("apt-get install libibverbs1"), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_named_with_the_first() {
        let error = Library::open(Path::new("libc.so.6"), Path::new("x")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("libc.so.6 has no function ibv_get_device_list"),
            "{text}"
        );
    }
}
