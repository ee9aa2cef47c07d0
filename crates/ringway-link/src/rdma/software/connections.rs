//! Connections as rdma_cm makes them, with whoever speaks its protocol at UDP port 4791: NICs, Linux's rxe, and other
//! devices of this kind.
//!
//! To such a connection both sides are NICs: data goes to port 4791 too, packet by packet.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use ringway_roce::{
    cm::{Acceptance, CmError, ConnectionId, Event, Manager, Notice, Proposal, Reason, Terms},
    endpoint::Handle,
    rc::{self, Mtu},
    wire::ROCE_PORT,
};
use ringway_sys::datagram::Outgoing;

use super::{
    NAME, NIC_WINDOW, Port, SoftwareDevice,
    device::{Peer, Sending},
    misuse,
};
use crate::rdma::{Address, DeviceError, Mismatch, QueuePair, QueuePairOptions};

/// How long either side may take to answer: 4.096 µs · 2^17, half a second. Linux's asks for more time at once.
const RESPONSE_TIMEOUT: u8 = 17;

/// How often a message that isn't answered is sent again: with that, a peer that is gone is noticed after five seconds.
const RETRIES: u8 = 9;

/// Something has happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// Which.
    pub connection: ConnectionId,
    /// The other side: its address, and the port of its service or the one that it gives as its own.
    pub peer: SocketAddr,
    /// What.
    pub change: ConnectionChange,
}

/// What has happened. Private data comes with the zeros that it is filled up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionChange {
    /// The peer asks for a connection: [`SoftwareDevice::accept`] or [`SoftwareDevice::reject`] it.
    Requested {
        /// The port that it asks for.
        port: u16,
        /// The path's MTU, which the queue pair must take.
        mtu: Mtu,
        /// The traffic class of the peer's packets, which the queue pair's must have too.
        traffic_class: u8,
        /// The peer's, 56 bytes.
        private_data: Vec<u8>,
    },
    /// The connection is there, and the queue pair ready.
    Established {
        /// The peer's: 196 bytes for who has asked, 224 for who has accepted.
        private_data: Vec<u8>,
    },
    /// The peer doesn't want it.
    Rejected {
        /// Why, as in the InfiniBand specification: 8 is that nobody listens, 28 that the user said no.
        reason: Reason,
        /// The peer's, 148 bytes.
        private_data: Vec<u8>,
    },
    /// The peer doesn't answer.
    Unreachable,
    /// The connection has come to its end, by either side. The queue pair stays as it is.
    Disconnected,
}

impl SoftwareDevice {
    /// Listens for connections at a port of rdma_cm's (`RDMA_PS_TCP`), which has nothing to do with TCP's.
    ///
    /// # Errors
    /// If the device was opened without [`roce_port`](super::SoftwareOptions::roce_port), or listens there already.
    pub fn listen(&mut self, port: u16) -> Result<(), DeviceError> {
        if self.manager()?.listen(port) {
            Ok(())
        } else {
            Err(misuse("a port is listened at twice"))
        }
    }

    /// Listens no longer. What was requested before can still be accepted.
    ///
    /// # Errors
    /// If the device doesn't listen there.
    pub fn stop_listening(&mut self, port: u16) -> Result<(), DeviceError> {
        if self.manager()?.stop_listening(port) {
            Ok(())
        } else {
            Err(misuse("a port isn't listened at"))
        }
    }

