//! Which messages are awaited, which have come, and which are being looked at: by operation.

use std::collections::VecDeque;

use ringway_sys::Staging;

use super::{descriptor::Inline, hash::Map};
use crate::{MessageKey, Sink};

/// How many ended operations are remembered, to drop what still comes for them.
const ENDED: usize = 4096;

/// How many operations may be known: those in flight are far fewer, and a peer gone mad shall not fill the memory.
const FLOOD: usize = 1 << 16;

/// How many tables of ended operations are kept for new ones, so that small operations allocate
/// nothing.
const SPARE: usize = 16;

/// Where the bytes of a message lie that has come.
#[derive(Debug)]
pub(super) enum Holding {
    Inline(Inline),
    /// At `offset` of the sender's registered memory.
    Reference {
        ticket: u8,
        offset: u64,
    },
    Slot(u8),
    /// In a buffer of this rank.
    Spilled(Staging),
}

/// A message that has come and is not asked for yet.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) fingerprint: u32,
    pub(super) len: usize,
    pub(super) holding: Holding,
}

/// A message that this rank knows of.
#[derive(Debug)]
enum Message {
    Arrived(Arrival),
    Posted(Sink),
    Viewed(Holding),
}

/// What to do with a message that comes.
#[derive(Debug)]
pub(super) enum Verdict {
    Deliver(Sink),
    /// Its operation has ended, or its sender is known to disagree.
    Drop,
    /// It has come before.
    Duplicate,
    /// No `recv` yet: see [`Inbox::hold`].
    Hold,
    /// The first whose sender disagrees about the operation.
    Mismatch,
}

/// What two ranks think of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    Agreed,
    /// It has ended here.
    Ended,
    /// They disagree, as was reported.
    KnownMismatch,
    /// They disagree, which has to be reported.
    NewMismatch,
    /// It has not begun here.
    Unknown,
}

/// The sender (its index among the peers), lane, message and slice.
type Name = (usize, u16, u32, u32);

const fn name(peer: usize, key: MessageKey) -> Name {
    (peer, key.lane, key.message, key.slice)
}

#[derive(Debug, Default)]
struct Operation {
    /// None until it begins here.
    fingerprint: Option<u32>,
    /// Peers that were reported to disagree.
    mismatched: Vec<usize>,
    /// What waiting peers took it for before it began here.
    claims: Vec<(usize, u32)>,
    /// Peers that were told that this rank waits for them.
    told: Vec<usize>,
    messages: Map<Name, Message>,
}

impl Operation {
    fn compare(&mut self, peer: usize, fingerprint: u32) -> Agreement {
        match self.fingerprint {
            None => Agreement::Unknown,
            Some(own) if own == fingerprint => Agreement::Agreed,
            Some(_) if self.mismatched.contains(&peer) => Agreement::KnownMismatch,
            Some(_) => {
                self.mismatched.push(peer);
                Agreement::NewMismatch
            }
        }
    }
}

/// All messages of all operations that have not ended.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    operations: Map<(u64, u32), Operation>,
    ended: Map<(u64, u32), ()>,
    ended_order: VecDeque<(u64, u32)>,
    spare: Vec<Operation>,
}

impl Inbox {
    /// Begins an operation. Passes to `disagreed` each peer that disagrees, with what has come from it if anything has,
    /// and, the first time for that peer, its fingerprint.
    pub(super) fn begin(
        &mut self,
        group: u64,
        op: u32,
        fingerprint: u32,
        mut disagreed: impl FnMut(usize, Option<Holding>, Option<u32>),
    ) {
        // A group's number may be used again after the group.
        self.ended.remove(&(group, op));
        let spare = &mut self.spare;
        let operation = self
            .operations
            .entry((group, op))
            .or_insert_with(|| spare.pop().unwrap_or_default());
        operation.fingerprint = Some(fingerprint);
        let early = |message: &Message| match message {
            Message::Arrived(arrival) => arrival.fingerprint != fingerprint,
            Message::Posted(_) | Message::Viewed(_) => false,
        };
        for ((peer, ..), message) in operation.messages.extract_if(|_, message| early(message)) {
            if let Message::Arrived(arrival) = message {
                let new = !operation.mismatched.contains(&peer);
                if new {
                    operation.mismatched.push(peer);
                }
                let theirs = new.then_some(arrival.fingerprint);
                disagreed(peer, Some(arrival.holding), theirs);
            }
        }
        for (peer, claimed) in std::mem::take(&mut operation.claims) {
            if operation.compare(peer, claimed) == Agreement::NewMismatch {
                disagreed(peer, None, Some(claimed));
            }
        }
    }

