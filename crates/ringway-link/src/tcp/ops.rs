//! What is known of a message.

use ringway_sys::Memory;

use super::buffers::Buffer;
use crate::{Sink, ops};

pub(super) use crate::ops::Slot;

/// All operations.
pub(super) type Ops = ops::Ops<Inbound, Outbound>;

/// A message to this rank.
#[derive(Debug)]
pub(super) enum Inbound {
    /// The sender waits for a grant, but no receive is posted.
    Announced { len: usize },
    /// It is arriving where the receive wants it.
    Arriving,
    /// It is arriving in a buffer, as its receive is not posted, or came after the message.
    Filling { len: usize, claim: Option<Sink> },
    /// It has not arrived yet.
    Posted { sink: Sink, granted: bool },
    /// It is here; its receive is not posted. `None` has no bytes.
    Stored { buffer: Option<Buffer>, len: usize },
    /// The user looks at it.
    Viewed { _buffer: Buffer },
}

/// A message from this rank.
#[derive(Debug)]
pub(super) enum Outbound {
    /// The receiver has a place for it; it is not given to be sent yet.
    Granted { len: usize },
    /// It is in the queue of a stream.
    Queued,
    /// It waits for a connection or a grant.
    Waiting { src: Memory, priority: u8 },
}
