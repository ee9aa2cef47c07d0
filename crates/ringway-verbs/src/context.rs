//! A device that is open.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    device::List,
    error::VerbsError,
    ffi,
    gid::{Gid, GidEntry, GidKind},
    library::Library,
    mtu::Mtu,
};

/// An open device.
///
/// What is made on it holds it, so it is closed after all that. All operations may be called from any thread: the
/// library locks its objects.
pub struct Context {
    raw: NonNull<ffi::ibv_context>,
    library: Arc<Library>,
    name: String,
}

// SAFETY: libibverbs' objects may be used from any thread; the library locks what it must.
unsafe impl Send for Context {}
// SAFETY: as for Send.
unsafe impl Sync for Context {}

/// What a device can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in a queue of a queue pair.
    pub queue_depth: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// READ and atomic requests of a queue pair on their way, as the one who answers.
    pub reads_answered: u8,
    /// READ and atomic requests of a queue pair on their way, as the one who asks.
    pub reads_asked: u8,
    /// Bytes of a region.
    pub region: u64,
    /// Regions.
    pub regions: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Whether atomic operations are carried out.
    pub atomics: bool,
    /// Ports, numbered from 1.
    pub ports: u8,
}

/// A port's state and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether it can carry data.
    pub active: bool,
    /// Whether it is an Ethernet port, so that connections are RoCE.
    pub ethernet: bool,
    /// The MTU that it has now.
    pub mtu: Mtu,
    /// The largest message in bytes.
    pub max_message: u32,
    /// How many entries the table of GIDs has, holes included.
    pub gid_count: u32,
}

impl Context {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// If there is none, or its device node may not be opened.
    pub fn open(library: &Arc<Library>, name: &str) -> Result<Arc<Self>, VerbsError> {
        let list = List::get(library)?;
        let Some(device) = list.each().find(|&device| list.name(device) == name) else {
            let names: Vec<_> = list.each().map(|device| list.name(device)).collect();
            return Err(VerbsError::NoDevice {
                wanted: name.to_owned(),
                found: if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                },
            });
        };
        // SAFETY: the device is of the list, which is freed after this.
        let raw = unsafe { (library.verbs.ibv_open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_open_device", name));
        };
        let context = Self {
            raw,
            library: Arc::clone(library),
            name: name.to_owned(),
        };
        rustix::fs::fcntl_setfl(context.as_fd(), rustix::fs::OFlags::NONBLOCK).map_err(
            |errno| VerbsError::Call {
                call: "fcntl",
                place: name.to_owned(),
                source: errno.into(),
            },
        )?;
        Ok(Arc::new(context))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library that it was opened with.
    pub const fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// The library's object, for what this crate doesn't wrap. It lives as long as the context.
    pub const fn as_ptr(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    /// The operations of the fast path.
    pub(crate) const fn ops(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the context is open. The table is filled while opening and not written after.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// What the device can do at most.
    ///
    /// # Errors
    /// If the kernel doesn't say.
    pub fn limits(&self) -> Result<Limits, VerbsError> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the context is open, and the second argument a place for the attributes.
        let code =
            unsafe { (self.library.verbs.ibv_query_device)(self.as_ptr(), &raw mut attributes) };
        VerbsError::check(code, "ibv_query_device", &self.name)?;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let small = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Limits {
            queue_depth: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
            reads_answered: small(attributes.max_qp_rd_atom),
            reads_asked: small(attributes.max_qp_init_rd_atom),
            region: attributes.max_mr_size,
            regions: count(attributes.max_mr),
            queue_pairs: count(attributes.max_qp),
            atomics: attributes.atomic_cap != 0,
            ports: attributes.phys_port_cnt,
        })
    }

    /// State and limits of a port.
    ///
    /// # Errors
    /// If there is no such port, or its MTU is none that is known.
    pub fn port(&self, port: u8) -> Result<Port, VerbsError> {
        // The library's function writes the structure up to, and without, `port_cap_flags2`; the rest stays zero.
        let mut attributes = ffi::ibv_port_attr::default();
        // SAFETY: the context is open, and the last argument a place for at least what is written.
        let code = unsafe {
            (self.library.verbs.ibv_query_port)(self.as_ptr(), port, &raw mut attributes)
        };
        VerbsError::check(code, "ibv_query_port", self.place(port))?;
        let Some(mtu) = Mtu::from_code(attributes.active_mtu) else {
            return Err(VerbsError::Unknown {
                place: self.place(port),
                what: "the MTU code",
                value: attributes.active_mtu.to_string(),
                expected: "1 to 5",
            });
        };
        Ok(Port {
            active: attributes.state == ffi::IBV_PORT_ACTIVE,
            ethernet: attributes.link_layer == ffi::IBV_LINK_LAYER_ETHERNET,
            mtu,
            max_message: attributes.max_msg_sz,
            gid_count: u32::try_from(attributes.gid_tbl_len).unwrap_or(0),
        })
    }

    /// The entry of a port's table of GIDs; `None` for a hole.
    ///
    /// # Errors
    /// If the type of the entry is none that is known.
    pub fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        let mut entry = ffi::ibv_gid_entry::default();
        // SAFETY: the context is open, and the fourth argument a place of the size that the last one says.
        let code = unsafe {
            (self.library.verbs._ibv_query_gid_ex)(
                self.as_ptr(),
                port.into(),
                index,
                &raw mut entry,
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        // ENODATA for an empty entry; EINVAL for one of another network namespace, or past the table's end.
        let gid = Gid(entry.gid.raw);
        if code != 0 || gid.is_zero() {
            return Ok(None);
        }
        let kind = match entry.gid_type {
            ffi::IBV_GID_TYPE_IB => GidKind::Infiniband,
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            other => {
                return Err(VerbsError::Unknown {
                    place: self.place(port),
                    what: "the GID type",
                    value: other.to_string(),
                    expected: "0 to 2",
                });
            }
        };
        Ok(Some(GidEntry {
            index,
            gid,
            kind,
            netdev: interface_name(entry.ndev_ifindex),
        }))
    }

    /// A port's table of GIDs, without holes.
    ///
    /// # Errors
    /// As of [`Context::port`] and [`Context::gid`].
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let mut table = Vec::new();
        for index in 0..self.port(port)?.gid_count {
            table.extend(self.gid(port, index)?);
        }
        Ok(table)
    }

    fn place(&self, port: u8) -> String {
        format!("{} port {port}", self.name)
    }
}

/// The name of the network interface with this number; 0 is none.
fn interface_name(number: u32) -> Option<String> {
    if number == 0 {
        return None;
    }
    let any = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    );
    rustix::net::netdevice::index_to_name(any.ok()?, number).ok()
}

/// The descriptor that is readable when there is an asynchronous event.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: the descriptor is open for as long as the context is, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name).finish()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made on the context holds an `Arc` of it, so nothing uses it any more.
        let code = unsafe { (self.library.verbs.ibv_close_device)(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.name, code, "the device could not be closed");
        }
    }
}
