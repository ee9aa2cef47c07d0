//! Identifiers of connection management: one for each connection, one for each listener.

use std::{
    ffi::CStr,
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::Arc,
    time::Duration,
};

use ringway_sys::socket_name;

use super::event::{EventChannel, IdToken};
use crate::{
    error::VerbsError,
    ffi,
    library::ConnectionManager,
    queue_pair::{QueuePair, QueuePairState},
};

/// A connection that comes about, or a listener.
pub struct CmId {
    raw: NonNull<ffi::rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm's objects may be used from any thread.
unsafe impl Send for CmId {}
// SAFETY: as for Send.
unsafe impl Sync for CmId {}

/// What one side proposes to the other. Rules of the field: NCCL and others leave the retries at their largest; 7 is
/// "for ever" for rxe, so 6 is the most that ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionTerms {
    /// The queue pair's number.
    pub queue_pair: u32,
    /// The READs and atomics of the other side that may be on their way at once.
    pub reads_answered: u8,
    /// The READs and atomics of this side that may be on their way at once.
    pub reads_asked: u8,
    /// Repetitions without an answer; only the active side's counts.
    pub retries: u8,
    /// Repetitions while no receive is posted.
    pub rnr_retries: u8,
}

/// The bytes that fit into a connection request beside rdma_cm's own (rdma_connect(3), port space TCP).
const PRIVATE_DATA: usize = 56;

