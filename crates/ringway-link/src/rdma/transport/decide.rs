//! How two ranks come to use RDMA, or TCP: both to the same, and neither waits for ever.
//!
//! | state | what happens | new state |
//! |---|---|---|
//! | idle | a first message, or the peer's offer: an offer goes out, or a no | asking |
//! | asking | the peer's no, or none of our own queue pairs | TCP |
//! | asking | another message, over TCP: the peer's transport knows no offers | TCP |
//! | asking | the peer's offer: queue pairs are connected, and a note says whether | connecting |
//! | connecting | one of the two notes is a no | TCP |
//! | connecting | both are a yes: a greeting goes out on each queue pair | proving |
//! | proving | the peer was heard on all: a verdict says so | judging, RDMA |
//! | proving | a queue pair fails, or the time is up: the verdict is no | TCP |
//! | proving, judging | the peer's verdict is no | TCP |
//! | judging | the peer's verdict is yes, or a frame comes, which follows it | RDMA |
//! | RDMA | a queue pair fails, or the peer's note says that one has: the link is closed, and a note says so | mending |
//! | mending | the peer's note that it has closed its own | TCP |
//!
//! Each side sends each note once, and a side that has said no has decided; so both decide alike. A note that does not
//! come is the peer's end, of which TCP tells, or the peer is at something else, and its operation waits anyhow.

use std::time::Instant;

use ringway_plan::Rank;
use ringway_sys::Staging;

use super::{
    MAX_CHANNELS, RdmaTransport,
    exchange::{self, NOTE, Note, Stage, Terms},
    link::Link,
    peer::{Inbound, Outbound, Route},
};
use crate::{Event, LinkError, Sink, Transport as _, ops::Slot};

impl RdmaTransport {
    /// Begins to decide on the way to a peer, unless that has begun.
    pub(super) fn ask(&mut self, peer: Rank) {
        if !matches!(self.peers[peer].route, Route::Idle) {
            return;
        }
        let link = match &mut self.device {
            Ok(device) => Link::new(&mut **device, &mut self.pool, &self.settings)
                .map_err(|fault| fault.to_string())
                .and_then(|link| match link.terms(&**device) {
                    Ok(terms) => Ok((link, terms)),
                    Err(error) => Err(error.to_string()),
                }),
            Err(reason) => Err(reason.clone()),
        };
        let note = match link {
            Ok((link, terms)) => {
                for (channel, pair) in link.pairs().enumerate() {
                    let at = pair.0 as usize;
                    if self.pairs.len() <= at {
                        self.pairs.resize(at + 1, None);
                    }
                    self.pairs[at] = Some((peer, channel));
                }
                self.peers[peer].link = Some(link);
                Ok(Some(terms))
            }
            Err(reason) => {
                self.peers[peer].fault = Some(reason.clone());
                Err(reason)
            }
        };
        self.peers[peer].route = Route::Asking;
        self.open += 1;
        self.tell(peer, Stage::Offer, &note);
        self.listen(peer, Stage::Offer);
    }

    /// Sends a note.
    fn tell(&mut self, peer: Rank, stage: Stage, note: &Note) {
        self.peers[peer].has_refused |= note.is_err();
        self.tell_bytes(peer, stage, &exchange::encode(note));
    }

    fn tell_bytes(&mut self, peer: Rank, stage: Stage, bytes: &[u8; NOTE]) {
        let notes = self.peers[peer]
            .notes
            .get_or_insert_with(|| Staging::new(Stage::COUNT * NOTE));
        let start = stage as usize * NOTE;
        let memory = notes.memory().slice(start..start + NOTE);
        memory.write(bytes);
        let sent = self.tcp.send(peer, stage.key(), memory, u8::MAX);
        self.check(peer, sent);
    }

    /// Waits for a note.
    fn listen(&mut self, peer: Rank, stage: Stage) {
        let posted = self.tcp.recv(peer, stage.key(), Sink::View(NOTE));
        self.check(peer, posted);
    }

