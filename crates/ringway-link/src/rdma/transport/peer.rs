//! What is known of a peer, and of a message to or from it.

use std::time::Instant;

use ringway_sys::{Memory, Staging};

use super::{link::Link, measure::Measurement, pool::Buffer, retry::Retry};
use crate::{LinkError, Sink, ops, rdma::Completion};

/// All operations.
pub(super) type Ops = ops::Ops<Inbound, Outbound>;

/// A message to this rank.
#[derive(Debug)]
pub(super) enum Inbound {
    /// The sender waits for an offer, but no receive is posted.
    Announced { len: u32 },
    /// It has not arrived yet; with the number of the offer, if there is one.
    Posted { sink: Sink, offer: Option<u32> },
    /// It is here, in a slot of the link; its receive is not posted.
    Stored { slot: u64, len: u32 },
    /// It is here, and was in a slot of a link that has failed since; its receive is not posted.
    Saved(Staging),
    /// The user looks at it.
    Viewed(Held),
}

/// Where a message lies that is looked at.
#[derive(Debug)]
pub(super) enum Held {
    /// In a slot of the link.
    Slot(u64),
    /// In a buffer of its own.
    Buffer(Buffer),
    /// In memory of its own.
    Saved { _memory: Staging },
}

/// A message from this rank.
#[derive(Debug)]
pub(super) enum Outbound {
    /// The receiver has a place for it; it is not given to be sent yet.
    Offered(Place),
    /// It is on its way: the number of its flight; and what there is to send should the way break.
    Flying {
        flight: u32,
        src: Memory,
        priority: u8,
    },
    /// It is in the link's queue.
    Queued { src: Memory, priority: u8 },
    /// It waits for the way to the peer to be decided, or for an offer.
    Waiting { src: Memory, priority: u8 },
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) len: u32,
    pub(super) number: u32,
    pub(super) remote: crate::rdma::Remote,
}

/// The way to a peer.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// Nobody has needed it yet.
    Idle,
    /// This side's offer is on its way; the peer's has not come.
    Asking,
    /// This side's queue pairs are connected; the peer has not said so of its own.
    Connecting,
    /// Both sides' are. Each waits to hear the other on all of them.
    Proving { until: Instant },
    /// Each has heard the other, and this side measures.
    Measuring { until: Instant },
    /// This side has heard the peer, and waits since then for the peer to say the same.
    Judging { since: Instant },
    /// Messages go over RDMA.
    Rdma,
    /// RDMA has failed, and the link is closed. This side has told what had come by then, and waits to hear the same.
    Mending,
    /// Messages go over TCP.
    Tcp,
    /// It is gone.
    Lost(LinkError),
}

impl Route {
    /// Whether the decision is under way.
    pub(super) const fn is_open(&self) -> bool {
        matches!(
            self,
            Self::Asking
                | Self::Connecting
                | Self::Proving { .. }
                | Self::Measuring { .. }
                | Self::Judging { .. }
                | Self::Mending
        )
    }
}

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) route: Route,
    /// How many decisions there were before this one. From the second on messages go over TCP meanwhile.
    pub(super) round: u32,
    pub(super) retry: Retry,
    pub(super) link: Option<Link>,
    /// Why RDMA can't be used, as far as this side knows.
    pub(super) fault: Option<String>,
    /// The peer has said that it hears this side.
    pub(super) accepted: bool,
    /// It measures before it gives its verdict, and waits for answers.
    pub(super) measures: bool,
    pub(super) measurement: Option<Measurement>,
    /// The operation of probes over TCP that has begun.
    pub(super) probes: Option<u32>,
    /// RDMA to it was measured by this side.
    pub(super) is_measured: bool,
    /// TCP to it was measured to be faster, by either side.
    pub(super) prefers_tcp: bool,
    /// What keeps the two from RDMA won't change: one has no device, or the two don't go together.
    pub(super) never: bool,
    /// What has come over RDMA before its verdict.
    pub(super) early: Vec<Completion>,
    /// This side has told it that RDMA can't be used.
    pub(super) has_refused: bool,
    /// Its note that RDMA has failed is waited for, or has come.
    pub(super) hears_end: bool,
    /// What is sent to it about decisions: of this one and the one before, which may not have gone yet.
    pub(super) notes: Option<Staging>,
    /// Whether it is in the list of peers with something to post.
    pub(super) is_dirty: bool,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            route: Route::Idle,
            round: 0,
            retry: Retry::default(),
            link: None,
            fault: None,
            accepted: false,
            measures: false,
            measurement: None,
            probes: None,
            is_measured: false,
            prefers_tcp: false,
            never: false,
            early: Vec::new(),
            has_refused: false,
            hears_end: false,
            notes: None,
            is_dirty: false,
        }
    }

    /// Begins the next decision.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.retry.begun();
        self.fault = None;
        self.accepted = false;
        self.early.clear();
        self.has_refused = false;
        self.hears_end = false;
    }

    /// Whether messages to and from it wait until it is known which way they go.
    pub(super) const fn holds_messages(&self) -> bool {
        match self.route {
            Route::Judging { .. } | Route::Mending => true,
            Route::Asking | Route::Connecting | Route::Proving { .. } | Route::Measuring { .. } => {
                self.round == 0
            }
            Route::Idle | Route::Rdma | Route::Tcp | Route::Lost(_) => false,
        }
    }
}