    /// Asks who listens at `to` to connect a queue pair that isn't connected. The queue pair's options are proposed; the
    /// listener accepts or rejects them as they are. At most 56 bytes of private data go with it.
    ///
    /// # Errors
    /// If the device was opened without [`roce_port`](super::SoftwareOptions::roce_port), the address is of the other
    /// family, the queue pair is connected or being connected, or the private data is too long.
    pub fn connect_to(
        &mut self,
        queue_pair: QueuePair,
        to: SocketAddr,
        private_data: &[u8],
    ) -> Result<ConnectionId, DeviceError> {
        let (own, options) = self.unconnected(queue_pair)?;
        if own.ip.is_ipv4() != to.is_ipv4() {
            let (own, peer) = (own.ip, to.ip());
            return Err(Mismatch::Family { own, peer }.into());
        }
        let manager = self.manager()?;
        let proposal = Proposal {
            // There are no ports on this side; the number tells connections apart for people.
            source: SocketAddr::new(own.ip, own.software.map_or(0, |it| it.port)),
            destination: to,
            guid: manager.guid(),
            qpn: own.number,
            receive_psn: own.first_psn,
            mtu: own.mtu,
            responder_resources: own.initiator_depth,
            initiator_depth: own.initiator_depth,
            ack_timeout: options.ack_timeout,
            retries: options.retries.min(7),
            rnr_retries: options.rnr_retries,
            traffic_class: own.traffic_class,
            response_timeout: RESPONSE_TIMEOUT,
            cm_retries: RETRIES,
        };
        manager
            .connect(Instant::now(), proposal, private_data)
            .map_err(|error| managing("connecting", error.into()))
    }

    /// Accepts a request with a queue pair that isn't connected. At most 196 bytes of private data go with it.
    ///
    /// # Errors
    /// If nothing is requested by this connection, the queue pair is connected, has another traffic class or a smaller
    /// MTU than the peer wants, or the private data is too long. Then the request still waits for its answer.
    pub fn accept(
        &mut self,
        connection: ConnectionId,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        let (own, options) = self.unconnected(queue_pair)?;
        let manager = self.manager()?;
        let Some(request) = manager.request(connection) else {
            return Err(managing("accepting", CmError::NoConnection(connection)));
        };
        if request.traffic_class != own.traffic_class {
            return Err(Mismatch::TrafficClass {
                own: own.traffic_class,
                peer: request.traffic_class,
            }
            .into());
        }
        if request.mtu > own.mtu {
            return Err(misuse(
                "a request for a greater path MTU than the queue pair's is accepted: reject it, or make a queue pair of that MTU",
            ));
        }
        let acceptance = Acceptance {
            guid: manager.guid(),
            qpn: own.number,
            receive_psn: own.first_psn,
            responder_resources: own.initiator_depth,
            initiator_depth: own.initiator_depth,
            rnr_retries: options.rnr_retries,
        };
        let peer = request.peer;
        let terms = manager
            .accept(Instant::now(), connection, &acceptance, private_data)
            .map_err(|error| managing("accepting", error))?;
        self.ready(queue_pair, peer.ip(), &terms)
    }

    /// Rejects a request. At most 148 bytes of private data go with it.
    ///
    /// # Errors
    /// If nothing is requested by this connection, or the private data is too long.
    pub fn reject(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        self.manager()?
            .reject(Instant::now(), connection, Reason::CONSUMER, private_data)
            .map_err(|error| managing("rejecting", error))
    }

    /// Ends a connection: the other side is told, and the queue pair stays as it is. Destroying the queue pair instead
    /// ends it as well, but without waiting for the peer's answer.
    ///
    /// # Errors
    /// If it isn't established.
    pub fn disconnect(&mut self, connection: ConnectionId) -> Result<(), DeviceError> {
        self.manager()?
            .disconnect(Instant::now(), connection)
            .map_err(|error| managing("disconnecting", error))
    }

    /// What has happened to connections. [`Device::poll`](crate::rdma::Device::poll) finds it out, and [`Device::fd`] tells.
    ///
    /// [`Device::fd`]: crate::rdma::Device::fd
    pub fn poll_connection(&mut self) -> Option<ConnectionEvent> {
        self.connection_events.pop_front()
    }