    pub(super) fn check(&mut self, peer: Rank, done: Result<(), LinkError>) {
        if let Err(error) = done {
            self.lose(peer, error);
        }
    }

    /// Looks for notes that nobody here has waited for: a peer's offer, for which this side makes one, too; or that RDMA has
    /// failed, of which there is mostly none, and a posted receive would have TCP look for it at every poll.
    pub(super) fn hear(&mut self) {
        for (peer, key) in self.tcp.unasked(exchange::GROUP, 0) {
            match (Stage::of(key.message), &self.peers[peer].route) {
                (Some(Stage::Offer), Route::Idle) => self.ask(peer),
                (Some(Stage::Broken), Route::Rdma) => self.listen_for_end(peer),
                _ => {}
            }
        }
    }

    fn listen_for_end(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.peers[peer].hears_end, true) {
            self.listen(peer, Stage::Broken);
        }
    }

    /// A note has come.
    pub(super) fn noted(&mut self, now: Instant, peer: Rank, message: u32, bytes: &[u8; NOTE]) {
        let Some(stage) = Stage::of(message) else {
            return;
        };
        let note = match exchange::decode(bytes, stage) {
            Ok(note) => note,
            Err(detail) => return self.lose(peer, LinkError::Protocol { peer, detail }),
        };
        let own_fault = self.peers[peer].fault.clone();
        let theirs = note.as_ref().err().cloned();
        let fault =
            own_fault.or_else(|| theirs.map(|theirs| format!("rank {peer} says: {theirs}")));
        match (stage, &self.peers[peer].route) {
            (Stage::Offer, Route::Asking) => match (fault, note) {
                (None, Ok(Some(terms))) => self.connect(peer, &terms),
                (fault, note) => {
                    self.refuse_late(peer, Stage::Connected, note.is_ok());
                    self.settle_for_tcp(peer, fault);
                }
            },
            (Stage::Connected, Route::Connecting) => match fault {
                None => self.greet(now, peer),
                fault => {
                    self.refuse_late(peer, Stage::Verdict, note.is_ok());
                    self.settle_for_tcp(peer, fault);
                }
            },
            (Stage::Verdict, Route::Proving { .. } | Route::Judging) => {
                if note.is_err() {
                    return self.settle_for_tcp(peer, fault);
                }
                self.peers[peer].accepted = true;
                if matches!(self.peers[peer].route, Route::Judging) {
                    self.settle_for_rdma(peer);
                }
            }
            (Stage::Broken, Route::Rdma) => {
                self.break_off(peer, fault.unwrap_or_default());
                self.go_over(peer, &exchange::decode_arrived(bytes));
            }
            (Stage::Broken, Route::Mending) => {
                self.go_over(peer, &exchange::decode_arrived(bytes));
            }
            // Of a decision that is made.
            _ => {}
        }
    }

    /// Says no at the next stage to a peer that goes on, as this side said yes before its own fault.
    fn refuse_late(&mut self, peer: Rank, stage: Stage, peer_goes_on: bool) {
        let state = &self.peers[peer];
        if let Some(fault) = state.fault.clone()
            && peer_goes_on
            && !state.has_refused
        {
            self.tell(peer, stage, &Err(fault));
        }
    }

    fn connect(&mut self, peer: Rank, terms: &Terms) {
        let mut fault = None;
        if let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link)
            && let Err(error) = link.connect(&mut **device, terms)
        {
            fault = Some(error.to_string());
        }
        self.peers[peer].fault.clone_from(&fault);
        self.peers[peer].route = Route::Connecting;
        self.listen(peer, Stage::Connected);
        self.tell(peer, Stage::Connected, &fault.map_or(Ok(None), Err));
    }

    fn greet(&mut self, now: Instant, peer: Rank) {
        let until = now + self.settings.proof_timeout;
        self.peers[peer].route = Route::Proving { until };
        self.listen(peer, Stage::Verdict);
        if let (Ok(device), Some(link)) = (&mut self.device, &mut self.peers[peer].link)
            && let Err(error) = link.greet(&mut **device)
        {
            self.peers[peer].fault = Some(error.to_string());
        }
    }

    /// Looks whether what is to be proved is proved, or can't be any more.
    pub(super) fn judge(&mut self, now: Instant) {
        for peer in 0..self.peers.len() {
            let state = &self.peers[peer];
            let until = match state.route {
                Route::Proving { until } => until,
                Route::Asking if self.is_deaf(peer) => {
                    let fault = "it does not use RDMA: the setting transports must be the same on all ranks";
                    self.settle_for_tcp(peer, Some(fault.to_owned()));
                    continue;
                }
                _ => continue,
            };
            let proven = state.link.as_ref().is_some_and(Link::is_proven);
            if let Some(fault) = state.fault.clone() {
                self.tell(peer, Stage::Verdict, &Err(fault.clone()));
                self.settle_for_tcp(peer, Some(fault));
            } else if proven {
                self.peers[peer].route = Route::Judging;
                self.tell(peer, Stage::Verdict, &Ok(None));
                if self.peers[peer].accepted {
                    self.settle_for_rdma(peer);
                }
            } else if now >= until {
                let fault = format!(
                    "its queue pairs do not answer within {:.1?}; check that no firewall keeps UDP from passing, port 4791 for NICs",
                    self.settings.proof_timeout
                );
                self.tell(peer, Stage::Verdict, &Err(fault.clone()));
                self.settle_for_tcp(peer, Some(fault));
            }
        }
    }

    /// Whether a peer has a TCP transport alone: of a rank like this one the first message is its offer.
    fn is_deaf(&self, peer: Rank) -> bool {
        self.tcp
            .first_group(peer)
            .is_some_and(|group| group != exchange::GROUP)
    }

    /// Both sides have heard each other.
    pub(super) fn settle_for_rdma(&mut self, peer: Rank) {
        if self.is_lost(peer) {
            return;
        }
        self.peers[peer].route = Route::Rdma;
        self.open -= 1;
        tracing::info!(rank = peer, "messages go over RDMA");
        let mut waiting = std::mem::take(&mut self.keys);
        self.ops
            .each_of(peer, |key, fingerprint, inbound, outbound| {
                if inbound || outbound {
                    waiting.push((key, fingerprint, inbound, outbound));
                }
            });
        for &(key, fingerprint, inbound, outbound) in &waiting {
            if outbound {
                self.start_waiting(peer, key, fingerprint);
            }
            if inbound {
                self.offer_posted(peer, key, fingerprint);
            }
        }
        waiting.clear();
        self.keys = waiting;
        // One that has failed since this side gave its verdict.
        if let Some(fault) = self.peers[peer].fault.take() {
            self.failed(peer, fault);
        }
    }

    /// RDMA to a peer has failed: closes the link, so that neither side reaches the other's memory any more, and tells the
    /// peer what has come by now.
    pub(super) fn break_off(&mut self, peer: Rank, detail: String) {
        self.peers[peer].fault = None;
        tracing::warn!(
            rank = peer,
            reason = detail,
            "RDMA to this rank has failed: messages go over TCP from now on"
        );
        self.peers[peer].route = Route::Mending;
        self.open += 1;
        // What was acknowledged to the peer is not sent again: it has to be taken.
        let mut last = Vec::new();
        if let (Ok(device), Some(link)) = (&mut self.device, &self.peers[peer].link) {
            link.pairs().for_each(|pair| device.stop(pair, &mut last));
        }
        for completion in &last {
            self.completed(completion);
        }
        if self.is_lost(peer) {
            return;
        }
        self.close_link(peer);
        let arrived = self.peers[peer].link.as_ref().map(Link::arrived);
        let note = exchange::encode_broken(&detail, &arrived.unwrap_or_default());
        self.tell_bytes(peer, Stage::Broken, &note);
        self.listen_for_end(peer);
    }

    /// Breaks off what has failed.
    pub(super) fn mend(&mut self) {
        while let Some(peer) = self.broken.pop() {
            if matches!(self.peers[peer].route, Route::Rdma)
                && let Some(fault) = self.peers[peer].fault.take()
            {
                self.break_off(peer, fault);
            }
        }
    }

    /// Both sides have closed their link, and the peer has told what had come: what had not is sent again, over TCP.
    fn go_over(&mut self, peer: Rank, arrived: &[u16; MAX_CHANNELS]) {
        if self.is_lost(peer) {
            return;
        }
        let link = self.peers[peer].link.as_mut();
        let Some(delivered) = link.and_then(|link| link.delivered(arrived)) else {
            let detail =
                "it has got more over RDMA than was sent, or less than its device acknowledged"
                    .into();
            return self.lose(peer, LinkError::Protocol { peer, detail });
        };
        for key in delivered {
            if let Some((op, _)) = self.ops.begun(&key) {
                op.outbound.remove(&Slot::new(peer, &key));
                self.events.push(Event::Sent { peer, key });
            }
        }
        self.peers[peer].route = Route::Tcp;
        self.open -= 1;
        self.give_to_tcp(peer);
    }

    /// Has TCP move the messages that are not done. Those that are here stay.
    fn give_to_tcp(&mut self, peer: Rank) {
        for (key, inbound, outbound) in self.ops.take_peer(peer) {
            match outbound {
                Some(
                    Outbound::Waiting { src, priority }
                    | Outbound::Queued { src, priority }
                    | Outbound::Flying { src, priority, .. },
                ) => {
                    let sent = self.tcp.send(peer, key, src, priority);
                    self.check(peer, sent);
                }
                Some(Outbound::Offered(_)) | None => {}
            }
            match inbound {
                Some(Inbound::Posted { sink, .. }) => {
                    let posted = self.tcp.recv(peer, key, sink);
                    self.check(peer, posted);
                }
                Some(here @ (Inbound::Stored { .. } | Inbound::Viewed(_))) => {
                    if let Some(op) = self.ops.open(&key) {
                        op.inbound.insert(Slot::new(peer, &key), here);
                    }
                }
                Some(Inbound::Announced { .. }) | None => {}
            }
        }
    }

    /// Ends a link's queue pairs.
    fn close_link(&mut self, peer: Rank) {
        if let Some(link) = &mut self.peers[peer].link {
            for pair in link.pairs() {
                let owner = &mut self.pairs[pair.0 as usize];
                // The number may be another peer's by now, if the link was closed before.
                owner.take_if(|&mut (owner, _)| owner == peer);
            }
            let device = self.device.as_mut().ok();
            link.close(device.map(|device| &mut **device as _), &mut self.pool);
        }
    }

    /// RDMA does not lead there: what has waited goes over TCP.
    fn settle_for_tcp(&mut self, peer: Rank, fault: Option<String>) {
        if self.is_lost(peer) {
            return;
        }
        self.peers[peer].route = Route::Tcp;
        self.open -= 1;
        let reason = fault.unwrap_or_default();
        tracing::warn!(
            rank = peer,
            reason,
            "messages go over TCP, as RDMA does not reach this rank"
        );
        self.close_link(peer);
        if let Some(mut link) = self.peers[peer].link.take() {
            link.recycle(&mut self.pool);
        }
        self.give_to_tcp(peer);
    }

    /// Whether a peer has gone in the meantime: telling it anything may find that out.
    fn is_lost(&self, peer: Rank) -> bool {
        matches!(self.peers[peer].route, Route::Lost(_))
    }

    /// A peer is gone, or its queue pairs are.
    pub(super) fn lose(&mut self, peer: Rank, error: LinkError) {
        let state = &mut self.peers[peer];
        if matches!(state.route, Route::Lost(_)) {
            return;
        }
        self.open -= usize::from(state.route.is_open());
        state.route = Route::Lost(error.clone());
        self.close_link(peer);
        self.events.push(Event::Lost { peer, error });
    }
}
