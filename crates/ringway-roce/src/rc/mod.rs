//! Reliable connections: queue pairs of which one's requests are carried out in the memory of the other, each exactly
//! once and in order.
//!
//! # Driving a queue pair
//!
//! [`QueuePair::handle_packet`] takes a packet from the peer, [`QueuePair::poll_transmit`] gives the next one for it,
//! [`QueuePair::poll_timeout`] says when to call [`QueuePair::handle_timeout`], and [`QueuePair::poll_completion`]
//! says which requests have ended. After a packet, a timeout and a posted request, poll the others until they give
//! nothing.
//!
//! # States of a queue pair
//!
//! | state | event | next | what happens |
//! |---|---|---|---|
//! | `Init` | [`QueuePair::receive_with`] | `ReadyToReceive` | |
//! | `Init` | packet | same | discarded, counted |
//! | `ReadyToReceive` | [`QueuePair::send_with`] | `ReadyToSend` | |
//! | `ReadyToReceive` | request | same | carried out and answered |
//! | `ReadyToReceive` | response | same | discarded, counted |
//! | `ReadyToSend` | request, response | same | as the tables below say |
//! | not `Error` | a fatal failure of either half, [`QueuePair::fail`] | `Error` | all requests end: the failed one with its status, the others as flushed |
//! | `Error` | packet | same | discarded, counted; what was to be sent before a last NAK, and it, still goes out |
//!
//! # The requester
//!
//! | event | what happens |
//! |---|---|
//! | a request is posted | its packets go out as window and initiator depth allow; the ACK clock starts |
//! | ACK | SENDs and WRITEs up to it complete; an unanswered READ or atomic operation before it is asked for again |
//! | READ response, the next one | written to memory; with the last one the READ completes. It acknowledges all before it |
//! | response, a later one | the missing one is asked for again, once |
//! | response, an older one | discarded, counted |
//! | response of the wrong length or kind | discarded, counted |
//! | answer to an atomic operation | written to memory; completes |
//! | NAK, sequence error | back to the missing packet; takes a retry |
//! | NAK, receiver not ready | waits as long as asked, then goes back; takes an RNR retry, of which 7 are without end |
//! | NAK, invalid request, remote access, operational | `Error`: remote invalid request, access, operational |
//! | ACK clock runs out | back to the oldest packet; takes a retry; the clock may run twice as long from then on |
//! | no retry left | `Error`: retries exceeded, RNR retries exceeded |
//! | progress | all retries are there again, the clock starts anew |
//! | local memory isn't there | `Error`: local protection |
//!
//! # The responder
//!
//! | packet | what happens |
//! |---|---|
//! | SEND, the next | into the oldest receive, which completes with the last packet |
//! | WRITE, the next | into memory; with immediate data a receive completes with the last packet |
//! | READ, the next | its response goes out packet by packet; kept for repetition |
//! | atomic operation, the next | carried out; the result is kept for repetition |
//! | any with ACK request | acknowledged; what waits to be sent is put together |
//! | SEND or WRITE, a former one | not carried out, acknowledged again |
//! | READ, a former one | answered again, from where it asks |
//! | atomic operation, a former one | the kept result once more |
//! | READ, atomic operation, a former one that isn't kept | discarded, counted |
//! | later than the next | NAK, sequence error, once until the next one comes |
//! | no receive is posted | NAK, receiver not ready; nothing is said until it comes again |
//! | the message is longer than the receive | `Error`: local length; NAK, invalid request |
//! | the receive's memory isn't there | `Error`: local protection; NAK, operational |
//! | key, right or bounds are wrong | `Error`; NAK, remote access |
//! | not allowed, misaligned, out of place in the message, more READs than resources | `Error`; NAK, invalid request |
//! | an answer's memory goes away while it is sent | `Error`; NAK, remote access |
//!
//! # Selective retransmission
//!
//! [`ReceiveAttributes::selective`] is for two endpoints of this library that have told each other so when they connected. Requester
//! and responder differ from the tables in this. A selective acknowledgement has an opcode that the specification leaves to
//! manufacturers, 0xc0, the headers of an ACK, and 32 bytes. All before its PSN is carried out; bit `i` of the bytes, the lowest
//! of the first byte first, says whether the packet `i + 1` after it is there.
//!
//! | the requester's event | what happens |
//! |---|---|
//! | selective acknowledgement | as an ACK of all before it; what was sent before the latest packet that is there, and isn't there, goes again, and asks for an acknowledgement |
//! | selective acknowledgement of no packet after the missing one | that one goes again, unless it has; that it is acknowledged or answered shows that all sent before it is lost |
//! | the same of another length, or of nothing under way | discarded, counted |
//! | NAK, sequence error | discarded, counted |
//! | NAK, receiver not ready | waits as long as asked, then that packet goes again, and nothing after it |
//! | READ response, a later one; ACK before an answer | the missing answer is asked for again, once, and after it the answers that came before their turn; what was acknowledged isn't sent again, and completes then |
//! | nothing was sent or heard for two round trips, and at least a millisecond | of the packets that aren't there the one that went last goes again, and the missing one if the last selective acknowledgement named no packet after it, for it may be lost again; once until the peer is heard |
//! | ACK clock runs out | the oldest packet goes again, and of those that aren't there the one that went last, whose arrival shows what else is lost; takes a retry |
//!
//! | the responder's packet | what happens |
//! |---|---|
//! | later than the next, by up to 255 | kept; selective acknowledgement, of which one waits at a time; nothing is said while a receive is waited for |
//! | later by more, or kept already, or longer than the MTU, or without room ([`QueuePair::limit_growth`]) | discarded; the same answer |
//! | the next | carried out, and all that was kept and follows on it; acknowledged, or if more is missing, a selective acknowledgement |
//! | one that was kept, and no receive is posted | dropped; NAK, receiver not ready; what follows is kept on |
//!
//! # Congestion
//!
//! A packet marked "congestion experienced" makes this side send a notification, at most one in an interval; a
//! notification makes it send slower, requests as well as answers to READs. See [`crate::dcqcn`].
//!
//! # Credits
//!
//! Credits are neither counted nor obeyed: an ACK says "no credits counted", and a receiver that isn't ready says so.

