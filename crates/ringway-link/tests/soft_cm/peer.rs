//! The endpoint with its memory, and how it is driven.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    Access, AckTimeout, Completion, ConnectionChange, ConnectionEvent, ConnectionId, Device, Done,
    QueuePair, QueuePairOptions, Reason, ReceiveRequest, Region, Remote, SendRequest,
    SoftwareDevice, SoftwareOptions, Source, Work,
};
use ringway_sys::{Epoll, Interest, Staging};

const LONG: Duration = Duration::from_secs(40);

pub(crate) struct Peer {
    device: SoftwareDevice,
    pub(crate) region: Region,
    memory: Staging,
    set: Epoll,
    ended: VecDeque<Completion>,
    events: VecDeque<ConnectionEvent>,
}

impl Peer {
    pub(crate) fn new(ip: &str, memory: usize) -> Self {
        let mut device = SoftwareDevice::open(&SoftwareOptions {
            ip: ip.parse().unwrap(),
            roce_port: true,
        })
        .unwrap();
        let memory = Staging::new(memory);
        let region = device.register(memory.memory(), Access::ALL).unwrap();
        let set = Epoll::new().unwrap();
        set.add(device.fd(), 0, Interest::Read).unwrap();
        Self {
            device,
            region,
            memory,
            set,
            ended: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    pub(crate) fn listen(&mut self, port: u16) {
        self.device.listen(port).unwrap();
        println!("\nlistening");
    }

    /// Accepts the next request, with receives at these places of memory.
    pub(crate) fn accept(&mut self, receives: &[(u64, u64)]) -> (ConnectionId, QueuePair) {
        let event = self.event();
        let ConnectionChange::Requested { traffic_class, .. } = event.change else {
            panic!("{event:?}");
        };
        let pair = self.pair(traffic_class, receives);
        self.device.accept(event.connection, pair, &[]).unwrap();
        self.established(event.connection);
        (event.connection, pair)
    }

    /// Connects to who may be about to listen.
    pub(crate) fn connect(
        &mut self,
        to: SocketAddr,
        receives: &[(u64, u64)],
    ) -> (ConnectionId, QueuePair) {
        let class = QueuePairOptions::default().traffic_class;
        let pair = self.pair(class, receives);
        let deadline = Instant::now() + LONG;
        loop {
            let connection = self.device.connect_to(pair, to, &[]).unwrap();
            let event = self.event();
            assert_eq!((event.connection, event.peer), (connection, to));
            match event.change {
                ConnectionChange::Established { .. } => return (connection, pair),
                ConnectionChange::Rejected {
                    reason: Reason::INVALID_SERVICE,
                    ..
                } => {}
                other => panic!("{other:?}"),
            }
            assert!(Instant::now() < deadline, "nobody listens");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn pair(&mut self, traffic_class: u8, receives: &[(u64, u64)]) -> QueuePair {
        let options = QueuePairOptions {
            traffic_class,
            rnr_retries: 7,
            // 268 ms: an emulated kernel on a busy host takes longer to answer than a NIC does.
            ack_timeout: AckTimeout::new(16).unwrap(),
            ..QueuePairOptions::default()
        };
        let pair = self.device.create(&options).unwrap();
        for &(at, length) in receives {
            self.post_receive(pair, at, length);
        }
        pair
    }

    fn established(&mut self, connection: ConnectionId) {
        let event = self.event();
        assert_eq!(event.connection, connection);
        let is_there = matches!(event.change, ConnectionChange::Established { .. });
        assert!(is_there, "{event:?}");
    }

    pub(crate) fn disconnect(&mut self, connection: ConnectionId) {
        // The other side may have been faster.
        let _ = self.device.disconnect(connection);
        self.disconnected(connection);
    }

    pub(crate) fn disconnected(&mut self, connection: ConnectionId) {
        let event = self.event();
        assert_eq!(event.connection, connection);
        assert_eq!(event.change, ConnectionChange::Disconnected);
        // For the answer to get there, which may be asked for again.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            self.turn(Duration::from_millis(20));
        }
    }

    pub(crate) fn post_receive(&mut self, pair: QueuePair, at: u64, length: u64) {
        let into = self.region.local(at..at + length);
        let request = ReceiveRequest { id: at, into };
        self.device.post_receive(pair, request).unwrap();
    }

    /// Waits for a message. Returns where it is.
    pub(crate) fn received(&mut self, pair: QueuePair) -> (u64, u64) {
        let ended = self.completion(|it| {
            it.queue_pair == pair && !matches!(it.result, Ok(done) if is_request(done))
        });
        match ended.result {
            Ok(Done::Receive { length, .. }) => (ended.id, length.into()),
            other => panic!("{other:?}"),
        }
    }

    /// Posts a request and waits for its end.
    pub(crate) fn ask(&mut self, pair: QueuePair, work: Work<'_>) {
        let id = u64::MAX;
        let request = SendRequest {
            id,
            work,
            signaled: true,
            solicited: false,
        };
        self.device.post_send(pair, &request).unwrap();
        let ended = self.completion(|it| it.id == id);
        assert!(ended.result.is_ok_and(is_request), "{ended:?}");
    }

    pub(crate) fn send(&mut self, pair: QueuePair, bytes: &[u8]) {
        let source = Source::Inline(bytes);
        let immediate = None;
        self.ask(pair, Work::Send { source, immediate });
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.slice(at, bytes.len()).write(bytes);
    }

    pub(crate) fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.slice(at, length).read(&mut bytes);
        bytes
    }

    pub(crate) fn local(&self, at: u64, length: u64) -> ringway_link::rdma::Local {
        self.region.local(at..at + length)
    }

    pub(crate) fn remote(&self, at: u64) -> Remote {
        self.region.remote(at)
    }

    fn slice(&self, at: u64, length: usize) -> ringway_sys::Memory {
        let at = at as usize;
        self.memory.memory().slice(at..at + length)
    }

    fn completion(&mut self, wanted: impl Fn(&Completion) -> bool) -> Completion {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(at) = self.ended.iter().position(&wanted) {
                return self.ended.remove(at).unwrap();
            }
            assert!(
                Instant::now() < deadline,
                "no completion came: {:?}",
                self.events
            );
            self.turn(LONG);
        }
    }

    fn event(&mut self) -> ConnectionEvent {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(Instant::now() < deadline, "nothing happens to connections");
            self.turn(LONG);
        }
    }

    /// Polls, or sleeps until there is something to poll.
    fn turn(&mut self, most: Duration) {
        let mut ended = Vec::new();
        let moved = self.device.poll(Instant::now(), &mut ended).unwrap();
        self.ended.extend(ended);
        while let Some(event) = self.device.poll_connection() {
            self.events.push_back(event);
        }
        if !moved && self.events.is_empty() && self.ended.is_empty() {
            if self.device.arm() {
                self.set.wait(&mut Vec::new(), Some(most)).unwrap();
            }
            self.device.disarm();
        }
    }
}

/// Whether it ends a request of this side, and not a receive.
fn is_request(done: Done) -> bool {
    !matches!(done, Done::Receive { .. } | Done::ReceiveWrite { .. })
}
