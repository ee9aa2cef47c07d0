//! Memory that is registered with an RDMA device, so that messages come from it and go to it without a copy.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
};

use ringway_link::RegisteredMemory;
use ringway_sys::Memory;

use crate::{
    Buffer, Communicator, Error,
    buffer::{elements, elements_mut},
    engine::{Engine, lock},
};

/// Keeps memory registered for as long as it lives.
///
/// Operations that are under way when it is dropped go on. The memory must be valid until then: who leaks this (with
/// [`std::mem::forget`]) must not free the memory either.
pub struct Registration {
    engine: Weak<Engine>,
    memory: Memory,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.memory).finish()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // With the engine goes its transport, and with that the device.
        if let Some(engine) = self.engine.upgrade() {
            lock(&engine.driver).transport.deregister(self.memory);
        }
    }
}

/// A buffer that is registered, see [`Communicator::register`]. It can be used like the buffer itself, but neither grow nor
/// shrink.
#[derive(Debug)]
pub struct Registered<B> {
    /// Before the buffer: it ends first.
    registration: Registration,
    memory: Memory,
    buffer: B,
}

impl<B: Buffer> Registered<B> {
    /// The buffer, which is not registered any more.
    pub fn into_inner(self) -> B {
        drop(self.registration);
        self.buffer
    }
}

impl<B: Buffer> Deref for Registered<B> {
    type Target = [B::Element];

    fn deref(&self) -> &[B::Element] {
        elements(&self.buffer, self.memory)
    }
}

impl<B: Buffer> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [B::Element] {
        elements_mut(&mut self.buffer, self.memory)
    }
}

impl Communicator {
    /// Registers a buffer with the RDMA device that carries this job's messages: once, for all operations that use it or parts
    /// of it. Long messages are then sent from there and received there without a copy. Where no messages go over RDMA, it
    /// does nothing.
    ///
    /// ```no_run
    /// # let comm = ringway::init()?;
    /// let mut gradients = comm.register(vec![0_f32; 1 << 20])?;
    /// comm.all_reduce(&mut gradients, ringway::ReduceOp::Average)?;
    /// # Ok::<(), ringway::Error>(())
    /// ```
    ///
    /// Buffers of [`Communicator::allocate`] are registered already.
    ///
    /// # Errors
    /// If the system locks no more memory, with what raises the limit, or the setting `registered_limit` would be passed.
    pub fn register<B: Buffer>(&self, mut buffer: B) -> Result<Registered<B>, Error> {
        let memory = buffer.memory();
        let registration = self.register_memory(memory)?;
        Ok(Registered {
            registration,
            memory,
            buffer,
        })
    }

    /// Registers all buffers of a model, see [`Communicator::register`]: parameters, gradients, or the buckets that these are
    /// in.
    ///
    /// # Errors
    /// As [`Communicator::register`]; then none is registered.
    pub fn register_parameter_buffers<B: Buffer>(
        &self,
        buffers: impl IntoIterator<Item = B>,
    ) -> Result<Vec<Registered<B>>, Error> {
        buffers
            .into_iter()
            .map(|buffer| self.register(buffer))
            .collect()
    }

    /// Like [`Communicator::register`], for memory by its handle. It must be valid until the registration is dropped.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn register_memory(&self, memory: Memory) -> Result<Registration, Error> {
        let engine = self.engine();
        lock(&engine.driver)
            .transport
            .register(memory)
            .map_err(|error| Error::Memory(error.to_string()))?;
        Ok(Registration {
            engine: Arc::downgrade(engine),
            memory,
        })
    }

    /// What is registered with RDMA devices, over all communicators of this process's job.
    pub fn registered_memory(&self) -> RegisteredMemory {
        lock(&self.engine().driver).transport.registered()
    }
}
