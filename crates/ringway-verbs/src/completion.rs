//! Completion queues and their channels.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{context::Context, error::VerbsError, ffi, status::Status};

/// Where a sleeper learns that a completion queue has something: a descriptor for epoll.
pub struct CompletionChannel {
    raw: NonNull<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for Send.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new one.
    ///
    /// # Errors
    /// If the process or the system has no descriptors left (`ulimit -n`).
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().verbs.ibv_create_comp_channel)(context.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_create_comp_channel", context.name()));
        };
        let channel = Self {
            raw,
            context: Arc::clone(context),
        };
        rustix::fs::fcntl_setfl(channel.as_fd(), rustix::fs::OFlags::NONBLOCK).map_err(
            |errno| VerbsError::Call {
                call: "fcntl",
                place: context.name().to_owned(),
                source: errno.into(),
            },
        )?;
        Ok(Arc::new(channel))
    }

    /// Takes one notification, if there is one. Each must be taken, or the descriptor stays readable.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take(&self) -> Result<bool, VerbsError> {
        let verbs = &self.context.library().verbs;
        let (mut queue, mut token) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, and the other arguments are places for pointers.
        let code =
            unsafe { (verbs.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut token) };
        if code != 0 {
            let error = VerbsError::last("ibv_get_cq_event", self.context.name());
            return match error.errno() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(false),
                _ => Err(error),
            };
        }
        // SAFETY: the queue is the one that the event is of. It is alive: destroying it waits for this.
        unsafe { (verbs.ibv_ack_cq_events)(queue, 1) }
        Ok(true)
    }
}

/// The descriptor that is readable when a queue that was armed has something.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.context.name())
            .finish()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        let destroy = self.context.library().verbs.ibv_destroy_comp_channel;
        // SAFETY: completion queues hold an `Arc` of their channel, so none uses it any more.
        let code = unsafe { destroy(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "a completion channel could not be destroyed");
        }
    }
}

/// Where queue pairs report the ends of requests.
///
/// To sleep without missing one: [`CompletionQueue::arm`], then [`CompletionQueue::poll`] once more, and only if that
/// finds nothing wait for the channel's descriptor.
pub struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    channel: Arc<CompletionChannel>,
    poll: ffi::PollCq,
    arm: ffi::ReqNotifyCq,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for Send.
unsafe impl Sync for CompletionQueue {}

/// How many completions the first call of the library fetches, and each after it: most polls find none or few, and have no
/// long array to fill with zeros.
const FEW: usize = 4;
const BATCH: usize = 16;

impl CompletionQueue {
    /// A queue for at least `depth` completions. If more are not polled, it runs over, and its queue pairs fail: the
    /// depths of all queue pairs on it together are enough.
    ///
    /// # Errors
    /// If the device has none so deep.
    pub fn new(channel: &Arc<CompletionChannel>, depth: u32) -> Result<Arc<Self>, VerbsError> {
        let context = &channel.context;
        let missing = |what: &'static str| VerbsError::Unknown {
            place: context.name().to_owned(),
            what,
            value: "none".to_owned(),
            expected: "a function",
        };
        let depth = i32::try_from(depth).map_err(|_| VerbsError::Argument {
            what: "the depth of a completion queue",
            got: depth.to_string(),
            expected: format!("{} at most", i32::MAX),
        })?;
        let (poll, arm) = (context.ops().poll_cq, context.ops().req_notify_cq);
        // Looked at before there is a queue, which would be left over.
        let poll = poll.ok_or_else(|| missing("poll_cq"))?;
        let arm = arm.ok_or_else(|| missing("req_notify_cq"))?;
        let create = context.library().verbs.ibv_create_cq;
        // SAFETY: context and channel are alive, the channel is of the context, and vector 0 always exists.
        let raw = unsafe {
            create(
                context.as_ptr(),
                depth,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_create_cq", context.name()));
        };
        Ok(Arc::new(Self {
            raw,
            channel: Arc::clone(channel),
            poll,
            arm,
        }))
    }

