//! The numbers of the operations, as the first byte of a packet has them.
//!
//! The three high bits name the transport service (000 reliable connection, 011 unreliable datagram), the five low
//! ones the operation (InfiniBand specification, volume 1, table 38). The congestion notification packet has a
//! number of its own (annex A17.9.2).

/// RC SEND, the first packet of several.
pub const SEND_FIRST: u8 = 0x00;
/// RC SEND, neither first nor last.
pub const SEND_MIDDLE: u8 = 0x01;
/// RC SEND, the last packet of several.
pub const SEND_LAST: u8 = 0x02;
/// RC SEND, the last packet of several, with immediate data.
pub const SEND_LAST_IMMEDIATE: u8 = 0x03;
/// RC SEND in one packet.
pub const SEND_ONLY: u8 = 0x04;
/// RC SEND in one packet, with immediate data.
pub const SEND_ONLY_IMMEDIATE: u8 = 0x05;
/// RC RDMA WRITE, the first packet of several.
pub const WRITE_FIRST: u8 = 0x06;
/// RC RDMA WRITE, neither first nor last.
pub const WRITE_MIDDLE: u8 = 0x07;
/// RC RDMA WRITE, the last packet of several.
pub const WRITE_LAST: u8 = 0x08;
/// RC RDMA WRITE, the last packet of several, with immediate data.
pub const WRITE_LAST_IMMEDIATE: u8 = 0x09;
/// RC RDMA WRITE in one packet.
pub const WRITE_ONLY: u8 = 0x0a;
/// RC RDMA WRITE in one packet, with immediate data.
pub const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
/// RC RDMA READ request.
pub const READ_REQUEST: u8 = 0x0c;
/// RC RDMA READ response, the first packet of several.
pub const READ_RESPONSE_FIRST: u8 = 0x0d;
/// RC RDMA READ response, neither first nor last.
pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
/// RC RDMA READ response, the last packet of several.
pub const READ_RESPONSE_LAST: u8 = 0x0f;
/// RC RDMA READ response in one packet.
pub const READ_RESPONSE_ONLY: u8 = 0x10;
/// RC acknowledgement, positive or negative.
pub const ACKNOWLEDGE: u8 = 0x11;
/// RC acknowledgement of an atomic operation.
pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
/// RC atomic compare and swap.
pub const COMPARE_SWAP: u8 = 0x13;
/// RC atomic fetch and add.
pub const FETCH_ADD: u8 = 0x14;
/// RC selective acknowledgement, of Ringway's own: 11x is the manufacturer's to use.
pub const SELECTIVE_ACKNOWLEDGE: u8 = 0xc0;
/// UD SEND, always in one packet.
pub const UD_SEND_ONLY: u8 = 0x64;
/// UD SEND with immediate data.
pub const UD_SEND_ONLY_IMMEDIATE: u8 = 0x65;
/// Congestion notification packet.
pub const CNP: u8 = 0x81;