mod attributes;
mod counters;
mod replies;
mod request;
mod requester;
mod responder;
mod selective;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use thiserror::Error;

pub use attributes::{Attributes, Mtu, ReceiveAttributes, SendAttributes};
pub use counters::Counters;
pub use work::{
    Completion, Done, Local, PostError, ReceiveRequest, Remote, SendRequest, Source, Status, Work,
};

use crate::{
    ProtectionDomain, Psn, Qpn, Region,
    dcqcn::{NotificationPoint, ReactionPoint},
    wire::{Addresses, Bth, Flow, Operation, Packet, ROCE_PORT, emit_with},
};
use requester::{Failure, Requester};
use responder::{Fatal, Responder, Surroundings};

/// The state of a queue pair; the module's documentation has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Receives can be posted; nothing is known of a peer.
    Init,
    /// The peer's requests are carried out.
    ReadyToReceive,
    /// Requests can be sent, too.
    ReadyToSend,
    /// It is over: all requests have ended, and new ones are refused.
    Error,
}

/// A change of state that can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the queue pair is in state {found:?}, and only one in {needed:?} can become what was asked for"
)]
pub struct StateError {
    /// The state it would have to be in.
    pub needed: State,
    /// The state it is in.
    pub found: State,
}

/// Where packets to the peer go.
#[derive(Clone, Copy, Debug)]
struct Link {
    peer: Qpn,
    flow: Flow,
    mtu: Mtu,
    selective: bool,
}

/// A packet that has come.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Address and UDP port that it came from.
    pub from: SocketAddr,
    /// Whether a switch marked it: both ECN bits are set.
    pub congestion_experienced: bool,
    /// The packet, whose CRC has been found right where that is possible.
    pub packet: Packet<'a>,
}

/// What goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its class.
    pub class: Class,
    /// The packet's length in bytes, CRC included.
    pub length: usize,
}

/// What sort of packet goes out: the two have different DSCPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A request or an answer.
    Data,
    /// A congestion notification, which must not wait behind what causes the congestion.
    Notification,
}

