//! What tests do to the stand-in.

use std::{ffi::c_void, ptr};

use ringway_verbs::ffi;

use crate::objects::{FakeContext, locked, raise as raise_fd, whole};

/// The name of the device that can be opened.
pub const OPEN_DEVICE: &str = "fake0";
/// The name of the device whose node may not be opened.
pub const LOCKED_DEVICE: &str = "fake1";

/// Calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusable {
    /// `ibv_reg_mr`
    RegisterMemory,
    /// `ibv_dereg_mr`
    DeregisterMemory,
    /// `ibv_create_qp`
    CreateQueuePair,
    /// `ibv_create_cq`
    CreateCompletionQueue,
    /// `ibv_modify_qp`
    ModifyQueuePair,
    /// `ibv_get_async_event`
    TakeEvent,
    /// `ibv_post_send`
    PostSend,
    /// `ibv_post_recv`
    PostReceive,
}

/// Has the next call of this kind fail with this error number.
///
/// # Safety
/// `context` must be an open context of the stand-in.
pub unsafe fn refuse(context: *mut ffi::ibv_context, call: Refusable, errno: i32) {
    // SAFETY: the caller's promise.
    let context: &FakeContext = unsafe { whole(context) };
    locked(&context.state).refusals.push((call, errno));
}

/// Has the next request that is posted end with this status.
///
/// # Safety
/// As of [`refuse`].
pub unsafe fn fail_next(context: *mut ffi::ibv_context, status: u32) {
    // SAFETY: the caller's promise.
    let context: &FakeContext = unsafe { whole(context) };
    locked(&context.state).fail_next = Some(status);
}

/// Takes the function that polls completion queues out of the driver's table.
///
/// # Safety
/// As of [`refuse`], and nothing else may look at the table meanwhile.
pub unsafe fn lose_poll(context: *mut ffi::ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { (*context).ops.poll_cq = None }
}

/// Takes an entry out of the table of GIDs.
///
/// # Safety
/// As of [`refuse`].
pub unsafe fn drop_gid(context: *mut ffi::ibv_context, index: u32) {
    // SAFETY: the caller's promise.
    let context: &FakeContext = unsafe { whole(context) };
    locked(&context.state).gone_gids.push(index);
}

/// Tells an asynchronous event of port 1 or of the queue pair of this number.
///
/// # Safety
/// As of [`refuse`]; a queue pair named must be alive until the event is acknowledged.
pub unsafe fn raise(context: *mut ffi::ibv_context, event: u32, pair: Option<*mut ffi::ibv_qp>) {
    // SAFETY: the caller's promise.
    let context: &FakeContext = unsafe { whole(context) };
    let element: *mut c_void = match pair {
        Some(pair) => pair.cast(),
        None => ptr::without_provenance_mut(1),
    };
    let event = ffi::ibv_async_event {
        element,
        event_type: event,
    };
    locked(&context.state).events.push_back(event);
    raise_fd(&context.events_fd);
}
