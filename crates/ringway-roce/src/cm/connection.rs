//! The life of one connection, from the request to its end.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use thiserror::Error;

use super::{
    About, Acceptance, ConnectionId, Drep, Dreq, Ids, Mad, Message, Mra, Proposal, Reason, Rej,
    Rep, Req, Rtu, Terms, TooLong, terms::padded,
};
use crate::{Qpn, rc::Mtu, timer::AckTimeout};

/// The state of a connection; the module's documentation has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The initiator waits for the listener's answer.
    ReqSent,
    /// The listener has to answer.
    ReqReceived,
    /// The listener waits until the initiator is ready.
    RepSent,
    /// Data may flow.
    Established,
    /// This side has asked to disconnect.
    DreqSent,
    /// It is over, but late repetitions are still answered.
    TimeWait,
    /// It is over.
    Closed,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer is ready: set up the queue pair, if that hasn't been done yet, before the next packet is sent. With
    /// the initiator, the private data is the REP's; with the listener, the RTU's.
    Established {
        /// What to set it up with.
        terms: Terms,
        /// The peer's, with the zeros it is filled up with.
        private_data: Vec<u8>,
    },
    /// The peer doesn't want it.
    Rejected {
        /// Why.
        reason: Reason,
        /// The peer's, with the zeros it is filled up with.
        private_data: Vec<u8>,
    },
    /// The peer doesn't answer.
    Unreachable,
    /// The connection has come to its end.
    Disconnected,
}

/// Why a connection can't do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmError {
    /// Not in this state.
    #[error("the connection is in state {0:?}, where this can't be done")]
    State(State),
    /// There is none (any more).
    #[error("there is no connection {}: it has ended, or its queue pair was destroyed", .0.0)]
    NoConnection(ConnectionId),
    /// The private data is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// One side of a connection. The module's documentation says how to drive it.
#[derive(Debug)]
pub struct Connection {
    state: State,
    ids: Ids,
    transaction: u64,
    role: Role,
    guid: u64,
    /// This side's queue pair, and the peer's once it is known.
    qpn: Qpn,
    peer_qpn: Qpn,
    /// The last message that asked for an answer or was one: what is sent again, by the clock or when asked.
    last: Option<Mad>,
    outgoing: VecDeque<Mad>,
    events: VecDeque<Event>,
    deadline: Option<Instant>,
    interval: Duration,
    /// How often `last` may still be sent again by the clock.
    retries: u8,
    max_retries: u8,
}

#[derive(Debug)]
enum Role {
    Initiator(Proposal),
    Listener {
        req: Req,
        /// Since the listener has accepted.
        terms: Option<Terms>,
    },
}

/// How long a REQ may wait for its user's decision once it is repeated: 4.096 µs · 2^20, four seconds.
const SERVICE_TIMEOUT: u8 = 20;

impl Connection {
    /// Asks for a connection. `local_id` tells it from all others of this side; `transaction` is unlike any other's.
    pub fn connect(
        now: Instant,
        local_id: u32,
        transaction: u64,
        proposal: Proposal,
        private_data: &[u8],
    ) -> Result<Self, TooLong> {
        let req = proposal.req(local_id, private_data)?;
        let ids = Ids {
            local: local_id,
            remote: 0,
        };
        let (interval, retries) = (coded(req.remote_response_timeout), req.cm_retries);
        let (guid, qpn) = (proposal.guid, proposal.qpn);
        let role = Role::Initiator(proposal);
        let mut connection = Self::new(State::ReqSent, ids, transaction, role, interval, retries);
        connection.guid = guid;
        connection.qpn = qpn;
        connection.ask(now, Message::Req(req));
        Ok(connection)
    }

    /// A REQ has come, of a connection that isn't known yet. If it can't be accepted it is rejected at once, and the
    /// connection is [`State::Closed`].
    pub fn requested(local_id: u32, transaction: u64, req: Req) -> Self {
        let ids = Ids {
            local: local_id,
            remote: req.local_id,
        };
        let invalid = req.invalid();
        let (interval, retries) = (coded(req.local_response_timeout), req.cm_retries);
        let peer_qpn = req.qpn;
        let role = Role::Listener { req, terms: None };
        let mut connection = Self::new(
            State::ReqReceived,
            ids,
            transaction,
            role,
            interval,
            retries,
        );
        connection.peer_qpn = peer_qpn;
        if let Some(reason) = invalid {
            connection.refuse(About::Req, reason, [0; 148]);
        }
        connection
    }

    fn new(
        state: State,
        ids: Ids,
        transaction: u64,
        role: Role,
        interval: Duration,
        retries: u8,
    ) -> Self {
        Self {
            state,
            ids,
            transaction,
            role,
            guid: 0,
            qpn: Qpn::new(0),
            peer_qpn: Qpn::new(0),
            last: None,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            deadline: None,
            interval,
            retries,
            max_retries: retries,
        }
    }

    /// The state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The two sides' numbers; the peer's is 0 until it is known.
    pub const fn ids(&self) -> Ids {
        self.ids
    }

