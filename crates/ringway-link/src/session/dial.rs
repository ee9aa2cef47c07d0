//! The side of a handshake that connects: several addresses at once, until one leads to the right process.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use ringway_sys::{Epoll, Interest, interface_addresses};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    Greeting, Hello, Identity, Purpose, Reason, Session,
    greeter::{Greeter, Heard},
};
use crate::{
    LinkError, PeerAddress,
    address::{network_id, routes},
};

/// How long an address has for itself before the next is tried beside it.
const STAGGER: Duration = Duration::from_millis(50);

/// How long the other side may take from being connected to its answer.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause before all addresses are tried again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A connection to a peer in the making.
#[derive(Debug)]
pub(crate) struct Dial {
    own: Identity,
    to: PeerAddress,
    purpose: Purpose,
    index: u16,
    began: Instant,
    deadline: Instant,
    /// Addresses not tried in this round, the next one last.
    untried: Vec<SocketAddr>,
    /// When the next one is due.
    next: Instant,
    pause: Duration,
    attempts: Vec<Attempt>,
    /// What came of each address last.
    outcomes: Vec<(SocketAddr, String)>,
}

#[derive(Debug)]
struct Attempt {
    token: u64,
    address: SocketAddr,
    stream: TcpStream,
    /// `None` until connected.
    greeter: Option<Greeter>,
    deadline: Instant,
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It has to be looked at again at this time at the latest.
    Until(Instant),
    /// It is there.
    Session(Session),
    /// It will not be.
    Failed(LinkError),
}

/// What became of an attempt.
enum Outcome {
    Going,
    Won(Session),
    /// This address does not lead to the peer, now.
    Lost(String),
    /// The peer itself says no.
    Refused(String),
}

impl Dial {
    pub(crate) const fn new(
        own: Identity,
        to: PeerAddress,
        purpose: Purpose,
        index: u16,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            own,
            to,
            purpose,
            index,
            began: now,
            deadline,
            untried: Vec::new(),
            next: now,
            pause: PAUSE.0,
            attempts: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Whether `token` is one of its attempts.
    pub(crate) fn owns(&self, token: u64) -> bool {
        self.attempts.iter().any(|attempt| attempt.token == token)
    }

    /// Goes on: with the attempt that `ready` names, with those whose time is over, and with addresses whose turn it
    /// is. Sockets are registered in `set` under tokens drawn from `tokens`.
    pub(crate) fn advance(
        &mut self,
        ready: Option<u64>,
        now: Instant,
        set: &Epoll,
        tokens: &mut u64,
    ) -> Progress {
        for at in (0..self.attempts.len()).rev() {
            if ready != Some(self.attempts[at].token) && now < self.attempts[at].deadline {
                continue;
            }
            let attempt = self.attempts.swap_remove(at);
            let address = attempt.address;
            match self.step(attempt, now, set) {
                Outcome::Going => {}
                Outcome::Won(session) => return Progress::Session(session),
                Outcome::Lost(why) => {
                    self.note(address, why);
                    if !self.untried.is_empty() {
                        // The next address need not wait for its turn.
                        self.next = now;
                    }
                }
                Outcome::Refused(detail) => {
                    return Progress::Failed(LinkError::Refused {
                        peer: self.to.rank,
                        address: address.to_string(),
                        detail,
                    });
                }
            }
        }
        if now >= self.deadline {
            return Progress::Failed(self.unreachable(now));
        }
        if let Err(error) = self.start_due(now, set, tokens) {
            return Progress::Failed(LinkError::System {
                peer: self.to.rank,
                what: "listing this host's network interfaces",
                detail: error.to_string(),
            });
        }
        let attempts = self.attempts.iter().map(|attempt| attempt.deadline);
        Progress::Until(
            attempts
                .chain([self.next])
                .fold(self.deadline, Instant::min),
        )
    }

    /// Starts an attempt at each address whose turn it is. When all have been started, a new round begins after a
    /// pause with those that failed: the peer may not listen yet.
    fn start_due(&mut self, now: Instant, set: &Epoll, tokens: &mut u64) -> io::Result<()> {
        while now >= self.next {
            if self.untried.is_empty() {
                let here = (self.to.network != 0).then(|| self.to.network == network_id());
                // A round begins with fresh knowledge of this host's interfaces, which may come up late.
                self.untried = routes(&self.to, &interface_addresses()?, here);
                self.untried.reverse();
                let attempts = &self.attempts;
                self.untried
                    .retain(|at| attempts.iter().all(|attempt| attempt.address != *at));
            }
            if let Some(address) = self.untried.pop() {
                match self.start(address, set, tokens) {
                    Ok(()) => self.next = now + STAGGER,
                    Err(error) => self.note(address, describe(&error)),
                }
            }
            if self.untried.is_empty() {
                self.next = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE.1);
            }
        }
        Ok(())
    }

