//! What the two sides of a connection ask for, and what they agree on.

use std::net::SocketAddr;

use thiserror::Error;

use super::{IpHeader, Path, Rep, Req, ip::service_id, message::Ids};
use crate::{Psn, Qpn, rc::Mtu, timer::AckTimeout};

/// What the initiator of a connection asks for.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// The initiator's address, and the port that the listener sees.
    pub source: SocketAddr,
    /// The listener's address, and the port that it listens at.
    pub destination: SocketAddr,
    /// The initiator's device: an EUI-64, unlike any other's.
    pub guid: u64,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN that it expects the listener's first packet to have.
    pub receive_psn: Psn,
    /// The most payload of a packet, for both directions.
    pub mtu: Mtu,
    /// How many READs and atomic operations it can have coming in.
    pub responder_resources: u8,
    /// How many it wants to have going out.
    pub initiator_depth: u8,
    /// The ACK timeout of both sides.
    pub ack_timeout: AckTimeout,
    /// The retries of both sides after time-outs, 0 to 7. Linux's rxe takes 7 as "for ever".
    pub retries: u8,
    /// The listener's retries after "receiver not ready", 0 to 7.
    pub rnr_retries: u8,
    /// The type of service or traffic class of the packets.
    pub traffic_class: u8,
    /// How long either side may take to answer a message: 4.096 µs · 2^code, 0 to 31.
    pub response_timeout: u8,
    /// How often a message that isn't answered is sent again, 0 to 15.
    pub cm_retries: u8,
}

/// What the listener answers.
#[derive(Clone, Copy, Debug)]
pub struct Acceptance {
    /// The listener's device.
    pub guid: u64,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN that it expects the initiator's first packet to have.
    pub receive_psn: Psn,
    /// How many READs and atomic operations it can have coming in.
    pub responder_resources: u8,
    /// How many it wants to have going out.
    pub initiator_depth: u8,
    /// The initiator's retries after "receiver not ready", 0 to 7.
    pub rnr_retries: u8,
}

/// What a side has to set up its queue pair with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The peer's queue pair.
    pub peer: Qpn,
    /// The PSN of this side's first packet, which the peer has chosen.
    pub send_psn: Psn,
    /// The PSN of the peer's first packet, which this side has chosen.
    pub receive_psn: Psn,
    /// The path's MTU.
    pub mtu: Mtu,
    /// How many READs and atomic operations come in at most.
    pub responder_resources: u8,
    /// How many may go out.
    pub initiator_depth: u8,
    /// The ACK timeout.
    pub ack_timeout: AckTimeout,
    /// The retries after time-outs.
    pub retries: u8,
    /// The retries after "receiver not ready".
    pub rnr_retries: u8,
}

/// Why a message's private data can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes of private data are more than this message's {max}")]
pub struct TooLong {
    /// How many bytes there are.
    pub length: usize,
    /// How many there may be.
    pub max: usize,
}

/// Private data has a fixed length in each message, and is filled up with zeros.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], TooLong> {
    let mut data = [0; N];
    let (length, max) = (bytes.len(), N);
    data.get_mut(..length)
        .ok_or(TooLong { length, max })?
        .copy_from_slice(bytes);
    Ok(data)
}

impl Proposal {
    /// How much private data the initiator may send.
    pub const PRIVATE_DATA: usize = 92 - IpHeader::LEN;

    pub(super) fn req(&self, local_id: u32, private_data: &[u8]) -> Result<Req, TooLong> {
        let user: [u8; Self::PRIVATE_DATA] = padded(private_data)?;
        let header = IpHeader {
            source: self.source.ip(),
            source_port: self.source.port(),
            destination: self.destination.ip(),
        };
        let mut private_data = [0; 92];
        private_data[..IpHeader::LEN].copy_from_slice(&header.emit());
        private_data[IpHeader::LEN..].copy_from_slice(&user);
        Ok(Req {
            local_id,
            service_id: service_id(self.destination.port()),
            guid: self.guid,
            qkey: 0,
            qpn: self.qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            remote_response_timeout: self.response_timeout,
            transport: Req::RELIABLE_CONNECTION,
            end_to_end_flow_control: false,
            starting_psn: self.receive_psn,
            local_response_timeout: self.response_timeout,
            retries: self.retries,
            pkey: crate::wire::DEFAULT_PKEY,
            mtu: self.mtu.code(),
            rnr_retries: self.rnr_retries,
            cm_retries: self.cm_retries,
            shared_receive_queue: false,
            primary: Path {
                local_lid: Path::NO_LID,
                remote_lid: Path::NO_LID,
                local_gid: IpHeader::gid(self.source.ip()),
                remote_gid: IpHeader::gid(self.destination.ip()),
                flow_label: 0,
                packet_rate: 0,
                traffic_class: self.traffic_class,
                hop_limit: 64,
                service_level: 0,
                subnet_local: false,
                ack_timeout: self.ack_timeout.code(),
            },
            alternate: Path::NONE,
            private_data,
        })
    }

    /// The initiator's terms after the listener's answer.
    pub(super) fn terms(&self, rep: &Rep) -> Terms {
        Terms {
            peer: rep.qpn,
            send_psn: rep.starting_psn,
            receive_psn: self.receive_psn,
            mtu: self.mtu,
            responder_resources: self.responder_resources.min(rep.initiator_depth),
            initiator_depth: self.initiator_depth.min(rep.responder_resources),
            ack_timeout: self.ack_timeout,
            retries: self.retries,
            rnr_retries: rep.rnr_retries,
        }
    }
}

impl Acceptance {
    /// How much private data the listener may send.
    pub const PRIVATE_DATA: usize = 196;

    pub(super) fn rep(&self, ids: Ids, req: &Req, private_data: &[u8]) -> Result<Rep, TooLong> {
        Ok(Rep {
            ids,
            qkey: 0,
            qpn: self.qpn,
            starting_psn: self.receive_psn,
            responder_resources: self.responder_resources.min(req.initiator_depth),
            initiator_depth: self.initiator_depth.min(req.responder_resources),
            target_ack_delay: 0,
            failover: 0,
            end_to_end_flow_control: false,
            rnr_retries: self.rnr_retries,
            shared_receive_queue: false,
            guid: self.guid,
            private_data: padded(private_data)?,
        })
    }

    /// The listener's terms; `mtu` and `ack_timeout` are the REQ's.
    pub(super) fn terms(&self, req: &Req, mtu: Mtu, ack_timeout: AckTimeout) -> Terms {
        Terms {
            peer: req.qpn,
            send_psn: req.starting_psn,
            receive_psn: self.receive_psn,
            mtu,
            responder_resources: self.responder_resources.min(req.initiator_depth),
            initiator_depth: self.initiator_depth.min(req.responder_resources),
            ack_timeout,
            retries: req.retries,
            rnr_retries: req.rnr_retries,
        }
    }
}
