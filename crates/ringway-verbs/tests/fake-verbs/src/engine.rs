//! How requests are carried out: at once.

use std::{ffi::c_int, mem, ptr};

use ringway_verbs::ffi;

use crate::{
    Refusable,
    calls::told_to_fail,
    objects::{
        FakeChannel, FakeContext, FakeCq, FakeQp, FakeRegion, locked, raise, whole, with_numbers,
    },
};

const OK: u32 = 0;
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
const REMOTE_INVALID: u32 = 9;
const REMOTE_ACCESS: u32 = 10;
const NO_ANSWER: u32 = 12;
const NOT_READY: u32 = 13;

pub(crate) unsafe extern "C" fn post_send(
    pair: *mut ffi::ibv_qp,
    first: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller posts on a queue pair that was made here.
    let this: &FakeQp = unsafe { whole(pair) };
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller's list is well formed.
        let request = unsafe { &*next };
        let state = locked(&this.inner).state;
        // SAFETY: the queue is alive as long as its queue pair.
        let queue: &FakeCq = unsafe { whole(this.seen.send_cq) };
        let refused = if let Some(errno) = told_to_fail(this.seen.context, Refusable::PostSend) {
            errno
        } else if state != ffi::IBV_QPS_RTS && state != ffi::IBV_QPS_ERR {
            libc::EINVAL
        } else if waiting(this, queue) >= this.depth {
            libc::ENOMEM
        } else {
            0
        };
        if refused != 0 {
            // SAFETY: a place for a pointer.
            unsafe { *bad = next };
            return refused;
        }
        send_one(this, request);
        next = request.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut ffi::ibv_qp,
    request: *mut ffi::ibv_recv_wr,
    _bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: as of `post_send`.
    let this: &FakeQp = unsafe { whole(pair) };
    // SAFETY: the caller's list is well formed, and of one.
    let request = unsafe { &*request };
    if let Some(errno) = told_to_fail(this.seen.context, Refusable::PostReceive) {
        return errno;
    }
    let mut inner = locked(&this.inner);
    if inner.receives.len() >= this.depth {
        return libc::ENOMEM;
    }
    // SAFETY: with one element, the list is of one.
    let element = (request.num_sge == 1).then(|| unsafe { *request.sg_list });
    inner.receives.push_back((request.wr_id, element));
    0
}

/// Completions of this queue pair that were not polled: their requests keep their places.
fn waiting(this: &FakeQp, queue: &FakeCq) -> usize {
    let state = locked(&queue.state);
    let of_pair = |ended: &&ffi::ibv_wc| ended.qp_num == this.seen.qp_num;
    state.completions.iter().filter(of_pair).count()
}

/// Carries out one request and completes it, and the peer's receive if it takes one.
fn send_one(this: &FakeQp, request: &ffi::ibv_send_wr) {
    // SAFETY: the context is open as long as there are queue pairs on it.
    let context: &FakeContext = unsafe { whole(this.seen.context) };
    let injected = locked(&context.state).fail_next.take();
    let failed_before = locked(&this.inner).state == ffi::IBV_QPS_ERR;
    let status = match injected {
        _ if failed_before => FLUSHED,
        Some(status) => status,
        None => carry_out(this, request),
    };
    if status != OK || request.send_flags & ffi::IBV_SEND_SIGNALED != 0 {
        let opcode = match request.opcode {
            ffi::IBV_WR_SEND | ffi::IBV_WR_SEND_WITH_IMM => ffi::IBV_WC_SEND,
            ffi::IBV_WR_RDMA_WRITE | ffi::IBV_WR_RDMA_WRITE_WITH_IMM => ffi::IBV_WC_RDMA_WRITE,
            ffi::IBV_WR_RDMA_READ => ffi::IBV_WC_RDMA_READ,
            ffi::IBV_WR_ATOMIC_CMP_AND_SWP => ffi::IBV_WC_COMP_SWAP,
            _ => ffi::IBV_WC_FETCH_ADD,
        };
        // A failed request's other fields are not valid, as on hardware: a value that a reader would notice.
        let opcode = if status == OK { opcode } else { 0x7777 };
        complete(
            this.seen.send_cq,
            ffi::ibv_wc {
                wr_id: request.wr_id,
                status,
                opcode,
                vendor_err: if status == OK { 0 } else { 0x81 },
                qp_num: this.seen.qp_num,
                ..ffi::ibv_wc::default()
            },
        );
    }
    if status != OK && !failed_before {
        fail(this);
    }
}

/// Takes the queue pair to its error state and flushes its receives.
pub(crate) fn fail(this: &FakeQp) {
    let flushed = {
        let mut inner = locked(&this.inner);
        inner.state = ffi::IBV_QPS_ERR;
        mem::take(&mut inner.receives)
    };
    for (wr_id, _) in flushed {
        complete(
            this.seen.recv_cq,
            ffi::ibv_wc {
                wr_id,
                status: FLUSHED,
                qp_num: this.seen.qp_num,
                ..ffi::ibv_wc::default()
            },
        );
    }
}

