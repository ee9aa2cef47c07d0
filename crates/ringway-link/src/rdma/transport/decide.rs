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
//! | proving | the peer was heard, its verdict is yes, and this side measures: probes go out (`measure.rs`) | measuring |
//! | measuring | RDMA is fast enough: a verdict says so | RDMA |
//! | measuring | TCP is faster, a queue pair fails, here or by the peer's note, or the time is up: the verdict is no | TCP |
//! | proving | a queue pair fails, or the time is up: the verdict is no | TCP |
//! | proving, judging | the peer's verdict is no | TCP |
//! | judging | the peer's verdict is yes; frames that come before it wait | RDMA |
//! | RDMA | a queue pair fails, or the peer's note says that one has: the link is closed, and a note says so | mending |
//! | judging, a later round | the verdict does not come, and messages wait for it: this side's is taken back | TCP |
//! | proving, measuring | the peer's note that it takes its verdict back: the verdict is no | TCP |
//! | mending | the peer's note that it has closed its own | TCP |
//! | RDMA, mending | the peer's note that it has closed its own, as it leaves | TCP, whose goodbye follows |
//! | TCP | RDMA has failed and the time is up, or the peer's offer of the next round: as from idle | asking |
//!
//! Each time round is a round, by whose number notes are told apart. From the second on messages go over TCP until the verdicts, and
//! operations that have messages there stay there: each verdict names those of its sender's. Messages of others wait between the two
//! verdicts, as the peer may have named them; not long, see `withdraw`. One that the peer has ended can be named by nobody, if all that was to come from it
//! are short messages: these are here by then, as TCP keeps order, and show which operation it is.
//!
//! Each side sends each note once, and a side that has said no has decided; so both decide alike. A note that does not
//! come is the peer's end, of which TCP tells, or the peer is at something else, and its operation waits anyhow.

use std::time::{Duration, Instant};

use ringway_plan::Rank;
use ringway_sys::Staging;

use super::{
    RdmaTransport,
    exchange::{self, NOTE, Note, Stage, Terms},
    link::Link,
    peer::{Peer, Route},
};
use crate::{LinkError, MessageKey, Sink, Transport as _, rdma::DeviceError};

/// How long messages wait for a peer's verdict if they may go over TCP.
const VERDICT_PATIENCE: Duration = Duration::from_millis(20);

impl RdmaTransport {
    /// Begins to decide on the way to a peer, unless that has begun.
    pub(super) fn ask(&mut self, peer: Rank) {
        if matches!(self.peers[peer].route, Route::Idle) {
            self.make_offer(peer);
        }
    }

