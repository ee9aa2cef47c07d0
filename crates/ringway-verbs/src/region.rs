//! Registered memory.

use std::{
    fmt,
    marker::PhantomData,
    ops::{BitOr, Range},
    os::fd::{AsFd, AsRawFd as _},
    ptr::NonNull,
    sync::Arc,
};

use ringway_sys::Memory;

use crate::{domain::ProtectionDomain, error::VerbsError, ffi, memlock::Memlock};

/// What the device may do with a region besides reading it for requests of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(i32);

impl Access {
    /// Nothing more.
    pub const LOCAL_READ: Self = Self(0);
    /// Write what arrives for this side's receives, READs and atomics.
    pub const LOCAL_WRITE: Self = Self(ffi::IBV_ACCESS_LOCAL_WRITE);
    /// Carry out the peers' WRITEs. Needs `LOCAL_WRITE` too.
    pub const REMOTE_WRITE: Self = Self(ffi::IBV_ACCESS_REMOTE_WRITE);
    /// Carry out the peers' READs.
    pub const REMOTE_READ: Self = Self(ffi::IBV_ACCESS_REMOTE_READ);
    /// Carry out the peers' atomics. Needs `LOCAL_WRITE` too.
    pub const REMOTE_ATOMIC: Self = Self(ffi::IBV_ACCESS_REMOTE_ATOMIC);
    /// Writes may become visible in another order than they were sent in, but before the completion that tells of
    /// them: faster on some hosts, and a hint only.
    pub const RELAXED_ORDERING: Self = Self(ffi::IBV_ACCESS_RELAXED_ORDERING);
    /// All of the above but the last.
    pub const ALL: Self = Self(
        ffi::IBV_ACCESS_LOCAL_WRITE
            | ffi::IBV_ACCESS_REMOTE_WRITE
            | ffi::IBV_ACCESS_REMOTE_READ
            | ffi::IBV_ACCESS_REMOTE_ATOMIC,
    );

    pub(crate) const fn bits(self) -> i32 {
        self.0
    }

    /// The rights of peers among these, which a queue pair must grant as well.
    pub(crate) const fn remote_bits(self) -> u32 {
        const REMOTE: i32 = ffi::IBV_ACCESS_REMOTE_WRITE
            | ffi::IBV_ACCESS_REMOTE_READ
            | ffi::IBV_ACCESS_REMOTE_ATOMIC;
        (self.0 & REMOTE) as u32
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Registered memory. Dropping it takes the registration back, as [`Region::deregister`] does: the device has stopped using
/// the memory then, and requests that still name it end with an error.
pub struct Region {
    raw: NonNull<ffi::ibv_mr>,
    /// Whether `raw` is there still.
    registered: bool,
    memory: Memory,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs' objects may be used from any thread, and `Memory` is `Send` and `Sync`.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

/// Where in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// The address in the peer's process.
    pub address: u64,
    /// The region's key.
    pub key: u32,
}

/// A part of registered memory, for requests of this side. The device checks that the key is a region's and that the
/// part lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local<'a> {
    address: u64,
    len: u32,
    key: u32,
    region: PhantomData<&'a ()>,
}

impl Local<'static> {
    /// By address, length in bytes and local key, of a region that the caller keeps by other means. Should the region be
    /// gone when the device looks, the request fails.
    pub const fn of_key(address: u64, len: u32, key: u32) -> Self {
        Self {
            address,
            len,
            key,
            region: PhantomData,
        }
    }
}

impl Local<'_> {
    pub(crate) const fn address(self) -> u64 {
        self.address
    }

    pub(crate) const fn len(self) -> u32 {
        self.len
    }

    pub(crate) const fn key(self) -> u32 {
        self.key
    }
}

