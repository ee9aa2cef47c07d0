//! An operation over messages: the executor decides, a transport carries, kernels reduce.

use std::sync::Arc;

use ringway_kernels::{Finish, Stores};
use ringway_link::{LinkError, MessageKey, Sink, Transport};
use ringway_plan::{Action, DataType, Executor, Order, Pending, Place, Rank, ReduceOp, Space};
use ringway_sys::{Memory, Staging};

use super::task::Task;

/// The memory and arithmetic of an operation on this rank.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) input: Memory,
    pub(crate) output: Memory,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<ReduceOp>,
    /// What is done to completed sums.
    pub(crate) finish: Finish,
}

/// One operation of one group that runs over messages.
pub(crate) struct MessageOp {
    pub(crate) task: Arc<Task>,
    executor: Executor,
    operands: Operands,
    /// Kept by the process for the next operation: fresh memory costs a page fault for each page.
    scratch: Staging,
    /// Messages asked for as views, by the executor's number: where they lie once they are there.
    views: Vec<Option<(Rank, MessageKey, Memory)>>,
}

impl MessageOp {
    pub(crate) fn new(task: Arc<Task>, executor: Executor, operands: Operands) -> Self {
        let scratch = Staging::new(executor.scratch_bytes());
        let views = vec![None; executor.views()];
        Self {
            task,
            executor,
            operands,
            scratch,
            views,
        }
    }

    /// Gives back the executor for the next operation of the same plan.
    pub(crate) fn into_executor(self) -> Executor {
        self.executor
    }

    pub(crate) fn is_for(&self, group: u64, number: u32) -> bool {
        self.task.number == number && self.task.group == group
    }

    pub(crate) fn is_done(&self) -> bool {
        self.executor.is_done()
    }

    /// The messages that it waits for, each with the world's rank of the peer.
    pub(crate) fn waiting_for(&self) -> impl Iterator<Item = (Rank, Pending)> {
        self.executor
            .pending()
            .into_iter()
            .map(|p| (self.task.members[p.peer], p))
    }

    fn memory(&self, place: Place) -> Memory {
        let space = match place.space {
            Space::Input => self.operands.input,
            Space::Output => self.operands.output,
            Space::Scratch => self.scratch.memory(),
        };
        space.slice(place.range())
    }

    /// Starts everything that may start.
    pub(crate) fn pump(&mut self, transport: &mut dyn Transport) -> Result<(), LinkError> {
        while let Some(action) = self.executor.poll() {
            match action {
                Action::Send {
                    peer,
                    lane,
                    message,
                    slice,
                    src,
                    ..
                } => {
                    let (peer, key) = self.address(peer, lane, message, slice);
                    transport.send(peer, key, self.memory(src), self.task.priority)?;
                }
                Action::Recv {
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                    ..
                } => {
                    let (peer, key) = self.address(peer, lane, message, slice);
                    transport.recv(peer, key, Sink::Place(self.memory(dst)))?;
                }
                Action::View {
                    peer,
                    lane,
                    message,
                    slice,
                    len,
                    view,
                    ..
                } => {
                    let (peer, key) = self.address(peer, lane, message, slice);
                    self.views[view] = Some((peer, key, Memory::EMPTY));
                    transport.recv(peer, key, Sink::View(len))?;
                }
                Action::Combine {
                    id,
                    view,
                    own,
                    dst,
                    order,
                    finish,
                } => {
                    let (own, dst) = (self.memory(own), self.memory(dst));
                    let Some((peer, key, view)) = self.views[view].take() else {
                        unreachable!("the executor combines a view once, after it has arrived")
                    };
                    match order {
                        Order::LocalFirst => self.reduce(dst, own, view, finish),
                        Order::RemoteFirst => self.reduce(dst, view, own, finish),
                    }
                    transport.release(peer, key);
                    self.executor.handle_done(id);
                }
                Action::Copy { id, src, dst } => {
                    let (src, dst) = (self.memory(src), self.memory(dst));
                    if src != dst {
                        dst.copy_from(src);
                    }
                    self.executor.handle_done(id);
                }
                Action::Reduce {
                    id,
                    a,
                    b,
                    dst,
                    finish,
                } => {
                    let (a, b, dst) = (self.memory(a), self.memory(b), self.memory(dst));
                    self.reduce(dst, a, b, finish);
                    self.executor.handle_done(id);
                }
            }
        }
        Ok(())
    }

    /// A message has left.
    pub(crate) fn sent(&mut self, peer: Rank, key: MessageKey) {
        let member = self.task.members.iter().position(|&m| m == peer);
        let sending = |m| self.executor.sending(m, key.lane, key.message, key.slice);
        if let Some(id) = member.and_then(sending) {
            self.executor.handle_done(id);
        }
    }

    /// A message has come; `view` is where it lies if it was asked for as a view.
    pub(crate) fn received(&mut self, peer: Rank, key: MessageKey, view: Memory) {
        let asked = |v: &&mut Option<(Rank, MessageKey, Memory)>| {
            v.as_ref().is_some_and(|(p, k, _)| *p == peer && *k == key)
        };
        if let Some(Some(slot)) = self.views.iter_mut().find(asked) {
            slot.2 = view;
        }
        let member = self.task.members.iter().position(|&m| m == peer);
        let receiving = |m| self.executor.receiving(m, key.lane, key.message, key.slice);
        if let Some(id) = member.and_then(receiving) {
            self.executor.handle_done(id);
        }
    }

    fn reduce(&self, dst: Memory, a: Memory, b: Memory, finish: bool) {
        let Some(op) = self.operands.op else {
            unreachable!(
                "a verified schedule reduces only where its collective does, and then `check` wants an operation"
            )
        };
        let dtype = self.operands.dtype;
        match self.operands.finish {
            divide @ Finish::Divide(_) if finish => {
                Memory::combine(dtype, op, &[dst], &[a, b], divide, Stores::Cached);
            }
            _ => Memory::reduce(dtype, op, dst, a, b),
        }
    }

    fn address(&self, peer: Rank, lane: u16, message: u32, slice: u32) -> (Rank, MessageKey) {
        let (group, op) = (self.task.group, self.task.number);
        (
            self.task.members[peer],
            MessageKey {
                group,
                op,
                lane,
                message,
                slice,
            },
        )
    }
}
