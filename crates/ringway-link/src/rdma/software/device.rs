//! What the device does for its user: the [`Device`] interface.

use std::{
    io,
    net::SocketAddr,
    num::NonZeroU32,
    os::fd::{AsFd, BorrowedFd},
    sync::Once,
    time::Instant,
};

use ringway_roce::{
    Access, Key, Psn, Qpn,
    dcqcn::Parameters,
    endpoint::{Handle, NoQueuePair},
    rc::{self, Attributes, Mtu, ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest},
    timer::AckTimeout,
    wire::{Flow, ROCE_PORT},
};
use ringway_sys::{Interest, Memory, datagram::DatagramSocket};

use super::{
    BUFFER, BURST, NAME, NIC_WINDOW, PACKET_IN_BUFFER, Port, Registered, SoftwareDevice, WINDOW,
    misuse, no_queue_pair, random, system,
};
use crate::rdma::{
    Address, Completion, Device, DeviceError, DeviceEvent, Limits, QueuePair, QueuePairOptions,
    Region, Software,
};

/// The most requests of a queue, and inline bytes of a request.
const MAX_DEPTH: u32 = 1 << 16;
const MAX_INLINE: u32 = 1 << 10;

/// Says so once in this process: all its sockets have the same limit.
fn warn_of_small_buffers(buffer: usize, window: u32) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            buffer,
            wanted = BUFFER,
            window,
            "UDP sockets may buffer few packets, which makes RDMA in software slow; `sysctl -w net.core.rmem_max={BUFFER}` allows enough"
        );
    });
}

/// What a connection has to know of the other side.
pub(super) struct Peer {
    pub(super) at: SocketAddr,
    pub(super) number: Qpn,
    /// Of the peer's first packet.
    pub(super) first_psn: Psn,
    pub(super) mtu: Mtu,
    pub(super) window: u32,
    pub(super) trains: bool,
    /// Whether only what is lost is sent again.
    pub(super) selective: bool,
}

/// How this side sends.
pub(super) struct Sending {
    pub(super) first_psn: Psn,
    pub(super) timeout: AckTimeout,
    /// The three bits of verbs.
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) initiator_depth: u8,
}

impl SoftwareDevice {
    /// Connects a queue pair.
    pub(super) fn start(
        &mut self,
        queue_pair: QueuePair,
        peer: Peer,
        responder_resources: u8,
        sending: Sending,
    ) -> Result<(), DeviceError> {
        let port = self.known_port(queue_pair)?;
        let Some(flow) = Flow::between(port.socket.local(), peer.at) else {
            return Err(misuse("the two addresses are of different families"));
        };
        let read_window = port.own.software.map_or(WINDOW, |it| it.window);
        let receive = ReceiveAttributes {
            peer: peer.number,
            flow,
            mtu: peer.mtu,
            first_psn: peer.first_psn,
            responder_resources,
            rnr_timer: port.options.rnr_timer,
            selective: peer.selective,
        };
        let send = SendAttributes {
            first_psn: sending.first_psn,
            timeout: sending.timeout,
            retries: sending.retries.min(7),
            // A peer answers late, or not while its processor is at other things.
            backs_off: sending.retries >= 7,
            rnr_retries: sending.rnr_retries,
            initiator_depth: sending.initiator_depth,
            window: NonZeroU32::new(peer.window).unwrap_or(NonZeroU32::MIN),
            read_window: NonZeroU32::new(read_window).unwrap_or(NonZeroU32::MIN),
        };
        self.endpoint
            .connect(Handle(queue_pair.0), peer.at, receive, send)
            .map_err(|_: NoQueuePair| no_queue_pair())?
            .map_err(|_: rc::StateError| misuse("a queue pair is connected twice"))?;
        if let Some(Some(port)) = self.ports.get_mut(queue_pair.0 as usize) {
            port.trains = peer.trains;
        }
        Ok(())
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
            answers_alone: false,
            registers_at_once: true,
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

        let any = self.interface.socket_address(self.ip, 0);
        let socket = DatagramSocket::bind(any, options.traffic_class, BUFFER)
            .map_err(|error| system("binding a UDP socket", error))?;
        let buffer = socket
            .receive_buffer()
            .map_err(|error| system("SO_RCVBUF", error))?;
        let window = (buffer / PACKET_IN_BUFFER).clamp(1, WINDOW as usize) as u32;
        if window < WINDOW / 4 {
            warn_of_small_buffers(buffer, window);
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
                selective: true,
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
        let to = peer.software.map_or(ROCE_PORT, |it| it.port);
        let to = self.interface.socket_address(peer.ip, to);
        let peer = Peer {
            at: to,
            number: peer.number,
            first_psn: peer.first_psn,
            mtu: terms.mtu,
            window: peer.software.map_or(NIC_WINDOW, |it| it.window.min(WINDOW)),
            trains: peer.software.is_some(),
            selective: terms.selective,
        };
        let send = Sending {
            first_psn: own.first_psn,
            timeout: options.ack_timeout,
            retries: options.retries,
            rnr_retries: options.rnr_retries,
            initiator_depth: terms.initiator_depth,
        };
        self.start(queue_pair, peer, terms.initiator_depth, send)
    }

    /// Nothing is sent or received until the next poll.
    fn stop(&mut self, _queue_pair: QueuePair, completions: &mut Vec<Completion>) {
        self.complete(completions);
    }

    fn footprint(&self) -> usize {
        self.endpoint.footprint()
    }

    fn limit_footprint(&mut self, bytes: usize) {
        self.endpoint.limit_footprint(bytes);
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        // The peer shall hear of all that came: a NIC has acknowledged it by now.
        self.transmit(Instant::now(), usize::MAX);
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
        moved |= self.transmit(now, BURST);
        moved |= self.receive(now)?;
        self.take_notices();
        let before = completions.len();
        self.complete(completions);
        // With completions the caller likely has something to send, with which the acknowledgements can go.
        if completions.len() == before {
            moved |= self.transmit(now, BURST);
        }
        Ok(moved)
    }

    fn flush(&mut self) {
        let now = Instant::now();
        self.transmit(now, usize::MAX);
        if self.armed {
            self.watch(now);
        }
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let failed = |handle: Handle| DeviceEvent::QueuePair(QueuePair(handle.0));
        self.event
            .take()
            .or_else(|| self.endpoint.poll_failed().map(failed))
    }

    fn arm(&mut self) -> bool {
        let now = Instant::now();
        self.transmit(now, usize::MAX);
        if self.endpoint.has_news() || self.event.is_some() || !self.connection_events.is_empty() {
            return false;
        }
        self.armed = true;
        self.watch(now)
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.unwatch();
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
        if let Some(manager) = self.endpoint.manager() {
            manager
                .counters()
                .tell(&mut |name, count| tell(name, count));
        }
        let sockets = self.ports.iter().flatten().map(|port| &port.socket);
        let dropped: u64 = sockets
            .chain(&self.roce)
            .map(|socket| socket.dropped().unwrap_or(0))
            .sum();
        tell("socket_overflow", self.counts.dropped + dropped);
        tell("send_errors", self.counts.lost);
        tell("send_calls", self.counts.sends);
        tell("receive_calls", self.counts.receives);
        tell("datagrams_sent", self.counts.datagrams);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Counts what is logged.
    struct Count(Arc<AtomicU32>);

    impl Subscriber for Count {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn small_socket_buffers_are_told_of_once() {
        let count = Arc::new(AtomicU32::new(0));
        tracing::subscriber::with_default(Count(count.clone()), || {
            (0..3).for_each(|_| warn_of_small_buffers(425_984, 46));
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
