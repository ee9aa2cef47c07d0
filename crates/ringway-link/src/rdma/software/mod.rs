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

mod outbox;
mod path;
mod region;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use ringway_roce::{
    Access, Key, Psn, Qpn,
    dcqcn::Parameters,
    endpoint::{Datagram, Endpoint, Handle, NoQueuePair},
    rc::{self, Attributes, Class, ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest},
    wire::{Flow, ROCE_PORT},
};
use ringway_sys::{
    Epoll, Interest, Memory, Timer,
    datagram::{Arrivals, DatagramSocket},
};

use super::{
    Address, Completion, Device, DeviceError, DeviceEvent, Failure, Limits, QueuePair,
    QueuePairOptions, Region, Software,
};
use outbox::Outbox;
use path::Interface;
use region::Registered;

/// Where a device is, and what it listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareOptions {
    /// An address of this host.
    pub ip: IpAddr,
    /// Whether to listen at UDP port 4791, for NICs and Linux's rxe. One process of a host can.
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

/// The token of the timer, and of the socket at port 4791; other tokens are queue pairs.
const TIMER: u64 = u64::MAX;
const ROCE: u64 = u64::MAX - 1;

/// The most requests of a queue, and inline bytes of a request.
const MAX_DEPTH: u32 = 1 << 16;
const MAX_INLINE: u32 = 1 << 10;

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
    /// Whose socket is watched for room while the device is armed.
    watched: Option<Handle>,
    arrivals: Arrivals,
    port_is_down: bool,
    event: Option<DeviceEvent>,
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
        let mut roce = None;
        if options.roce_port {
            let class = QueuePairOptions::default().traffic_class;
            let address = SocketAddr::new(ip, ROCE_PORT);
            let socket = DatagramSocket::bind(address, class, BUFFER)
                .map_err(|error| system("binding UDP port 4791", error))?;
            epoll
                .add(&socket, ROCE, Interest::Read)
                .map_err(|error| system("epoll_ctl", error))?;
            roce = Some(socket);
        }
        Ok(Self {
            ip,
            interface,
            endpoint: Endpoint::new(),
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
            watched: None,
            arrivals: Arrivals::default(),
            port_is_down: false,
            event: None,
            counts: Counts::default(),
        })
    }

    /// Sends what there is to send, as far as sockets take it. Returns whether anything went.
    fn transmit(&mut self, now: Instant) -> bool {
        let mut moved = false;
        loop {
            let departure = match self.outbox.room() {
                Some(room) => self.endpoint.poll_transmit(now, room),
                None => {
                    if !self.flush() {
                        return moved;
                    }
                    continue;
                }
            };
            let Some(departure) = departure else {
                self.flush();
                return moved;
            };
            moved = true;
            let trains = self.port(departure.handle).is_some_and(|port| port.trains);
            self.outbox.push(&departure, trains);
        }
    }

    /// Sends the outbox. False if a socket is full and something is left.
    fn flush(&mut self) -> bool {
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
                    self.port_is(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = Some(handle);
                    return false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.cannot_send(handle, &error),
            }
        }
        true
    }

    /// What can't be sent is lost, as if the network had lost it: the queue pair tries again, until it gives up.
    fn cannot_send(&mut self, handle: Handle, error: &io::Error) {
        self.counts.lost += 1;
        self.outbox.lose();
        if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) {
            // The NIC can't cut trains (udp(7), UDP_SEGMENT): no checksums in hardware.
            if let Some(Some(port)) = self.ports.get_mut(handle.0 as usize) {
                port.trains = false;
            }
        } else if matches!(
            error.kind(),
            io::ErrorKind::NetworkDown
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
        ) {
            self.port_is(false);
        } else {
            tracing::warn!(%error, interface = self.interface.name, "RoCE packets can't be sent");
        }
    }

    fn port_is(&mut self, up: bool) {
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

    fn port(&self, handle: Handle) -> Option<&Port> {
        self.ports.get(handle.0 as usize)?.as_ref()
    }

    fn known_port(&self, queue_pair: QueuePair) -> Result<&Port, DeviceError> {
        self.port(Handle(queue_pair.0)).ok_or_else(no_queue_pair)
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
            device: self.name().into(),
            what,
            asked: asked.into(),
            most: most.into(),
        })
    }
}

