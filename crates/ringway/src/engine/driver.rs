//! Drives the transport and all message operations of this process. One thread at a time holds it.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use ringway_link::{Event, LinkError, Transport};
use ringway_plan::{Executor, Rank};

use super::{message::MessageOp, task::Task};

/// What driving found that concerns more than one operation.
pub(crate) enum Trouble {
    /// A connection is lost.
    Lost(LinkError),
    /// Another rank runs something else as this operation.
    Mismatch {
        peer: Rank,
        task: Arc<Task>,
        theirs: u32,
    },
}

/// An operation that has come through, with the executor to use again.
pub(crate) struct Finished {
    pub(crate) task: Arc<Task>,
    pub(crate) executor: Executor,
}

/// The transport and the operations that run over it.
pub(crate) struct Driver {
    pub(crate) transport: Box<dyn Transport>,
    /// By group and number. There may be thousands, and each event is about one of them.
    ops: BTreeMap<(u64, u32), MessageOp>,
    events: Vec<Event>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) troubles: Vec<Trouble>,
}

impl Driver {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Self {
        Self {
            transport,
            ops: BTreeMap::new(),
            events: Vec::with_capacity(64),
            finished: Vec::new(),
            troubles: Vec::new(),
        }
    }

    /// Whether operations are in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Takes an operation and starts what it can.
    pub(crate) fn start(&mut self, mut op: MessageOp) {
        self.transport.begin(
            op.task.group,
            op.task.number,
            op.task.descriptor.fingerprint(),
        );
        match op.pump(&mut *self.transport) {
            Ok(()) if op.is_done() => return self.finish(op),
            Ok(()) => {}
            Err(error) => self.trouble(error),
        }
        self.ops.insert((op.task.group, op.task.number), op);
    }

    /// Moves what can be moved without blocking; whether anything did.
    pub(crate) fn drive(&mut self, now: Instant) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let moved = self.transport.poll(now, &mut events);
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
        moved
    }

    fn handle(&mut self, event: Event) {
        let id = match &event {
            Event::Sent { key, .. } | Event::Received { key, .. } => (key.group, key.op),
            Event::Mismatch { group, op, .. } => (*group, *op),
            Event::Lost { .. } => (0, 0),
        };
        match (event, self.ops.get_mut(&id)) {
            (Event::Lost { error, .. }, _) => self.trouble(error),
            (Event::Mismatch { peer, theirs, .. }, Some(op)) => {
                let task = op.task.clone();
                self.troubles.push(Trouble::Mismatch { peer, task, theirs });
            }
            (Event::Sent { peer, key }, Some(op)) => {
                op.sent(peer, key);
                self.advance(id);
            }
            (Event::Received { peer, key, view }, Some(op)) => {
                op.received(peer, key, view, &mut *self.transport);
                self.advance(id);
            }
            // Of an operation that has been cancelled.
            (_, None) => {}
        }
    }

    fn advance(&mut self, id: (u64, u32)) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        match op.pump(&mut *self.transport) {
            Ok(()) if op.is_done() => {
                if let Some(op) = self.ops.remove(&id) {
                    self.finish(op);
                }
            }
            Ok(()) => {}
            Err(error) => self.trouble(error),
        }
    }

    /// A rank that left in good order is none: whether it was still needed, whoever waits for it will see.
    fn trouble(&mut self, error: LinkError) {
        if !matches!(error, LinkError::Left { .. }) {
            self.troubles.push(Trouble::Lost(error));
        }
    }

    fn finish(&mut self, op: MessageOp) {
        self.transport.cancel(op.task.group, op.task.number);
        let task = op.task.clone();
        self.finished.push(Finished {
            task,
            executor: op.into_executor(),
        });
    }

    /// Forgets an operation; its memory is not touched any more when this returns.
    pub(crate) fn cancel(&mut self, group: u64, number: u32) -> Option<MessageOp> {
        let op = self.ops.remove(&(group, number))?;
        self.transport.cancel(group, number);
        Some(op)
    }

    /// The operations in flight, for deadlines and error texts.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &MessageOp> {
        self.ops.values()
    }
}
