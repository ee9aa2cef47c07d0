//! The rendezvous that rank 0 serves on the master port.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_link::Damper;
use ringway_sys::{Epoll, Interest, Signal};

use super::{
    Store, StoreError,
    book::{Book, Guest},
    join::name_ranks,
    reminder::Reminder,
    wire::{Join, MOST_REQUEST, Reply, Request, frame_len},
};

/// How long a guest may take to say what it wants, and to take its reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Guests at once beyond one for each rank, at most.
const MOST_STRANGERS: usize = 256;

/// How long to leave the port alone when it cannot accept.
const EXHAUSTED: Duration = Duration::from_millis(20);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;

/// Rank 0's end of the rendezvous: a store for itself, and, until dropped, for all who connect.
pub(super) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The number of the last call.
    calls: AtomicU64,
}

struct Shared {
    state: Mutex<State>,
    /// A reply to a call of rank 0's own has come.
    replied: Condvar,
    wake: Signal,
}

struct State {
    book: Book,
    closed: bool,
    local: HashMap<u64, Reply>,
    remote: Vec<(u64, Reply)>,
}

impl State {
    /// Sorts the book's replies by whom they are for.
    fn sort_replies(&mut self) {
        while let Some((guest, reply)) = self.book.poll_reply() {
            match guest {
                Guest::Local(call) => drop(self.local.insert(call, reply)),
                Guest::Remote(guest) => self.remote.push((guest, reply)),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Serves on `socket`; without one, rank 0 only, which is then the whole world.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub(super) fn start(socket: Option<TcpListener>, host: Join) -> io::Result<Self> {
        let most = host.size + MOST_STRANGERS;
        let state = State {
            book: Book::new(host),
            closed: false,
            local: HashMap::new(),
            remote: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            replied: Condvar::new(),
            wake: Signal::new()?,
        });
        let thread = match socket {
            Some(socket) => {
                let mut front = Front::new(socket, Arc::clone(&shared), most)?;
                let builder = std::thread::Builder::new().name("ringway-meet".to_owned());
                Some(builder.spawn(move || front.run())?)
            }
            None => None,
        };
        Ok(Self {
            shared,
            thread,
            calls: AtomicU64::new(0),
        })
    }

    /// Asks the book, and waits for its reply until `deadline`, when it says what is missing. While others are to join,
    /// the log says from time to time who.
    pub(super) fn call(&self, request: Request, deadline: Instant) -> Reply {
        let mut reminder = match request {
            Request::Join { .. } => Some(Reminder::new(Instant::now())),
            _ => None,
        };
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.shared.lock();
        state
            .book
            .handle_request(Guest::Local(call), request, Instant::now());
        loop {
            state.sort_replies();
            if !state.remote.is_empty() {
                self.shared.wake.raise();
            }
            if let Some(reply) = state.local.remove(&call) {
                return reply;
            }
            let now = Instant::now();
            state.book.handle_time(now);
            let mut until = deadline;
            if let Some(reminder) = &mut reminder {
                if let Some(lasted) = reminder.due(now) {
                    let left = deadline.saturating_duration_since(now);
                    let ranks = name_ranks(&state.book.missing());
                    tracing::warn!(
                        "{ranks} not here after {lasted:.0?}: rank 0 waits {left:.0?} longer"
                    );
                }
                until = until.min(reminder.next());
            }
            let left = until
                .saturating_duration_since(now)
                .max(Duration::from_millis(1));
            state = self
                .shared
                .replied
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Store for Server {
    fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        let request = super::client::set_request(key, value)?;
        let reply = self.call(request, deadline);
        super::client::set_reply(self, key, reply)
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        let wait = deadline.saturating_duration_since(began);
        let request = super::client::get_request(key, wait)?;
        let reply = self.call(request, deadline);
        super::client::get_reply(self, key, reply, began.elapsed())
    }

    fn describe(&self) -> String {
        "Ringway's rendezvous (this process)".to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.book.handle_close();
            state.sort_replies();
        }
        self.shared.wake.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side: sockets.
struct Front {
    socket: TcpListener,
    shared: Arc<Shared>,
    set: Epoll,
    connections: HashMap<u64, Connection>,
    last: u64,
    most: usize,
    /// For warnings of connections that are dropped.
    refusals: Damper,
    /// For warnings that none can be accepted.
    exhaustion: Damper,
}

struct Connection {
    stream: TcpStream,
    from: SocketAddr,
    /// What has come of the request.
    request: Vec<u8>,
    /// What is left of the reply.
    reply: Vec<u8>,
    /// When it is dropped; none while it waits for its reply.
    until: Option<Instant>,
}

/// What became of a connection.
enum Fate {
    Close,
    Keep,
    /// It is closed, and the log says why.
    Refuse(String),
}

impl Front {
    fn new(socket: TcpListener, shared: Arc<Shared>, most: usize) -> io::Result<Self> {
        let set = Epoll::new()?;
        set.add(&socket, LISTENER, Interest::Read)?;
        set.add(&shared.wake, WAKE, Interest::Read)?;
        Ok(Self {
            socket,
            shared,
            set,
            connections: HashMap::new(),
            last: WAKE,
            most,
            refusals: Damper::default(),
            exhaustion: Damper::default(),
        })
    }

    fn run(&mut self) {
        let mut ready = Vec::new();
        loop {
            ready.clear();
            let timeout = self
                .next_time()
                .map(|at| at.saturating_duration_since(Instant::now()));
            if let Err(error) = self.set.wait(&mut ready, timeout) {
                tracing::error!("the rendezvous ends: {error}");
                return;
            }
            for &token in &ready {
                match token {
                    LISTENER => self.accept(),
                    WAKE => drop(self.shared.wake.clear()),
                    guest => self.advance(guest),
                }
            }
            let closed = self.keep_time();
            if closed {
                // What does not fit into a socket's buffer at once is for peers that do not read.
                return;
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let book = self.shared.lock().book.poll_timeout();
        self.connections
            .values()
            .filter_map(|c| c.until)
            .chain(book)
            .min()
    }

    fn accept(&mut self) {
        loop {
            let (stream, from) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.exhaustion.warn(Instant::now(), |more| {
                        tracing::warn!("the rendezvous cannot accept a connection: {error}; raise `ulimit -n`{more}");
                    });
                    // Most likely no descriptors are left: they come back when guests go.
                    std::thread::sleep(EXHAUSTED);
                    return;
                }
            };
            let prepared = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true));
            let guest = self.last + 1;
            self.last = guest;
            if let Err(error) = prepared.and_then(|()| self.set.add(&stream, guest, Interest::Read))
            {
                self.refusals.warn(Instant::now(), |more| {
                    tracing::warn!(%from, "dropped a connection to the rendezvous: {error}{more}");
                });
                continue;
            }
            let until = Some(Instant::now() + PATIENCE);
            let connection = Connection {
                stream,
                from,
                request: Vec::new(),
                reply: Vec::new(),
                until,
            };
            self.connections.insert(guest, connection);
            if self.connections.len() > self.most {
                self.push_out();
            }
            // Most requests come with the connection.
            self.advance(guest);
        }
    }

    /// Drops the oldest connection that has not said what it wants.
    fn push_out(&mut self) {
        let silent = self.connections.iter().filter(|(_, c)| c.until.is_some());
        if let Some(oldest) = silent.map(|(&guest, _)| guest).min() {
            self.refusals.warn(Instant::now(), |more| {
                tracing::warn!(
                    "dropped a silent connection to the rendezvous: there are too many{more}"
                );
            });
            self.forget(oldest);
        }
    }

    fn advance(&mut self, guest: u64) {
        let Some(connection) = self.connections.get_mut(&guest) else {
            return;
        };
        let fate = if connection.reply.is_empty() {
            connection.read(guest, &self.shared)
        } else {
            connection.write()
        };
        let from = connection.from;
        if let Fate::Refuse(why) = &fate {
            self.refusals.warn(Instant::now(), |more| {
                tracing::warn!(%from, "dropped a connection to the rendezvous: {why}{more}");
            });
        }
        if !matches!(fate, Fate::Keep) {
            self.forget(guest);
        }
        self.hand_out();
    }

    fn forget(&mut self, guest: u64) {
        self.connections.remove(&guest);
        self.shared.lock().book.handle_gone(Guest::Remote(guest));
    }

    /// Hands out the replies that there are.
    fn hand_out(&mut self) {
        let replies = {
            let mut state = self.shared.lock();
            state.sort_replies();
            if !state.local.is_empty() {
                self.shared.replied.notify_all();
            }
            std::mem::take(&mut state.remote)
        };
        for (guest, reply) in replies {
            let Some(connection) = self.connections.get_mut(&guest) else {
                continue;
            };
            connection.reply = reply.encode();
            connection.until = Some(Instant::now() + PATIENCE);
            let more = matches!(connection.write(), Fate::Keep);
            let stays = more
                && self
                    .set
                    .modify(&connection.stream, guest, Interest::Write)
                    .is_ok();
            if !stays {
                self.forget(guest);
            }
        }
    }

    /// Does what is due; true if the rendezvous is closed.
    fn keep_time(&mut self) -> bool {
        let now = Instant::now();
        let closed = {
            let mut state = self.shared.lock();
            state.book.handle_time(now);
            state.closed
        };
        self.hand_out();
        let late = self
            .connections
            .iter()
            .filter(|(_, c)| c.until.is_some_and(|at| at <= now));
        for guest in late.map(|(&guest, _)| guest).collect::<Vec<_>>() {
            if let Some(Connection { from, reply, .. }) = self.connections.get(&guest)
                && reply.is_empty()
            {
                self.refusals.warn(now, |more| {
                    tracing::warn!(%from, "dropped a connection to the rendezvous: no request within {PATIENCE:?}{more}");
                });
            }
            self.forget(guest);
        }
        closed
    }
}

impl Connection {
    /// Reads what has come, and asks the book once the request is whole.
    fn read(&mut self, guest: u64, shared: &Shared) -> Fate {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Fate::Close,
                // The request was whole before: a guest that goes on is none of ours.
                Ok(_) if self.until.is_none() => {
                    return Fate::Refuse("bytes after its request".to_owned());
                }
                Ok(n) => self.request.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Fate::Keep,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Fate::Close,
            }
            let request = match frame_len(&self.request, MOST_REQUEST) {
                Ok(len) if len > self.request.len() => continue,
                Ok(_) => Request::decode(&self.request),
                Err(error) => Err(error),
            };
            match request {
                Ok(request) => {
                    self.until = None;
                    self.request = Vec::new();
                    let now = Instant::now();
                    shared
                        .lock()
                        .book
                        .handle_request(Guest::Remote(guest), request, now);
                }
                Err(error) => {
                    // Those who speak another version understand the frame of a refusal.
                    let reply = Reply::Refused {
                        reason: error.to_string(),
                    };
                    if matches!(error, super::wire::NoFrame::Version(_)) {
                        let _ = self.stream.write(&reply.encode());
                    }
                    return Fate::Refuse(format!("a stranger: {error}"));
                }
            }
        }
    }

    fn write(&mut self) -> Fate {
        while !self.reply.is_empty() {
            match self.stream.write(&self.reply) {
                Ok(0) => return Fate::Close,
                Ok(n) => drop(self.reply.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Fate::Keep,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Fate::Close,
            }
        }
        Fate::Close
    }
}
