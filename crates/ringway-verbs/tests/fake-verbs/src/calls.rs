//! The functions of libibverbs, by their names.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    os::fd::AsRawFd as _,
    ptr,
    sync::Mutex,
};

use ringway_verbs::ffi;

use crate::{
    control::{LOCKED_DEVICE, Refusable},
    engine,
    objects::{
        ContextState, CqState, FakeChannel, FakeContext, FakeCq, FakeQp, FakeRegion, QpState,
        counter, free, give, locked, lower, whole, with_numbers,
    },
};

/// The devices are their names.
static NAMES: [&[u8; 6]; 2] = [b"fake0\0", b"fake1\0"];
const GIDS: u32 = 4;

/// The attributes that a reliable connection needs for each change of its state: the table of ibv_modify_qp(3).
const TO_INIT: c_int = ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | ffi::IBV_QP_ACCESS_FLAGS;
const TO_RECEIVE: c_int = ffi::IBV_QP_AV
    | ffi::IBV_QP_PATH_MTU
    | ffi::IBV_QP_DEST_QPN
    | ffi::IBV_QP_RQ_PSN
    | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
    | ffi::IBV_QP_MIN_RNR_TIMER;
const TO_SEND: c_int = ffi::IBV_QP_SQ_PSN
    | ffi::IBV_QP_MAX_QP_RD_ATOMIC
    | ffi::IBV_QP_RETRY_CNT
    | ffi::IBV_QP_RNR_RETRY
    | ffi::IBV_QP_TIMEOUT;

fn refuse_with(errno: c_int) {
    // SAFETY: no arguments.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place of this thread's error number.
    unsafe { *place = errno }
}

