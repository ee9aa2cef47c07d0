//! Requests.

use crate::{
    ffi,
    region::{Local, RemotePlace},
};

/// Where the bytes of a SEND or WRITE come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// From registered memory, which must not change until the request has completed.
    Region(Local<'a>),
    /// From anywhere: they are copied when the request is posted. At most [`QueuePair::inline`](crate::QueuePair::inline) bytes.
    Inline(&'a [u8]),
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Sends to the peer's next receive, perhaps with 4 bytes that its completion shows.
    Send {
        /// The message.
        source: Source<'a>,
        /// The immediate data.
        immediate: Option<u32>,
    },
    /// Writes to the peer's memory. With immediate data, the peer's next receive completes and shows it.
    Write {
        /// The bytes.
        source: Source<'a>,
        /// Where they go.
        to: RemotePlace,
        /// The immediate data.
        immediate: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// Where the bytes go.
        into: Local<'a>,
        /// Where they are.
        from: RemotePlace,
    },
    /// Adds to a number of 8 bytes, aligned to 8, in the peer's memory and the peer's byte order.
    FetchAdd {
        /// Where the number before goes.
        into: Local<'a>,
        /// Where it is.
        at: RemotePlace,
        /// What to add.
        add: u64,
    },
    /// Replaces a number of 8 bytes, aligned likewise, if it is the expected one.
    CompareSwap {
        /// Where the number before goes.
        into: Local<'a>,
        /// Where it is.
        at: RemotePlace,
        /// The expected number.
        compare: u64,
        /// The new number.
        swap: u64,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Shown by the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation<'a>,
    /// Report success. A failure is always reported. The queue gets room again only when a later request is reported,
    /// so at least one in each depth must be.
    pub signaled: bool,
    /// Whether the peer shall be notified even if it asked for solicited messages only.
    pub solicited: bool,
}

impl SendRequest<'_> {
    /// Puts the request, and its memory, into C's form, where it is posted from: structures are long, and copies of them are a
    /// part of short latencies. `wr` has its default, and the two are linked by the caller.
    pub(crate) fn fill(&self, wr: &mut ffi::ibv_send_wr, element_in_c: &mut ffi::ibv_sge) {
        let rdma = |place: RemotePlace| ffi::ibv_send_wr_wr {
            rdma: ffi::ibv_send_wr_rdma {
                remote_addr: place.address,
                rkey: place.key,
            },
        };
        let atomic = |place: RemotePlace, compare_add, swap| ffi::ibv_send_wr_wr {
            atomic: ffi::ibv_send_wr_atomic {
                remote_addr: place.address,
                compare_add,
                swap,
                rkey: place.key,
            },
        };
        wr.wr_id = self.id;
        let mut immediate_of = |immediate: Option<u32>| {
            wr.imm_data = immediate.unwrap_or(0).to_be();
            immediate.is_some()
        };
        let source = match self.operation {
            Operation::Send { source, immediate } => {
                wr.opcode = match immediate_of(immediate) {
                    true => ffi::IBV_WR_SEND_WITH_IMM,
                    false => ffi::IBV_WR_SEND,
                };
                source
            }
            Operation::Write {
                source,
                to,
                immediate,
            } => {
                wr.opcode = match immediate_of(immediate) {
                    true => ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
                    false => ffi::IBV_WR_RDMA_WRITE,
                };
                wr.wr = rdma(to);
                source
            }
            Operation::Read { into, from } => {
                (wr.opcode, wr.wr) = (ffi::IBV_WR_RDMA_READ, rdma(from));
                Source::Region(into)
            }
            Operation::FetchAdd { into, at, add } => {
                wr.opcode = ffi::IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr = atomic(at, add, 0);
                Source::Region(into)
            }
            Operation::CompareSwap {
                into,
                at,
                compare,
                swap,
            } => {
                wr.opcode = ffi::IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr = atomic(at, compare, swap);
                Source::Region(into)
            }
        };
        *element_in_c = match source {
            Source::Region(local) => element(local),
            Source::Inline(bytes) => {
                wr.send_flags |= ffi::IBV_SEND_INLINE;
                ffi::ibv_sge {
                    addr: bytes.as_ptr().expose_provenance() as u64,
                    length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    lkey: 0,
                }
            }
        };
        for (wanted, flag) in [
            (self.signaled, ffi::IBV_SEND_SIGNALED),
            (self.solicited, ffi::IBV_SEND_SOLICITED),
        ] {
            if wanted {
                wr.send_flags |= flag;
            }
        }
    }
}

/// The memory in C's form.
pub(crate) fn element(local: Local<'_>) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: local.address(),
        length: local.len(),
        lkey: local.key(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation<'_>) -> (ffi::ibv_send_wr, ffi::ibv_sge) {
        let request = SendRequest {
            id: 7,
            operation,
            signaled: true,
            solicited: false,
        };
        let (mut wr, mut element) = (ffi::ibv_send_wr::default(), ffi::ibv_sge::default());
        request.fill(&mut wr, &mut element);
        (wr, element)
    }

    #[test]
    fn requests_in_the_form_of_c() {
        let at = RemotePlace {
            address: 0x1_0000_0008,
            key: 9,
        };
        let local = Local::of_key(0x2_0000_0000, 8, 5);
        let (wr, element) = request(Operation::Send {
            source: Source::Inline(b"abc"),
            immediate: None,
        });
        assert_eq!((wr.wr_id, wr.opcode), (7, ffi::IBV_WR_SEND));
        assert_eq!(wr.send_flags, ffi::IBV_SEND_INLINE | ffi::IBV_SEND_SIGNALED);
        assert_eq!(element.length, 3);
        let (wr, element) = request(Operation::Write {
            source: Source::Region(local),
            to: at,
            immediate: Some(0x0102_0304),
        });
        assert_eq!(wr.opcode, ffi::IBV_WR_RDMA_WRITE_WITH_IMM);
        assert_eq!(wr.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(
            (element.addr, element.length, element.lkey),
            (0x2_0000_0000, 8, 5)
        );
        // SAFETY: the member that was written.
        let rdma = unsafe { wr.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (at.address, at.key));
        let (wr, _) = request(Operation::CompareSwap {
            into: local,
            at,
            compare: 1,
            swap: 2,
        });
        // SAFETY: the member that was written.
        let atomic = unsafe { wr.wr.atomic };
        assert_eq!((atomic.compare_add, atomic.swap, atomic.rkey), (1, 2, 9));
    }
}
