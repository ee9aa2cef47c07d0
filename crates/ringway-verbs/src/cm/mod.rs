//! Connections through librdmacm: who listens at an IP address and port, and who connects to it.
//!
//! Only the conversation is had here. Queue pairs are made on a context of one's own as for any other connection, and
//! taken through their states with what the conversation has agreed on:
//!
//! | active side | passive side |
//! |---|---|
//! | `resolve_address` → `AddressResolved` | `listen` |
//! | `resolve_route` → `RouteResolved` | |
//! | make a queue pair on device `id.device()` | |
//! | `connect` | → `ConnectRequest` with a new id |
//! | | make a queue pair, `ready` it, `accept` |
//! | → `ConnectResponse`; `ready` the queue pair, `establish` | → `Established` |
//! | `disconnect`, or → `Disconnected` | likewise |

mod event;
mod id;

pub use event::{CmEvent, CmEventKind, EventChannel, IdToken};
pub use id::{CmId, ConnectionTerms};
