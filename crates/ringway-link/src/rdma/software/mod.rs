//! RDMA in software: RoCE v2 over UDP sockets, with no kernel module, no root and no RDMA NIC.
//!
//! # Sockets
//!
//! Each queue pair has a socket of its own. So its packets have a source port of their own, by which switches spread
//! flows over paths; and its socket buffer is its own, so that the window that its peer is told keeps the buffer from
//! overflowing, whatever the other queue pairs do. Several processes of a host can't all have port 4791, so the port
//! is part of the [`Address`]. NICs send to 4791 only: for them a device listens there as well, if it is told to.
//!
//! # Trains
//!
//! Between two of these devices packets go in trains, see [`ringway_sys::datagram`]. A train over IPv4 that is cut on its
//! way has packets with counted identifications, where the CRC has 0. This device cannot see identifications, and so
//! doesn't mind; NICs do, and get their packets one by one.

mod connections;
mod device;
mod outbox;
mod path;
mod region;

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use ringway_roce::{
    cm::Manager,
    endpoint::{Datagram, Endpoint, Handle},
    rc::{Class, Status},
    wire::ROCE_PORT,
};
use ringway_sys::{
    Epoll, Interest, Timer,
    datagram::{Arrivals, DatagramSocket},
};

use super::{Address, Completion, DeviceError, DeviceEvent, Failure, QueuePair, QueuePairOptions};
use crate::Damper;
pub use connections::{ConnectionChange, ConnectionEvent};
use outbox::Outbox;
use path::Interface;
use region::Registered;

/// Where a device is, and what it listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareOptions {
    /// An address of this host.
    pub ip: IpAddr,
    /// Whether to listen at UDP port 4791, for NICs and Linux's rxe, and for connection management. One process of a
    /// host can at each address.
    pub roce_port: bool,
}

/// How many packets may be under way to a queue pair, at most: what two processors with caches of a megabyte handle well.
const WINDOW: u32 = 256;

/// How many packets may be under way to a NIC, which has no socket buffer.
const NIC_WINDOW: u32 = 256;

/// The bytes of packets that wait at a queue pair's socket, at most, with the kernel's overhead.
const BUFFER: usize = WINDOW as usize * PACKET_IN_BUFFER;

/// What a packet of the largest MTU takes in a socket buffer when it comes alone: two pages of a slab, and its header.
const PACKET_IN_BUFFER: usize = 9 << 10;

/// How many packets a poll sends before it reads what has come: peers shall not wait for their acknowledgements until all
/// that is posted has gone.
const BURST: usize = 128;

/// How long a look at the interface's state holds.
const PORT_LOOK: Duration = Duration::from_millis(100);

/// The token of the timer, and of the socket at port 4791; other tokens are queue pairs.
const TIMER: u64 = u64::MAX;
const ROCE: u64 = u64::MAX - 1;

/// An RDMA device over UDP sockets: RoCE v2 without a kernel module, rights or a NIC.
#[derive(Debug)]
pub struct SoftwareDevice {
    ip: IpAddr,
    interface: Interface,
    endpoint: Endpoint<Registered>,
    /// By the index of the queue pair.
    ports: Vec<Option<Port>>,
    roce: Option<DatagramSocket>,
    epoll: Epoll,
    timer: Timer,
    /// What the timer is set to.
    timer_at: Option<Instant>,
    ready: Vec<u64>,
    /// Whose packets came last, and whether to look at the others next.
    hot: u64,
    look_around: bool,
    outbox: Outbox,
    /// The queue pair whose socket is full.
    blocked: Option<Handle>,
    /// Whether somebody sleeps on the epoll set.
    armed: bool,
    /// Whose socket is watched for room while the device is armed.
    watched: Option<Handle>,
    arrivals: Arrivals,
    /// Whether NIC and kernel can cut trains for this interface.
    cuts_trains: bool,
    port_is_down: bool,
    /// When to look again whether it is.
    next_port_look: Option<Instant>,
    cannot_send: Damper,
    event: Option<DeviceEvent>,
    /// What has happened to connections, and a message about them on its way.
    connection_events: VecDeque<ConnectionEvent>,
    datagram: Vec<u8>,
    counts: Counts,
}

/// What a queue pair has besides its state.
#[derive(Debug)]
struct Port {
    socket: DatagramSocket,
    options: QueuePairOptions,
    own: Address,
    /// Whether the peer takes trains.
    trains: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sends: u64,
    receives: u64,
    datagrams: u64,
    lost: u64,
    dropped: u64,
}