    /// The REQ that waits for an answer.
    pub(super) const fn request(&self) -> Option<&Req> {
        match (&self.role, self.state) {
            (Role::Listener { req, .. }, State::ReqReceived) => Some(req),
            _ => None,
        }
    }

    /// Accepts a request. The queue pair must be ready to receive with the terms that are returned: the initiator's
    /// first packet may be faster than its RTU.
    pub fn accept(
        &mut self,
        now: Instant,
        acceptance: &Acceptance,
        private_data: &[u8],
    ) -> Result<Terms, CmError> {
        let ids = self.ids;
        let (state, Role::Listener { req, terms }) = (self.state, &mut self.role) else {
            return Err(CmError::State(self.state));
        };
        let (State::ReqReceived, Some(mtu), Some(ack_timeout)) = (
            state,
            req.path_mtu(),
            AckTimeout::new(req.primary.ack_timeout),
        ) else {
            return Err(CmError::State(state));
        };
        let rep = acceptance.rep(ids, req, private_data)?;
        let agreed = acceptance.terms(req, mtu, ack_timeout);
        *terms = Some(agreed);
        self.guid = acceptance.guid;
        self.qpn = acceptance.qpn;
        self.state = State::RepSent;
        self.ask(now, Message::Rep(rep));
        Ok(agreed)
    }

    /// Rejects a request.
    pub fn reject(&mut self, reason: Reason, private_data: &[u8]) -> Result<(), CmError> {
        if self.state != State::ReqReceived {
            return Err(CmError::State(self.state));
        }
        let private_data = padded(private_data)?;
        self.refuse(About::Req, reason, private_data);
        Ok(())
    }

    /// A packet of the peer's has come to the queue pair: it is ready, even if its RTU is lost.
    pub fn heard_from_peer(&mut self) {
        if self.state == State::RepSent {
            self.establish(vec![]);
        }
    }

    /// Ends the connection. [`Event::Disconnected`] comes when the peer knows, or doesn't answer.
    pub fn disconnect(&mut self, now: Instant) -> Result<(), CmError> {
        if self.state != State::Established {
            return Err(CmError::State(self.state));
        }
        self.state = State::DreqSent;
        let dreq = Dreq {
            ids: self.ids,
            remote_qpn: self.peer_qpn,
            private_data: [0; 220],
        };
        self.transaction = self.transaction.wrapping_add(1);
        self.ask(now, Message::Dreq(dreq));
        Ok(())
    }

    /// Takes a message. False if it isn't this connection's, or nothing that its state waits for.
    pub fn handle(&mut self, now: Instant, mad: &Mad) -> bool {
        match (&mad.message, self.state) {
            (Message::Req(req), _) => return self.repeated_req(req, mad.transaction),
            (Message::Mra(mra), State::ReqSent) if mra.about == About::Req => {
                if mra.ids.remote != self.ids.local {
                    return false;
                }
                self.deadline = Some(now + coded(mra.service_timeout) + self.interval);
            }
            (Message::Mra(mra), State::RepSent)
                if mra.about == About::Rep && self.is_ours(mra.ids) =>
            {
                self.deadline = Some(now + coded(mra.service_timeout) + self.interval);
            }
            (Message::Rep(rep), State::ReqSent) if rep.ids.remote == self.ids.local => {
                self.replied(rep);
            }
            (Message::Rep(rep), State::Established) if self.is_ours(rep.ids) => {
                // The RTU got lost.
                self.outgoing.extend(self.last.clone());
            }
            (Message::Rtu(rtu), State::RepSent) if self.is_ours(rtu.ids) => {
                self.establish(rtu.private_data.to_vec());
            }
            (Message::Rej(rej), State::ReqSent | State::RepSent)
                if rej.ids.remote == self.ids.local =>
            {
                self.rejected(rej);
            }
            // An initiator that has given up without having heard of this side knows no number of its.
            (Message::Rej(rej), State::ReqReceived | State::RepSent)
                if rej.ids.remote == 0 && rej.ids.local == self.ids.remote =>
            {
                self.rejected(rej);
            }
            (Message::Dreq(dreq), State::RepSent | State::Established | State::DreqSent)
                if self.is_ours(dreq.ids) && dreq.remote_qpn == self.qpn =>
            {
                self.answer_dreq(mad.transaction);
                self.wait(now);
            }
            (Message::Dreq(dreq), State::TimeWait) if self.is_ours(dreq.ids) => {
                self.answer_dreq(mad.transaction);
            }
            (Message::Drep(drep), State::DreqSent) if self.is_ours(drep.ids) => self.wait(now),
            _ => return false,
        }
        true
    }

