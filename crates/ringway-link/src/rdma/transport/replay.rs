//! Short messages that counted as sent over RDMA, and had not come when it failed: they go again over TCP, from the link's copy.
//! Their operation may have ended here; TCP then begins it once more, until they are sent.

use std::time::{Duration, Instant};

use ringway_plan::Rank;
use ringway_sys::Staging;

use super::{RdmaTransport, frame::Tag};
use crate::{LinkError, MessageKey, Transport as _};

/// A message that TCP has and has not sent yet.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) peer: Rank,
    key: MessageKey,
    copy: Staging,
}

impl Replay {
    /// The operation's group and number.
    pub(super) const fn operation(&self) -> (u64, u32) {
        (self.key.group, self.key.op)
    }

    /// The bytes of its copy.
    pub(super) fn footprint(&self) -> usize {
        self.copy.footprint()
    }
}

impl RdmaTransport {
    /// Sends a peer what it has not got.
    pub(super) fn replay(&mut self, peer: Rank, lost: Vec<(Tag, Staging)>) {
        for (tag, copy) in lost {
            if self.is_lost(peer) {
                return;
            }
            let key = tag.key;
            if self.ops.begun(&key).is_some() {
                self.stays_on_tcp(peer, &key);
            } else {
                self.tcp.begin(key.group, key.op, tag.fingerprint);
            }
            let memory = copy.memory();
            self.replays.push(Replay { peer, key, copy });
            let sent = self.tcp.send(peer, key, memory, 0);
            self.check(peer, sent);
        }
    }

    /// Whether a message that TCP has sent is one of these: it was told of already.
    pub(super) fn is_replayed(&mut self, peer: Rank, key: &MessageKey) -> bool {
        let found = self
            .replays
            .iter()
            .position(|replay| (replay.peer, replay.key) == (peer, *key));
        let Some(at) = found else {
            return false;
        };
        self.replays.swap_remove(at);
        self.end_replayed((key.group, key.op));
        true
    }

    /// Forgets those to a peer that is gone.
    pub(super) fn forget_replays(&mut self, peer: Rank) {
        while let Some(at) = self.replays.iter().position(|replay| replay.peer == peer) {
            // Before its copy, from which TCP may still be sending.
            let operation = self.replays[at].operation();
            let gone = self.replays.swap_remove(at);
            self.end_replayed(operation);
            drop(gone);
        }
    }

    /// Before an operation ends: TCP would forget what it has not sent. A peer that doesn't take it is given up.
    pub(super) fn finish_replays(&mut self, group: u64, op: u32) {
        let began = Instant::now();
        while let Some(replay) = self
            .replays
            .iter()
            .find(|replay| replay.operation() == (group, op))
        {
            let (peer, now) = (replay.peer, Instant::now());
            if now - began >= 5 * self.settings.cancel_patience {
                let detail = format!(
                    "a message has not gone again over TCP within {:.1?}",
                    now - began
                );
                self.lose(peer, LinkError::Rdma { peer, detail });
            } else if !self.poll_tcp(now) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Ends an operation at TCP that has ended here, if nothing of it is to be sent again any more.
    fn end_replayed(&mut self, operation: (u64, u32)) {
        let (group, op) = operation;
        let begun = self
            .ops
            .get(group, op)
            .is_some_and(|op| op.fingerprint.is_some());
        let more = self
            .replays
            .iter()
            .any(|replay| replay.operation() == operation);
        if !begun && !more {
            self.tcp.cancel(group, op);
        }
    }
}