impl SoftwareDevice {
    /// A device at an address of this host.
    ///
    /// # Errors
    /// If the address isn't this host's, port 4791 is asked for and taken, or the process has no descriptors left.
    pub fn open(options: &SoftwareOptions) -> Result<Self, DeviceError> {
        let ip = options.ip;
        let interface = Interface::of(ip).map_err(|error| system("finding its address", error))?;
        let epoll = Epoll::new().map_err(|error| system("epoll_create", error))?;
        let timer = Timer::new().map_err(|error| system("timerfd_create", error))?;
        epoll
            .add(&timer, TIMER, Interest::Read)
            .map_err(|error| system("epoll_ctl", error))?;
        let mut endpoint = Endpoint::new();
        let mut roce = None;
        if options.roce_port {
            let class = QueuePairOptions::default().traffic_class;
            let address = interface.socket_address(ip, ROCE_PORT);
            let socket = DatagramSocket::bind(address, class, BUFFER)
                .map_err(|error| system("binding UDP port 4791", error))?;
            epoll
                .add(&socket, ROCE, Interest::Read)
                .map_err(|error| system("epoll_ctl", error))?;
            roce = Some(socket);
            // Locally administered.
            let guid = u64::from(random()?) << 32 | u64::from(random()?);
            let guid = guid & !(3 << 56) | 2 << 56;
            endpoint.manage(Manager::new(guid, interface.mtu, random()?));
        }
        Ok(Self {
            ip,
            interface,
            endpoint,
            ports: Vec::new(),
            roce,
            epoll,
            timer,
            timer_at: None,
            ready: Vec::new(),
            hot: TIMER,
            look_around: false,
            outbox: Outbox::default(),
            blocked: None,
            armed: false,
            watched: None,
            arrivals: Arrivals::default(),
            cuts_trains: true,
            port_is_down: false,
            next_port_look: None,
            cannot_send: Damper::default(),
            event: None,
            connection_events: VecDeque::new(),
            datagram: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Sends what there is to send, up to about `most` packets and as far as sockets take it. Returns whether anything went.
    fn transmit(&mut self, now: Instant, most: usize) -> bool {
        let managed = self.transmit_management();
        let mut packets = 0;
        while packets < most {
            let departure = match self.outbox.room() {
                Some(room) => self.endpoint.poll_transmit(now, room),
                None => {
                    if !self.send_outbox(now) {
                        return managed || packets > 0;
                    }
                    continue;
                }
            };
            let Some(departure) = departure else {
                break;
            };
            packets += 1;
            let trains = self.port(departure.handle).is_some_and(|port| port.trains);
            self.outbox.push(&departure, trains && self.cuts_trains);
        }
        self.send_outbox(now);
        managed || packets > 0
    }

    /// Sends the outbox. False if a socket is full and something is left.
    fn send_outbox(&mut self, now: Instant) -> bool {
        let class = Class::Notification.traffic_class();
        self.blocked = None;
        while let Some(handle) = self.outbox.next() {
            let Some(Some(port)) = self.ports.get(handle.0 as usize) else {
                self.outbox.lose();
                continue;
            };
            match self.outbox.send(&port.socket, class) {
                Ok(packets) => {
                    self.counts.sends += 1;
                    self.counts.datagrams += packets as u64;
                    if self.port_is_down {
                        self.look_at_port(now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = Some(handle);
                    return false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.not_sent(now, &error),
            }
        }
        true
    }

    /// What can't be sent is lost, as if the network had lost it: the queue pair tries again, until it gives up.
    fn not_sent(&mut self, now: Instant, error: &io::Error) {
        self.counts.lost += 1;
        let to = self.outbox.lose();
        if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) && self.cuts_trains {
            // The NIC can't cut trains (udp(7), UDP_SEGMENT): no checksums in hardware. It is the same for all queue pairs.
            self.cuts_trains = false;
            return;
        }
        if matches!(
            error.kind(),
            io::ErrorKind::NetworkDown
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
        ) {
            // It may be one peer that can't be reached, which says nothing of the port.
            self.look_at_port(now);
            if self.port_is_down {
                return;
            }
        }
        let interface = &self.interface.name;
        self.cannot_send.warn(now, |more| {
            tracing::warn!(%error, to = ?to, interface, "RoCE packets can't be sent{more}");
        });
    }

    /// Looks whether the interface is up and still has the address; a change is an event.
    fn look_at_port(&mut self, now: Instant) {
        if self.next_port_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_port_look = Some(now + PORT_LOOK);
        let up = Interface::of(self.ip).is_ok();
        if up == self.port_is_down {
            self.port_is_down = !up;
            self.event = Some(if up {
                DeviceEvent::PortUp
            } else {
                DeviceEvent::PortDown
            });
        }
    }

    /// Receives what is there, at most one call's worth from each socket. Returns whether there was anything.
    fn receive(&mut self, now: Instant) -> Result<bool, DeviceError> {
        // Whoever sent last is the likeliest to have sent more, and asking costs one call where asking for all costs two.
        // Every other time all are asked, so that nobody is kept from being heard.
        if !self.look_around && self.receive_from(self.hot, now)? {
            self.look_around = true;
            return Ok(true);
        }
        self.look_around = false;
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let waited = self.epoll.wait(&mut ready, Some(Duration::ZERO));
        let mut moved = false;
        for &token in &ready {
            if token != TIMER && self.receive_from(token, now)? {
                self.hot = token;
                moved = true;
            }
        }
        self.ready = ready;
        waited.map_err(|error| system("epoll_wait", error))?;
        Ok(moved)
    }

    fn receive_from(&mut self, token: u64, now: Instant) -> Result<bool, DeviceError> {
        let socket = match token {
            ROCE => self.roce.as_ref(),
            token => self
                .ports
                .get(token as usize)
                .and_then(Option::as_ref)
                .map(|port| &port.socket),
        };
        let Some(socket) = socket else {
            return Ok(false);
        };
        let count = self
            .arrivals
            .receive(socket)
            .map_err(|error| system("recvmmsg", error))?;
        let to = socket.local();
        for incoming in self.arrivals.iter() {
            for bytes in incoming.datagrams() {
                let datagram = Datagram {
                    from: incoming.from,
                    to,
                    congestion_experienced: incoming.traffic_class & 3 == 3,
                    bytes,
                };
                self.endpoint.handle_datagram(now, &datagram);
            }
        }
        self.counts.receives += 1;
        Ok(count > 0)
    }

    /// Tells what has ended.
    fn complete(&mut self, completions: &mut Vec<Completion>) {
        while let Some((handle, completion)) = self.endpoint.poll_completion() {
            completions.push(Completion {
                queue_pair: QueuePair(handle.0),
                id: completion.id,
                result: match completion.status {
                    Status::Success => Ok(completion.done),
                    status => Err(Failure { status, vendor: 0 }),
                },
            });
        }
    }

    fn port(&self, handle: Handle) -> Option<&Port> {
        self.ports.get(handle.0 as usize)?.as_ref()
    }

    fn known_port(&self, queue_pair: QueuePair) -> Result<&Port, DeviceError> {
        self.port(Handle(queue_pair.0)).ok_or_else(no_queue_pair)
    }

    /// Has the epoll set wake who sleeps on it at the next deadline, and when a socket that is full has room. False if that
    /// can't be watched.
    fn watch(&mut self, now: Instant) -> bool {
        self.set_timer(now);
        let Some(handle) = self.blocked.filter(|handle| self.watched != Some(*handle)) else {
            return true;
        };
        self.unwatch();
        let Some(port) = self.port(handle) else {
            return true;
        };
        let token = u64::from(handle.0);
        let watched = self
            .epoll
            .modify(&port.socket, token, Interest::ReadWrite)
            .is_ok();
        self.watched = watched.then_some(handle);
        watched
    }

    fn unwatch(&mut self) {
        // Not who is blocked now: others may have polled since.
        if let Some(handle) = self.watched.take()
            && let Some(port) = self.port(handle)
        {
            let token = u64::from(handle.0);
            if let Err(error) = self.epoll.modify(&port.socket, token, Interest::Read) {
                tracing::warn!(%error, "a socket of an RDMA device can't be watched");
            }
        }
    }

    /// Sets the timer to the endpoint's next deadline.
    fn set_timer(&mut self, now: Instant) {
        let deadline = self.endpoint.poll_timeout();
        if deadline == self.timer_at {
            return;
        }
        let after = deadline.map(|deadline| deadline.saturating_duration_since(now));
        if let Err(error) = self.timer.set(after) {
            tracing::warn!(%error, "the timer of an RDMA device can't be set");
        }
        self.timer_at = deadline;
    }

    fn limit(&self, what: &'static str, asked: u32, most: u32) -> Result<(), DeviceError> {
        if asked <= most {
            return Ok(());
        }
        Err(DeviceError::Limit {
            device: NAME.into(),
            what,
            asked: asked.into(),
            most: most.into(),
        })
    }
}

const NAME: &str = "software";

/// For numbers and keys of this device.
fn random() -> Result<u32, DeviceError> {
    super::random::random().map_err(|error| system("getrandom", error))
}

fn system(what: &'static str, error: io::Error) -> DeviceError {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "; another process of this host listens there",
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "; each queue pair takes a descriptor: raise `ulimit -n`"
        }
        _ => "",
    };
    DeviceError::System {
        device: NAME.into(),
        what,
        error,
        remedy: remedy.into(),
    }
}

fn misuse(what: &'static str) -> DeviceError {
    DeviceError::Misuse {
        device: NAME.into(),
        what,
    }
}

fn no_queue_pair() -> DeviceError {
    misuse("a queue pair that was never made, or is destroyed already")
}
