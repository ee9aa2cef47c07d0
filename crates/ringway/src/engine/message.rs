//! An operation over messages: the executor decides, a transport carries, kernels reduce.

use std::sync::Arc;

use ringway_kernels::{Finish, Stores};
use ringway_link::{LinkError, MessageKey, Sink, Transport};
use ringway_plan::{Action, DataType, Executor, Order, Pending, Place, Rank, ReduceOp, Space};
use ringway_sys::{Memory, Places, Staging};

use super::{narrow::Narrow, spread::Spread, task::Task};

/// The memory and arithmetic of an operation on this rank.
pub(crate) struct Operands {
    pub(crate) input: Memory,
    pub(crate) output: Memory,
    /// Where both lie if not in a row.
    pub(crate) places: Option<Arc<Places>>,
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
    views: Vec<Option<View>>,
    /// What messages between hosts carry, if not the elements as they are.
    narrow: Option<Narrow>,
    /// Where input and output lie, if not in a row.
    spread: Option<Spread>,
}

/// A message that is combined from where it lies.
#[derive(Clone, Copy)]
struct View {
    peer: Rank,
    key: MessageKey,
    is_narrow: bool,
    memory: Memory,
}

impl MessageOp {
    pub(crate) fn new(
        task: Arc<Task>,
        executor: Executor,
        operands: Operands,
        narrow: Option<Narrow>,
    ) -> Self {
        let scratch = Staging::new(executor.scratch_bytes());
        let views = vec![None; executor.views()];
        let spread = operands.places.clone().map(Spread::new);
        Self {
            task,
            executor,
            operands,
            scratch,
            views,
            narrow,
            spread,
        }
    }

    /// Gives back the executor for the next operation of the same plan.
    pub(crate) fn into_executor(self) -> Executor {
        self.executor
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

    /// The first bytes of a place, as far as they lie in a row.
    fn row(&self, place: Place) -> Memory {
        let space = match (place.space, &self.spread) {
            (Space::Scratch, _) => self.scratch.memory(),
            (_, Some(spread)) => return spread.first(place.range()),
            (Space::Input, None) => self.operands.input,
            (Space::Output, None) => self.operands.output,
        };
        space.slice(place.range())
    }

    /// Calls `f` with parts of places of the same length that lie in a row in each, and where such a part begins.
    fn rows<const N: usize>(&self, mut places: [Place; N], f: impl Fn(usize, [Memory; N])) {
        let mut at = 0;
        while let rows = places.map(|place| self.row(place))
            && let Some(len) = rows.iter().map(|row| row.len()).min()
            && len > 0
        {
            f(at, rows.map(|row| row.slice(0..len)));
            at += len;
            for place in &mut places {
                place.offset += len;
                place.len -= len;
            }
        }
    }

    /// Memory to send a place from.
    fn source(&mut self, peer: Rank, key: MessageKey, place: Place) -> Memory {
        match &mut self.spread {
            Some(spread) if place.space != Space::Scratch => spread.leave(peer, key, place.range()),
            _ => self.row(place),
        }
    }

    /// Memory to receive a place in.
    fn target(&mut self, peer: Rank, key: MessageKey, place: Place) -> Memory {
        match &mut self.spread {
            Some(spread) if place.space != Space::Scratch => {
                spread.expect(peer, key, place.range())
            }
            _ => self.row(place),
        }
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
                    let (to, key) = self.address(peer, lane, message, slice);
                    let src = self.source(to, key, src);
                    let src = match self.narrow_to(peer) {
                        Some(narrow) => narrow.leave(to, key, src),
                        None => src,
                    };
                    transport.send(to, key, src, self.task.priority)?;
                }
                Action::Recv {
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                    ..
                } => {
                    let (from, key) = self.address(peer, lane, message, slice);
                    let dst = self.target(from, key, dst);
                    let sink = match self.narrow_to(peer) {
                        Some(narrow) => Sink::View(narrow.expect(from, key, dst)),
                        None => Sink::Place(dst),
                    };
                    transport.recv(from, key, sink)?;
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
                    let (from, key) = self.address(peer, lane, message, slice);
                    let narrow = self.narrow_to(peer);
                    let is_narrow = narrow.is_some();
                    let len = narrow.map_or(len, |narrow| narrow.wire_bytes(len));
                    self.views[view] = Some(View {
                        peer: from,
                        key,
                        is_narrow,
                        memory: Memory::EMPTY,
                    });
                    transport.recv(from, key, Sink::View(len))?;
                }
                Action::Combine {
                    id,
                    view,
                    own,
                    dst,
                    order,
                    finish,
                } => {
                    let Some(view) = self.views[view].take() else {
                        unreachable!("the executor combines a view once, after it has arrived")
                    };
                    let narrow = self.narrow.as_ref().filter(|_| view.is_narrow);
                    let wide = narrow.map(|narrow| narrow.widen(view.memory));
                    let theirs = wide.as_ref().map_or(view.memory, Staging::memory);
                    self.rows([own, dst], |at, [own, dst]| {
                        let theirs = theirs.slice(at..at + own.len());
                        match order {
                            Order::LocalFirst => self.reduce(dst, own, theirs, finish),
                            Order::RemoteFirst => self.reduce(dst, theirs, own, finish),
                        }
                    });
                    transport.release(view.peer, view.key);
                    self.executor.handle_done(id);
                }
                Action::Copy { id, src, dst } => {
                    self.rows([src, dst], |_, [src, dst]| {
                        if src != dst {
                            dst.copy_from(src);
                        }
                    });
                    self.executor.handle_done(id);
                }
                Action::Reduce {
                    id,
                    a,
                    b,
                    dst,
                    finish,
                } => {
                    self.rows([a, b, dst], |_, [a, b, dst]| self.reduce(dst, a, b, finish));
                    self.executor.handle_done(id);
                }
            }
        }
        Ok(())
    }

    /// How messages of a member go, if they are narrow.
    fn narrow_to(&mut self, member: Rank) -> Option<&mut Narrow> {
        self.narrow.as_mut().filter(|narrow| narrow.is_far(member))
    }

    /// A message has left.
    pub(crate) fn sent(&mut self, peer: Rank, key: MessageKey) {
        if let Some(narrow) = &mut self.narrow {
            narrow.left(peer, key);
        }
        if let Some(spread) = &mut self.spread {
            spread.left(peer, key);
        }
        let member = self.task.members.iter().position(|&m| m == peer);
        let sending = |m| self.executor.sending(m, key.lane, key.message, key.slice);
        if let Some(id) = member.and_then(sending) {
            self.executor.handle_done(id);
        }
    }

    /// A message has come; `view` is where it lies if it was asked for as a view.
    pub(crate) fn received(
        &mut self,
        peer: Rank,
        key: MessageKey,
        view: Memory,
        transport: &mut dyn Transport,
    ) {
        let asked =
            |v: &&mut Option<View>| v.as_ref().is_some_and(|v| (v.peer, v.key) == (peer, key));
        if let Some(Some(slot)) = self.views.iter_mut().find(asked) {
            slot.memory = view;
        } else if let Some(narrow) = &mut self.narrow
            && narrow.come(peer, key, view)
        {
            transport.release(peer, key);
        }
        if let Some(spread) = &mut self.spread {
            spread.come(peer, key);
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
        if let Some(narrow) = self.narrow.as_ref().filter(|_| finish) {
            narrow.round(dst);
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