    /// A peer waits in an operation: compares its fingerprint with this rank's, now or when it begins.
    pub(super) fn hear(&mut self, peer: usize, key: MessageKey, fingerprint: u32) -> Agreement {
        let place = (key.group, key.op);
        if !self.operations.contains_key(&place) && self.is_ended(key) {
            return Agreement::Ended;
        }
        let spare = &mut self.spare;
        let operation = self
            .operations
            .entry(place)
            .or_insert_with(|| spare.pop().unwrap_or_default());
        let agreement = operation.compare(peer, fingerprint);
        if agreement == Agreement::Unknown && !operation.claims.contains(&(peer, fingerprint)) {
            operation.claims.push((peer, fingerprint));
        }
        agreement
    }

    /// Whether peers speak of more operations than can be in flight.
    pub(super) fn is_flooded(&self) -> bool {
        self.operations.len() > FLOOD
    }

    /// Peers of which messages are awaited and that do not know it: one message of each operation, with its
    /// fingerprint. Each is named once.
    pub(super) fn untold(&mut self) -> Vec<(usize, MessageKey, u32)> {
        let mut untold = Vec::new();
        for (&(group, op), operation) in &mut self.operations {
            let Some(fingerprint) = operation.fingerprint else {
                continue;
            };
            for (&(peer, lane, message, slice), state) in &operation.messages {
                if matches!(state, Message::Posted(_)) && !operation.told.contains(&peer) {
                    operation.told.push(peer);
                    let key = MessageKey {
                        group,
                        op,
                        lane,
                        message,
                        slice,
                    };
                    untold.push((peer, key, fingerprint));
                }
            }
        }
        untold
    }

    /// The fingerprint of an operation that has begun and not ended.
    pub(super) fn fingerprint(&self, key: MessageKey) -> Option<u32> {
        self.operations.get(&(key.group, key.op))?.fingerprint
    }

    /// Compares a peer's fingerprint of an operation with this rank's.
    pub(super) fn compare(&mut self, peer: usize, key: MessageKey, fingerprint: u32) -> Agreement {
        let Some(operation) = self.operations.get_mut(&(key.group, key.op)) else {
            return if self.is_ended(key) {
                Agreement::Ended
            } else {
                Agreement::Unknown
            };
        };
        operation.compare(peer, fingerprint)
    }