impl Device for SoftwareDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: MAX_DEPTH,
            inline: MAX_INLINE,
            mtu: self.interface.mtu,
            message: 1 << 31,
            queue_pairs: 1 << 16,
            regions: 1 << 24,
            initiator_depth: 128,
        }
    }

    fn register(&mut self, memory: Memory, access: Access) -> Result<Region, DeviceError> {
        let address = memory.as_ptr().addr() as u64;
        loop {
            let key = Key(random()?);
            let domain = self.endpoint.domain_mut();
            match domain.register(key, Registered(memory), address, access) {
                Ok(key) => {
                    return Ok(Region {
                        address,
                        length: memory.len() as u64,
                        local: key,
                        remote: key,
                    });
                }
                Err(ringway_roce::RegisterError::Taken(_)) => {}
                Err(error) => {
                    return Err(system("registering memory", io::Error::other(error)));
                }
            }
        }
    }

    fn deregister(&mut self, region: &Region) -> Result<(), DeviceError> {
        match self.endpoint.domain_mut().deregister(region.local) {
            Some(_) => Ok(()),
            None => Err(misuse("memory that isn't registered is deregistered")),
        }
    }

    fn create(&mut self, options: &QueuePairOptions) -> Result<QueuePair, DeviceError> {
        let limits = self.limits();
        self.limit("send requests", options.send_depth, limits.depth)?;
        self.limit("receives", options.receive_depth, limits.depth)?;
        self.limit("inline bytes", options.inline, limits.inline)?;
        let (depth, most) = (options.initiator_depth, limits.initiator_depth);
        self.limit("initiator depth", depth.into(), most.into())?;
        let count = self.ports.iter().flatten().count() as u32;
        self.limit("queue pairs", count + 1, limits.queue_pairs)?;

        let any = SocketAddr::new(self.ip, 0);
        let socket = DatagramSocket::bind(any, options.traffic_class, BUFFER)
            .map_err(|error| system("binding a UDP socket", error))?;
        let buffer = socket
            .receive_buffer()
            .map_err(|error| system("SO_RCVBUF", error))?;
        let window = (buffer / PACKET_IN_BUFFER).clamp(1, WINDOW as usize) as u32;
        if window < WINDOW / 4 {
            tracing::warn!(
                buffer,
                wanted = BUFFER,
                window,
                "UDP sockets may buffer few packets, which makes RDMA in software slow; `sysctl -w net.core.rmem_max={BUFFER}` allows enough"
            );
        }
        let first_psn = Psn::new(random()?);
        let handle = loop {
            let attributes = Attributes {
                number: Qpn::new(random()?),
                access: Access::ALL,
                send_queue: options.send_depth as usize,
                inline: options.inline as usize,
                receive_queue: options.receive_depth as usize,
                congestion: self.interface.rate.map(|rate| Parameters::new(rate as f64)),
            };
            // Another number if it is taken.
            if let Ok(handle) = self.endpoint.create(attributes) {
                break handle;
            }
        };
        let own = Address {
            ip: self.ip,
            number: self
                .endpoint
                .queue_pair(handle)
                .map_err(|_: NoQueuePair| no_queue_pair())?
                .number(),
            first_psn,
            mtu: options.mtu.min(self.interface.mtu),
            traffic_class: options.traffic_class,
            initiator_depth: options.initiator_depth,
            software: Some(Software {
                port: socket.local().port(),
                roce_port: self.roce.is_some(),
                window,
            }),
        };
        let index = handle.0 as usize;
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        if let Err(error) = self.epoll.add(&socket, handle.0.into(), Interest::Read) {
            // It was made a moment ago.
            let _ = self.endpoint.destroy(handle);
            return Err(system("epoll_ctl", error));
        }
        self.ports[index] = Some(Port {
            socket,
            options: *options,
            own,
            trains: false,
        });
        Ok(QueuePair(handle.0))
    }

    fn address(&self, queue_pair: QueuePair) -> Result<Address, DeviceError> {
        self.known_port(queue_pair).map(|port| port.own)
    }

    fn connect(&mut self, queue_pair: QueuePair, peer: &Address) -> Result<(), DeviceError> {
        let port = self.known_port(queue_pair)?;
        let (own, options) = (port.own, port.options);
        let terms = own.agree(peer)?;
        let to = SocketAddr::new(peer.ip, peer.software.map_or(ROCE_PORT, |it| it.port));
        let Some(flow) = Flow::between(port.socket.local(), to) else {
            return Err(misuse("the two addresses are of different families"));
        };
        let window = peer.software.map_or(NIC_WINDOW, |it| it.window.min(WINDOW));
        let read_window = own.software.map_or(WINDOW, |it| it.window);
        let receive = ReceiveAttributes {
            peer: peer.number,
            flow,
            mtu: terms.mtu,
            first_psn: peer.first_psn,
            responder_resources: terms.initiator_depth,
            rnr_timer: options.rnr_timer,
        };
        let send = SendAttributes {
            first_psn: own.first_psn,
            timeout: options.ack_timeout,
            // The three bits of verbs, as Linux's rxe takes them.
            retries: if options.retries < 7 {
                options.retries
            } else {
                SendAttributes::FOR_EVER
            },
            rnr_retries: options.rnr_retries,
            initiator_depth: terms.initiator_depth,
            window: NonZeroU32::new(window).unwrap_or(NonZeroU32::MIN),
            read_window: NonZeroU32::new(read_window).unwrap_or(NonZeroU32::MIN),
        };
        self.endpoint
            .connect(Handle(queue_pair.0), to, receive, send)
            .map_err(|_: NoQueuePair| no_queue_pair())?
            .map_err(|_: rc::StateError| misuse("a queue pair is connected twice"))?;
        if let Some(Some(port)) = self.ports.get_mut(queue_pair.0 as usize) {
            port.trains = peer.software.is_some();
        }
        Ok(())
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        // The peer shall hear of all that came: a NIC has acknowledged it by now.
        self.transmit(Instant::now());
        let port = self
            .ports
            .get_mut(queue_pair.0 as usize)
            .and_then(Option::take);
        if let Some(port) = port {
            // What was to be sent may be another's: as if it were lost.
            self.outbox.clear();
            self.counts.dropped += port.socket.dropped().unwrap_or(0);
            // A child that was forked may hold the socket open, so that closing it wouldn't take it out of the set.
            let _ = self.epoll.remove(&port.socket);
            // It exists as long as the port does.
            let _ = self.endpoint.destroy(Handle(queue_pair.0));
        }
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), DeviceError> {
        self.endpoint
            .post_send(Handle(queue_pair.0), request)
            .map_err(|_: NoQueuePair| no_queue_pair())?
            .map_err(|error| DeviceError::Post { queue_pair, error })
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: ReceiveRequest,
    ) -> Result<(), DeviceError> {
        self.endpoint
            .post_receive(Handle(queue_pair.0), request)
            .map_err(|_: NoQueuePair| no_queue_pair())?
            .map_err(|error| DeviceError::Post { queue_pair, error })
    }

    fn poll(
        &mut self,
        now: Instant,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, DeviceError> {
        let mut moved = false;
        if self.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            // Who has not polled for long may have what it waits for in the socket.
            moved |= self.receive(now)?;
            self.endpoint.handle_timeout(now);
        }
        moved |= self.transmit(now);
        moved |= self.receive(now)?;
        let before = completions.len();
        while let Some((handle, completion)) = self.endpoint.poll_completion() {
            completions.push(Completion {
                queue_pair: QueuePair(handle.0),
                id: completion.id,
                result: match completion.status {
                    rc::Status::Success => Ok(completion.done),
                    status => Err(Failure { status, vendor: 0 }),
                },
            });
        }
        // With completions the caller likely has something to send, with which the acknowledgements can go.
        if completions.len() == before {
            moved |= self.transmit(now);
        }
        Ok(moved)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let failed = |handle: Handle| DeviceEvent::QueuePair(QueuePair(handle.0));
        self.event
            .take()
            .or_else(|| self.endpoint.poll_failed().map(failed))
    }

    fn arm(&mut self) -> bool {
        let now = Instant::now();
        self.transmit(now);
        if self.endpoint.has_news() || self.event.is_some() {
            return false;
        }
        self.set_timer(now);
        if let Some(handle) = self.blocked
            && let Some(port) = self.port(handle)
        {
            let token = u64::from(handle.0);
            let watched = self
                .epoll
                .modify(&port.socket, token, Interest::ReadWrite)
                .is_ok();
            self.watched = watched.then_some(handle);
            return watched;
        }
        true
    }

    fn disarm(&mut self) {
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

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn counters(&self, tell: &mut dyn FnMut(&str, u64)) {
        self.endpoint
            .counters()
            .tell(&mut |name, count| tell(name, count));
        self.endpoint
            .refused()
            .tell(&mut |name, count| tell(name, count));
        let dropped: u64 = self
            .ports
            .iter()
            .flatten()
            .map(|port| port.socket.dropped().unwrap_or(0))
            .sum();
        tell("socket_overflow", self.counts.dropped + dropped);
        tell("send_errors", self.counts.lost);
        tell("send_calls", self.counts.sends);
        tell("receive_calls", self.counts.receives);
        tell("datagrams_sent", self.counts.datagrams);
    }
}

const NAME: &str = "software";

/// Bits that nobody can guess.
fn random() -> Result<u32, DeviceError> {
    let mut bytes = [0; 4];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags)
        .map_err(|error| system("getrandom", error.into()))?;
    Ok(u32::from_ne_bytes(bytes))
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
