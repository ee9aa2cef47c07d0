//! The rendezvous as the other ranks see it: one connection for each request.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{
    Store, StoreError,
    reminder::Reminder,
    wire::{HEADER, MOST_KEY, MOST_VALUE, Reply, Request, frame_len},
};

/// How long one address may take to accept before the next is tried.
const ONE_ADDRESS: Duration = Duration::from_secs(3);

/// The pause between two rounds over all addresses, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// How much longer than the wait that it carries a request waits for its reply.
const GRACE: Duration = Duration::from_secs(1);

/// A rank's end of the rendezvous.
#[derive(Debug)]
pub(super) struct Client {
    host: String,
    port: u16,
    /// Ranks of the world: bounds what a reply may hold.
    size: usize,
}

/// Why no reply came.
pub(super) struct NoReply {
    /// What came of the last attempt.
    pub(super) detail: String,
    /// Whether something that is not this rendezvous answered.
    pub(super) foreign: bool,
}

enum Attempt {
    /// Again, until the deadline.
    Retry(String),
    /// It cannot get better.
    Foreign(String),
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Retry(match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "connection refused: nobody listens there".to_owned()
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".to_owned(),
            _ => error.to_string(),
        })
    }
}

impl Client {
    pub(super) const fn new(host: String, port: u16, size: usize) -> Self {
        Self { host, port, size }
    }

    pub(super) fn place(&self) -> String {
        place(&self.host, self.port)
    }

    /// Sends a request, and again to whoever serves the place then, until there is a reply or the deadline is over.
    pub(super) fn call(
        &self,
        request: impl Fn() -> Request,
        deadline: Instant,
    ) -> Result<Reply, NoReply> {
        let mut pause = PAUSE.0;
        let mut reminder = Reminder::new(Instant::now());
        loop {
            let detail = match self.round(&request, deadline) {
                Ok(reply) => return Ok(reply),
                Err(Attempt::Foreign(detail)) => {
                    return Err(NoReply {
                        detail,
                        foreign: true,
                    });
                }
                Err(Attempt::Retry(detail)) => detail,
            };
            if Instant::now() + pause >= deadline {
                return Err(NoReply {
                    detail,
                    foreign: false,
                });
            }
            if let Some(lasted) = reminder.due(Instant::now()) {
                tracing::warn!(
                    "rank 0 is not reached at {} after {lasted:.0?}: {detail}",
                    self.place()
                );
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Tries each address once.
    fn round(&self, request: &impl Fn() -> Request, deadline: Instant) -> Result<Reply, Attempt> {
        let mut outcomes = Vec::new();
        for address in resolve(&self.host, self.port, deadline).map_err(Attempt::Retry)? {
            match self.attempt(address, request, deadline) {
                Err(Attempt::Retry(why)) => {
                    let hint = if address.ip().is_loopback() && why.contains("unreachable") {
                        "; the interface lo is down: `ip link set lo up`"
                    } else {
                        ""
                    };
                    outcomes.push(format!("{}: {why}{hint}", address.ip()));
                }
                end => return end,
            }
        }
        Err(Attempt::Retry(outcomes.join(", ")))
    }

    fn attempt(
        &self,
        address: SocketAddr,
        request: &impl Fn() -> Request,
        deadline: Instant,
    ) -> Result<Reply, Attempt> {
        let left = |grace| {
            (deadline + grace)
                .saturating_duration_since(Instant::now())
                .max(SHORT)
        };
        let mut stream =
            TcpStream::connect_timeout(&address, left(Duration::ZERO).min(ONE_ADDRESS))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(left(GRACE)))?;
        stream.write_all(&request().encode())?;

        let most = Reply::most(self.size);
        let mut frame = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            stream.set_read_timeout(Some(left(GRACE)))?;
            match stream.read(&mut chunk) {
                Ok(0) if frame.is_empty() => {
                    let why = "it closed the connection without an answer (rank 0 has ended, or another \
                               program listens there)";
                    return Err(Attempt::Retry(why.to_owned()));
                }
                Ok(0) => {
                    return Err(Attempt::Retry(
                        "the connection broke within an answer".to_owned(),
                    ));
                }
                Ok(n) => frame.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            }
            let foreign = |error: super::wire::NoFrame| Attempt::Foreign(error.to_string());
            let len = frame_len(&frame, most).map_err(foreign)?;
            if len > HEADER.max(frame.len()) || frame.len() < HEADER {
                frame.reserve(len.saturating_sub(frame.len()));
                continue;
            }
            return Reply::decode(&frame, self.size).map_err(foreign);
        }
    }
}

/// The shortest time-out that a socket takes as one.
const SHORT: Duration = Duration::from_millis(1);

/// `host:port`, with brackets around IPv6 addresses.
pub(super) fn place(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The addresses of a host, in the resolver's order. The resolver has time-outs of its own, longer than a deadline
/// may be, so that it runs aside.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (tell, told) = mpsc::channel();
    let name = host.to_owned();
    let resolver = std::thread::Builder::new().name("ringway-resolve".to_owned());
    resolver
        .spawn(move || {
            // Nobody listens any more if the deadline was first.
            let _ = tell.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
        })
        .map_err(|error| error.to_string())?;
    match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(format!("`{host}` has no address")),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(format!("`{host}` does not resolve: {error}")),
        Err(_) => Err(format!("the resolver does not answer for `{host}`")),
    }
}

