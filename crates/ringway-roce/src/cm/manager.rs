//! All connections of one address: whose message it is, who waits for what, and who listens.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::{
    About, Acceptance, CmError, Connection, Counters, Drep, Event, Ids, IpHeader, Mad, Message,
    Proposal, Reason, Rej, Req, State, Terms, TooLong, connection::LONGEST, service_port,
};
use crate::{Qpn, rc::Mtu};

/// How many connections may wait for their listener's decision, or linger; what comes beyond is not heard, and its
/// initiator repeats it. Else strangers could fill the memory.
const BACKLOG: usize = 1024;

/// How long a closed connection is remembered: a repeated REQ gets its REJ again, and is no new request.
const LINGER: Duration = Duration::from_secs(5);

/// A connection of a [`Manager`], by this side's number in its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// What a listener has to decide about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The port that is listened at.
    pub port: u16,
    /// The initiator's address, and the port that it gives as its own.
    pub peer: SocketAddr,
    /// The path's MTU, which isn't negotiated.
    pub mtu: Mtu,
    /// The traffic class that the initiator's packets have.
    pub traffic_class: u8,
    /// How many READs and atomic operations the initiator wants to have under way.
    pub initiator_depth: u8,
    /// The user's, with the zeros it is filled up with.
    pub private_data: Vec<u8>,
}

/// What has happened at a [`Manager`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Somebody asks for a connection: accept or reject it.
    Requested(Request),
    /// Something has happened to a connection.
    Changed(Event),
}

/// Many connections and listeners behind one address. Drive it as a [`Connection`]; take its notices before its messages.
#[derive(Debug)]
pub struct Manager {
    guid: u64,
    /// The largest MTU that this address has.
    mtu: Mtu,
    /// Numbers of connections and transactions are counted from a random one.
    next: u32,
    listening: BTreeSet<u16>,
    entries: HashMap<u32, Entry>,
    /// This side's number of a connection by who has asked for it, and with which number.
    requests: HashMap<(IpAddr, u32), u32>,
    notices: VecDeque<(ConnectionId, Notice)>,
    outgoing: VecDeque<(IpAddr, Mad)>,
    deadline: Option<Instant>,
    /// How many connections wait for a sign of their initiator's.
    half_open: usize,
    counters: Counters,
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    peer: SocketAddr,
    /// This side's queue pair, once the connection has one.
    qpn: Option<Qpn>,
    /// Since it is closed: when it is forgotten.
    until: Option<Instant>,
}

impl Manager {
    /// For a device of this EUI-64, whose packets have at most this payload. Numbers begin with `first`, which had better
    /// be random: then nobody else's messages are taken for this one's after a restart.
    pub fn new(guid: u64, mtu: Mtu, first: u32) -> Self {
        Self {
            guid,
            mtu,
            next: first,
            listening: BTreeSet::new(),
            entries: HashMap::new(),
            requests: HashMap::new(),
            notices: VecDeque::new(),
            outgoing: VecDeque::new(),
            deadline: None,
            half_open: 0,
            counters: Counters::default(),
        }
    }

    /// The device's EUI-64.
    pub const fn guid(&self) -> u64 {
        self.guid
    }

    /// Listens at a port. False if it is listened at already.
    pub fn listen(&mut self, port: u16) -> bool {
        self.listening.insert(port)
    }

    /// Listens no longer. What has been requested before can still be accepted.
    pub fn stop_listening(&mut self, port: u16) -> bool {
        self.listening.remove(&port)
    }

    /// Asks for a connection.
    pub fn connect(
        &mut self,
        now: Instant,
        proposal: Proposal,
        private_data: &[u8],
    ) -> Result<ConnectionId, TooLong> {
        let number = self.number();
        let transaction = self.transaction(number);
        let connection = Connection::connect(now, number, transaction, proposal, private_data)?;
        let entry = Entry {
            connection,
            peer: proposal.destination,
            qpn: Some(proposal.qpn),
            until: None,
        };
        self.entries.insert(number, entry);
        self.collect(now, number);
        Ok(ConnectionId(number))
    }