    /// Takes over what the manager has to tell. That is before its messages go: an initiator's queue pair must be ready
    /// when the peer is told so.
    pub(super) fn take_notices(&mut self) {
        while let Some(manager) = self.endpoint.manager_mut()
            && let Some((connection, notice)) = manager.poll_notice()
        {
            let (peer, own) = (manager.peer(connection), manager.queue_pair(connection));
            let Some(peer) = peer else {
                continue;
            };
            let change = match notice {
                Notice::Requested(request) => ConnectionChange::Requested {
                    port: request.port,
                    mtu: request.mtu,
                    traffic_class: request.traffic_class,
                    private_data: request.private_data,
                },
                Notice::Changed(Event::Established {
                    terms,
                    private_data,
                }) => {
                    if let Some(handle) = own.and_then(|number| self.endpoint.find(number)) {
                        self.establish(connection, handle, peer.ip(), &terms);
                    }
                    ConnectionChange::Established { private_data }
                }
                Notice::Changed(Event::Rejected {
                    reason,
                    private_data,
                }) => ConnectionChange::Rejected {
                    reason,
                    private_data,
                },
                Notice::Changed(Event::Unreachable) => ConnectionChange::Unreachable,
                Notice::Changed(Event::Disconnected) => ConnectionChange::Disconnected,
            };
            self.connection_events.push_back(ConnectionEvent {
                connection,
                peer,
                change,
            });
        }
    }

    /// Sends the manager's messages. One that can't be sent counts as lost: its repetition is the manager's work.
    pub(super) fn transmit_management(&mut self) -> bool {
        self.take_notices();
        let Some(socket) = &self.roce else {
            return false;
        };
        let mut moved = false;
        while let Some(ip) = self
            .endpoint
            .poll_management(socket.local(), &mut self.datagram)
        {
            let outgoing = Outgoing {
                to: self.interface.socket_address(ip, ROCE_PORT),
                bytes: &self.datagram,
                segment: None,
                traffic_class: None,
            };
            moved = true;
            self.counts.sends += 1;
            match socket.send([outgoing]) {
                Ok(_) => self.counts.datagrams += 1,
                Err(_) => self.counts.lost += 1,
            }
        }
        moved
    }

    /// An initiator's queue pair is readied when the peer has accepted; a listener's already is.
    fn establish(&mut self, connection: ConnectionId, handle: Handle, peer: IpAddr, terms: &Terms) {
        let state = self.endpoint.queue_pair(handle).map(rc::QueuePair::state);
        if state != Ok(rc::State::Init) {
            return;
        }
        if let Err(error) = self.ready(QueuePair(handle.0), peer, terms) {
            // The user has connected it by an address meanwhile.
            tracing::warn!(%peer, "an accepted connection is ended: {error}");
            if let Some(manager) = self.endpoint.manager_mut() {
                let _ = manager.disconnect(Instant::now(), connection);
            }
        }
    }

    /// Connects a queue pair by what the conversation has come to.
    fn ready(
        &mut self,
        queue_pair: QueuePair,
        peer: IpAddr,
        terms: &Terms,
    ) -> Result<(), DeviceError> {
        let peer = Peer {
            at: self.interface.socket_address(peer, ROCE_PORT),
            number: terms.peer,
            first_psn: terms.receive_psn,
            mtu: terms.mtu,
            window: NIC_WINDOW,
            trains: false,
            selective: false,
        };
        let send = Sending {
            first_psn: terms.send_psn,
            timeout: terms.ack_timeout,
            retries: terms.retries,
            rnr_retries: terms.rnr_retries,
            initiator_depth: terms.initiator_depth,
        };
        self.start(queue_pair, peer, terms.responder_resources, send)
    }

    fn manager(&mut self) -> Result<&mut Manager, DeviceError> {
        self.endpoint.manager_mut().ok_or_else(|| {
            misuse("connection management is asked for, and the device was opened without UDP port 4791: open it with it")
        })
    }

    /// What a queue pair is that is neither connected nor being connected.
    fn unconnected(
        &self,
        queue_pair: QueuePair,
    ) -> Result<(Address, QueuePairOptions), DeviceError> {
        let Port { own, options, .. } = self.known_port(queue_pair)?;
        let state = self.endpoint.queue_pair(Handle(queue_pair.0));
        let is_fresh = state.is_ok_and(|pair| pair.state() == rc::State::Init);
        let is_asked_for = |manager: &Manager| manager.connects(own.number);
        if !is_fresh || self.endpoint.manager().is_some_and(is_asked_for) {
            return Err(misuse("a queue pair is connected twice"));
        }
        Ok((*own, *options))
    }
}

fn managing(what: &'static str, error: CmError) -> DeviceError {
    DeviceError::Management {
        device: NAME.into(),
        what,
        error,
    }
}
