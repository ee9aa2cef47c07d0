//! The one port of a rank, and the thread that does its handshakes.
//!
//! Connections of all purposes arrive at one port and are dialled from one place. A thread, asleep unless a
//! handshake is going on, speaks with strangers and peers, and hands authenticated sessions out by purpose. So a
//! rank that computes and does not look at its transports still answers.

mod bind;
mod inbox;
mod run;

use std::{
    io,
    net::TcpListener,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Instant,
};

use ringway_plan::Rank;
use ringway_sys::Signal;

pub use bind::{BadPorts, Bind, ListenError, Ports};
pub use inbox::{Arrival, Inbox};

use crate::{
    Identity, InterfaceFilter, LinkError, PeerAddress, Purpose, Session,
    address::{Candidate, candidates, network_id},
};

/// A rank's port, open until dropped.
///
/// Sessions that peers open come out of [`Listener::inbox`]; sessions to peers are opened with
/// [`Listener::connect`] (which waits) or [`Listener::dial`] (which does not).
#[derive(Debug)]
pub struct Listener {
    identity: Identity,
    port: u16,
    /// The one address that it listens on, if not all.
    bound: Option<std::net::IpAddr>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    commands: Mutex<Vec<Command>>,
    wake: Signal,
    control: Inbox,
    data: Inbox,
}

impl Shared {
    const fn inbox(&self, purpose: Purpose) -> &Inbox {
        match purpose {
            Purpose::Control => &self.control,
            Purpose::Data => &self.data,
        }
    }

    fn tell(&self, command: Command) {
        self.commands
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(command);
        self.wake.raise();
    }
}

#[derive(Debug)]
enum Command {
    Dial {
        to: PeerAddress,
        purpose: Purpose,
        index: u16,
        deadline: Instant,
        inbox: Inbox,
    },
    Stop,
}

impl Listener {
    /// Opens the port and starts answering.
    ///
    /// # Errors
    /// If no port asked for is free, or the address is not this host's.
    pub fn start(bind: &Bind, identity: Identity) -> Result<Self, ListenError> {
        let socket = bind.open()?;
        let failed = |error: io::Error| ListenError::System {
            detail: error.to_string(),
        };
        let port = socket.local_addr().map_err(failed)?.port();
        let shared = Shared {
            commands: Mutex::default(),
            wake: Signal::new().map_err(failed)?,
            control: Inbox::new().map_err(failed)?,
            data: Inbox::new().map_err(failed)?,
        };
        let shared = Arc::new(shared);
        let thread = spawn(socket, identity, Arc::clone(&shared)).map_err(failed)?;
        Ok(Self {
            identity,
            port,
            bound: bind.address,
            shared,
            thread: Some(thread),
        })
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Who this process says it is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What to publish to the other ranks, so that they can connect.
    ///
    /// # Errors
    /// If the kernel does not tell the host's interfaces.
    pub fn address(&self, filter: &InterfaceFilter) -> io::Result<PeerAddress> {
        let serves = |c: &Candidate| self.bound.is_none_or(|ip| ip == c.ip);
        Ok(PeerAddress {
            rank: self.identity.rank,
            nonce: self.identity.nonce,
            network: network_id(),
            port: self.port,
            addresses: candidates(filter)?.into_iter().filter(serves).collect(),
        })
    }

    /// Where sessions for a purpose arrive that peers have opened. All users of one purpose share one inbox.
    pub fn inbox(&self, purpose: Purpose) -> Inbox {
        self.shared.inbox(purpose).clone()
    }

    /// Starts to connect to a peer. What comes of it arrives in the inbox of the purpose, beside sessions that
    /// peers open.
    pub fn dial(&self, to: PeerAddress, purpose: Purpose, index: u16, deadline: Instant) {
        let inbox = self.inbox(purpose);
        self.shared.tell(Command::Dial {
            to,
            purpose,
            index,
            deadline,
            inbox,
        });
    }

    /// Connects to a peer, and waits for it.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] with every address tried if none leads to the peer by the deadline,
    /// [`LinkError::Refused`] at once if the peer does not accept this process.
    pub fn connect(
        &self,
        to: PeerAddress,
        purpose: Purpose,
        index: u16,
        deadline: Instant,
    ) -> Result<Session, LinkError> {
        let peer = to.rank;
        let failed = |detail: String| LinkError::System {
            peer,
            what: "connecting",
            detail,
        };
        let inbox = Inbox::new().map_err(|error| failed(error.to_string()))?;
        self.shared.tell(Command::Dial {
            to,
            purpose,
            index,
            deadline,
            inbox: inbox.clone(),
        });
        // The thread keeps the deadline, and says more about what was tried than "too late".
        let grace = std::time::Duration::from_secs(5);
        match inbox.wait(deadline + grace) {
            Some(Arrival::Session(session)) => Ok(session),
            Some(Arrival::Failed { error, .. }) => Err(error),
            None => Err(failed("the handshake thread does not answer".into())),
        }
    }

    /// The rank that this process is.
    pub const fn rank(&self) -> Rank {
        self.identity.rank
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn spawn(
    socket: TcpListener,
    identity: Identity,
    shared: Arc<Shared>,
) -> io::Result<JoinHandle<()>> {
    let mut thread = run::Thread::new(socket, identity, shared)?;
    std::thread::Builder::new()
        .name("ringway-port".into())
        .spawn(move || thread.run())
}
