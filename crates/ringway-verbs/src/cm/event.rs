//! Events of connection management.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
    time::Instant,
};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{CmId, ConnectionTerms};
use crate::{error::VerbsError, ffi, library::Library};

/// Where events of identifiers arrive.
pub struct EventChannel {
    raw: NonNull<ffi::rdma_event_channel>,
    library: Arc<Library>,
}

// SAFETY: librdmacm's objects may be used from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as for Send.
unsafe impl Sync for EventChannel {}

/// Tells identifiers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdToken(pub(super) usize);

/// What has happened.
#[derive(Debug)]
pub enum CmEventKind {
    /// The address is known, and so the device that reaches it.
    AddressResolved,
    /// The route is known.
    RouteResolved,
    /// Someone wants to connect, on this new identifier.
    ConnectRequest(CmId),
    /// The peer has accepted: make the queue pair ready, then establish.
    ConnectResponse,
    /// The connection stands.
    Established,
    /// The peer has disconnected, or is gone.
    Disconnected,
    /// No connection came about: address, route or peer are not there.
    Failed {
        /// Which step failed.
        step: &'static str,
        /// The system's error number, or for a rejection the reason's code (volume 1, 12.6.7.2).
        status: i32,
    },
    /// The device is being removed: drop everything on it.
    DeviceRemoval,
    /// Something that needs no answer, by its number in `enum rdma_cm_event_type`.
    Other(u32),
}

/// An event.
#[derive(Debug)]
pub struct CmEvent {
    /// The identifier that it is of; for a request, the one that listens.
    pub id: IdToken,
    /// What has happened.
    pub kind: CmEventKind,
    /// What the peer has sent along with a request, an answer or a rejection.
    pub private_data: Vec<u8>,
    /// What the peer proposes, with a request or an answer.
    pub terms: ConnectionTerms,
}

impl EventChannel {
    /// A new one.
    ///
    /// # Errors
    /// If librdmacm or the kernel's part of it is missing.
    pub fn new(library: &Arc<Library>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: no arguments.
        let raw = unsafe { (library.cm()?.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last(
                "rdma_create_event_channel",
                "/dev/infiniband/rdma_cm",
            ));
        };
        let channel = Self {
            raw,
            library: Arc::clone(library),
        };
        rustix::fs::fcntl_setfl(channel.as_fd(), rustix::fs::OFlags::NONBLOCK).map_err(
            |errno| VerbsError::Call {
                call: "fcntl",
                place: "/dev/infiniband/rdma_cm".to_owned(),
                source: errno.into(),
            },
        )?;
        Ok(Arc::new(channel))
    }

    /// The library that it was made with.
    pub const fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(super) const fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.raw.as_ptr()
    }

    /// The next event, if one is there.
    ///
    /// # Errors
    /// If the kernel's part is gone.
    pub fn take(self: &Arc<Self>) -> Result<Option<CmEvent>, VerbsError> {
        let cm = self.library.cm()?;
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive, and the second argument a place for a pointer.
        let code = unsafe { (cm.rdma_get_cm_event)(self.as_ptr(), &raw mut event) };
        if code != 0 {
            let error = VerbsError::last("rdma_get_cm_event", "the event channel");
            return match error.errno() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the library gave an event, which is valid until it is acknowledged.
        let given = unsafe { &*event };
        // SAFETY: as above.
        let told = unsafe { self.told(given) };
        // SAFETY: acknowledged once, and not used after. It has to be: destroying an identifier waits for it.
        unsafe { (cm.rdma_ack_cm_event)(event) };
        Ok(Some(told))
    }

    /// The next event, waiting for it until `deadline`.
    ///
    /// # Errors
    /// If none comes, or as of [`EventChannel::take`].
    pub fn wait(self: &Arc<Self>, deadline: Instant) -> Result<CmEvent, VerbsError> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.take()? {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::Deadline {
                    what: "an event of connection management".to_owned(),
                    milliseconds: start.elapsed().as_millis(),
                });
            }
            let mut fds = [PollFd::new(self, PollFlags::IN)];
            // A failure is a signal; whether there is an event is looked at again in any case.
            let _ = rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }

    /// An event in our words.
    ///
    /// # Safety
    /// It is one that the library gave and that was not acknowledged.
    unsafe fn told(self: &Arc<Self>, event: &ffi::rdma_cm_event) -> CmEvent {
        let failed = |step| CmEventKind::Failed {
            step,
            status: event.status,
        };
        let mut id = event.id;
        let mut tells_terms = false;
        let kind = match event.event {
            ffi::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            ffi::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            ffi::RDMA_CM_EVENT_CONNECT_REQUEST => match NonNull::new(event.id) {
                Some(new) => {
                    id = event.listen_id;
                    tells_terms = true;
                    // SAFETY: the library made this identifier for the request, and nothing else has it.
                    CmEventKind::ConnectRequest(unsafe { CmId::from_raw(new, self) })
                }
                None => CmEventKind::Other(event.event),
            },
            ffi::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                tells_terms = true;
                CmEventKind::ConnectResponse
            }
            ffi::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            ffi::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            ffi::RDMA_CM_EVENT_ADDR_ERROR => failed("resolving the address"),
            ffi::RDMA_CM_EVENT_ROUTE_ERROR => failed("resolving the route"),
            ffi::RDMA_CM_EVENT_CONNECT_ERROR => failed("connecting"),
            ffi::RDMA_CM_EVENT_UNREACHABLE => failed("reaching the peer"),
            ffi::RDMA_CM_EVENT_REJECTED => {
                tells_terms = true;
                failed("being accepted")
            }
            ffi::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            other => CmEventKind::Other(other),
        };
        let mut terms = ConnectionTerms::default();
        let mut private_data = Vec::new();
        if tells_terms {
            let conn = &event.conn;
            terms = ConnectionTerms {
                queue_pair: conn.qp_num,
                reads_answered: conn.responder_resources,
                reads_asked: conn.initiator_depth,
                retries: conn.retry_count,
                rnr_retries: conn.rnr_retry_count,
            };
            if !conn.private_data.is_null() {
                // SAFETY: the library points to so many bytes within the event.
                let bytes = unsafe {
                    slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into())
                };
                private_data.extend_from_slice(bytes);
            }
        }
        CmEvent {
            id: IdToken(id.addr()),
            kind,
            private_data,
            terms,
        }
    }
}

/// The descriptor that is readable when there is an event.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if let Ok(cm) = self.library.cm() {
            // SAFETY: identifiers hold an `Arc` of their channel, so none uses it any more.
            unsafe { (cm.rdma_destroy_event_channel)(self.as_ptr()) }
        }
    }
}