/// Sets the error number and returns it if the call was told to fail.
pub(crate) fn told_to_fail(context: *mut ffi::ibv_context, call: Refusable) -> Option<c_int> {
    // SAFETY: the caller passes contexts that were made here.
    let context: &FakeContext = unsafe { whole(context) };
    let mut state = locked(&context.state);
    let at = state
        .refusals
        .iter()
        .position(|(which, _)| *which == call)?;
    let (_, errno) = state.refusals.remove(at);
    refuse_with(errno);
    Some(errno)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device {
    // SAFETY: the caller's place for an integer.
    unsafe { *count = NAMES.len() as c_int };
    let list: Box<[usize; 3]> = Box::new([NAMES[0].as_ptr().addr(), NAMES[1].as_ptr().addr(), 0]);
    Box::into_raw(list).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ffi::ibv_device) {
    // SAFETY: it was made so.
    drop(unsafe { Box::from_raw(list.cast::<[usize; 3]>()) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char {
    device.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(_device: *mut ffi::ibv_device) -> u64 {
    0x0200_00ff_fe00_0001_u64.to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    // SAFETY: devices are C strings.
    let name = unsafe { std::ffi::CStr::from_ptr(device.cast()) };
    if name.to_bytes() == LOCKED_DEVICE.as_bytes() {
        refuse_with(libc::EACCES);
        return ptr::null_mut();
    }
    let Some(events_fd) = counter() else {
        return ptr::null_mut();
    };
    let ops = ffi::ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(engine::post_send),
        post_recv: Some(engine::post_recv),
        ..ffi::ibv_context_ops::default()
    };
    give(FakeContext {
        seen: ffi::ibv_context {
            device,
            ops,
            cmd_fd: -1,
            async_fd: events_fd.as_raw_fd(),
            num_comp_vectors: 1,
        },
        events_fd,
        state: Mutex::new(ContextState::default()),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ffi::ibv_context) -> c_int {
    // SAFETY: it was made so, and is closed once.
    unsafe { free::<_, FakeContext>(context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    _context: *mut ffi::ibv_context,
    attributes: *mut ffi::ibv_device_attr,
) -> c_int {
    let made = ffi::ibv_device_attr {
        max_mr_size: 1 << 40,
        max_qp_wr: 128,
        max_cqe: 1024,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 300,
        atomic_cap: 1,
        phys_port_cnt: 1,
        ..ffi::ibv_device_attr::default()
    };
    // SAFETY: the caller's place.
    unsafe { *attributes = made };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    _context: *mut ffi::ibv_context,
    port: u8,
    attributes: *mut ffi::ibv_port_attr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let made = ffi::ibv_port_attr {
        state: ffi::IBV_PORT_ACTIVE,
        max_mtu: 5,
        active_mtu: 3,
        gid_tbl_len: GIDS as c_int,
        max_msg_sz: 1 << 30,
        link_layer: ffi::IBV_LINK_LAYER_ETHERNET,
        ..ffi::ibv_port_attr::default()
    };
    // SAFETY: the caller's place.
    unsafe { *attributes = made };
    0
}

/// 0: link-local of v1. 1: link-local of v2. 2: a hole. 3: 10.0.0.1 of v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ffi::ibv_context,
    _port: u32,
    index: u32,
    entry: *mut ffi::ibv_gid_entry,
    _flags: u32,
    _size: usize,
) -> c_int {
    // SAFETY: made here.
    let context: &FakeContext = unsafe { whole(context) };
    if index >= GIDS {
        return libc::EINVAL;
    }
    if index == 2 || locked(&context.state).gone_gids.contains(&index) {
        return libc::ENODATA;
    }
    let raw = if index == 3 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
    } else {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]
    };
    let gid_type = if index == 0 {
        ffi::IBV_GID_TYPE_ROCE_V1
    } else {
        ffi::IBV_GID_TYPE_ROCE_V2
    };
    let made = ffi::ibv_gid_entry {
        gid: ffi::ibv_gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type,
        ndev_ifindex: 1, // lo, which every machine has
    };
    // SAFETY: the caller's place.
    unsafe { *entry = made };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ffi::ibv_context,
    event: *mut ffi::ibv_async_event,
) -> c_int {
    if told_to_fail(context, Refusable::TakeEvent).is_some() {
        return -1;
    }
    // SAFETY: made here.
    let context: &FakeContext = unsafe { whole(context) };
    if let Err(errno) = lower(&context.events_fd) {
        refuse_with(errno);
        return -1;
    }
    let next = locked(&context.state).events.pop_front();
    // SAFETY: the caller's place.
    unsafe { *event = next.unwrap_or_default() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_event: *mut ffi::ibv_async_event) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    give(ffi::ibv_pd { context, handle: 0 })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: made so, freed once.
    unsafe { free::<_, ffi::ibv_pd>(domain) };
    0
}

fn register(
    domain: *mut ffi::ibv_pd,
    addr: *mut c_void,
    start: u64,
    length: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: made here.
    let context = unsafe { (*domain).context };
    if told_to_fail(context, Refusable::RegisterMemory).is_some() {
        return ptr::null_mut();
    }
    // As the kernel does (ibv_reg_mr(3)).
    let changed_by_peers = ffi::IBV_ACCESS_REMOTE_WRITE | ffi::IBV_ACCESS_REMOTE_ATOMIC;
    if access & changed_by_peers != 0 && access & ffi::IBV_ACCESS_LOCAL_WRITE == 0 {
        refuse_with(libc::EINVAL);
        return ptr::null_mut();
    }
    addr.expose_provenance();
    let key = with_numbers(|numbers| {
        let key = numbers.next();
        let region = FakeRegion {
            start,
            len: length as u64,
            access,
        };
        numbers.regions.insert(key, region);
        key
    });
    give(ffi::ibv_mr {
        context,
        pd: domain,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    register(domain, addr, addr.addr() as u64, length, access)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    register(domain, addr, iova, length, access.cast_signed())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut ffi::ibv_pd,
    _offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr {
    if fd < 0 {
        refuse_with(libc::EBADF);
        return ptr::null_mut();
    }
    register(domain, ptr::null_mut(), iova, length, access)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: made here.
    let ffi::ibv_mr {
        context, lkey: key, ..
    } = unsafe { *region };
    if let Some(errno) = told_to_fail(context, Refusable::DeregisterMemory) {
        return errno;
    }
    with_numbers(|numbers| numbers.regions.remove(&key));
    // SAFETY: made so, freed once.
    unsafe { free::<_, ffi::ibv_mr>(region) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ffi::ibv_context,
) -> *mut ffi::ibv_comp_channel {
    let Some(fd) = counter() else {
        return ptr::null_mut();
    };
    give(FakeChannel {
        seen: ffi::ibv_comp_channel {
            context,
            fd: fd.as_raw_fd(),
            refcnt: 0,
        },
        fd,
        ready: Mutex::default(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int {
    // SAFETY: made so, freed once.
    unsafe { free::<_, FakeChannel>(channel) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ffi::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ffi::ibv_comp_channel,
    _vector: c_int,
) -> *mut ffi::ibv_cq {
    if told_to_fail(context, Refusable::CreateCompletionQueue).is_some() {
        return ptr::null_mut();
    }
    give(FakeCq {
        seen: ffi::ibv_cq {
            context,
            channel,
            cq_context,
            handle: 0,
            cqe,
        },
        depth: cqe as usize,
        state: Mutex::new(CqState::default()),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: made so, freed once.
    unsafe { free::<_, FakeCq>(queue) };
    0
}

unsafe extern "C" fn poll_cq(
    queue: *mut ffi::ibv_cq,
    room: c_int,
    into: *mut ffi::ibv_wc,
) -> c_int {
    // SAFETY: made here.
    let this: &FakeCq = unsafe { whole(queue) };
    let mut state = locked(&this.state);
    if state.completions.len() > this.depth {
        return -libc::EIO; // it ran over
    }
    let mut got = 0;
    while got < room
        && let Some(completion) = state.completions.pop_front()
    {
        let place = into.wrapping_add(got as usize);
        // SAFETY: the caller's array has room for so many.
        unsafe { *place = completion };
        got += 1;
    }
    got
}

unsafe extern "C" fn req_notify_cq(queue: *mut ffi::ibv_cq, _solicited: c_int) -> c_int {
    // SAFETY: made here.
    let this: &FakeCq = unsafe { whole(queue) };
    locked(&this.state).armed = true;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ffi::ibv_comp_channel,
    queue: *mut *mut ffi::ibv_cq,
    token: *mut *mut c_void,
) -> c_int {
    // SAFETY: made here.
    let channel: &FakeChannel = unsafe { whole(channel) };
    if let Err(errno) = lower(&channel.fd) {
        refuse_with(errno);
        return -1;
    }
    let ready = locked(&channel.ready).pop_front().unwrap_or(0);
    // SAFETY: the caller's place.
    unsafe { *queue = ptr::with_exposed_provenance_mut(ready) };
    // SAFETY: the caller's place.
    unsafe { *token = ptr::null_mut() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(_queue: *mut ffi::ibv_cq, _count: c_uint) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    domain: *mut ffi::ibv_pd,
    attributes: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: made here.
    let context = unsafe { (*domain).context };
    if told_to_fail(context, Refusable::CreateQueuePair).is_some() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's attributes.
    let attributes = unsafe { &mut *attributes };
    // More than asked for, as drivers do.
    let cap = &mut attributes.cap;
    cap.max_inline_data = cap.max_inline_data.max(64);
    cap.max_send_wr = cap.max_send_wr.next_power_of_two();
    cap.max_recv_wr = cap.max_recv_wr.next_power_of_two();
    // SAFETY: the context is open as long as there are domains on it.
    let state = &unsafe { whole::<_, FakeContext>(context) }.state;
    let number = locked(state).free_numbers.pop();
    let number = number.unwrap_or_else(|| with_numbers(super::objects::Numbers::next));
    let pair: *mut ffi::ibv_qp = give(FakeQp {
        seen: ffi::ibv_qp {
            context,
            qp_context: attributes.qp_context,
            pd: domain,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            srq: ptr::null_mut(),
            handle: 0,
            qp_num: number,
            state: 0,
            qp_type: attributes.qp_type,
        },
        depth: attributes.cap.max_send_wr as usize,
        inner: Mutex::new(QpState::default()),
    });
    with_numbers(|numbers| numbers.pairs.insert(number, pair.expose_provenance()));
    pair
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: made here.
    let this: &FakeQp = unsafe { whole(pair) };
    let number = this.seen.qp_num;
    with_numbers(|numbers| numbers.pairs.remove(&number));
    // SAFETY: the context is open as long as there are queue pairs on it.
    let state = &unsafe { whole::<_, FakeContext>(this.seen.context) }.state;
    locked(state).free_numbers.push(number);
    // SAFETY: made so, freed once.
    unsafe { free::<_, FakeQp>(pair) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ffi::ibv_qp,
    attributes: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: made here.
    let this: &FakeQp = unsafe { whole(pair) };
    // SAFETY: the caller's attributes.
    let attributes = unsafe { &*attributes };
    if let Some(errno) = told_to_fail(this.seen.context, Refusable::ModifyQueuePair) {
        return errno;
    }
    // SAFETY: the context is open as long as there are queue pairs on it.
    let context: &FakeContext = unsafe { whole(this.seen.context) };
    let old = locked(&this.inner).state;
    let next = attributes.qp_state;
    if next == ffi::IBV_QPS_ERR {
        engine::fail(this);
        return 0;
    }
    let needed = match (old, next) {
        (ffi::IBV_QPS_RESET, ffi::IBV_QPS_INIT) => TO_INIT,
        (ffi::IBV_QPS_INIT, ffi::IBV_QPS_RTR) => TO_RECEIVE,
        (ffi::IBV_QPS_RTR, ffi::IBV_QPS_RTS) => TO_SEND,
        _ => return libc::EINVAL,
    };
    if mask != ffi::IBV_QP_STATE | needed {
        return libc::EINVAL;
    }
    if next == ffi::IBV_QPS_RTR {
        let index = u32::from(attributes.ah_attr.grh.sgid_index);
        if index >= GIDS || locked(&context.state).gone_gids.contains(&index) {
            return libc::EINVAL;
        }
        locked(&this.inner).peer = attributes.dest_qp_num;
    }
    locked(&this.inner).state = next;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    pair: *mut ffi::ibv_qp,
    attributes: *mut ffi::ibv_qp_attr,
    _mask: c_int,
    _made: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: made here.
    let this: &FakeQp = unsafe { whole(pair) };
    // SAFETY: the caller's place.
    unsafe { (*attributes).qp_state = locked(&this.inner).state };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    libc::ENOSYS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> c_uint {
    ffi::IBV_FORK_DISABLED
}