    pub(super) fn make_offer(&mut self, peer: Rank) {
        let measures = self.settings.measures && !self.peers[peer].is_measured;
        let link = match &mut self.device {
            Ok(device) => Link::new(&mut **device, &mut self.pool, &self.settings)
                .map_err(|fault| fault.to_string())
                .and_then(|link| match link.terms(&**device) {
                    Ok(terms) => Ok((link, Terms { measures, ..terms })),
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
                self.links += 1;
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
        let bytes = match note {
            Err(reason) if self.device.is_err() || self.peers[peer].never => {
                exchange::encode_never(reason)
            }
            note => exchange::encode(note),
        };
        self.tell_bytes(peer, stage, &bytes);
    }

    pub(super) fn tell_bytes(&mut self, peer: Rank, stage: Stage, bytes: &[u8; NOTE]) {
        let round = self.peers[peer].round;
        let notes = self.peers[peer]
            .notes
            .get_or_insert_with(|| Staging::new(2 * Stage::COUNT * NOTE));
        let start = (round as usize % 2 * Stage::COUNT + stage as usize) * NOTE;
        let memory = notes.memory().slice(start..start + NOTE);
        memory.write(bytes);
        let sent = self.tcp.send(peer, stage.key(round), memory, u8::MAX);
        self.check(peer, sent);
    }

    /// Waits for a note.
    fn listen(&mut self, peer: Rank, stage: Stage) {
        self.take_note(peer, stage.key(self.peers[peer].round));
    }

    fn take_note(&mut self, peer: Rank, key: MessageKey) {
        let posted = self.tcp.recv(peer, key, Sink::View(NOTE));
        self.check(peer, posted);
    }

    pub(super) fn check(&mut self, peer: Rank, done: Result<(), LinkError>) {
        if let Err(error) = done {
            self.lose(peer, error);
        }
    }

    /// Looks for notes that nobody here has waited for: a peer's offer, for which this side makes one, too; or that RDMA has
    /// failed, of which there is mostly none, and a posted receive would have TCP look for it at every poll. Those that come too
    /// late to matter are taken, too: they would be looked at for ever, and hold TCP's memory.
    pub(super) fn hear(&mut self, now: Instant) {
        for (peer, key) in self.tcp.unasked(exchange::GROUP, 0) {
            let Peer { route, round, .. } = &self.peers[peer];
            let (is_this, is_next) = (key.slice == *round, key.slice == round.wrapping_add(1));
            let Some(stage) = Stage::of(key.message) else {
                continue;
            };
            match (stage, route) {
                _ if !is_this && !is_next => self.take_note(peer, key),
                (Stage::Offer, Route::Idle) if is_this => self.ask(peer),
                (Stage::Offer, Route::Tcp) if is_next => self.begin_round(now, peer),
                (Stage::Broken, Route::Proving { .. } | Route::Measuring { .. } | Route::Rdma)
                    if is_this =>
                {
                    self.listen_for_end(peer)
                }
                (Stage::Broken | Stage::Fault, Route::Asking | Route::Connecting) => {}
                (Stage::Broken | Stage::Fault, _) if is_this => self.take_note(peer, key),
                _ => {}
            }
        }
    }

    pub(super) fn listen_for_end(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.peers[peer].hears_end, true) {
            self.listen(peer, Stage::Broken);
        }
    }

    /// A note has come.
    pub(super) fn noted(&mut self, now: Instant, peer: Rank, key: MessageKey, bytes: &[u8; NOTE]) {
        let Some(stage) = Stage::of(key.message) else {
            return;
        };
        // Of a decision that is made.
        if key.slice != self.peers[peer].round {
            return;
        }
        let note = match exchange::decode(bytes, stage) {
            Ok(note) => note,
            Err(detail) => return self.lose(peer, LinkError::Protocol { peer, detail }),
        };
        self.peers[peer].never |= exchange::is_never(bytes);
        let own_fault = self.peers[peer].fault.clone();
        let theirs = note.as_ref().err().cloned();
        let fault =
            own_fault.or_else(|| theirs.map(|theirs| format!("rank {peer} says: {theirs}")));
        match (stage, &self.peers[peer].route) {
            (Stage::Offer, Route::Asking) => match (fault, note) {
                (None, Ok(Some(terms))) => self.connect(peer, &terms),
                (fault, note) => {
                    self.refuse_late(peer, Stage::Connected, note.is_ok());
                    self.settle_for_tcp(now, peer, fault);
                }
            },
            (Stage::Connected, Route::Connecting) => match fault {
                None => self.greet(now, peer),
                fault => {
                    self.refuse_late(peer, Stage::Verdict, note.is_ok());
                    self.settle_for_tcp(now, peer, fault);
                }
            },
            (Stage::Verdict, Route::Proving { .. } | Route::Judging { .. }) => {
                if note.is_err() {
                    self.peers[peer].prefers_tcp = exchange::is_choice(bytes);
                    return self.settle_for_tcp(now, peer, fault);
                }
                match exchange::decode_operations(bytes) {
                    Ok(operations) => self.leave_on_tcp(peer, operations),
                    Err(detail) => return self.lose(peer, LinkError::Protocol { peer, detail }),
                }
                self.peers[peer].accepted = true;
                if matches!(self.peers[peer].route, Route::Judging { .. }) {
                    self.settle_for_rdma(now, peer);
                }
            }
            (Stage::Fault, Route::Proving { .. } | Route::Measuring { .. }) => {
                self.peers[peer].fault = fault;
            }
            (Stage::Broken, Route::Proving { .. } | Route::Measuring { .. }) => {
                let fault = fault.unwrap_or_default();
                self.tell(peer, Stage::Verdict, &Err(fault.clone()));
                self.settle_for_tcp(now, peer, Some(fault));
            }
            (Stage::Broken, Route::Rdma | Route::Mending) if exchange::is_leaving(bytes) => {
                self.parted(now, peer, &exchange::decode_arrived(bytes));
            }
            (Stage::Broken, Route::Rdma) => {
                self.break_off(peer, fault.unwrap_or_default());
                self.go_over(now, peer, &exchange::decode_arrived(bytes));
            }
            (Stage::Broken, Route::Mending) => {
                self.go_over(now, peer, &exchange::decode_arrived(bytes));
            }
            // Of a decision that is made.
            _ => {}
        }
    }

    /// Says no at a later stage to a peer that goes on, as this side said yes before its own fault.
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
            self.peers[peer].never |= matches!(error, DeviceError::Mismatch(_));
        }
        self.peers[peer].fault.clone_from(&fault);
        self.peers[peer].measures = terms.measures && peer < self.own;
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
                Route::Proving { until } | Route::Measuring { until } => until,
                Route::Asking if self.is_deaf(peer) => {
                    let fault = "it does not use RDMA: it has no device, or another setting transports, which must be the same on all ranks";
                    self.peers[peer].never = true;
                    self.settle_for_tcp(now, peer, Some(fault.to_owned()));
                    continue;
                }
                Route::Judging { since } => {
                    let may_withdraw = state.round > 0 && now - since >= VERDICT_PATIENCE;
                    self.refuse_late(peer, Stage::Fault, state.measures);
                    if may_withdraw && self.has_held(peer) {
                        self.withdraw(now, peer);
                    }
                    continue;
                }
                _ => continue,
            };
            let proven = matches!(state.route, Route::Proving { .. })
                && state.link.as_ref().is_some_and(Link::is_proven);
            if let Some(fault) = state.fault.clone() {
                self.tell(peer, Stage::Verdict, &Err(fault.clone()));
                self.settle_for_tcp(now, peer, Some(fault));
            } else if proven && !self.wants_to_measure(peer) {
                self.say_yes(now, peer);
            } else if proven && self.peers[peer].accepted {
                self.begin_measurement(now, peer);
            } else if now >= until {
                let fault = format!(
                    "its queue pairs do not answer within {:.1?}; check that no firewall keeps UDP from passing, port 4791 for NICs",
                    self.settings.proof_timeout
                );
                self.tell(peer, Stage::Verdict, &Err(fault.clone()));
                self.settle_for_tcp(now, peer, Some(fault));
            }
        }
    }

    /// Says that the peer was heard, and which operations stay on TCP.
    pub(super) fn say_yes(&mut self, now: Instant, peer: Rank) {
        let staying = self.staying(peer);
        if staying.len() > exchange::MOST_OPERATIONS {
            let fault = format!(
                "{} operations are under way, and {} can be told to stay on TCP",
                staying.len(),
                exchange::MOST_OPERATIONS
            );
            self.tell(peer, Stage::Verdict, &Err(fault.clone()));
            return self.settle_for_tcp(now, peer, Some(fault));
        }
        self.peers[peer].route = Route::Judging { since: now };
        self.tell_bytes(peer, Stage::Verdict, &exchange::encode_verdict(&staying));
        if self.peers[peer].measures {
            self.expect_probes(peer);
        }
        if self.peers[peer].accepted {
            self.settle_for_rdma(now, peer);
        }
    }

    /// The operations that have messages to or from a peer on TCP.
    fn staying(&self, peer: Rank) -> Vec<(u64, u32)> {
        let staying = self.ops.iter().filter(|(_, op)| op.on_tcp.contains(&peer));
        staying.map(|(number, _)| number).collect()
    }

    /// The messages of these operations to and from a peer go over TCP until they end.
    fn leave_on_tcp(&mut self, peer: Rank, operations: impl IntoIterator<Item = (u64, u32)>) {
        for (group, number) in operations {
            if let Some(op) = self.ops.unended(group, number)
                && !op.on_tcp.contains(&peer)
            {
                op.on_tcp.push(peer);
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
    fn settle_for_rdma(&mut self, now: Instant, peer: Rank) {
        if self.is_lost(peer) {
            return;
        }
        self.end_probes(peer);
        let state = &mut self.peers[peer];
        state.route = Route::Rdma;
        state.retry.works(now);
        self.open -= 1;
        if state.round == 0 {
            tracing::info!(rank = peer, "messages go over RDMA");
        } else {
            tracing::warn!(
                rank = peer,
                "RDMA to this rank works again: messages go over it"
            );
        }
        let early = self.tcp.sent_early(peer);
        let ended: Vec<_> = early.filter(|op| op.0 != exchange::GROUP).collect();
        self.leave_on_tcp(peer, ended);
        let staying = self.staying(peer);
        self.give_to_tcp(peer, |group, number| staying.contains(&(group, number)));
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
        for completion in std::mem::take(&mut self.peers[peer].early) {
            self.completed(&completion);
        }
        // One that has failed since this side gave its verdict.
        if let Some(fault) = self.peers[peer].fault.take() {
            self.failed(peer, fault);
        }
    }

    /// RDMA does not lead there: what has waited goes over TCP.
    pub(super) fn settle_for_tcp(&mut self, now: Instant, peer: Rank, fault: Option<String>) {
        if self.is_lost(peer) {
            return;
        }
        self.end_probes(peer);
        let state = &mut self.peers[peer];
        let is_first = state.round == 0;
        state.route = Route::Tcp;
        self.open -= 1;
        let reason = fault.unwrap_or_default();
        // In software nobody misses it who hasn't asked for it alone.
        let is_missed = match &self.device {
            Ok(device) => device.limits().answers_alone || !self.settings.measures,
            Err(_) => true,
        };
        if state.prefers_tcp {
            tracing::info!(
                rank = peer,
                reason,
                "messages go over TCP, which is measured to be faster than RDMA"
            );
        } else if is_first && !is_missed {
            tracing::info!(
                rank = peer,
                reason,
                "messages go over TCP, as RDMA does not reach this rank"
            );
        } else if is_first {
            tracing::warn!(
                rank = peer,
                reason,
                "messages go over TCP, as RDMA does not reach this rank"
            );
        } else {
            tracing::info!(rank = peer, reason, "RDMA was tried again in vain");
        }
        if !self.peers[peer].prefers_tcp {
            self.schedule(now, peer);
        }
        self.close_link(peer);
        if let Some(mut link) = self.peers[peer].link.take() {
            link.recycle(&mut self.pool);
        }
        self.give_to_tcp(peer, |_, _| true);
    }

    /// Whether a peer has gone in the meantime: telling it anything may find that out.
    pub(super) fn is_lost(&self, peer: Rank) -> bool {
        matches!(self.peers[peer].route, Route::Lost(_))
    }
}