impl Store for Client {
    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        let request = set_request(key, value)?;
        match self.call(|| request.clone(), deadline) {
            Ok(reply) => set_reply(self, key, reply),
            Err(no) => Err(failed(self, "set", key, no.detail)),
        }
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        get_request(key, Duration::ZERO)?;
        let request = || {
            let wait = deadline.saturating_duration_since(Instant::now());
            Request::Get {
                key: key.to_owned(),
                wait,
            }
        };
        // One look takes a moment, even if the deadline is over.
        match self.call(request, deadline.max(began + GRACE)) {
            Ok(reply) => get_reply(self, key, reply, began.elapsed()),
            Err(no) => Err(failed(self, "get", key, no.detail)),
        }
    }

    fn describe(&self) -> String {
        format!("Ringway's rendezvous at {}", self.place())
    }
}

fn failed(store: &dyn Store, call: &'static str, key: &str, detail: String) -> StoreError {
    StoreError::Failed {
        store: store.describe(),
        call,
        key: key.to_owned(),
        detail,
    }
}

fn check_len(what: impl Fn() -> String, got: usize, most: usize) -> Result<(), StoreError> {
    if got > most {
        Err(StoreError::TooLong {
            what: what(),
            got,
            most,
        })
    } else {
        Ok(())
    }
}

pub(super) fn set_request(key: &str, value: &[u8]) -> Result<Request, StoreError> {
    check_len(|| "the key".to_owned(), key.len(), MOST_KEY)?;
    check_len(|| format!("the value of `{key}`"), value.len(), MOST_VALUE)?;
    Ok(Request::Set {
        key: key.to_owned(),
        value: value.to_vec(),
    })
}

pub(super) fn get_request(key: &str, wait: Duration) -> Result<Request, StoreError> {
    check_len(|| "the key".to_owned(), key.len(), MOST_KEY)?;
    Ok(Request::Get {
        key: key.to_owned(),
        wait,
    })
}

pub(super) fn set_reply(store: &dyn Store, key: &str, reply: Reply) -> Result<(), StoreError> {
    match reply {
        Reply::Done => Ok(()),
        Reply::Refused { reason } => Err(failed(store, "set", key, reason)),
        _ => Err(failed(
            store,
            "set",
            key,
            "it answered something else".to_owned(),
        )),
    }
}

pub(super) fn get_reply(
    store: &dyn Store,
    key: &str,
    reply: Reply,
    waited: Duration,
) -> Result<Vec<u8>, StoreError> {
    match reply {
        Reply::Absent => Err(StoreError::Absent {
            key: key.to_owned(),
            waited,
        }),
        Reply::Refused { reason } => Err(failed(store, "get", key, reason)),
        Reply::Value(value) => Ok(value),
        _ => Err(failed(
            store,
            "get",
            key,
            "it answered something else".to_owned(),
        )),
    }
}
