//! `rdma/rdma_cma.h`.

use std::ffi::{c_int, c_uint, c_void};

use libc::sockaddr_storage;

use super::{ibv_context, ibv_qp, layout::structures};

structures! { CM:
    struct rdma_event_channel (whole 4) {
        0 fd: c_int,
    }

    struct rdma_addr (prefix) {
        0 src_storage: sockaddr_storage,
        128 dst_storage: sockaddr_storage,
    }

    struct rdma_cm_id (prefix) {
        0 verbs: *mut ibv_context,
        8 channel: *mut rdma_event_channel,
        16 context: *mut c_void,
        24 qp: *mut ibv_qp,
        32 route_addr "route.addr": rdma_addr,
    }

    struct rdma_conn_param (whole 24) {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        9 responder_resources: u8,
        10 initiator_depth: u8,
        11 flow_control: u8,
        12 retry_count: u8,
        13 rnr_retry_count: u8,
        14 srq: u8,
        16 qp_num: u32,
    }

    struct rdma_cm_event (prefix) {
        0 id: *mut rdma_cm_id,
        8 listen_id: *mut rdma_cm_id,
        16 event: c_uint,
        20 status: c_int,
        24 conn "param.conn": rdma_conn_param,
    }
}

pub const RDMA_PS_TCP: c_uint = 0x0106;

pub const RDMA_CM_EVENT_ADDR_RESOLVED: c_uint = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: c_uint = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: c_uint = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: c_uint = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: c_uint = 4;
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: c_uint = 5;
pub const RDMA_CM_EVENT_CONNECT_ERROR: c_uint = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: c_uint = 7;
pub const RDMA_CM_EVENT_REJECTED: c_uint = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: c_uint = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: c_uint = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: c_uint = 11;
pub const RDMA_CM_EVENT_ADDR_CHANGE: c_uint = 14;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: c_uint = 15;

pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_ID_TOS: c_int = 0;
