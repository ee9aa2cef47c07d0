//! Reliable connections.

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    completion::CompletionQueue, domain::ProtectionDomain, error::VerbsError, ffi, gid::Gid,
    mtu::Mtu, region::Access,
};

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Requests posted and not completed.
    pub send: u32,
    /// Receives posted and not completed.
    pub receive: u32,
    /// Bytes of a request that may be inline: copied when it is posted.
    pub inline: u32,
}

/// Where the packets of a queue pair go, and what the peer expects: needed to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's GID.
    pub peer: Gid,
    /// The peer's queue pair number.
    pub peer_number: u32,
    /// The packet sequence number of the peer's first request.
    pub first_psn: u32,
    /// The index of this side's GID in its port's table, found just before: see [`crate::gid::choose`].
    pub gid_index: u8,
    /// This side's port.
    pub port: u8,
    /// The MTU: [`Mtu::of_path`].
    pub mtu: Mtu,
    /// The traffic class of all packets: DSCP in the upper six bits. Both sides must set the same, or answers travel in
    /// another class than requests.
    pub traffic_class: u8,
    /// Chooses the UDP source port, and so one of several paths (ECMP); 20 bits. 0 leaves it to the device.
    pub flow_label: u32,
    /// How many routers a packet may pass.
    pub hop_limit: u8,
    /// The peer's READs and atomics that may be on their way at once.
    pub reads_answered: u8,
    /// How long the peer waits when no receive is posted: the specification's code (volume 1, table 46).
    pub min_rnr_timer: u8,
}

/// When requests are repeated and given up: needed to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Persistence {
    /// The packet sequence number of the first request.
    pub first_psn: u32,
    /// The time for an answer: 4.096 µs times 2 to this power (volume 1, 11.6.2); 14 is 67 ms.
    pub timeout: u8,
    /// Repetitions without an answer. At most 6: Linux's rxe takes 7 for "for ever".
    pub retries: u8,
    /// Repetitions while the peer has no receive posted; 7 is for ever.
    pub rnr_retries: u8,
    /// READs and atomics that may be on their way at once.
    pub reads_asked: u8,
}

/// A queue pair's state (volume 1, 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// New.
    Reset,
    /// Receives can be posted.
    Init,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Failed: everything posted is flushed.
    Error,
    /// Another, by its number in `enum ibv_qp_state`.
    Other(u32),
}