    /// Appends completions that are there to `into`, as many as it has room for without growing, and at least one if
    /// there is one.
    ///
    /// # Errors
    /// If the queue has run over or the device is gone.
    pub fn poll(&self, into: &mut Vec<Completion>) -> Result<(), VerbsError> {
        let mut room = (into.capacity() - into.len()).max(1);
        let want = room.min(FEW);
        let found = self.fetch(&mut [ffi::ibv_wc::default(); FEW][..want], into)?;
        if found < want {
            return Ok(());
        }
        room -= found;
        let mut batch = [ffi::ibv_wc::default(); BATCH];
        while room > 0 {
            let want = room.min(BATCH);
            let got = self.fetch(&mut batch[..want], into)?;
            if got < want {
                break;
            }
            room -= got;
        }
        Ok(())
    }

    /// Appends as many completions as there are, and `batch` has room for.
    fn fetch(
        &self,
        batch: &mut [ffi::ibv_wc],
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        // SAFETY: the queue is alive and the slice has room for its length, which is `BATCH` at most.
        let code = unsafe { (self.poll)(self.as_ptr(), batch.len() as i32, batch.as_mut_ptr()) };
        let Ok(got) = usize::try_from(code) else {
            return Err(VerbsError::Call {
                call: "ibv_poll_cq",
                place: self.channel.context.name().to_owned(),
                source: io::Error::from_raw_os_error(code.saturating_neg()),
            });
        };
        let got = got.min(batch.len());
        into.extend(batch[..got].iter().map(Completion::from_c));
        Ok(got)
    }

    /// Asks for one notification at the channel when the next completion comes.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive.
        let code = unsafe { (self.arm)(self.as_ptr(), 0) };
        VerbsError::check(code, "ibv_req_notify_cq", self.channel.context.name())
    }

    /// The channel at which it notifies.
    pub const fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    pub(crate) const fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionQueue")
            .field(&self.channel.context.name())
            .finish()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let destroy = self.channel.context.library().verbs.ibv_destroy_cq;
        // SAFETY: queue pairs hold an `Arc` of their queues, so none uses it any more; each notification taken was
        // acknowledged at once.
        let code = unsafe { destroy(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "a completion queue could not be destroyed");
        }
    }
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A SEND of this side.
    Send,
    /// A WRITE of this side, with or without immediate data.
    Write,
    /// A READ of this side.
    Read,
    /// A fetch-and-add of this side.
    FetchAdd,
    /// A compare-and-swap of this side.
    CompareSwap,
    /// A receive, by a SEND of the peer.
    Receive,
    /// A receive, by a WRITE with immediate data of the peer; the data is where the peer has put it.
    ReceiveWrite,
    /// Something else; also of a request that failed, whose kind the device doesn't tell.
    Unknown,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's identifier, as it was posted.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was; `Unknown` if it failed.
    pub ended: Ended,
    /// The length in bytes of what was received or read; 0 otherwise.
    pub len: u32,
    /// The immediate data that came with it.
    pub immediate: Option<u32>,
    /// The queue pair's number.
    pub queue_pair: u32,
    /// The device's own code of a failure, for its vendor's support.
    pub vendor_error: u32,
}

impl Completion {
    fn from_c(wc: &ffi::ibv_wc) -> Self {
        let status = Status(wc.status);
        let (mut ended, mut len, mut immediate) = (Ended::Unknown, 0, None);
        // Of a failure only identifier, status, queue pair and vendor's code are valid.
        if status.is_success() {
            ended = match wc.opcode {
                ffi::IBV_WC_SEND => Ended::Send,
                ffi::IBV_WC_RDMA_WRITE => Ended::Write,
                ffi::IBV_WC_RDMA_READ => Ended::Read,
                ffi::IBV_WC_FETCH_ADD => Ended::FetchAdd,
                ffi::IBV_WC_COMP_SWAP => Ended::CompareSwap,
                ffi::IBV_WC_RECV => Ended::Receive,
                ffi::IBV_WC_RECV_RDMA_WITH_IMM => Ended::ReceiveWrite,
                _ => Ended::Unknown,
            };
            if matches!(ended, Ended::Receive | Ended::ReceiveWrite | Ended::Read) {
                len = wc.byte_len;
            }
            immediate =
                (wc.wc_flags & ffi::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
        }
        Self {
            id: wc.wr_id,
            status,
            ended,
            len,
            immediate,
            queue_pair: wc.qp_num,
            vendor_error: wc.vendor_err,
        }
    }
}