    /// Asks for a message. If it has come already, it is returned, to be delivered. An error if it
    /// is asked for already, or its operation has not begun.
    pub(super) fn post(
        &mut self,
        peer: usize,
        key: MessageKey,
        sink: Sink,
    ) -> Result<Option<Arrival>, &'static str> {
        let Some(operation) = self.operations.get_mut(&(key.group, key.op)) else {
            return Err("its operation has not begun");
        };
        match operation
            .messages
            .insert(name(peer, key), Message::Posted(sink))
        {
            None => Ok(None),
            Some(Message::Arrived(arrival)) => {
                operation.messages.remove(&name(peer, key));
                Ok(Some(arrival))
            }
            Some(other) => {
                operation.messages.insert(name(peer, key), other);
                Err("it is being received already")
            }
        }
    }

    /// Judges a message that comes. One that is delivered is no longer known.
    pub(super) fn arrive(&mut self, peer: usize, key: MessageKey, fingerprint: u32) -> Verdict {
        let Some(operation) = self.operations.get_mut(&(key.group, key.op)) else {
            return if self.is_ended(key) {
                Verdict::Drop
            } else {
                Verdict::Hold
            };
        };
        match operation.compare(peer, fingerprint) {
            Agreement::Agreed | Agreement::Unknown => {}
            Agreement::Ended | Agreement::KnownMismatch => return Verdict::Drop,
            Agreement::NewMismatch => return Verdict::Mismatch,
        }
        match operation.messages.get(&name(peer, key)) {
            None => Verdict::Hold,
            Some(&Message::Posted(sink)) => {
                operation.messages.remove(&name(peer, key));
                Verdict::Deliver(sink)
            }
            Some(Message::Arrived(_) | Message::Viewed(_)) => Verdict::Duplicate,
        }
    }

    /// Keeps a message until it is asked for.
    pub(super) fn hold(&mut self, peer: usize, key: MessageKey, arrival: Arrival) {
        let spare = &mut self.spare;
        self.operations
            .entry((key.group, key.op))
            .or_insert_with(|| spare.pop().unwrap_or_default())
            .messages
            .insert(name(peer, key), Message::Arrived(arrival));
    }

    /// Keeps the bytes of a message that is being looked at.
    pub(super) fn view(&mut self, peer: usize, key: MessageKey, holding: Holding) {
        if let Some(operation) = self.operations.get_mut(&(key.group, key.op)) {
            operation
                .messages
                .insert(name(peer, key), Message::Viewed(holding));
        }
    }

    /// The bytes of a message that is no longer looked at.
    pub(super) fn release(&mut self, peer: usize, key: MessageKey) -> Option<Holding> {
        let operation = self.operations.get_mut(&(key.group, key.op))?;
        match operation.messages.remove(&name(peer, key))? {
            Message::Viewed(holding) => Some(holding),
            other => {
                operation.messages.insert(name(peer, key), other);
                None
            }
        }
    }

    /// Ends an operation, and passes to `each` what is held for it.
    pub(super) fn end(&mut self, group: u64, op: u32, mut each: impl FnMut(usize, Holding)) {
        if let Some(mut operation) = self.operations.remove(&(group, op)) {
            for ((peer, ..), message) in operation.messages.drain() {
                match message {
                    Message::Arrived(Arrival { holding, .. }) | Message::Viewed(holding) => {
                        each(peer, holding);
                    }
                    Message::Posted(_) => {}
                }
            }
            if self.spare.len() < SPARE {
                operation.fingerprint = None;
                operation.mismatched.clear();
                operation.claims.clear();
                operation.told.clear();
                self.spare.push(operation);
            }
        }
        if self.ended.insert((group, op), ()).is_none() {
            self.ended_order.push_back((group, op));
            if self.ended_order.len() > ENDED
                && let Some(oldest) = self.ended_order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
    }

    /// The messages of this peer that are asked for, with their operation's fingerprint.
    pub(super) fn awaited(&self, peer: usize) -> impl Iterator<Item = (MessageKey, u32)> {
        self.operations
            .iter()
            .flat_map(move |(&(group, op), operation)| {
                let fingerprint = operation.fingerprint.unwrap_or_default();
                operation.messages.iter().filter_map(
                    move |(&(from, lane, message, slice), state)| {
                        (from == peer && matches!(state, Message::Posted(_))).then_some((
                            MessageKey {
                                group,
                                op,
                                lane,
                                message,
                                slice,
                            },
                            fingerprint,
                        ))
                    },
                )
            })
    }

    /// Whether a message has come that is not asked for yet.
    pub(super) fn has_arrived(&self, peer: usize, key: MessageKey) -> bool {
        let operation = self.operations.get(&(key.group, key.op));
        let message = operation.and_then(|operation| operation.messages.get(&name(peer, key)));
        matches!(message, Some(Message::Arrived(_)))
    }

    /// Whether the operation has ended.
    pub(super) fn is_ended(&self, key: MessageKey) -> bool {
        self.ended.contains_key(&(key.group, key.op))
    }
}
