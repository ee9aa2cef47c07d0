//! The request for communication, which says everything about the connection that is to be.

use std::net::Ipv6Addr;

use super::fields::{BODY, Fields};
use crate::{Psn, Qpn};

/// Request for communication (volume 1, table 106).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// What is asked for; see [`super::service_id`].
    pub service_id: u64,
    /// The sender's device.
    pub guid: u64,
    /// The queue key, for datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// How many READs and atomic operations the sender can have coming in.
    pub responder_resources: u8,
    /// How many it will have going out.
    pub initiator_depth: u8,
    /// How long the receiver may take for its REP: 4.096 µs · 2^code, 0 to 31.
    pub remote_response_timeout: u8,
    /// The transport service: 0 is the reliable connection.
    pub transport: u8,
    /// Whether the sender counts credits.
    pub end_to_end_flow_control: bool,
    /// The PSN that the receiver's first packet shall have: what the sender expects.
    pub starting_psn: Psn,
    /// How long the sender may take for its RTU, coded likewise.
    pub local_response_timeout: u8,
    /// How often the receiver shall try again after a time-out, 0 to 7.
    pub retries: u8,
    /// The partition.
    pub pkey: u16,
    /// The path's MTU as [`crate::rc::Mtu::code`], 0 to 15.
    pub mtu: u8,
    /// How often the receiver shall try again after "receiver not ready", 0 to 7.
    pub rnr_retries: u8,
    /// How often messages of connection management are sent again, 0 to 15.
    pub cm_retries: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub shared_receive_queue: bool,
    /// The path.
    pub primary: Path,
    /// Another path; all zeros if there is none.
    pub alternate: Path,
    /// With rdma_cm, an [`super::IpHeader`] and the user's.
    pub private_data: [u8; 92],
}

/// A path as the sender of a REQ sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The sender's local identifier, which Ethernet doesn't have: [`Path::NO_LID`].
    pub local_lid: u16,
    /// The receiver's.
    pub remote_lid: u16,
    /// The sender's GID: its IP address, IPv4 as a mapped one.
    pub local_gid: Ipv6Addr,
    /// The receiver's.
    pub remote_gid: Ipv6Addr,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The path's rate as `ibv_rate`, 6 bits.
    pub packet_rate: u8,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// Whether no router is in between.
    pub subnet_local: bool,
    /// The sender's ACK timeout, 0 to 31; see [`crate::timer::AckTimeout`].
    pub ack_timeout: u8,
}

impl Req {
    pub(super) fn parse(fields: &Fields<&[u8; BODY]>) -> Self {
        Self {
            local_id: fields.u32(0),
            service_id: fields.u64(8),
            guid: fields.u64(16),
            qkey: fields.u32(28),
            qpn: Qpn::new(fields.u24(32)),
            responder_resources: fields.u8(35),
            initiator_depth: fields.u8(39),
            remote_response_timeout: fields.u8(43) >> 3,
            transport: fields.u8(43) >> 1 & 3,
            end_to_end_flow_control: fields.u8(43) & 1 != 0,
            starting_psn: Psn::new(fields.u24(44)),
            local_response_timeout: fields.u8(47) >> 3,
            retries: fields.u8(47) & 7,
            pkey: fields.u16(48),
            mtu: fields.u8(50) >> 4,
            rnr_retries: fields.u8(50) & 7,
            cm_retries: fields.u8(51) >> 4,
            shared_receive_queue: fields.u8(51) & 8 != 0,
            primary: Path::parse(fields, 52),
            alternate: Path::parse(fields, 96),
            private_data: fields.bytes(140),
        }
    }

    pub(super) fn emit(&self, fields: &mut Fields<[u8; BODY]>) {
        fields.put(0, &self.local_id.to_be_bytes());
        fields.put(8, &self.service_id.to_be_bytes());
        fields.put(16, &self.guid.to_be_bytes());
        fields.put(28, &self.qkey.to_be_bytes());
        fields.put_u24_u8(32, self.qpn.get(), self.responder_resources);
        fields.put_u24_u8(36, 0, self.initiator_depth);
        let transport = self.remote_response_timeout << 3
            | (self.transport & 3) << 1
            | u8::from(self.end_to_end_flow_control);
        fields.put_u24_u8(40, 0, transport);
        let retries = self.local_response_timeout << 3 | self.retries & 7;
        fields.put_u24_u8(44, self.starting_psn.get(), retries);
        fields.put(48, &self.pkey.to_be_bytes());
        let shared = u8::from(self.shared_receive_queue) << 3;
        fields.put(
            50,
            &[
                self.mtu << 4 | self.rnr_retries & 7,
                self.cm_retries << 4 | shared,
            ],
        );
        self.primary.emit(fields, 52);
        self.alternate.emit(fields, 96);
        fields.put(140, &self.private_data);
    }
}

impl Path {
    /// The local identifier of a port that has none.
    pub const NO_LID: u16 = 0xffff;

    /// No path.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Ipv6Addr::UNSPECIFIED,
        remote_gid: Ipv6Addr::UNSPECIFIED,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        service_level: 0,
        subnet_local: false,
        ack_timeout: 0,
    };

    fn parse(fields: &Fields<&[u8; BODY]>, at: usize) -> Self {
        Self {
            local_lid: fields.u16(at),
            remote_lid: fields.u16(at + 2),
            local_gid: fields.gid(at + 4),
            remote_gid: fields.gid(at + 20),
            flow_label: fields.u32(at + 36) >> 12,
            packet_rate: fields.u8(at + 39) & 0x3f,
            traffic_class: fields.u8(at + 40),
            hop_limit: fields.u8(at + 41),
            service_level: fields.u8(at + 42) >> 4,
            subnet_local: fields.u8(at + 42) & 8 != 0,
            ack_timeout: fields.u8(at + 43) >> 3,
        }
    }

    fn emit(&self, fields: &mut Fields<[u8; BODY]>, at: usize) {
        fields.put(at, &self.local_lid.to_be_bytes());
        fields.put(at + 2, &self.remote_lid.to_be_bytes());
        fields.put(at + 4, &self.local_gid.octets());
        fields.put(at + 20, &self.remote_gid.octets());
        let label_and_rate = self.flow_label << 12 | u32::from(self.packet_rate & 0x3f);
        fields.put(at + 36, &label_and_rate.to_be_bytes());
        let local = u8::from(self.subnet_local) << 3;
        fields.put(
            at + 40,
            &[
                self.traffic_class,
                self.hop_limit,
                self.service_level << 4 | local,
                self.ack_timeout << 3,
            ],
        );
    }
}