    /// The next message for the peer. Take the events first.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.outgoing.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Connection::handle_timeout`].
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Lets the clock run out, if it has.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.state == State::TimeWait {
            self.state = State::Closed;
            self.deadline = None;
            return;
        }
        if self.retries > 0 {
            self.retries -= 1;
            self.deadline = Some(now + self.interval);
            self.outgoing.extend(self.last.clone());
            return;
        }
        if self.state == State::DreqSent {
            self.wait(now);
        } else {
            self.events.push_back(Event::Unreachable);
            self.refuse(About::Other(2), Reason::TIMEOUT, [0; 148]);
        }
    }

    const fn is_ours(&self, ids: Ids) -> bool {
        ids.remote == self.ids.local && ids.local == self.ids.remote
    }

    /// Sends a message and waits for its answer.
    fn ask(&mut self, now: Instant, message: Message) {
        let mad = Mad {
            transaction: self.transaction,
            message,
        };
        self.last = Some(mad.clone());
        self.outgoing.push_back(mad);
        self.retries = self.max_retries;
        self.deadline = Some(now + self.interval);
    }

    fn repeated_req(&mut self, req: &Req, transaction: u64) -> bool {
        match &self.role {
            Role::Listener { req: known, .. }
                if known == req && transaction == self.transaction => {}
            _ => return false,
        }
        match self.state {
            State::ReqReceived => {
                let mra = Mra {
                    ids: self.ids,
                    about: About::Req,
                    service_timeout: SERVICE_TIMEOUT,
                    private_data: [0; 222],
                };
                let message = Message::Mra(mra);
                self.outgoing.push_back(Mad {
                    transaction,
                    message,
                });
            }
            // The REP or the REJ got lost.
            State::RepSent | State::Closed => self.outgoing.extend(self.last.clone()),
            _ => {}
        }
        true
    }

    fn replied(&mut self, rep: &Rep) {
        let Role::Initiator(proposal) = &self.role else {
            return;
        };
        let terms = proposal.terms(rep);
        self.peer_qpn = rep.qpn;
        self.ids.remote = rep.ids.local;
        self.state = State::Established;
        self.deadline = None;
        let rtu = Mad {
            transaction: self.transaction,
            message: Message::Rtu(Rtu {
                ids: self.ids,
                private_data: [0; 224],
            }),
        };
        self.last = Some(rtu.clone());
        self.outgoing.push_back(rtu);
        self.events.push_back(Event::Established {
            terms,
            private_data: rep.private_data.to_vec(),
        });
    }

    /// The listener's side of it.
    fn establish(&mut self, private_data: Vec<u8>) {
        let Role::Listener {
            terms: Some(terms), ..
        } = self.role
        else {
            return;
        };
        self.state = State::Established;
        self.deadline = None;
        self.last = None;
        self.events.push_back(Event::Established {
            terms,
            private_data,
        });
    }

    fn answer_dreq(&mut self, transaction: u64) {
        let message = Message::Drep(Drep {
            ids: self.ids,
            private_data: [0; 224],
        });
        self.outgoing.push_back(Mad {
            transaction,
            message,
        });
    }

    /// Disconnected, but ready to answer repetitions.
    fn wait(&mut self, now: Instant) {
        self.end(State::TimeWait, Event::Disconnected);
        self.deadline = Some(now + self.interval);
    }

    fn rejected(&mut self, rej: &Rej) {
        let rejected = Event::Rejected {
            reason: rej.reason,
            private_data: rej.private_data.to_vec(),
        };
        self.end(State::Closed, rejected);
    }

    fn end(&mut self, state: State, event: Event) {
        self.state = state;
        self.deadline = None;
        self.last = None;
        self.events.push_back(event);
    }

    fn refuse(&mut self, about: About, reason: Reason, private_data: [u8; 148]) {
        // With a time-out, the peer knows the connection only by this side's device and number.
        let mut information = [0; 72];
        let information_length = if reason == Reason::TIMEOUT { 8 } else { 0 };
        if reason == Reason::TIMEOUT {
            information[..8].copy_from_slice(&self.guid.to_be_bytes());
        }
        let rej = Mad {
            transaction: self.transaction,
            message: Message::Rej(Rej {
                information_length,
                information,
                private_data,
                ..Rej::new(self.ids, about, reason)
            }),
        };
        self.state = State::Closed;
        self.deadline = None;
        self.last = Some(rej.clone());
        self.outgoing.push_back(rej);
    }
}

impl Req {
    /// The transport service that is the reliable connection.
    pub(super) const RELIABLE_CONNECTION: u8 = 0;

    fn path_mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.mtu)
    }

    /// Why nobody could accept it.
    fn invalid(&self) -> Option<Reason> {
        if self.transport != Self::RELIABLE_CONNECTION {
            Some(Reason::INVALID_TRANSPORT)
        } else if self.path_mtu().is_none() {
            Some(Reason::INVALID_MTU)
        } else {
            None
        }
    }
}

/// The longest time that a peer may ask this side to wait, as a code: 34 s. The specification's go up to 2.4 hours, which
/// a connection that nobody wants any more would take room for.
pub(super) const LONGEST: u8 = 23;

/// The specification's time of a code, where 0 is no exception; at most that of [`LONGEST`].
fn coded(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(LONGEST))
}