impl Class {
    /// The type of service or traffic class that NICs and switches are usually set up for: DSCP 26 for data and 48
    /// for notifications, both with ECT(0), so that switches mark them.
    pub const fn traffic_class(self) -> u8 {
        const ECT0: u8 = 0b10;
        match self {
            Self::Data => 26 << 2 | ECT0,
            Self::Notification => 48 << 2 | ECT0,
        }
    }
}

/// One end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    attributes: Attributes,
    state: State,
    link: Option<Link>,
    requester: Option<Requester>,
    responder: Option<Responder>,
    receives: VecDeque<ReceiveRequest>,
    completions: VecDeque<Completion>,
    counters: Counters,
    /// Whether the last packet was a request, so that answers and requests take turns.
    sent_request: bool,
    congestion: Option<Congestion>,
    /// How many more bytes it may allocate.
    room: usize,
}

#[derive(Debug)]
struct Congestion {
    notification: NotificationPoint,
    reaction: ReactionPoint,
    notify: bool,
    /// When what can't be sent yet can be.
    paced_until: Option<Instant>,
}

impl QueuePair {
    /// A queue pair in state `Init`.
    pub fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            state: State::Init,
            link: None,
            requester: None,
            responder: None,
            receives: VecDeque::with_capacity(attributes.receive_queue),
            completions: VecDeque::new(),
            counters: Counters::default(),
            sent_request: false,
            congestion: attributes.congestion.map(|parameters| Congestion {
                notification: NotificationPoint::new(&parameters),
                reaction: ReactionPoint::new(parameters),
                notify: false,
                paced_until: None,
            }),
            room: usize::MAX,
        }
    }

    /// From `Init` to `ReadyToReceive`.
    pub fn receive_with(&mut self, attributes: ReceiveAttributes) -> Result<(), StateError> {
        self.leave(State::Init)?;
        self.link = Some(Link {
            peer: attributes.peer,
            flow: attributes.flow,
            mtu: attributes.mtu,
            selective: attributes.selective,
        });
        self.responder = Some(Responder::new(attributes, self.attributes.access));
        self.state = State::ReadyToReceive;
        Ok(())
    }

    /// From `ReadyToReceive` to `ReadyToSend`.
    pub fn send_with(&mut self, attributes: SendAttributes) -> Result<(), StateError> {
        self.leave(State::ReadyToReceive)?;
        let selective = self.link.is_some_and(|link| link.selective);
        self.requester = Some(Requester::new(
            attributes,
            self.attributes.send_queue,
            self.attributes.inline,
            selective,
        ));
        self.state = State::ReadyToSend;
        Ok(())
    }

    fn leave(&self, needed: State) -> Result<(), StateError> {
        let found = self.state;
        if found == needed {
            Ok(())
        } else {
            Err(StateError { needed, found })
        }
    }

    /// The number that the peer addresses.
    pub const fn number(&self) -> Qpn {
        self.attributes.number
    }

    /// The state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// What has been counted so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The bytes that it has allocated since it was made: with selective retransmission, from the first loss on, room for the 256
    /// packets that may come before their turn.
    pub fn footprint(&self) -> usize {
        self.responder.as_ref().map_or(0, Responder::footprint)
    }

    /// From now on [`Self::footprint`] may grow by so many bytes; without this, by as many as there are. What has no room when it
    /// comes early is dropped, and comes again.
    pub const fn limit_growth(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// Puts a request into the send queue.
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match (&mut self.requester, &self.link) {
            (Some(requester), Some(link)) if self.state == State::ReadyToSend => {
                requester.post(request, self.attributes.send_queue, link)
            }
            _ => Err(PostError::State(self.state)),
        }
    }

    /// Makes room for a message.
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        if self.state == State::Error {
            return Err(PostError::State(self.state));
        }
        let capacity = self.attributes.receive_queue;
        if self.receives.len() >= capacity {
            return Err(PostError::Full(capacity));
        }
        self.receives.push_back(request);
        Ok(())
    }

    /// The next request that has ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Takes a packet.
    pub fn handle_packet<R: Region>(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        domain: &mut ProtectionDomain<R>,
    ) {
        let packet = &arrival.packet;
        let Some(link) = self.link.filter(|_| self.state != State::Error) else {
            self.counters.unexpected += 1;
            return;
        };
        if packet.bth.destination != self.attributes.number {
            self.counters.wrong_queue_pair += 1;
            return;
        }
        // The top bit tells full from limited members of the same partition, and the default one is ours.
        if packet.bth.pkey & 0x7fff != 0x7fff {
            self.counters.wrong_partition += 1;
            return;
        }
        if !link.is_from_peer(arrival.from) {
            self.counters.wrong_source += 1;
            return;
        }
        if arrival.congestion_experienced {
            self.counters.congestion_marks += 1;
            if let Some(congestion) = &mut self.congestion {
                congestion.notify |= congestion.notification.marked(now);
            }
        }
        match packet.operation {
            Operation::Acknowledge(_)
            | Operation::SelectiveAcknowledge(_)
            | Operation::AtomicAcknowledge(..)
            | Operation::ReadResponseFirst(_)
            | Operation::ReadResponseMiddle
            | Operation::ReadResponseLast(_)
            | Operation::ReadResponseOnly(_) => self.handle_response(now, &link, packet, domain),
            Operation::Cnp => {
                self.counters.cnps_received += 1;
                if let Some(congestion) = &mut self.congestion {
                    congestion.reaction.notified(now);
                }
            }
            Operation::UdSendOnly(_) | Operation::UdSendOnlyImmediate(..) => {
                self.counters.unexpected += 1;
            }
            _ => self.handle_request(packet, domain),
        }
    }

    fn handle_request<R: Region>(&mut self, packet: &Packet<'_>, domain: &mut ProtectionDomain<R>) {
        let Some(responder) = &mut self.responder else {
            return;
        };
        let mut around = Surroundings {
            receives: &mut self.receives,
            domain,
            counters: &mut self.counters,
            completions: &mut self.completions,
            room: self.room,
        };
        if let Err(Fatal) = responder.handle(packet, &mut around) {
            self.enter_error(None);
        }
    }

    fn handle_response<R: Region>(
        &mut self,
        now: Instant,
        link: &Link,
        packet: &Packet<'_>,
        domain: &mut ProtectionDomain<R>,
    ) {
        let (counters, completions) = (&mut self.counters, &mut self.completions);
        let Some(requester) = &mut self.requester else {
            counters.unexpected += 1;
            return;
        };
        let psn = packet.bth.psn;
        let result = match packet.operation {
            Operation::Acknowledge(aeth) => {
                requester.acknowledge(now, psn, aeth, counters, completions)
            }
            Operation::SelectiveAcknowledge(_) => {
                requester.acknowledge_some(now, psn, packet.payload, counters, completions);
                Ok(())
            }
            Operation::AtomicAcknowledge(_, before) => {
                requester.atomic_response(now, psn, before, domain, counters, completions)
            }
            _ => requester.read_response(now, packet, link, domain, counters, completions),
        };
        if let Err(failure) = result {
            self.fail_with(failure);
        }
    }

    /// Writes the next packet for the peer to the beginning of `out`, which must have [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD) more than the
    /// MTU's bytes. None if there is none now.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn poll_transmit<R: Region>(
        &mut self,
        now: Instant,
        domain: &ProtectionDomain<R>,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if let Some(length) = self.transmit_notification(out) {
            self.counters.packets_sent += 1;
            return Some(Transmit {
                class: Class::Notification,
                length,
            });
        }
        let mut wait = None;
        if let Some(congestion) = &mut self.congestion {
            wait = congestion.reaction.next_send(now);
            congestion.paced_until = wait;
        }
        let may_send = wait.is_none();
        let length = if self.sent_request {
            self.transmit_reply(may_send, domain, out)
                .or_else(|| self.transmit_request(may_send, now, domain, out))
        } else {
            self.transmit_request(may_send, now, domain, out)
                .or_else(|| self.transmit_reply(may_send, domain, out))
        }?;
        if let Some(congestion) = &mut self.congestion {
            congestion.reaction.sent(now, length);
        }
        self.counters.packets_sent += 1;
        Some(Transmit {
            class: Class::Data,
            length,
        })
    }

    fn transmit_notification(&mut self, out: &mut [u8]) -> Option<usize> {
        let link = self.link.filter(|_| self.state != State::Error)?;
        if !std::mem::take(&mut self.congestion.as_mut()?.notify) {
            return None;
        }
        let mut bth = Bth::new(link.peer, Psn::new(0));
        bth.becn = true;
        let no_payload = |_: &mut [u8]| Ok::<(), Infallible>(());
        let Ok(length) = emit_with(&bth, &Operation::Cnp, 0, &link.flow, out, no_payload);
        self.counters.cnps_sent += 1;
        Some(length)
    }

    fn transmit_reply<R: Region>(
        &mut self,
        data_too: bool,
        domain: &ProtectionDomain<R>,
        out: &mut [u8],
    ) -> Option<usize> {
        let (Some(link), Some(responder)) = (&self.link, &mut self.responder) else {
            return None;
        };
        if !data_too && responder.replies.next_is_data() {
            return None;
        }
        self.sent_request = false;
        let psn = responder.replies.next_psn()?;
        match responder.poll_transmit(link, domain, out) {
            Ok(sent) => sent,
            Err(_) => {
                responder.refuse_answer(psn);
                if self.state != State::Error {
                    self.enter_error(None);
                }
                self.transmit_reply(data_too, domain, out)
            }
        }
    }

    fn transmit_request<R: Region>(
        &mut self,
        may_send: bool,
        now: Instant,
        domain: &ProtectionDomain<R>,
        out: &mut [u8],
    ) -> Option<usize> {
        let (Some(link), Some(requester), true) = (&self.link, &mut self.requester, may_send)
        else {
            return None;
        };
        self.sent_request = true;
        match requester.poll_transmit(now, link, domain, &mut self.counters, out) {
            Ok(sent) => sent,
            Err(failure) => {
                self.fail_with(failure);
                None
            }
        }
    }

    /// When to call [`QueuePair::handle_timeout`], if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paced = self
            .congestion
            .as_ref()
            .and_then(|congestion| congestion.paced_until);
        let retry = self.requester.as_ref().and_then(Requester::poll_timeout);
        paced.into_iter().chain(retry).min()
    }

    /// Lets the clocks run out that have.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(congestion) = &mut self.congestion {
            congestion.paced_until = congestion.paced_until.filter(|until| *until > now);
        }
        if let Some(requester) = &mut self.requester
            && let Err(failure) = requester.handle_timeout(now, &mut self.counters)
        {
            self.fail_with(failure);
        }
    }

    /// To `Error`: all requests end as flushed, and nothing more is sent.
    pub fn fail(&mut self) {
        if self.state != State::Error {
            self.enter_error(None);
            if let Some(responder) = &mut self.responder {
                responder.replies.clear();
            }
        }
    }

    /// The requester's fault: what the peer has asked for isn't answered any more.
    fn fail_with(&mut self, failure: Failure) {
        self.enter_error(Some(failure));
        if let Some(responder) = &mut self.responder {
            responder.replies.clear();
        }
    }

    fn enter_error(&mut self, failure: Option<Failure>) {
        self.state = State::Error;
        self.congestion = None;
        if let Some(requester) = self.requester.take() {
            requester.fail(failure, &mut self.completions);
        }
        if let Some(responder) = &mut self.responder {
            responder.flush(&mut self.completions);
        }
        let flushed = self.receives.drain(..);
        self.completions
            .extend(flushed.map(|receive| receive.ended(Status::Flushed)));
    }
}

impl Link {
    /// Whoever is at port 4791 may send from any; a port that was agreed on is also the one that its packets come from.
    fn is_from_peer(&self, from: SocketAddr) -> bool {
        let ip: IpAddr = match self.flow.addresses {
            Addresses::V4 { destination, .. } => destination.into(),
            Addresses::V6 { destination, .. } => destination.into(),
        };
        let port = self.flow.destination_port;
        from.ip() == ip && (port == ROCE_PORT || from.port() == port)
    }
}
