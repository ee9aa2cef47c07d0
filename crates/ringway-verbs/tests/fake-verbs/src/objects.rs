//! The objects behind the pointers that the library gives out. Each begins with the part that users of the library see.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
    sync::Mutex,
};

use ringway_verbs::ffi;
use rustix::event::{EventfdFlags, eventfd};

use crate::control::Refusable;

/// What a context knows.
#[derive(Default)]
pub(crate) struct ContextState {
    pub(crate) events: VecDeque<ffi::ibv_async_event>,
    pub(crate) refusals: Vec<(Refusable, i32)>,
    pub(crate) fail_next: Option<u32>,
    pub(crate) gone_gids: Vec<u32>,
    /// Numbers of queue pairs that are gone, which come again.
    pub(crate) free_numbers: Vec<u32>,
}

#[repr(C)]
pub(crate) struct FakeContext {
    pub(crate) seen: ffi::ibv_context,
    pub(crate) events_fd: OwnedFd,
    pub(crate) state: Mutex<ContextState>,
}

#[repr(C)]
pub(crate) struct FakeChannel {
    pub(crate) seen: ffi::ibv_comp_channel,
    pub(crate) fd: OwnedFd,
    pub(crate) ready: Mutex<VecDeque<usize>>,
}

#[derive(Default)]
pub(crate) struct CqState {
    pub(crate) completions: VecDeque<ffi::ibv_wc>,
    pub(crate) armed: bool,
}

#[repr(C)]
pub(crate) struct FakeCq {
    pub(crate) seen: ffi::ibv_cq,
    pub(crate) depth: usize,
    pub(crate) state: Mutex<CqState>,
}

#[derive(Default)]
pub(crate) struct QpState {
    pub(crate) state: u32,
    pub(crate) peer: u32,
    pub(crate) receives: VecDeque<(u64, Option<ffi::ibv_sge>)>,
}

#[repr(C)]
pub(crate) struct FakeQp {
    pub(crate) seen: ffi::ibv_qp,
    pub(crate) depth: usize,
    pub(crate) inner: Mutex<QpState>,
}

/// A region: where it is, and what peers may do.
#[derive(Clone, Copy)]
pub(crate) struct FakeRegion {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: i32,
}

/// What is looked up by number, in the whole process.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) last: u32,
    /// Queue pairs' addresses.
    pub(crate) pairs: HashMap<u32, usize>,
    pub(crate) regions: HashMap<u32, FakeRegion>,
}

pub(crate) static NUMBERS: Mutex<Option<Numbers>> = Mutex::new(None);

pub(crate) fn with_numbers<T>(work: impl FnOnce(&mut Numbers) -> T) -> T {
    work(locked(&NUMBERS).get_or_insert_default())
}

impl Numbers {
    pub(crate) fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A descriptor that is readable as often as it was [raised](raise).
pub(crate) fn counter() -> Option<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
    eventfd(0, flags).ok()
}

pub(crate) fn raise(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes one off; an error number if there is none and the descriptor is set not to wait.
pub(crate) fn lower(fd: &OwnedFd) -> Result<(), i32> {
    match rustix::io::read(fd, &mut [0; 8]) {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.raw_os_error()),
    }
}

/// The whole of an object whose pointer was given out.
///
/// # Safety
/// `seen` must be a pointer to the first field of a `T` that was made here and not freed.
pub(crate) unsafe fn whole<'a, S, T>(seen: *mut S) -> &'a T {
    // SAFETY: the caller's promise; the structures are `repr(C)` with the part that is seen first.
    unsafe { &*seen.cast::<T>() }
}

/// Gives an object out.
pub(crate) fn give<T, S>(object: T) -> *mut S {
    Box::into_raw(Box::new(object)).cast()
}

/// Frees an object.
///
/// # Safety
/// As of [`whole`], and it is not used after.
pub(crate) unsafe fn free<S, T>(seen: *mut S) {
    // SAFETY: the caller's promise: it was given out by `give` with this type.
    drop(unsafe { Box::from_raw(seen.cast::<T>()) });
}
