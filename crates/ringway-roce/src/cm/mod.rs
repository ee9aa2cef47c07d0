//! Connection management: how two sides that know only each other's address and port make a reliable connection, as
//! rdma_cm does (volume 1, chapter 12, and annex A11).
//!
//! The messages are management datagrams ([`Mad`]) between the queue pairs 1 of both sides. A [`Connection`] is one
//! side of one connection: [`Connection::handle`] takes a message, [`Connection::poll_event`] says what it meant,
//! [`Connection::poll_transmit`] gives the next one for the peer, [`Connection::poll_timeout`] says when to call
//! [`Connection::handle_timeout`]. Which connection a message is for, [`Ids`] say: its `remote` is the `local_id` that
//! this side gave; a REQ whose sender and number are unknown is a new connection. A [`Manager`] does that for all
//! connections and listeners of an address; an [`Endpoint`](crate::endpoint::Endpoint) drives one.
//!
//! # States
//!
//! | state | event | next | what happens |
//! |---|---|---|---|
//! | | [`Connection::connect`] | `ReqSent` | REQ |
//! | `ReqSent` | MRA | same | the clock waits as long as the listener asks |
//! | `ReqSent` | REP | `Established` | RTU; [`Event::Established`] |
//! | `ReqSent` | REJ | `Closed` | [`Event::Rejected`] |
//! | `ReqSent` | clock | same | REQ again |
//! | `ReqSent` | clock, no retries left | `Closed` | REJ (time-out); [`Event::Unreachable`] |
//! | | [`Connection::requested`] | `ReqReceived` | |
//! | | the same with a transport or MTU that can't be | `Closed` | REJ |
//! | `ReqReceived` | REQ again | same | MRA, for the user needs time |
//! | `ReqReceived` | REJ | `Closed` | [`Event::Rejected`] |
//! | `ReqReceived` | [`Connection::accept`] | `RepSent` | REP |
//! | `ReqReceived` | [`Connection::reject`] | `Closed` | REJ |
//! | `RepSent` | REQ again | same | REP again |
//! | `RepSent` | MRA | same | the clock waits as long as the initiator asks |
//! | `RepSent` | RTU, [`Connection::heard_from_peer`] | `Established` | [`Event::Established`] |
//! | `RepSent` | REJ | `Closed` | [`Event::Rejected`] |
//! | `RepSent` | clock | same | REP again |
//! | `RepSent` | clock, no retries left | `Closed` | REJ (time-out); [`Event::Unreachable`] |
//! | `Established` | REP again | same | RTU again |
//! | `Established` | [`Connection::disconnect`] | `DreqSent` | DREQ |
//! | `RepSent`, `Established`, `DreqSent` | DREQ | `TimeWait` | DREP; [`Event::Disconnected`] |
//! | `DreqSent` | DREP | `TimeWait` | [`Event::Disconnected`] |
//! | `DreqSent` | clock | same | DREQ again |
//! | `DreqSent` | clock, no retries left | `TimeWait` | [`Event::Disconnected`] |
//! | `TimeWait` | DREQ again | same | DREP again |
//! | `TimeWait` | clock | `Closed` | |
//! | `Closed` | REQ again, after a REJ | same | REJ again |
//! | any | anything else | same | nothing; [`Connection::handle`] says so |
//!
//! A clock waits 34 s at most, whatever the peer asks for.

mod connection;
mod counters;
mod fields;
mod ip;
mod mad;
mod manager;
mod message;
mod req;
mod terms;
#[cfg(test)]
mod tests;

pub use connection::{CmError, Connection, Event, State};
pub use counters::Counters;
pub use ip::{IpHeader, service_id, service_port};
pub use mad::{Mad, NotCm};
pub use manager::{ConnectionId, Manager, Notice, Request};
pub use message::{About, Drep, Dreq, Ids, Message, Mra, Reason, Rej, Rep, Rtu};
pub use req::{Path, Req};
pub use terms::{Acceptance, Proposal, Terms, TooLong};
