//! Transports: how bytes get from a rank to its peers.
#![forbid(unsafe_code)]

mod address;
mod damper;
mod error;
mod fault;
mod listener;
mod loopback;
mod ops;
pub mod rdma;
mod router;
mod session;
pub mod shm;
pub mod tcp;
mod trace;
mod transport;

pub use address::{
    BadAddress, BadFilter, Candidate, InterfaceFilter, MAX_ADDRESSES, PeerAddress, candidates,
    network_id,
};
pub use damper::Damper;
pub use error::{LinkError, RegisterError};
pub use fault::{BadFaultPlan, Fault, FaultPlan};
pub use listener::{Arrival, BadPorts, Bind, Inbox, ListenError, Listener, Ports};
pub use loopback::{Loopback, LoopbackOptions};
pub use router::Router;
pub use session::{
    Greeting, Hello, Identity, JobId, MAX_BODY, NoGreeting, Purpose, Reason, Session, VERSION,
};
pub use trace::{Trace, TraceLog};
pub use transport::{Event, MessageKey, RegisteredMemory, Sink, Transport, Wake};
