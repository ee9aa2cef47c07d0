//! What happens when RDMA to a peer fails: its messages go over TCP, and RDMA is tried again. `decide.rs` has the states.

use std::time::Instant;

use ringway_plan::Rank;

use super::{
    MAX_CHANNELS, RdmaTransport,
    exchange::{self, Stage},
    link::Link,
    peer::{Held, Inbound, Outbound, Route},
};
use crate::{
    Event, LinkError, Transport as _,
    ops::{Op, Slot},
};

impl RdmaTransport {
    /// RDMA to a peer has failed: closes the link, so that neither side reaches the other's memory any more, and tells the
    /// peer what has come by now.
    pub(super) fn break_off(&mut self, peer: Rank, detail: String) {
        self.peers[peer].fault = None;
        tracing::warn!(
            rank = peer,
            reason = detail,
            "RDMA to this rank has failed: messages go over TCP until it works again"
        );
        if self.end_link(peer, &detail) {
            self.listen_for_end(peer);
        }
    }

    /// Closes the link, and tells the peer what has come over it by now. False if the peer is gone.
    fn end_link(&mut self, peer: Rank, detail: &str) -> bool {
        let Some(arrived) = self.stop_link(peer) else {
            return false;
        };
        let note = exchange::encode_broken(detail, &arrived);
        self.tell_bytes(peer, Stage::Broken, &note);
        !self.is_lost(peer)
    }

    /// As this rank leaves. The peer is told what has come, as after a failure: once the queue pairs are gone nobody acknowledges it
    /// again if the last acknowledgement gets lost.
    pub(super) fn part(&mut self, peer: Rank) {
        if matches!(self.peers[peer].route, Route::Rdma)
            && !self.is_gone(peer)
            && let Some(arrived) = self.stop_link(peer)
        {
            self.tell_bytes(peer, Stage::Broken, &exchange::encode_leaving(&arrived));
        }
    }

    /// A peer that leaves has closed its side of the link, and told what had come.
    pub(super) fn parted(&mut self, now: Instant, peer: Rank, arrived: &[u16; MAX_CHANNELS]) {
        if matches!(self.peers[peer].route, Route::Rdma) {
            self.stop_link(peer);
        }
        self.go_over(now, peer, arrived);
    }

    /// Closes the link: returns what has come over it by now, unless the peer is gone.
    fn stop_link(&mut self, peer: Rank) -> Option<[u16; MAX_CHANNELS]> {
        let route = std::mem::replace(&mut self.peers[peer].route, Route::Mending);
        self.open += usize::from(!route.is_open());
        // What was acknowledged to the peer is not sent again: it has to be taken.
        let mut last = std::mem::take(&mut self.peers[peer].early);
        if let (Ok(device), Some(link)) = (&mut self.device, &self.peers[peer].link) {
            link.pairs().for_each(|pair| device.stop(pair, &mut last));
        }
        for completion in &last {
            self.completed(completion);
        }
        if self.is_lost(peer) {
            return None;
        }
        self.close_link(peer);
        let arrived = self.peers[peer].link.as_ref().map(Link::arrived);
        Some(arrived.unwrap_or_default())
    }

    /// Takes this side's verdict back, as the peer's doesn't come and messages wait for it. All that has gone over the link from
    /// here are greetings and answers to probes, so that nothing is to be heard from the peer before messages go over TCP; the
    /// peer hears what has come here, as after a failure, in case that it has given its verdict meanwhile.
    pub(super) fn withdraw(&mut self, now: Instant, peer: Rank) {
        tracing::info!(
            rank = peer,
            "RDMA was tried again in vain: the rank computes, and messages do not wait for it"
        );
        self.end_probes(peer);
        let detail = "the other rank has waited in vain for this one, and uses TCP for now";
        if self.end_link(peer, detail) {
            self.peers[peer].fault = None;
            self.peers[peer].route = Route::Tcp;
            self.open -= 1;
            self.schedule(now, peer);
            self.give_to_tcp(peer, |_, _| true);
        }
    }

