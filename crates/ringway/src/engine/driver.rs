//! Drives the transport and all message operations of this process. One thread at a time holds it.

use std::{sync::Arc, time::Instant};

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
    ops: Vec<MessageOp>,
    events: Vec<Event>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) troubles: Vec<Trouble>,
}

impl Driver {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Self {
        Self {
            transport,
            ops: Vec::new(),
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
            Ok(()) if op.is_done() => self.finish(op),
            Ok(()) => self.ops.push(op),
            Err(error) => {
                self.trouble(error);
                self.ops.push(op);
            }
        }
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
        let (group, number) = match &event {
            Event::Sent { key, .. } | Event::Received { key, .. } => (key.group, key.op),
            Event::Mismatch { group, op, .. } => (*group, *op),
            Event::Lost { .. } => (0, 0),
        };
        let at = self.ops.iter().position(|op| op.is_for(group, number));
        match (event, at) {
            (Event::Lost { error, .. }, _) => self.trouble(error),
            (Event::Mismatch { peer, theirs, .. }, Some(at)) => {
                let task = self.ops[at].task.clone();
                self.troubles.push(Trouble::Mismatch { peer, task, theirs });
            }
            (Event::Sent { peer, key }, Some(at)) => {
                self.ops[at].sent(peer, key);
                self.advance(at);
            }
            (Event::Received { peer, key, view }, Some(at)) => {
                self.ops[at].received(peer, key, view, &mut *self.transport);
                self.advance(at);
            }
            // Of an operation that has been cancelled.
            (_, None) => {}
        }
    }

    fn advance(&mut self, at: usize) {
        match self.ops[at].pump(&mut *self.transport) {
            Ok(()) if self.ops[at].is_done() => {
                let op = self.ops.swap_remove(at);
                self.finish(op);
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
        let at = self.ops.iter().position(|op| op.is_for(group, number))?;
        self.transport.cancel(group, number);
        Some(self.ops.swap_remove(at))
    }

    /// The operations in flight, for deadlines and error texts.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &MessageOp> {
        self.ops.iter()
    }
}