/// A reliable connection, to be: made, then taken through its states.
pub struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    domain: Arc<ProtectionDomain>,
    post_send: ffi::PostSend,
    post_receive: ffi::PostRecv,
    inline: u32,
    // Held so that they are destroyed after the queue pair.
    _sends: Arc<CompletionQueue>,
    _receives: Arc<CompletionQueue>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as for Send.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A new one, whose requests and receives complete in these queues. The device may make it deeper than asked for.
    ///
    /// # Errors
    /// If the device has none like this.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        depths: Depths,
    ) -> Result<Self, VerbsError> {
        let context = domain.context();
        let missing = |what: &'static str| VerbsError::Unknown {
            place: context.name().to_owned(),
            what,
            value: "none".to_owned(),
            expected: "a function",
        };
        let (send, receive) = (context.ops().post_send, context.ops().post_recv);
        let (post_send, post_receive) = (
            send.ok_or_else(|| missing("post_send"))?,
            receive.ok_or_else(|| missing("post_recv"))?,
        );
        let mut attributes = ffi::ibv_qp_init_attr {
            send_cq: sends.as_ptr(),
            recv_cq: receives.as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: depths.send,
                max_recv_wr: depths.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: depths.inline,
            },
            qp_type: ffi::IBV_QPT_RC,
            ..ffi::ibv_qp_init_attr::default()
        };
        let create = context.library().verbs.ibv_create_qp;
        // SAFETY: the domain and the queues are alive, and the attributes are filled in.
        let raw = unsafe { create(domain.as_ptr(), &raw mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_create_qp", context.name()));
        };
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
            post_send,
            post_receive,
            inline: attributes.cap.max_inline_data,
            _sends: Arc::clone(sends),
            _receives: Arc::clone(receives),
        })
    }

    /// The number, which the peer has to know.
    pub const fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive; its number doesn't change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Bytes that can be inline: at least those asked for.
    pub const fn inline(&self) -> u32 {
        self.inline
    }

    /// The protection domain.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// From `Reset` to `Init`: receives can be posted. Peers get the rights of `access` that are theirs.
    ///
    /// # Errors
    /// If the state is another or there is no such port.
    pub fn to_init(&self, port: u8, access: Access) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: access.remote_bits(),
            ..ffi::ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_PKEY_INDEX
            | ffi::IBV_QP_PORT
            | ffi::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// From `Init` to `ReadyToReceive`.
    ///
    /// # Errors
    /// If the state is another, this side's GID is gone or the peer's address cannot be resolved.
    pub fn to_receive(&self, path: &Path) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTR,
            path_mtu: path.mtu.code(),
            dest_qp_num: path.peer_number,
            rq_psn: path.first_psn,
            max_dest_rd_atomic: path.reads_answered,
            min_rnr_timer: path.min_rnr_timer,
            ..ffi::ibv_qp_attr::default()
        };
        let address = &mut attributes.ah_attr;
        address.is_global = 1;
        address.port_num = path.port;
        address.grh = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: path.peer.0 },
            flow_label: path.flow_label,
            sgid_index: path.gid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask)
    }

    /// From `ReadyToReceive` to `ReadyToSend`.
    ///
    /// # Errors
    /// If the state is another or a value is too large.
    pub fn to_send(&self, how: &Persistence) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTS,
            sq_psn: how.first_psn,
            timeout: how.timeout,
            retry_cnt: how.retries,
            rnr_retry: how.rnr_retries,
            max_rd_atomic: how.reads_asked,
            ..ffi::ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask)
    }

    /// To `Error`, from any state: everything posted completes as flushed, and nothing arrives any more.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn to_error(&self) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_ERR,
            ..ffi::ibv_qp_attr::default()
        };
        self.modify(&mut attributes, ffi::IBV_QP_STATE)
    }

    /// Sets attributes that connection management has chosen.
    pub(crate) fn modify(
        &self,
        attributes: &mut ffi::ibv_qp_attr,
        mask: i32,
    ) -> Result<(), VerbsError> {
        let modify = self.domain.context().library().verbs.ibv_modify_qp;
        // SAFETY: the queue pair is alive, and the attributes of the mask are filled in.
        let code = unsafe { modify(self.as_ptr(), ptr::from_mut(attributes), mask) };
        VerbsError::check(code, "ibv_modify_qp", self.place())
    }

    /// The state, as the device has it.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn state(&self) -> Result<QueuePairState, VerbsError> {
        let mut attributes = ffi::ibv_qp_attr::default();
        let mut made = ffi::ibv_qp_init_attr::default();
        let query = self.domain.context().library().verbs.ibv_query_qp;
        // SAFETY: the queue pair is alive, and both structures are places for what is written.
        let code = unsafe {
            query(
                self.as_ptr(),
                &raw mut attributes,
                ffi::IBV_QP_STATE,
                &raw mut made,
            )
        };
        VerbsError::check(code, "ibv_query_qp", self.place())?;
        Ok(match attributes.qp_state {
            ffi::IBV_QPS_RESET => QueuePairState::Reset,
            ffi::IBV_QPS_INIT => QueuePairState::Init,
            ffi::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
            ffi::IBV_QPS_RTS => QueuePairState::ReadyToSend,
            ffi::IBV_QPS_ERR => QueuePairState::Error,
            other => QueuePairState::Other(other),
        })
    }

    /// The library's object, for what this crate does not wrap. It lives as long as the queue pair.
    pub const fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) const fn post_send_function(&self) -> ffi::PostSend {
        self.post_send
    }

    pub(crate) const fn post_receive_function(&self) -> ffi::PostRecv {
        self.post_receive
    }

    pub(crate) fn place(&self) -> String {
        format!(
            "{} queue pair {:#x}",
            self.domain.context().name(),
            self.number()
        )
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePair").field(&self.place()).finish()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let destroy = self.domain.context().library().verbs.ibv_destroy_qp;
        // SAFETY: the queue pair is alive and destroyed once; asynchronous events of it were acknowledged when they were
        // taken.
        let code = unsafe { destroy(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "a queue pair could not be destroyed");
        }
    }
}