    /// Whether messages to or from a peer wait for its verdict.
    pub(super) fn has_held(&self, peer: Rank) -> bool {
        let waits = |op: &Op<Inbound, Outbound>| {
            let mut inbound = op.inbound.iter();
            op.outbound.keys().any(|slot| slot.peer == peer)
                || inbound
                    .any(|(slot, it)| slot.peer == peer && matches!(it, Inbound::Posted { .. }))
        };
        let mut others = self.ops.iter().filter(|(_, op)| !op.on_tcp.contains(&peer));
        others.any(|(_, op)| waits(op))
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
    pub(super) fn go_over(&mut self, now: Instant, peer: Rank, arrived: &[u16; MAX_CHANNELS]) {
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
        self.schedule(now, peer);
        self.give_to_tcp(peer, |_, _| true);
    }

    /// Says when RDMA is tried again, if this side has a device and it may work some time.
    pub(super) fn schedule(&mut self, now: Instant, peer: Rank) {
        if self.device.is_ok() && !self.peers[peer].never {
            let at = self.peers[peer].retry.failed(now, &self.settings);
            self.remember_retry(at);
        }
    }

    /// Has TCP move the messages that are not done, of the operations of which `of` says so by group and number. Those that are
    /// here stay, and leave the slots of a link that has failed.
    pub(super) fn give_to_tcp(&mut self, peer: Rank, of: impl Fn(u64, u32) -> bool) {
        for (key, inbound, outbound) in self.ops.take_peer(peer, of) {
            if outbound.is_some() || matches!(inbound, Some(Inbound::Posted { .. })) {
                self.stays_on_tcp(peer, &key);
            }
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
                Some(Inbound::Stored { slot, len }) => {
                    let saved = self.peers[peer]
                        .link
                        .as_ref()
                        .map(|link| link.save(slot, len));
                    if let (Some(op), Some(saved)) = (self.ops.open(&key), saved) {
                        let saved = Inbound::Saved(saved);
                        op.inbound.insert(Slot::new(peer, &key), saved);
                    }
                }
                Some(here @ (Inbound::Saved(_) | Inbound::Viewed(_))) => {
                    if let Some(op) = self.ops.open(&key) {
                        op.inbound.insert(Slot::new(peer, &key), here);
                    }
                }
                Some(Inbound::Announced { .. }) | None => {}
            }
        }
    }

    /// Ends a link's queue pairs.
    pub(super) fn close_link(&mut self, peer: Rank) {
        if let Some(link) = &mut self.peers[peer].link {
            for pair in link.pairs() {
                let owner = &mut self.pairs[pair.0 as usize];
                // The number may be another peer's by now, if the link was closed before.
                owner.take_if(|&mut (owner, _)| owner == peer);
            }
            self.links -= usize::from(link.is_open());
            let device = self.device.as_mut().ok();
            link.close(device.map(|device| &mut **device as _), &mut self.pool);
        }
    }

    /// Begins the next round with the peers for which it is time.
    pub(super) fn try_again(&mut self, now: Instant) {
        self.next_retry = None;
        for peer in 0..self.peers.len() {
            let state = &self.peers[peer];
            match state.retry.next() {
                Some(at) if matches!(state.route, Route::Tcp) => {
                    if at <= now {
                        self.begin_round(now, peer);
                    } else {
                        self.remember_retry(at);
                    }
                }
                _ => {}
            }
        }
    }

    fn remember_retry(&mut self, at: Instant) {
        self.next_retry = Some(self.next_retry.map_or(at, |next| next.min(at)));
    }

    /// Offers a peer other queue pairs, unless somebody still looks at what came over the last ones.
    pub(super) fn begin_round(&mut self, now: Instant, peer: Rank) {
        let looks = |(slot, inbound): (&Slot, &_)| {
            slot.peer == peer && matches!(inbound, Inbound::Viewed(Held::Slot(_)))
        };
        if self.ops.iter().any(|(_, op)| op.inbound.iter().any(looks)) {
            let at = self.peers[peer].retry.postponed(now, &self.settings);
            return self.remember_retry(at);
        }
        if let Some(mut old) = self.peers[peer].link.take() {
            old.recycle(&mut self.pool);
        }
        self.end_probes(peer);
        self.peers[peer].begin_round();
        self.make_offer(peer);
    }

    /// A peer is gone, or its queue pairs are.
    pub(super) fn lose(&mut self, peer: Rank, error: LinkError) {
        let state = &mut self.peers[peer];
        if matches!(state.route, Route::Lost(_)) {
            return;
        }
        self.open -= usize::from(state.route.is_open());
        state.route = Route::Lost(error.clone());
        self.end_probes(peer);
        self.close_link(peer);
        self.events.push(Event::Lost { peer, error });
    }
}
