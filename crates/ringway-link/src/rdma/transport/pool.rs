//! Registered memory: buffers for long messages, made when first needed and then used again, so that a transport that
//! runs registers nothing.

use ringway_sys::{Memory, Staging};

use crate::rdma::{Access, Device, DeviceError, Region};

/// The least size of a buffer: a page, as that is what devices register.
const LEAST: usize = 4096;

/// A piece of registered memory.
#[derive(Debug)]
pub(super) struct Buffer {
    staging: Staging,
    pub(super) region: Region,
}

impl Buffer {
    /// Its first `len` bytes.
    pub(super) fn memory(&self, len: usize) -> Memory {
        self.staging.memory().slice(0..len)
    }
}

/// Why there is no buffer.
#[derive(Debug)]
pub(super) enum NoBuffer {
    /// The limit would be passed: bytes wanted, and the limit.
    Limit(usize, usize),
    /// The device does not register it.
    Device(DeviceError),
}

/// All buffers of a transport.
#[derive(Debug)]
pub(super) struct Pool {
    /// Those that are free, by the logarithm of their size.
    free: Vec<Vec<Buffer>>,
    /// Bytes of all, free or not.
    footprint: usize,
    limit: usize,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            free: (0..usize::BITS).map(|_| Vec::new()).collect(),
            footprint: 0,
            limit,
        }
    }

    /// A buffer of at least `len` bytes, for requests of this side and WRITEs of the peer's.
    pub(super) fn take(&mut self, device: &mut dyn Device, len: usize) -> Result<Buffer, NoBuffer> {
        let size = len.max(LEAST).next_power_of_two();
        if let Some(buffer) = self.free[size.trailing_zeros() as usize].pop() {
            return Ok(buffer);
        }
        // Checked before it is allocated: the length may be a peer's.
        if self.footprint.saturating_add(size) > self.limit {
            self.shrink(device, size);
        }
        let wanted = self.footprint.saturating_add(size);
        if wanted > self.limit {
            return Err(NoBuffer::Limit(wanted, self.limit));
        }
        let staging = Staging::new(size);
        let region = device
            .register(staging.memory(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .map_err(NoBuffer::Device)?;
        self.footprint += size;
        Ok(Buffer { staging, region })
    }

    /// Takes back a buffer that no request, and no peer, will touch any more.
    pub(super) fn give(&mut self, buffer: Buffer) {
        self.free[buffer.staging.footprint().trailing_zeros() as usize].push(buffer);
    }

    /// Gives free buffers of other sizes back to the system until there is room for `size`, or none is left.
    fn shrink(&mut self, device: &mut dyn Device, size: usize) {
        for class in self.free.iter_mut().rev() {
            while self.footprint.saturating_add(size) > self.limit {
                let Some(buffer) = class.pop() else {
                    break;
                };
                if let Err(error) = device.deregister(&buffer.region) {
                    tracing::warn!("a buffer stays registered: {error}");
                }
                self.footprint -= buffer.staging.footprint();
            }
        }
    }

    /// Bytes of all buffers, free or not.
    pub(super) const fn footprint(&self) -> usize {
        self.footprint
    }
}
