//! Registered memory: the user's, where it is registered, and otherwise buffers, made when first needed and then used again.
//! So a transport that runs registers nothing, but over a device that does so at once, which is told of each message's memory.

use ringway_sys::{Memory, Staging};

use super::registrations::Registrations;
use crate::{
    RegisterError, RegisteredMemory, Sink,
    rdma::{Access, Device, DeviceError, Local, Region, Remote},
};

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

/// Where a message is sent from, or received.
#[derive(Debug)]
pub(super) enum Lease {
    /// A buffer, between which and the user's memory it is copied.
    Buffer(Buffer),
    /// The user's memory itself: the number of its registration.
    InPlace(u32),
    /// The same, registered for this message alone.
    Passing(Region),
}

impl Lease {
    pub(super) const fn is_in_place(&self) -> bool {
        matches!(self, Self::InPlace(_) | Self::Passing(_))
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
    registrations: Registrations,
    /// What was registered for messages that have ended.
    spent: Vec<Region>,
    /// How often the device was asked to register something.
    calls: u64,
}

impl Pool {
    /// `limit` bytes of buffers at most, with what the device has allocated, and of the user's memory `registered_limit`.
    pub(super) fn new(limit: usize, registered_limit: usize) -> Self {
        Self {
            free: (0..usize::BITS).map(|_| Vec::new()).collect(),
            footprint: 0,
            limit,
            registrations: Registrations::new(registered_limit),
            spent: Vec::new(),
            calls: 0,
        }
    }

    /// A buffer of at least `len` bytes, for requests of this side and WRITEs of the peer's.
    pub(super) fn take(&mut self, device: &mut dyn Device, len: usize) -> Result<Buffer, NoBuffer> {
        let size = len.max(LEAST).next_power_of_two();
        if let Some(buffer) = self.free[size.trailing_zeros() as usize].pop() {
            return Ok(buffer);
        }
        // Checked before it is allocated: the length may be a peer's.
        let beside = size.saturating_add(device.footprint());
        if self.footprint.saturating_add(beside) > self.limit {
            self.shrink(device, beside);
        }
        let wanted = self.footprint.saturating_add(beside);
        if wanted > self.limit {
            return Err(NoBuffer::Limit(wanted, self.limit));
        }
        let staging = Staging::new(size);
        device.limit_footprint(self.limit - self.footprint - size);
        let region = device
            .register(staging.memory(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .map_err(NoBuffer::Device)?;
        self.footprint += size;
        self.calls += 1;
        Ok(Buffer { staging, region })
    }

    /// Somewhere to send `memory` from: it, if it is registered, or a copy of it.
    pub(super) fn source(
        &mut self,
        device: &mut dyn Device,
        memory: Memory,
    ) -> Result<(Lease, Local), NoBuffer> {
        if let Some(number) = self.registrations.lease(memory)
            && let Some(local) = self.registrations.local(number, memory)
        {
            return Ok((Lease::InPlace(number), local));
        }
        let len = memory.len();
        if device.limits().registers_at_once {
            let region = self.pass(device, memory, Access::NONE)?;
            return Ok((Lease::Passing(region), region.local(0..len as u64)));
        }
        let buffer = self.take(device, len)?;
        buffer.memory(len).copy_from(memory);
        let local = buffer.region.local(0..len as u64);
        Ok((Lease::Buffer(buffer), local))
    }

    /// Somewhere for a peer to write what goes to `sink`: there, if it is registered, or a buffer.
    pub(super) fn place(
        &mut self,
        device: &mut dyn Device,
        sink: Sink,
    ) -> Result<(Lease, Remote), NoBuffer> {
        if let Sink::Place(memory) = sink
            && let Some(number) = self.registrations.lease(memory)
            && let Some(remote) = self.registrations.remote(number, memory)
        {
            return Ok((Lease::InPlace(number), remote));
        }
        if let Sink::Place(memory) = sink
            && device.limits().registers_at_once
        {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let region = self.pass(device, memory, access)?;
            return Ok((Lease::Passing(region), region.remote(0)));
        }
        let buffer = self.take(device, sink.len())?;
        let remote = buffer.region.remote(0);
        Ok((Lease::Buffer(buffer), remote))
    }

    /// Takes back what no request, and no peer, will touch any more.
    pub(super) fn end(&mut self, lease: Lease) {
        match lease {
            Lease::Buffer(buffer) => self.give(buffer),
            Lease::InPlace(number) => self.registrations.end_lease(number),
            Lease::Passing(region) => self.spent.push(region),
        }
    }

    /// Registers the user's memory for one message.
    fn pass(
        &mut self,
        device: &mut dyn Device,
        memory: Memory,
        access: Access,
    ) -> Result<Region, NoBuffer> {
        self.forget_spent(device);
        device.register(memory, access).map_err(NoBuffer::Device)
    }

    fn forget_spent(&mut self, device: &mut dyn Device) {
        for region in self.spent.drain(..) {
            if let Err(error) = device.deregister(&region) {
                tracing::warn!("a message's memory stays registered: {error}");
            }
        }
    }

    /// Registers memory of the user's.
    pub(super) fn hold(
        &mut self,
        device: &mut dyn Device,
        memory: Memory,
    ) -> Result<(), RegisterError> {
        self.calls += u64::from(self.registrations.hold(device, memory)?);
        Ok(())
    }

    /// Ends a registration of the user's.
    pub(super) fn give_up(&mut self, device: &mut dyn Device, memory: Memory) {
        self.registrations.give_up(device, memory);
    }

    /// Ends the registrations that were given up while messages were under way, and those of messages that have ended.
    pub(super) fn settle(&mut self, device: &mut dyn Device) {
        self.forget_spent(device);
        self.registrations.settle(device);
    }

    /// What is registered of the user's memory, and how often the device was asked to register something.
    pub(super) const fn registered(&self) -> RegisteredMemory {
        let (bytes, regions) = self.registrations.total();
        RegisteredMemory {
            bytes,
            regions,
            registrations: self.calls,
        }
    }

    /// Takes back a buffer that no request, and no peer, will touch any more.
    pub(super) fn give(&mut self, buffer: Buffer) {
        self.free[buffer.staging.footprint().trailing_zeros() as usize].push(buffer);
    }

    /// Gives free buffers of other sizes back to the system until there is room for so many bytes, or none is left.
    fn shrink(&mut self, device: &mut dyn Device, bytes: usize) {
        for class in self.free.iter_mut().rev() {
            while self.footprint.saturating_add(bytes) > self.limit {
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
