//! What happens to a device at no request's end.

use crate::{context::Context, error::VerbsError, ffi};

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
    /// The next asynchronous event, if one is there; the context's descriptor is readable then.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: the context is open, and the second argument a place for an event.
        let code =
            unsafe { (self.library().verbs.ibv_get_async_event)(self.as_ptr(), &raw mut event) };
        if code != 0 {
            let error = VerbsError::last("ibv_get_async_event", self.name());
            return match error.errno() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let told = self.told(&event);
        // SAFETY: the event is the one that was got, and is acknowledged once. What it points to is not used after.
        unsafe { (self.library().verbs.ibv_ack_async_event)(&raw mut event) }
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
}
