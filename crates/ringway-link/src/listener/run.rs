//! The handshake thread.

use std::{
    collections::HashMap,
    io,
    net::TcpListener,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest};

use super::{Arrival, Command, Inbox, Shared};
use crate::{
    Damper, Identity,
    session::{Accepting, Dial, Progress, Register, Verdict},
};

const LISTENER: u64 = 0;
const COMMANDS: u64 = 1;

/// Connections that have not said who they are, at most, beyond one for each rank. One more pushes the
/// oldest out.
const STRANGERS: usize = 64;

/// How long to leave the port alone when the process has no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(20);

pub(super) struct Thread {
    socket: TcpListener,
    shared: Arc<Shared>,
    set: Epoll,
    register: Register,
    accepting: HashMap<u64, Accepting>,
    dials: Vec<Outgoing>,
    /// The token given out last.
    tokens: u64,
    /// For warnings that no descriptors are left.
    exhaustion: Damper,
}

struct Outgoing {
    dial: Dial,
    peer: Rank,
    index: u16,
    inbox: Inbox,
    wake: Instant,
}

impl Thread {
    pub(super) fn new(
        socket: TcpListener,
        identity: Identity,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let set = Epoll::new()?;
        set.add(&socket, LISTENER, Interest::Read)?;
        set.add(&shared.wake, COMMANDS, Interest::Read)?;
        Ok(Self {
            socket,
            shared,
            set,
            register: Register::new(identity),
            accepting: HashMap::new(),
            dials: Vec::new(),
            tokens: COMMANDS,
            exhaustion: Damper::default(),
        })
    }

    pub(super) fn run(&mut self) {
        let mut ready = Vec::new();
        loop {
            ready.clear();
            let wake = self.next_wake();
            let timeout = wake.map(|at| at.saturating_duration_since(Instant::now()));
            if let Err(error) = self.set.wait(&mut ready, timeout) {
                tracing::error!("the handshake thread ends: {error}");
                return;
            }
            let now = Instant::now();
            for &token in &ready {
                match token {
                    LISTENER => self.accept(now),
                    COMMANDS => {
                        if !self.obey(now) {
                            return;
                        }
                    }
                    _ if self.accepting.contains_key(&token) => self.hear(token, now),
                    _ => {
                        if let Some(at) = self.dials.iter().position(|out| out.dial.owns(token)) {
                            self.advance(at, Some(token), now);
                        }
                    }
                }
            }
            self.expire(now);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let dials = self.dials.iter().map(|out| out.wake);
        self.accepting
            .values()
            .map(Accepting::deadline)
            .chain(dials)
            .min()
    }

    fn accept(&mut self, now: Instant) {
        loop {
            match self.socket.accept() {
                Ok((stream, remote)) => {
                    let prepared = stream
                        .set_nonblocking(true)
                        .and_then(|()| stream.set_nodelay(true));
                    self.tokens += 1;
                    let token = self.tokens;
                    let added =
                        prepared.and_then(|()| self.set.add(&stream, token, Interest::Read));
                    if let Err(error) = added {
                        self.register.refusals().warn(now, |more| {
                            tracing::warn!(%remote, "dropped a connection: {error}{more}");
                        });
                        continue;
                    }
                    self.accepting
                        .insert(token, Accepting::new(stream, remote, now));
                    self.push_out_strangers(now);
                    // Most hellos come with the connection.
                    self.hear(token, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => match error
                    .raw_os_error()
                    .map(rustix::io::Errno::from_raw_os_error)
                {
                    Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                        self.exhaustion.warn(now, |more| {
                            tracing::warn!(
                                "cannot accept a connection: {error}; raise `ulimit -n`{more}"
                            );
                        });
                        std::thread::sleep(EXHAUSTED);
                        return;
                    }
                    // The connection broke while it waited.
                    _ => continue,
                },
            }
        }
    }

    fn push_out_strangers(&mut self, now: Instant) {
        let strangers = || self.accepting.iter().filter(|(_, a)| a.is_stranger());
        if strangers().count() > STRANGERS + self.register.own().world
            && let Some(oldest) = strangers().map(|(&token, _)| token).min()
        {
            self.accepting.remove(&oldest);
            self.register.refusals().warn(now, |more| {
                tracing::warn!("dropped a silent connection: more than {STRANGERS} at once{more}");
            });
        }
    }

    fn hear(&mut self, token: u64, now: Instant) {
        let Some(accepting) = self.accepting.remove(&token) else {
            return;
        };
        match accepting.advance(&mut self.register, now) {
            (Some(waiting), _) => {
                self.accepting.insert(token, waiting);
            }
            (None, Verdict::Session(session)) => match self.set.remove(&session.stream) {
                Ok(()) => self
                    .shared
                    .inbox(session.purpose)
                    .put(Arrival::Session(session)),
                Err(error) => tracing::warn!(rank = session.peer, "lost a session: {error}"),
            },
            (None, _) => {}
        }
    }

    /// Does what the owner asks for; false to end.
    fn obey(&mut self, now: Instant) -> bool {
        self.shared.wake.clear();
        let mut queue = self
            .shared
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let commands = std::mem::take(&mut *queue);
        drop(queue);
        for command in commands {
            match command {
                Command::Dial {
                    to,
                    purpose,
                    index,
                    deadline,
                    inbox,
                } => {
                    let peer = to.rank;
                    let own = *self.register.own();
                    let dial = Dial::new(own, to, purpose, index, now, deadline);
                    self.dials.push(Outgoing {
                        dial,
                        peer,
                        index,
                        inbox,
                        wake: now,
                    });
                    self.advance(self.dials.len() - 1, None, now);
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn advance(&mut self, at: usize, ready: Option<u64>, now: Instant) {
        let out = &mut self.dials[at];
        let arrival = match out.dial.advance(ready, now, &self.set, &mut self.tokens) {
            Progress::Until(wake) => {
                out.wake = wake;
                return;
            }
            Progress::Session(session) => Arrival::Session(session),
            Progress::Failed(error) => Arrival::Failed {
                peer: out.peer,
                index: out.index,
                error,
            },
        };
        self.dials.swap_remove(at).inbox.put(arrival);
    }

    fn expire(&mut self, now: Instant) {
        self.accepting.retain(|_, accepting| {
            let keep = now < accepting.deadline();
            if !keep {
                accepting.log_timeout(self.register.refusals(), now);
            }
            keep
        });
        for at in (0..self.dials.len()).rev() {
            if now >= self.dials[at].wake {
                self.advance(at, None, now);
            }
        }
    }
}
