//! Posting requests. Nothing here allocates.

use std::{fmt, marker::PhantomData, ptr};

use crate::{
    error::VerbsError,
    ffi,
    queue_pair::QueuePair,
    region::Local,
    request::{SendRequest, element},
};

impl QueuePair {
    /// Posts one request.
    ///
    /// # Errors
    /// If the queue is full, there are too many inline bytes, or the request is one that the device can tell to be wrong.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let (mut wr, mut element) = (ffi::ibv_send_wr::default(), ffi::ibv_sge::default());
        self.fill(request, &mut wr, &mut element)?;
        if element.length > 0 {
            (wr.sg_list, wr.num_sge) = (&raw mut element, 1);
        }
        // SAFETY: the list is of one request, and its element stays where it is; what it names is borrowed by `request`.
        unsafe { self.give(&raw mut wr) }
    }

    /// Puts a request into C's form; it isn't linked with its memory yet.
    ///
    /// # Errors
    /// If it has too many inline bytes.
    fn fill(
        &self,
        request: &SendRequest<'_>,
        wr: &mut ffi::ibv_send_wr,
        element: &mut ffi::ibv_sge,
    ) -> Result<(), VerbsError> {
        request.fill(wr, element);
        if wr.send_flags & ffi::IBV_SEND_INLINE != 0 && element.length > self.inline() {
            return Err(VerbsError::Argument {
                what: "the number of inline bytes",
                got: element.length.to_string(),
                expected: format!("{} at most for this queue pair", self.inline()),
            });
        }
        Ok(())
    }

    /// Posts a list of requests.
    ///
    /// # Safety
    /// It is well formed, and inline bytes that it names can be read, until the call is over.
    unsafe fn give(&self, first: *mut ffi::ibv_send_wr) -> Result<(), VerbsError> {
        let mut bad = ptr::null_mut();
        let post = self.post_send_function();
        // SAFETY: the queue pair is alive, and the list is as the caller has promised. Everything but inline bytes the device
        // reads and writes in regions with the keys given, within their bounds, which it checks; that memory is valid until a
        // region is deregistered.
        let code = unsafe { post(self.as_ptr(), first, &raw mut bad) };
        self.posted(code, "send", "ibv_post_send")
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
        let (wr, element) = (
            &mut self.requests[self.count],
            &mut self.elements[self.count],
        );
        self.pair
            .fill(request, wr, element)
            .inspect_err(|_| *wr = ffi::ibv_send_wr::default())?;
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
        // SAFETY: the list was linked just now, within arrays that stay where they are, and inline bytes are borrowed.
        unsafe { self.pair.give(requests) }
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