    /// Accepts a request; see [`Connection::accept`].
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnectionId,
        acceptance: &Acceptance,
        private_data: &[u8],
    ) -> Result<Terms, CmError> {
        let entry = self.entry(id)?;
        let terms = entry.connection.accept(now, acceptance, private_data)?;
        entry.qpn = Some(acceptance.qpn);
        self.collect(now, id.0);
        Ok(terms)
    }

    /// Rejects a request.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: Reason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        self.entry(id)?.connection.reject(reason, private_data)?;
        self.collect(now, id.0);
        Ok(())
    }

    /// Ends a connection; see [`Connection::disconnect`].
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId) -> Result<(), CmError> {
        self.entry(id)?.connection.disconnect(now)?;
        self.collect(now, id.0);
        Ok(())
    }

    /// Forgets the connection of a queue pair that is gone. The peer isn't told, but gets its answer when it disconnects.
    pub fn forget(&mut self, qpn: Qpn) {
        let gone = |entry: &Entry| entry.qpn == Some(qpn);
        self.remove(gone);
    }

    /// The peer of a connection: its address, and the port of its service or its own.
    pub fn peer(&self, id: ConnectionId) -> Option<SocketAddr> {
        self.entries.get(&id.0).map(|entry| entry.peer)
    }

    /// This side's queue pair of a connection. A listener's has none before it is accepted.
    pub fn queue_pair(&self, id: ConnectionId) -> Option<Qpn> {
        self.entries.get(&id.0)?.qpn
    }

    /// Whether there is a connection of this queue pair that has not come to its end.
    pub fn connects(&self, qpn: Qpn) -> bool {
        self.entries
            .values()
            .any(|entry| entry.qpn == Some(qpn) && entry.until.is_none())
    }

    /// What a connection waits to be accepted or rejected for.
    pub fn request(&self, id: ConnectionId) -> Option<Request> {
        let entry = self.entries.get(&id.0)?;
        let req = entry.connection.request()?;
        Some(Request {
            port: service_port(req.service_id)?,
            peer: entry.peer,
            mtu: Mtu::from_code(req.mtu)?,
            traffic_class: req.primary.traffic_class,
            initiator_depth: req.initiator_depth,
            private_data: req.ip_header().1.to_vec(),
        })
    }

    /// Takes a message from the management queue pair at this address.
    pub fn handle(&mut self, now: Instant, from: IpAddr, mad: &Mad) {
        let number = match &mad.message {
            Message::Req(req) => match self.requests.get(&(from, req.local_id)) {
                Some(&number) => {
                    self.counters.repeated += 1;
                    Some(number)
                }
                None => return self.requested(now, from, mad.transaction, req),
            },
            Message::Rej(Rej { ids, .. }) if ids.remote == 0 => {
                // An initiator that has heard nothing knows no number of this side's.
                self.requests.get(&(from, ids.local)).copied()
            }
            Message::Mra(it) => Some(it.ids.remote),
            Message::Rej(it) => Some(it.ids.remote),
            Message::Rep(it) => Some(it.ids.remote),
            Message::Rtu(it) => Some(it.ids.remote),
            Message::Dreq(it) => Some(it.ids.remote),
            Message::Drep(it) => Some(it.ids.remote),
        };
        let entry = number.and_then(|number| Some((number, self.entries.get_mut(&number)?)));
        let Some((number, entry)) = entry.filter(|(_, entry)| entry.peer.ip() == from) else {
            self.counters.stray += 1;
            return self.answer_stray(from, mad);
        };
        if !entry.connection.handle(now, mad) {
            self.counters.unexpected += 1;
        } else if let Message::Mra(mra) = &mad.message {
            self.counters.shortened += u64::from(mra.service_timeout > LONGEST);
        }
        self.collect(now, number);
    }

    /// A datagram that was to be a message, and is none.
    pub(crate) const fn malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// A packet of the peer's has come to a queue pair; see [`Connection::heard_from_peer`].
    pub(crate) fn heard_from(&mut self, now: Instant, from: IpAddr, qpn: Qpn) {
        // That is asked for each packet.
        if self.half_open == 0 {
            return;
        }
        let found = self.entries.iter_mut().find(|(_, entry)| {
            entry.connection.state() == State::RepSent
                && entry.qpn == Some(qpn)
                && entry.peer.ip() == from
        });
        if let Some((&number, entry)) = found {
            entry.connection.heard_from_peer();
            self.collect(now, number);
        }
    }

    /// What has happened.
    pub fn poll_notice(&mut self) -> Option<(ConnectionId, Notice)> {
        self.notices.pop_front()
    }

    /// Whether [`Manager::poll_notice`] has something to tell.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next message, and to whose queue pair 1 it goes.
    pub fn poll_transmit(&mut self) -> Option<(IpAddr, Mad)> {
        self.outgoing.pop_front()
    }

    /// When to call [`Manager::handle_timeout`], if nothing happens before.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Lets the clocks run out that have.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let due: Vec<u32> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.deadline().is_some_and(|deadline| deadline <= now))
            .map(|(&number, _)| number)
            .collect();
        for number in due {
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.connection.handle_timeout(now);
            }
            self.collect(now, number);
        }
        self.remove(|entry| entry.until.is_some_and(|until| until <= now));
    }

    /// What was taken and refused.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn entry(&mut self, id: ConnectionId) -> Result<&mut Entry, CmError> {
        let entry = self.entries.get_mut(&id.0);
        entry.ok_or(CmError::NoConnection(id))
    }

    fn requested(&mut self, now: Instant, from: IpAddr, transaction: u64, req: &Req) {
        let is_listened = |port| self.listening.contains(&port);
        let (true, Some(header)) = (
            service_port(req.service_id).is_some_and(is_listened),
            req.ip_header().0,
        ) else {
            self.counters.unlistened += 1;
            let ids = Ids {
                local: 0,
                remote: req.local_id,
            };
            let rej = Rej::new(ids, About::Req, Reason::INVALID_SERVICE);
            let message = Message::Rej(rej);
            let mad = Mad {
                transaction,
                message,
            };
            return self.send_unasked(from, mad);
        };
        let undecided =
            |entry: &&Entry| matches!(entry.connection.state(), State::ReqReceived | State::Closed);
        if self.entries.values().filter(undecided).count() >= BACKLOG {
            self.counters.overflow += 1;
            return;
        }
        self.counters.shortened += u64::from(req.local_response_timeout > LONGEST);
        let number = self.number();
        let mut connection = Connection::requested(number, transaction, req.clone());
        if connection.state() == State::ReqReceived
            && Mtu::from_code(req.mtu).is_none_or(|mtu| mtu > self.mtu)
        {
            // No queue pair here can have such packets. Without private data it can't fail.
            let _ = connection.reject(Reason::INVALID_MTU, &[]);
        }
        let entry = Entry {
            connection,
            peer: SocketAddr::new(from, header.source_port),
            qpn: None,
            until: None,
        };
        self.entries.insert(number, entry);
        self.requests.insert((from, req.local_id), number);
        let id = ConnectionId(number);
        if let Some(request) = self.request(id) {
            self.notices.push_back((id, Notice::Requested(request)));
        }
        self.collect(now, number);
    }

    /// A peer that disconnects from a connection that is forgotten here would go on asking.
    fn answer_stray(&mut self, from: IpAddr, mad: &Mad) {
        if let Message::Dreq(dreq) = &mad.message {
            let message = Message::Drep(Drep {
                ids: Ids {
                    local: dreq.ids.remote,
                    remote: dreq.ids.local,
                },
                private_data: [0; 224],
            });
            let transaction = mad.transaction;
            self.send_unasked(
                from,
                Mad {
                    transaction,
                    message,
                },
            );
        }
    }

    /// Answers somebody with whom there is no connection; who sends faster than answers go gets none.
    fn send_unasked(&mut self, to: IpAddr, mad: Mad) {
        if self.outgoing.len() < BACKLOG {
            self.outgoing.push_back((to, mad));
        }
    }

    /// Takes over what a connection has to tell and to send.
    fn collect(&mut self, now: Instant, number: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            while let Some(event) = entry.connection.poll_event() {
                let notice = Notice::Changed(event);
                self.notices.push_back((ConnectionId(number), notice));
            }
            while let Some(mad) = entry.connection.poll_transmit() {
                self.outgoing.push_back((entry.peer.ip(), mad));
            }
            if entry.connection.state() == State::Closed && entry.until.is_none() {
                entry.until = Some(now + LINGER);
            }
        }
        self.look_over();
    }

    fn remove(&mut self, gone: impl Fn(&Entry) -> bool) {
        self.entries.retain(|_, entry| !gone(entry));
        let entries = &self.entries;
        self.requests
            .retain(|_, number| entries.contains_key(number));
        self.notices.retain(|(id, _)| entries.contains_key(&id.0));
        self.look_over();
    }

    fn look_over(&mut self) {
        let all = || self.entries.values();
        let is_half_open = |entry: &&Entry| entry.connection.state() == State::RepSent;
        self.half_open = all().filter(is_half_open).count();
        self.deadline = all().filter_map(Entry::deadline).min();
    }

    /// A number that no connection has; 0 stands for none.
    fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if self.next != 0 && !self.entries.contains_key(&self.next) {
                return self.next;
            }
        }
    }

    /// Unlike any other of this device; the low bits leave room for the DREQ's.
    const fn transaction(&self, number: u32) -> u64 {
        (self.guid << 40) ^ ((number as u64) << 8)
    }
}

impl Entry {
    fn deadline(&self) -> Option<Instant> {
        self.connection.poll_timeout().or(self.until)
    }
}

impl Req {
    /// The two parts of a REQ's private data with rdma_cm; no header if its version is unknown.
    fn ip_header(&self) -> (Option<IpHeader>, &[u8]) {
        match self.private_data.split_first_chunk() {
            Some((header, user)) => (IpHeader::parse(header), user),
            None => (None, &[]),
        }
    }
}