    fn start(&mut self, address: SocketAddr, set: &Epoll, tokens: &mut u64) -> io::Result<()> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        *tokens += 1;
        let stream = TcpStream::from(socket);
        set.add(&stream, *tokens, Interest::Write)?;
        let (token, deadline) = (*tokens, self.deadline);
        self.attempts.push(Attempt {
            token,
            address,
            stream,
            greeter: None,
            deadline,
        });
        Ok(())
    }

    /// Moves one attempt on, and keeps it if it goes on.
    fn step(&mut self, mut attempt: Attempt, now: Instant, set: &Epoll) -> Outcome {
        let Some(greeter) = &mut attempt.greeter else {
            match attempt.stream.take_error() {
                Ok(None) if now >= attempt.deadline => return Outcome::Lost("no answer".into()),
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return Outcome::Lost(describe(&error)),
            }
            let hello = Greeting::Hello(self.hello()).encode();
            match (&attempt.stream).write(&hello) {
                Ok(sent) if sent == hello.len() => {}
                Ok(_) => return Outcome::Lost("a new connection had no room for a hello".into()),
                Err(error) => return Outcome::Lost(describe(&error)),
            }
            if let Err(error) = set.modify(&attempt.stream, attempt.token, Interest::Read) {
                return Outcome::Lost(error.to_string());
            }
            attempt.greeter = Some(Greeter::new());
            attempt.deadline = self.deadline.min(now + SILENCE);
            self.attempts.push(attempt);
            return Outcome::Going;
        };
        match greeter.hear(&attempt.stream) {
            Heard::Partly if now >= attempt.deadline => {
                Outcome::Lost("connected, but nobody answered the hello".into())
            }
            Heard::Partly => {
                self.attempts.push(attempt);
                Outcome::Going
            }
            Heard::Closed(why) => Outcome::Lost(format!("connected, then {why}")),
            Heard::Nonsense(problem) => Outcome::Lost(problem.to_string()),
            Heard::Greeting(Greeting::Welcome(answer)) => self.welcomed(attempt, &answer, set),
            Heard::Greeting(Greeting::Refusal { reason, text }) => match reason {
                // Somebody else's port: others of the addresses may be the peer's.
                Reason::Job | Reason::Process | Reason::Rank => {
                    Outcome::Lost(format!("refused: {text}"))
                }
                Reason::Duplicate | Reason::Version | Reason::World => Outcome::Refused(text),
            },
            Heard::Greeting(_) => Outcome::Lost("answered by something that is no listener".into()),
        }
    }

    /// Commits to the connection if it leads to the right process.
    fn welcomed(&self, attempt: Attempt, answer: &Hello, set: &Epoll) -> Outcome {
        let hello = self.hello();
        let right = answer.job == hello.job
            && answer.world == hello.world
            && (answer.from, answer.to) == (hello.to, hello.from)
            && answer.wanted == hello.nonce
            && (answer.purpose, answer.index) == (hello.purpose, hello.index)
            && (hello.wanted == 0 || hello.wanted == answer.nonce);
        if !right {
            return Outcome::Lost(format!("answered as {answer:?}, not as {hello:?} asks for"));
        }
        let commit = Greeting::Commit.encode();
        if let Err(error) = set.remove(&attempt.stream) {
            return Outcome::Lost(error.to_string());
        }
        match (&attempt.stream).write(&commit) {
            Ok(sent) if sent == commit.len() => {}
            Ok(_) => return Outcome::Lost("a new connection had no room for a commit".into()),
            Err(error) => return Outcome::Lost(describe(&error)),
        }
        Outcome::Won(Session {
            stream: attempt.stream,
            peer: self.to.rank,
            nonce: answer.nonce,
            purpose: self.purpose,
            index: self.index,
            remote: attempt.address,
        })
    }

    fn hello(&self) -> Hello {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Hello {
            job: self.own.job,
            world: number(self.own.world),
            from: number(self.own.rank),
            to: number(self.to.rank),
            purpose: self.purpose,
            index: self.index,
            nonce: self.own.nonce,
            wanted: self.to.nonce,
        }
    }

    fn note(&mut self, address: SocketAddr, why: String) {
        match self.outcomes.iter_mut().find(|(at, _)| *at == address) {
            Some((_, outcome)) => *outcome = why,
            None => self.outcomes.push((address, why)),
        }
    }

    fn unreachable(&mut self, now: Instant) -> LinkError {
        for attempt in std::mem::take(&mut self.attempts) {
            let stage = if attempt.greeter.is_some() {
                "connected, no welcome"
            } else {
                "no answer"
            };
            self.note(attempt.address, stage.into());
        }
        let tried = if self.outcomes.is_empty() {
            "no address: the rank published none that can be used from this host".into()
        } else {
            let list: Vec<_> = self
                .outcomes
                .iter()
                .map(|(at, why)| format!("{at} ({why})"))
                .collect();
            list.join(", ")
        };
        LinkError::Unreachable {
            peer: self.to.rank,
            waited: now - self.began,
            tried,
            remedy: format!(
                "check that rank {} still runs and that no firewall blocks its port {}; RINGWAY_INTERFACES chooses the interfaces",
                self.to.rank, self.to.port
            ),
        }
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused: nobody listens there".into(),
        _ => error.to_string(),
    }
}
