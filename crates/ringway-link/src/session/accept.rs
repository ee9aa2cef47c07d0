//! The side of a handshake that was connected to.

use std::{
    collections::HashMap,
    io::Write,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use ringway_plan::Rank;

use super::{
    Greeting, Hello, Identity, NoGreeting, Reason, Session,
    greeter::{Greeter, Heard},
    hello::VERSION,
};
use crate::Damper;

/// How long a stranger may take to say hello.
const SILENCE: Duration = Duration::from_secs(3);

/// How long a rank that was welcomed may take to commit: it may have other attempts under way on a busy host.
const COMMIT: Duration = Duration::from_secs(30);

/// Who this process is, and which process each other rank is.
#[derive(Debug)]
pub(crate) struct Register {
    own: Identity,
    processes: HashMap<Rank, u64>,
    /// Warnings of those who are sent away.
    refusals: Damper,
}

/// A hello that does not fit.
#[derive(Debug)]
pub(crate) struct Misfit {
    reason: Reason,
    text: String,
}

impl Register {
    pub(crate) fn new(own: Identity) -> Self {
        Self {
            own,
            processes: HashMap::from([(own.rank, own.nonce)]),
            refusals: Damper::default(),
        }
    }

    /// For warnings of connections that are dropped.
    pub(crate) const fn refusals(&mut self) -> &mut Damper {
        &mut self.refusals
    }

    pub(crate) const fn own(&self) -> &Identity {
        &self.own
    }

    /// Checks a hello, and remembers the sender.
    fn check(&mut self, hello: &Hello) -> Result<Rank, Misfit> {
        let own = &self.own;
        let misfit = |reason, text: String| Err(Misfit { reason, text });
        if hello.job != own.job {
            // The other job's id is for the log of this side only: not an answer to give to anyone.
            return misfit(Reason::Job, "this port belongs to another job".into());
        }
        let (from, to) = (as_rank(hello.from), as_rank(hello.to));
        if as_rank(hello.world) != own.world || from >= own.world {
            let text = format!(
                "a world of {} ranks was expected, got rank {from} of {}",
                own.world, hello.world
            );
            return misfit(Reason::World, text);
        }
        if to != own.rank {
            let text = format!("this is rank {}, not rank {to}", own.rank);
            return misfit(Reason::Rank, text);
        }
        if hello.wanted != 0 && hello.wanted != own.nonce {
            let text = format!("this is another process of rank {to} than the one wanted");
            return misfit(Reason::Process, text);
        }
        match self.processes.get(&from) {
            Some(&known) if known != hello.nonce => {
                let text = format!("two processes say that they are rank {from}");
                misfit(Reason::Duplicate, text)
            }
            _ => {
                self.processes.insert(from, hello.nonce);
                Ok(from)
            }
        }
    }
}

fn as_rank(number: u32) -> Rank {
    Rank::try_from(number).unwrap_or(Rank::MAX)
}

/// A connection that was accepted and has to say who it is.
#[derive(Debug)]
pub(crate) struct Accepting {
    stream: TcpStream,
    remote: SocketAddr,
    greeter: Greeter,
    welcomed: Option<(Rank, Hello)>,
    deadline: Instant,
}

/// What became of a connection.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has not said all yet.
    Waiting,
    /// It is to be closed.
    Refused,
    /// It is a peer's.
    Session(Session),
}

impl Accepting {
    pub(crate) fn new(stream: TcpStream, remote: SocketAddr, now: Instant) -> Self {
        Self {
            stream,
            remote,
            greeter: Greeter::new(),
            welcomed: None,
            deadline: now + SILENCE,
        }
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has not said who it is.
    pub(crate) const fn is_stranger(&self) -> bool {
        self.welcomed.is_none()
    }

    /// Says in the log why it is dropped after its deadline.
    pub(crate) fn log_timeout(&self, refusals: &mut Damper, now: Instant) {
        if self.is_stranger() {
            let got = if self.greeter.is_silent() {
                "silence"
            } else {
                "a part of one"
            };
            refusals.warn(now, |more| {
                tracing::warn!(remote = %self.remote, "dropped a connection: expected a Ringway hello within {SILENCE:?}, got {got}{more}");
            });
        }
    }

    /// Reads and answers what has come.
    pub(crate) fn advance(
        mut self,
        register: &mut Register,
        now: Instant,
    ) -> (Option<Self>, Verdict) {
        loop {
            let greeting = match self.greeter.hear(&self.stream) {
                Heard::Partly => return (Some(self), Verdict::Waiting),
                Heard::Closed(_) => return (None, Verdict::Refused),
                Heard::Nonsense(problem) => {
                    self.refuse_nonsense(&problem, &mut register.refusals, now);
                    return (None, Verdict::Refused);
                }
                Heard::Greeting(greeting) => greeting,
            };
            match (greeting, self.welcomed) {
                (Greeting::Hello(hello), None) => match register.check(&hello) {
                    Ok(rank) => {
                        let answer = Hello {
                            from: hello.to,
                            to: hello.from,
                            nonce: register.own.nonce,
                            wanted: hello.nonce,
                            ..hello
                        };
                        if !self.answer(&Greeting::Welcome(answer)) {
                            return (None, Verdict::Refused);
                        }
                        self.welcomed = Some((rank, hello));
                        self.deadline = now + COMMIT;
                    }
                    Err(misfit) => {
                        self.refuse(&hello, misfit, register, now);
                        return (None, Verdict::Refused);
                    }
                },
                (Greeting::Commit, Some((peer, hello))) => {
                    let session = Session {
                        stream: self.stream,
                        peer,
                        nonce: hello.nonce,
                        purpose: hello.purpose,
                        index: hello.index,
                        remote: self.remote,
                    };
                    return (None, Verdict::Session(session));
                }
                (other, _) => {
                    register.refusals.warn(now, |more| {
                        tracing::warn!(remote = %self.remote, "dropped a connection: expected a hello, then a commit, got {other:?}{more}");
                    });
                    return (None, Verdict::Refused);
                }
            }
        }
    }

    fn refuse_nonsense(&self, problem: &NoGreeting, refusals: &mut Damper, now: Instant) {
        refusals.warn(now, |more| {
            tracing::warn!(remote = %self.remote, "refused a stranger: {problem}{more}");
        });
        if let NoGreeting::Version(_) = problem {
            let text = format!("protocol version {VERSION} was expected");
            self.answer(&Greeting::Refusal {
                reason: Reason::Version,
                text,
            });
        }
    }

    fn refuse(&self, hello: &Hello, misfit: Misfit, register: &mut Register, now: Instant) {
        let Misfit { reason, text } = misfit;
        let (own, remote, from) = (register.own.job, self.remote, hello.from);
        match reason {
            // What probing of addresses brings with it.
            Reason::Rank => tracing::debug!(%remote, from, "refused a connection: {text}"),
            Reason::Job => register.refusals.warn(now, |more| {
                tracing::warn!(
                    %remote, from,
                    "refused a connection: job {own} was expected, got {}{more}", hello.job
                );
            }),
            _ => register.refusals.warn(now, |more| {
                tracing::warn!(%remote, from, "refused a connection: {text}{more}");
            }),
        }
        self.answer(&Greeting::Refusal { reason, text });
    }

    /// Sends a greeting, whole: a new connection has room for it.
    fn answer(&self, greeting: &Greeting) -> bool {
        let bytes = greeting.encode();
        (&self.stream)
            .write(&bytes)
            .is_ok_and(|sent| sent == bytes.len())
    }
}
