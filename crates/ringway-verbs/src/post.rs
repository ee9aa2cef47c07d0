//! Posting requests. Nothing here allocates.

use std::{fmt, marker::PhantomData, ptr};

use crate::{
    error::VerbsError,
    ffi,
    queue_pair::QueuePair,
    region::{Local, RemotePlace},
};

/// Where the bytes of a SEND or WRITE come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// From registered memory, which must not change until the request has completed.
    Region(Local<'a>),
    /// From anywhere: they are copied when the request is posted. At most [`QueuePair::inline`] bytes.
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
    /// The request in C's form, and its memory. They are linked by the caller, at addresses that stay.
    fn to_c(self) -> (ffi::ibv_send_wr, ffi::ibv_sge) {
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
        let mut wr = ffi::ibv_send_wr {
            wr_id: self.id,
            ..ffi::ibv_send_wr::default()
        };
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
        let element = match source {
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
        (wr, element)
    }
}

fn element(local: Local<'_>) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: local.address(),
        length: local.len(),
        lkey: local.key(),
    }
}

impl QueuePair {
    /// Posts one request.
    ///
    /// # Errors
    /// If the queue is full, there are too many inline bytes, or the request is one that the device can tell to be wrong.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let mut posting = self.posting::<1>();
        posting.push(request)?;
        posting.post()
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn post_receive(&self, id: u64, into: Local<'_>) -> Result<(), VerbsError> {
        let mut element = element(into);
        let mut wr = ffi::ibv_recv_wr {
            wr_id: id,
            ..ffi::ibv_recv_wr::default()
        };
        if element.length > 0 {
            (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        }
        let mut bad = ptr::null_mut();
        let post = self.post_receive_function();
        // SAFETY: the queue pair is alive and the list is of one request. The device writes to memory of the region with
        // this key only, within its bounds; that is valid until the region is deregistered.
        let code = unsafe { post(self.as_ptr(), &raw mut wr, &raw mut bad) };
        self.posted(code, "receive", "ibv_post_recv")
    }

    /// A list of up to `MOST` requests to fill and to post with one ring of the device's doorbell.
    pub fn posting<const MOST: usize>(&self) -> Posting<'_, MOST> {
        Posting {
            pair: self,
            requests: [ffi::ibv_send_wr::default(); MOST],
            elements: [ffi::ibv_sge::default(); MOST],
            count: 0,
            borrowed: PhantomData,
        }
    }

    fn posted(&self, code: i32, queue: &'static str, call: &'static str) -> Result<(), VerbsError> {
        match code.saturating_abs() {
            0 => Ok(()),
            libc::ENOMEM => Err(VerbsError::Full {
                queue,
                number: self.number(),
            }),
            errno => VerbsError::check(errno, call, self.place()),
        }
    }
}

/// Requests that are given to the device at once.
///
/// Neither a region nor inline bytes can go away while requests that name them wait to be posted:
///
/// ```compile_fail,E0505
/// # use ringway_verbs::{Operation, QueuePair, Region, SendRequest, Source};
/// fn wrong(pair: &QueuePair, region: Region) {
///     let mut posting = pair.posting::<8>();
///     let operation = Operation::Send { source: Source::Region(region.local(0..8)), immediate: None };
///     posting.push(&SendRequest { id: 1, operation, signaled: true, solicited: false }).unwrap();
///     drop(region);
///     posting.post().unwrap();
/// }
/// ```
///
/// After that they may: what the device has not done by then fails.
///
/// ```no_run
/// # use ringway_verbs::{Operation, QueuePair, Region, SendRequest, Source};
/// fn right(pair: &QueuePair, region: Region) {
///     let mut posting = pair.posting::<8>();
///     let operation = Operation::Send { source: Source::Region(region.local(0..8)), immediate: None };
///     posting.push(&SendRequest { id: 1, operation, signaled: true, solicited: false }).unwrap();
///     posting.post().unwrap();
///     drop(region);
/// }
/// ```
#[must_use = "requests are posted by `post`"]
pub struct Posting<'a, const MOST: usize> {
    pair: &'a QueuePair,
    requests: [ffi::ibv_send_wr; MOST],
    elements: [ffi::ibv_sge; MOST],
    count: usize,
    borrowed: PhantomData<SendRequest<'a>>,
}

impl<'a, const MOST: usize> Posting<'a, MOST> {
    /// Adds a request.
    ///
    /// # Errors
    /// If there are `MOST` already, or it has too many inline bytes.
    pub fn push(&mut self, request: &SendRequest<'a>) -> Result<(), VerbsError> {
        if self.count == MOST {
            return Err(VerbsError::Argument {
                what: "the number of requests in a posting",
                got: (self.count + 1).to_string(),
                expected: format!("{MOST} at most"),
            });
        }
        let (wr, element) = request.to_c();
        if wr.send_flags & ffi::IBV_SEND_INLINE != 0 && element.length > self.pair.inline() {
            return Err(VerbsError::Argument {
                what: "the number of inline bytes",
                got: element.length.to_string(),
                expected: format!("{} at most for this queue pair", self.pair.inline()),
            });
        }
        (self.requests[self.count], self.elements[self.count]) = (wr, element);
        self.count += 1;
        Ok(())
    }

    /// Gives all of them to the device, in their order.
    ///
    /// # Errors
    /// If the queue has no room for all, or a request is one that the device can tell to be wrong. Those before it are
    /// posted then.
    pub fn post(mut self) -> Result<(), VerbsError> {
        let requests = self.requests.as_mut_ptr();
        let elements = self.elements.as_mut_ptr();
        if self.count == 0 {
            return Ok(());
        }
        for index in 0..self.count {
            // SAFETY: the array has more than `index` elements.
            let wr = unsafe { &mut *requests.wrapping_add(index) };
            // Providers differ in how they take an element of no bytes, so there is none then.
            if self.elements[index].length > 0 {
                (wr.sg_list, wr.num_sge) = (elements.wrapping_add(index), 1);
            }
            if index + 1 < self.count {
                wr.next = requests.wrapping_add(index + 1);
            }
        }
        let mut bad = ptr::null_mut();
        let post = self.pair.post_send_function();
        // SAFETY: the queue pair is alive, and the list well formed: linked just now, within arrays that stay where they
        // are. Inline bytes are borrowed and read during the call. Everything else the device reads and writes in regions
        // with the keys given, within their bounds, which it checks; that memory is valid until a region is deregistered.
        let code = unsafe { post(self.pair.as_ptr(), requests, &raw mut bad) };
        self.pair.posted(code, "send", "ibv_post_send")
    }
}

impl<const MOST: usize> fmt::Debug for Posting<'_, MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posting")
            .field("pair", &self.pair)
            .field("count", &self.count)
            .finish_non_exhaustive()
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
        request.to_c()
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