impl CmId {
    /// A new one, whose events arrive at the channel.
    ///
    /// # Errors
    /// If the process or the system has no room.
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self, VerbsError> {
        let mut raw = ptr::null_mut();
        let create = channel.library().cm()?.rdma_create_id;
        // SAFETY: the channel is alive, and the second argument a place for a pointer.
        let code = unsafe {
            create(
                channel.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                ffi::RDMA_PS_TCP,
            )
        };
        VerbsError::check(code, "rdma_create_id", "the event channel")?;
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("rdma_create_id", "the event channel"));
        };
        Ok(Self {
            raw,
            channel: Arc::clone(channel),
        })
    }

    /// Takes an identifier over.
    ///
    /// # Safety
    /// It is alive, and nothing else will destroy it.
    pub(super) unsafe fn from_raw(
        raw: NonNull<ffi::rdma_cm_id>,
        channel: &Arc<EventChannel>,
    ) -> Self {
        Self {
            raw,
            channel: Arc::clone(channel),
        }
    }

    /// What events of it carry.
    pub fn token(&self) -> IdToken {
        IdToken(self.raw.as_ptr().addr())
    }

    /// The device that its address belongs to, once that is known.
    pub fn device(&self) -> Option<String> {
        // SAFETY: the identifier is alive. The library sets the field while resolving, or before it tells of a request.
        let context = unsafe { (*self.raw.as_ptr()).verbs };
        let context = NonNull::new(context)?;
        // SAFETY: the library keeps the context open for as long as it is loaded.
        let device = unsafe { (*context.as_ptr()).device };
        // SAFETY: the device belongs to an open context.
        let name = unsafe { (self.channel.library().verbs.ibv_get_device_name)(device) };
        // SAFETY: a C string within the device.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }

    /// This side's address, once it is known.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and its route a part of it.
        let storage = unsafe { (*self.raw.as_ptr()).route_addr.src_storage };
        socket_name::decode(&storage)
    }

    /// The peer's address, once it is known.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        let storage = unsafe { (*self.raw.as_ptr()).route_addr.dst_storage };
        socket_name::decode(&storage)
    }

    /// Has all packets of the connection carry this traffic class (DSCP in the upper six bits). Before resolving on the
    /// active side, before listening on the passive side, on both: otherwise answers travel in another class.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), VerbsError> {
        let mut class = class;
        let set = self.cm()?.rdma_set_option;
        // SAFETY: the identifier is alive, and the option is of one byte.
        let code = unsafe {
            set(
                self.as_ptr(),
                ffi::RDMA_OPTION_ID,
                ffi::RDMA_OPTION_ID_TOS,
                (&raw mut class).cast(),
                1,
            )
        };
        VerbsError::check(code, "rdma_set_option", "the traffic class")
    }

    /// Begins to look for the peer, from the address `from`. Without that Linux takes a peer of the same host for itself
    /// and does not use the wire.
    ///
    /// # Errors
    /// If no device has the address; also told later, as an event.
    pub fn resolve_address(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let ((mut from_c, _), (mut to_c, _)) = (socket_name::encode(from), socket_name::encode(to));
        let resolve = self.cm()?.rdma_resolve_addr;
        // SAFETY: the identifier is alive, and both addresses are whole.
        let code = unsafe {
            resolve(
                self.as_ptr(),
                (&raw mut from_c).cast(),
                (&raw mut to_c).cast(),
                milliseconds(timeout),
            )
        };
        VerbsError::check(code, "rdma_resolve_addr", format!("{from} to {to}"))
    }

    /// Begins to look for the route, after the address.
    ///
    /// # Errors
    /// If the address is not resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        let resolve = self.cm()?.rdma_resolve_route;
        // SAFETY: the identifier is alive.
        let code = unsafe { resolve(self.as_ptr(), milliseconds(timeout)) };
        VerbsError::check(code, "rdma_resolve_route", self.place())
    }

    /// Listens at an address. Port 0 lets the kernel choose; [`CmId::local_address`] says which.
    ///
    /// # Errors
    /// If no device has the address, or the port is taken.
    pub fn listen(&self, at: SocketAddr, backlog: i32) -> Result<(), VerbsError> {
        let (mut at_c, _) = socket_name::encode(at);
        let cm = self.cm()?;
        // SAFETY: the identifier is alive, and the address whole.
        let code = unsafe { (cm.rdma_bind_addr)(self.as_ptr(), (&raw mut at_c).cast()) };
        VerbsError::check(code, "rdma_bind_addr", at.to_string())?;
        // SAFETY: the identifier is alive.
        let code = unsafe { (cm.rdma_listen)(self.as_ptr(), backlog) };
        VerbsError::check(code, "rdma_listen", at.to_string())
    }

    /// Asks the peer, on the active side.
    ///
    /// # Errors
    /// If the route is not resolved, or there are more than 56 bytes of private data.
    pub fn connect(&self, terms: &ConnectionTerms, private_data: &[u8]) -> Result<(), VerbsError> {
        let mut param = param(terms, private_data)?;
        let connect = self.cm()?.rdma_connect;
        // SAFETY: the identifier is alive; the private data is copied during the call.
        let code = unsafe { connect(self.as_ptr(), &raw mut param) };
        VerbsError::check(code, "rdma_connect", self.place())
    }

    /// Accepts, on the passive side. The queue pair is ready already.
    ///
    /// # Errors
    /// If the peer is gone, or there are more than 56 bytes of private data.
    pub fn accept(&self, terms: &ConnectionTerms, private_data: &[u8]) -> Result<(), VerbsError> {
        let mut param = param(terms, private_data)?;
        let accept = self.cm()?.rdma_accept;
        // SAFETY: as above.
        let code = unsafe { accept(self.as_ptr(), &raw mut param) };
        VerbsError::check(code, "rdma_accept", self.place())
    }

    /// Refuses, on the passive side.
    ///
    /// # Errors
    /// If the peer is gone.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let len = private_data_len(private_data)?;
        let reject = self.cm()?.rdma_reject;
        // SAFETY: the identifier is alive; the data is copied during the call.
        let code = unsafe { reject(self.as_ptr(), private_data.as_ptr().cast(), len) };
        VerbsError::check(code, "rdma_reject", self.place())
    }

    /// Tells the peer that this side's queue pair is ready, on the active side.
    ///
    /// # Errors
    /// If the peer has not accepted.
    pub fn establish(&self) -> Result<(), VerbsError> {
        let establish = self.cm()?.rdma_establish;
        // SAFETY: the identifier is alive.
        let code = unsafe { establish(self.as_ptr()) };
        VerbsError::check(code, "rdma_establish", self.place())
    }

    /// Ends the connection. Both sides get a `Disconnected`; queue pairs stay as they are.
    ///
    /// # Errors
    /// If there is none.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        let disconnect = self.cm()?.rdma_disconnect;
        // SAFETY: the identifier is alive.
        let code = unsafe { disconnect(self.as_ptr()) };
        VerbsError::check(code, "rdma_disconnect", self.place())
    }

    /// Takes a new queue pair to `ReadyToSend` with what the conversation has agreed on: addresses, MTU, traffic class
    /// and sequence numbers are those of the messages. The passive side does so before it accepts; the active side after
    /// the response, and grants rights by [`QueuePair::to_init`] or here.
    ///
    /// # Errors
    /// If the conversation is not as far.
    pub fn ready(&self, pair: &QueuePair, rights: crate::Access) -> Result<(), VerbsError> {
        for state in [ffi::IBV_QPS_INIT, ffi::IBV_QPS_RTR, ffi::IBV_QPS_RTS] {
            if state == ffi::IBV_QPS_INIT && pair.state()? != QueuePairState::Reset {
                continue;
            }
            let mut attributes = ffi::ibv_qp_attr {
                qp_state: state,
                ..ffi::ibv_qp_attr::default()
            };
            let mut mask = 0;
            let init = self.cm()?.rdma_init_qp_attr;
            // SAFETY: the identifier is alive, and the others are places for attributes and mask.
            let code = unsafe { init(self.as_ptr(), &raw mut attributes, &raw mut mask) };
            VerbsError::check(code, "rdma_init_qp_attr", self.place())?;
            if state == ffi::IBV_QPS_INIT {
                attributes.qp_access_flags = rights.remote_bits();
            }
            pair.modify(&mut attributes, mask)?;
        }
        Ok(())
    }

    fn cm(&self) -> Result<&ConnectionManager, VerbsError> {
        Ok(self.channel.library().cm()?)
    }

    const fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    fn place(&self) -> String {
        let shown = |address: Option<SocketAddr>| {
            address.map_or_else(|| "?".to_owned(), |address| address.to_string())
        };
        format!(
            "{} to {}",
            shown(self.local_address()),
            shown(self.peer_address())
        )
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmId").field(&self.place()).finish()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let Ok(cm) = self.cm() else { return };
        // SAFETY: alive, and destroyed once. No event of it waits to be acknowledged: `take` does so at once.
        let code = unsafe { (cm.rdma_destroy_id)(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "an rdma_cm identifier could not be destroyed");
        }
    }
}

fn private_data_len(data: &[u8]) -> Result<u8, VerbsError> {
    u8::try_from(data.len())
        .ok()
        .filter(|&len| usize::from(len) <= PRIVATE_DATA)
        .ok_or_else(|| VerbsError::Argument {
            what: "the length of private data",
            got: data.len().to_string(),
            expected: format!("{PRIVATE_DATA} bytes at most"),
        })
}

fn param(terms: &ConnectionTerms, data: &[u8]) -> Result<ffi::rdma_conn_param, VerbsError> {
    Ok(ffi::rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: private_data_len(data)?,
        responder_resources: terms.reads_answered,
        initiator_depth: terms.reads_asked,
        flow_control: 0,
        retry_count: terms.retries,
        rnr_retry_count: terms.rnr_retries,
        srq: 0,
        qp_num: terms.queue_pair,
    })
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_its_limit() {
        assert_eq!(private_data_len(&[0; 56]).unwrap(), 56);
        let error = private_data_len(&[0; 57]).unwrap_err();
        assert!(error.to_string().contains("57, expected 56 bytes at most"));
    }
}