fn carry_out(this: &FakeQp, request: &ffi::ibv_send_wr) -> u32 {
    let peer_number = locked(&this.inner).peer;
    let Some(peer) = with_numbers(|numbers| numbers.pairs.get(&peer_number).copied()) else {
        return NO_ANSWER;
    };
    // SAFETY: queue pairs are taken out of the table before they are freed.
    let peer: &FakeQp = unsafe { whole(ptr::without_provenance_mut::<ffi::ibv_qp>(peer)) };
    // SAFETY: with one element, the list is of one.
    let local = (request.num_sge == 1).then(|| unsafe { *request.sg_list });
    let len = local.map_or(0, |local| local.length);
    let inline = request.send_flags & ffi::IBV_SEND_INLINE != 0;
    if let Some(local) = local
        && !inline
        && region(local.lkey, local.addr, len, 0).is_none()
    {
        return LOCAL_PROTECTION;
    }
    let here = local.map_or(0, |local| local.addr);
    match request.opcode {
        ffi::IBV_WR_SEND | ffi::IBV_WR_SEND_WITH_IMM => {
            let immediate = request.opcode == ffi::IBV_WR_SEND_WITH_IMM;
            arrive(
                peer,
                Some((here, len)),
                len,
                immediate.then_some(request.imm_data),
            )
        }
        ffi::IBV_WR_ATOMIC_CMP_AND_SWP | ffi::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the member of these operations.
            let atomic = unsafe { request.wr.atomic };
            let right = ffi::IBV_ACCESS_REMOTE_ATOMIC;
            if region(atomic.rkey, atomic.remote_addr, 8, right).is_none() {
                return REMOTE_ACCESS;
            }
            let mut old = [0; 8];
            copy(atomic.remote_addr, old.as_mut_ptr().addr() as u64, 8);
            let value = u64::from_ne_bytes(old);
            let new = match request.opcode {
                ffi::IBV_WR_ATOMIC_FETCH_AND_ADD => value.wrapping_add(atomic.compare_add),
                _ if value == atomic.compare_add => atomic.swap,
                _ => value,
            };
            copy(
                new.to_ne_bytes().as_ptr().addr() as u64,
                atomic.remote_addr,
                8,
            );
            copy(old.as_ptr().addr() as u64, here, 8);
            OK
        }
        _ => {
            // SAFETY: the member of the remaining operations.
            let rdma = unsafe { request.wr.rdma };
            let read = request.opcode == ffi::IBV_WR_RDMA_READ;
            let right = if read {
                ffi::IBV_ACCESS_REMOTE_READ
            } else {
                ffi::IBV_ACCESS_REMOTE_WRITE
            };
            if len > 0 && region(rdma.rkey, rdma.remote_addr, len, right).is_none() {
                return REMOTE_ACCESS;
            }
            if read {
                copy(rdma.remote_addr, here, len);
            } else {
                copy(here, rdma.remote_addr, len);
            }
            if request.opcode == ffi::IBV_WR_RDMA_WRITE_WITH_IMM {
                return arrive(peer, None, len, Some(request.imm_data));
            }
            OK
        }
    }
}

/// Takes a receive of `peer`, with the bytes of a SEND.
fn arrive(peer: &FakeQp, bytes: Option<(u64, u32)>, len: u32, immediate: Option<u32>) -> u32 {
    let Some((wr_id, place)) = locked(&peer.inner).receives.pop_front() else {
        return NOT_READY;
    };
    if let Some((from, len)) = bytes {
        let room = place.map_or(0, |place| place.length);
        if len > room {
            return REMOTE_INVALID;
        }
        if let Some(place) = place {
            copy(from, place.addr, len);
        }
    }
    let opcode = if bytes.is_some() {
        ffi::IBV_WC_RECV
    } else {
        ffi::IBV_WC_RECV_RDMA_WITH_IMM
    };
    complete(
        peer.seen.recv_cq,
        ffi::ibv_wc {
            wr_id,
            opcode,
            byte_len: len,
            imm_data: immediate.unwrap_or(0),
            wc_flags: immediate.map_or(0, |_| ffi::IBV_WC_WITH_IMM),
            qp_num: peer.seen.qp_num,
            ..ffi::ibv_wc::default()
        },
    );
    OK
}

/// The region of this key, if it holds the range and grants the right.
fn region(key: u32, start: u64, len: u32, right: i32) -> Option<FakeRegion> {
    let region = with_numbers(|numbers| numbers.regions.get(&key).copied())?;
    let inside = start >= region.start
        && start.checked_add(len.into())? <= region.start.checked_add(region.len)?;
    (inside && region.access & right == right).then_some(region)
}

/// Copies bytes between two addresses that were found to lie in regions, or are of this thread.
fn copy(from: u64, to: u64, len: u32) {
    let (from, to) = (from as usize, to as usize);
    let from: *const u8 = ptr::with_exposed_provenance(from);
    let to: *mut u8 = ptr::with_exposed_provenance_mut(to);
    // SAFETY: both ranges are registered memory, whose users keep it alive, or an inline request's, or local.
    unsafe { ptr::copy(from, to, len as usize) }
}

/// Adds a completion, and notifies if the queue is armed.
fn complete(queue: *mut ffi::ibv_cq, completion: ffi::ibv_wc) {
    // SAFETY: queues are alive as long as their queue pairs.
    let this: &FakeCq = unsafe { whole(queue) };
    let armed = {
        let mut state = locked(&this.state);
        state.completions.push_back(completion);
        mem::take(&mut state.armed)
    };
    if armed {
        // SAFETY: channels are alive as long as their queues.
        let channel: &FakeChannel = unsafe { whole(this.seen.channel) };
        locked(&channel.ready).push_back(queue.expose_provenance());
        raise(&channel.fd);
    }
}