impl Region {
    /// Registers memory. The region keeps the handle, whose promise (see [`Memory::new`]) so covers all that the device
    /// and the peers do with the memory until the region is dropped.
    ///
    /// Pinning takes time (about 0.1 ms a MiB): register once, not per message. Where fork safety is
    /// [`Enabled`](crate::ForkSafety::Enabled), whole pages are withheld from children.
    ///
    /// # Errors
    /// If the limit of locked memory is too low, which is looked at first, or the device refuses.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        memory: Memory,
        access: Access,
    ) -> Result<Self, VerbsError> {
        Memlock::of_process().check(memory.len() as u64)?;
        let verbs = &domain.context().library().verbs;
        let address = memory.as_ptr().cast();
        let raw = if access.bits() & ffi::IBV_ACCESS_RELAXED_ORDERING == 0 {
            // SAFETY: the domain is alive; the memory is valid by its handle's promise until the region is dropped.
            unsafe { (verbs.ibv_reg_mr)(domain.as_ptr(), address, memory.len(), access.bits()) }
        } else {
            // Optional rights go through this function, which drops those that the device doesn't know.
            let start = address.addr() as u64;
            let bits = access.bits().cast_unsigned();
            // SAFETY: as above.
            unsafe { (verbs.ibv_reg_mr_iova2)(domain.as_ptr(), address, memory.len(), start, bits) }
        };
        Self::made(raw, "ibv_reg_mr", domain, memory)
    }

    /// Registers device memory (of a GPU) that a driver has exported as a dma-buf: `len` bytes from `offset` in it. The
    /// peers address it from 0 on. It has no address here, so only the device reaches it.
    ///
    /// Never run against hardware; the call is tested against a stand-in for the library.
    ///
    /// # Errors
    /// If the library is older than rdma-core 34, or the device refuses.
    pub fn register_dmabuf(
        domain: &Arc<ProtectionDomain>,
        dmabuf: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let Some(register) = domain.context().library().verbs.ibv_reg_dmabuf_mr else {
            return Err(VerbsError::Call {
                call: CALL,
                place: domain.context().name().to_owned(),
                source: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            });
        };
        let fd = dmabuf.as_fd().as_raw_fd();
        // SAFETY: the domain is alive. The kernel checks the descriptor and keeps the buffer until deregistration.
        let raw = unsafe { register(domain.as_ptr(), offset, len, 0, fd, access.bits()) };
        Self::made(raw, CALL, domain, Memory::EMPTY)
    }

    fn made(
        raw: *mut ffi::ibv_mr,
        call: &'static str,
        domain: &Arc<ProtectionDomain>,
        memory: Memory,
    ) -> Result<Self, VerbsError> {
        let raw =
            NonNull::new(raw).ok_or_else(|| VerbsError::last(call, domain.context().name()))?;
        Ok(Self {
            raw,
            registered: true,
            memory,
            domain: Arc::clone(domain),
        })
    }

    /// The memory.
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// The key that requests of this side name it by.
    pub const fn local_key(&self) -> u32 {
        // SAFETY: the region is registered; the library doesn't change the key.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key that requests of peers name it by.
    pub const fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The place of byte `offset`, to be told to peers.
    pub fn remote_place(&self, offset: usize) -> RemotePlace {
        let start = if self.memory.is_empty() {
            0 // a dma-buf is addressed from 0 on
        } else {
            self.memory.as_ptr().addr()
        };
        RemotePlace {
            address: (start + offset) as u64,
            key: self.remote_key(),
        }
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    /// If they are not within the region, or more than a request can move.
    pub fn local(&self, range: Range<usize>) -> Local<'_> {
        let memory = self.memory.slice(range);
        assert!(
            u32::try_from(memory.len()).is_ok(),
            "{} bytes in a request, expected {} at most",
            memory.len(),
            u32::MAX
        );
        Local {
            address: memory.as_ptr().addr() as u64,
            len: memory.len() as u32,
            key: self.local_key(),
            region: PhantomData,
        }
    }
}

impl Region {
    /// Takes the registration back, and says whether the device has agreed.
    ///
    /// # Errors
    /// If the device refuses: it may go on using the memory then, which has to stay valid until the device is closed.
    /// It does not happen unless memory windows are bound, of which this crate makes none, or the device is gone and so
    /// uses nothing.
    pub fn deregister(mut self) -> Result<(), VerbsError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), VerbsError> {
        self.registered = false;
        let context = self.domain.context();
        // SAFETY: the region is registered, and is deregistered once: by `deregister`, or else by `drop`, which looks at
        // whether it was. After either, nobody has it any more.
        let code = unsafe { (context.library().verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        VerbsError::check(code, "ibv_dereg_mr", context.name())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("memory", &self.memory)
            .field("local_key", &self.local_key())
            .field("remote_key", &self.remote_key())
            .finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.registered
            && let Err(error) = self.end()
        {
            tracing::error!("{error}");
        }
    }
}
