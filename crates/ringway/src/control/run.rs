//! The control thread: sockets and time for the state machine of this rank.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{Arrival, Inbox, Session};
use ringway_plan::Rank;
use ringway_sys::{Epoll, Interest};

use super::{
    machine::Machine,
    message::Message,
    process,
    shared::{Command, Shared},
};

const COMMANDS: u64 = 0;
const INBOX: u64 = 1;
/// Rank r's connection has this token plus r.
const RANK_0: u64 = 2;

/// How long the end may take to send what has been said.
const LAST_WORDS: Duration = Duration::from_millis(100);

pub(super) struct Thread {
    shared: Arc<Shared>,
    machine: Box<dyn Machine>,
    set: Epoll,
    /// Where the others' connections arrive, at rank 0.
    inbox: Option<Inbox>,
    links: HashMap<Rank, Link>,
}

struct Link {
    stream: TcpStream,
    /// What has come and is no whole message yet.
    incoming: Vec<u8>,
    /// What has been said and did not fit into the socket yet.
    outgoing: Vec<u8>,
}

impl Thread {
    pub(super) fn new(
        shared: Arc<Shared>,
        machine: Box<dyn Machine>,
        inbox: Option<Inbox>,
        sessions: impl IntoIterator<Item = Session>,
    ) -> io::Result<Self> {
        let set = Epoll::new()?;
        set.add(&shared.wake, COMMANDS, Interest::Read)?;
        if let Some(inbox) = &inbox {
            set.add(inbox.fd(), INBOX, Interest::Read)?;
        }
        let mut thread = Self {
            shared,
            machine,
            set,
            inbox,
            links: HashMap::new(),
        };
        let now = Instant::now();
        sessions
            .into_iter()
            .try_for_each(|session| thread.adopt(session, now))?;
        Ok(thread)
    }

    pub(super) fn run(mut self) {
        process::raise_priority();
        let mut ready = Vec::new();
        loop {
            self.speak();
            if self.machine.is_finished() {
                break;
            }
            let timeout = self.machine.poll_timeout();
            let timeout = timeout.map(|at| at.saturating_duration_since(Instant::now()));
            if let Err(error) = self.set.wait(&mut ready, timeout) {
                tracing::error!("the control thread ends: {error}");
                break;
            }
            let now = Instant::now();
            self.attend_all(&mut ready, now);
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                // After a late turn all that has come in the meantime is heard before anybody is judged.
                while self.set.wait(&mut ready, Some(Duration::ZERO)).is_ok() && !ready.is_empty() {
                    self.attend_all(&mut ready, now);
                }
                self.machine.handle_time(now);
            }
        }
        self.say_last_words();
        self.shared.note_end();
    }

    fn attend_all(&mut self, ready: &mut Vec<u64>, now: Instant) {
        for token in ready.drain(..) {
            self.attend(token, now);
        }
    }

    fn attend(&mut self, token: u64, now: Instant) {
        match token {
            COMMANDS => {
                for command in self.shared.take_commands() {
                    match command {
                        Command::Joined => self.machine.handle_joined(now),
                        Command::Leave { patience } => self.machine.handle_leave(now, patience),
                        Command::Report { rank, cause } => {
                            self.machine.handle_report(rank, cause, now);
                        }
                    }
                }
            }
            INBOX => {
                while let Some(arrival) = self.inbox.as_ref().and_then(Inbox::take) {
                    if let Arrival::Session(session) = arrival
                        && let Err(error) = self.adopt(session, now)
                    {
                        tracing::warn!("a control connection was dropped: {error}");
                    }
                }
            }
            token => {
                let rank = Rank::try_from(token - RANK_0).unwrap_or(Rank::MAX);
                self.serve(rank, now);
            }
        }
    }

    fn adopt(&mut self, session: Session, now: Instant) -> io::Result<()> {
        let (rank, stream) = (session.peer, session.stream);
        if self.links.contains_key(&rank) {
            return Err(io::Error::other(format!("rank {rank} has one already")));
        }
        self.set
            .add(&stream, RANK_0 + rank as u64, Interest::Read)?;
        self.links.insert(
            rank,
            Link {
                stream,
                incoming: Vec::new(),
                outgoing: Vec::new(),
            },
        );
        self.machine.handle_connected(rank, now);
        Ok(())
    }

    /// Reads and writes what can be.
    fn serve(&mut self, rank: Rank, now: Instant) {
        let Some(link) = self.links.get_mut(&rank) else {
            return;
        };
        let open = link.read();
        let mut at = 0;
        let broken = loop {
            match Message::decode(&link.incoming[at..]) {
                Ok(Some((message, len))) => {
                    at += len;
                    self.machine.handle_message(rank, message, now);
                }
                Ok(None) => break false,
                Err(error) => {
                    tracing::warn!(rank, "a control connection is broken: {error}");
                    break true;
                }
            }
        };
        link.incoming.drain(..at);
        if broken || !open || !self.write(rank) {
            self.close(rank, now);
        }
    }

    fn close(&mut self, rank: Rank, now: Instant) {
        if self.links.remove(&rank).is_some() {
            self.machine.handle_closed(rank, now);
        }
    }

    /// Writes what fits; false if the connection is gone.
    fn write(&mut self, rank: Rank) -> bool {
        let Some(link) = self.links.get_mut(&rank) else {
            return true;
        };
        let waited = !link.outgoing.is_empty();
        let open = link.write();
        let waits = !link.outgoing.is_empty();
        if waited == waits {
            return open;
        }
        let interest = if waits {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        open && self
            .set
            .modify(&link.stream, RANK_0 + rank as u64, interest)
            .is_ok()
    }

    /// Sends the machine's messages and tells its news.
    fn speak(&mut self) {
        loop {
            while let Some(news) = self.machine.poll_news() {
                self.shared.note(news);
            }
            let Some((rank, message)) = self.machine.poll_message() else {
                return;
            };
            let Some(link) = self.links.get_mut(&rank) else {
                continue;
            };
            let empty = link.outgoing.is_empty();
            link.outgoing.extend(message.encode());
            // Behind others it goes when they go.
            let open = !empty || link.write();
            let waits = empty && !link.outgoing.is_empty();
            let open = open
                && (!waits
                    || self
                        .set
                        .modify(&link.stream, RANK_0 + rank as u64, Interest::ReadWrite)
                        .is_ok());
            if !open {
                self.close(rank, Instant::now());
            }
        }
    }

    /// Sends what has not fitted, within a moment.
    fn say_last_words(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut ready = Vec::new();
        loop {
            self.links
                .retain(|_, link| link.write() && !link.outgoing.is_empty());
            let left = deadline.saturating_duration_since(Instant::now());
            if self.links.is_empty() || left.is_zero() {
                return;
            }
            ready.clear();
            if self.set.wait(&mut ready, Some(left)).is_err() {
                return;
            }
        }
    }
}

impl Link {
    /// Takes in what has come; false if no more will.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => {
                    self.incoming.extend_from_slice(&chunk[..n]);
                    // It had no more: what comes later is told again.
                    if n < chunk.len() {
                        return true;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Sends what fits; false if the connection is gone.
    fn write(&mut self) -> bool {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(n) => drop(self.outgoing.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}
