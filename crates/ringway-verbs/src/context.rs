//! Devices, and one that is open.

use std::{
    ffi::CStr,
    fmt,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    error::VerbsError,
    ffi,
    gid::{Gid, GidEntry, GidKind},
    library::Library,
    mtu::Mtu,
};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The name, as `ibv_devices` shows it.
    pub name: String,
    /// The globally unique identifier.
    pub guid: u64,
}

/// The list of devices as the library has it, given back when it is dropped.
struct List<'a> {
    library: &'a Library,
    devices: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl<'a> List<'a> {
    fn get(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is a place for an integer.
        let devices = unsafe { (library.verbs.ibv_get_device_list)(&raw mut count) };
        let Some(devices) = NonNull::new(devices) else {
            let error = VerbsError::last("ibv_get_device_list", "this machine");
            // A kernel without RDMA: as good as one without devices.
            if error.errno() == Some(libc::ENOSYS) {
                return Ok(Self {
                    library,
                    devices: NonNull::dangling(),
                    count: 0,
                });
            }
            return Err(error);
        };
        Ok(Self {
            library,
            devices,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn each(&self) -> impl Iterator<Item = *mut ffi::ibv_device> {
        let devices: &[*mut ffi::ibv_device] = match self.count {
            0 => &[],
            // SAFETY: the library's array has `count` entries and lives until the list is freed, which `drop` does.
            count => unsafe { std::slice::from_raw_parts(self.devices.as_ptr(), count) },
        };
        devices.iter().copied()
    }

    fn name(&self, device: *mut ffi::ibv_device) -> String {
        // SAFETY: the device is of the list, which is not freed.
        let name = unsafe { (self.library.verbs.ibv_get_device_name)(device) };
        // SAFETY: the library returns a C string within the device.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if self.devices != NonNull::dangling() {
            // SAFETY: the list is from the library and is freed once.
            unsafe { (self.library.verbs.ibv_free_device_list)(self.devices.as_ptr()) }
        }
    }
}

/// The devices of this machine that the library has a driver for, in the kernel's order.
///
/// # Errors
/// If the kernel's list cannot be read. A kernel without RDMA has no devices.
pub fn devices(library: &Library) -> Result<Vec<DeviceName>, VerbsError> {
    let list = List::get(library)?;
    let named = list.each().map(|device| DeviceName {
        name: list.name(device),
        // SAFETY: the device is of the list, which is not freed.
        guid: u64::from_be(unsafe { (library.verbs.ibv_get_device_guid)(device) }),
    });
    Ok(named.collect())
}

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

/// Something that happened to a device at no request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port cannot carry data any more. Requests end by time-out unless it comes back.
    PortDown(u8),
    /// The port can carry data again.
    PortUp(u8),
    /// The port's table of GIDs has changed: indices found before are void.
    GidChange(u8),
    /// The queue pair of this number has failed and carries nothing more.
    QueuePairFatal(u32),
    /// The queue pair of this number got a request that it refused.
    QueuePairRefused(u32),
    /// A completion queue ran over: its completions are lost.
    CompletionQueueOverrun,
    /// The device has failed as a whole.
    DeviceFatal,
    /// Another event, by its number in `enum ibv_event_type`; none of those concern this crate's objects.
    Other(u32),
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

    /// The next asynchronous event, if one is there; the context's descriptor is readable then.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: the context is open, and the second argument a place for an event.
        let code =
            unsafe { (self.library.verbs.ibv_get_async_event)(self.as_ptr(), &raw mut event) };
        if code != 0 {
            let error = VerbsError::last("ibv_get_async_event", &self.name);
            return match error.errno() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let told = self.told(&event);
        // SAFETY: the event is the one that was got, and is acknowledged once. What it points to is not used after.
        unsafe { (self.library.verbs.ibv_ack_async_event)(&raw mut event) }
        Ok(Some(told))
    }

    /// An event in our words. It must not have been acknowledged: until then, the library keeps the object that it
    /// points to.
    fn told(&self, event: &ffi::ibv_async_event) -> AsyncEvent {
        // The element is a union of pointers and the port's number, an `int`, in its low bytes.
        let port = (event.element.addr() & 0xff) as u8;
        let number = || {
            let pair = event.element.cast::<ffi::ibv_qp>();
            // SAFETY: for these events the element is a queue pair, which ibv_destroy_qp does not free before the event
            // is acknowledged.
            unsafe { (*pair).qp_num }
        };
        match event.event_type {
            ffi::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
            ffi::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp(port),
            ffi::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port),
            ffi::IBV_EVENT_QP_FATAL => AsyncEvent::QueuePairFatal(number()),
            ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => {
                AsyncEvent::QueuePairRefused(number())
            }
            ffi::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueOverrun,
            ffi::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            other => AsyncEvent::Other(other),
        }
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
