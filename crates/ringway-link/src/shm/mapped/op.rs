//! One operation of a group, step by step.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::mapped::{Base, BoundProgram, Wait, Walk};
use ringway_sys::Memory;

use super::{
    MappedCall, MappedError, MappedPlan,
    block::{NOWHERE, POINT_BITS, Place},
    exchange::Block,
    execute,
    group::{Inner, point, timeout},
    inline,
    stores::Trial,
    wait::{self, Awaited, Waiter},
};

/// Bytes that one step moves at most, about.
const SLICE: usize = 256 << 10;

/// What a step of an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The operation is complete: the output is there, and nobody uses this member's memory any more.
    Done,
    /// Something was moved; step again.
    Moved,
    /// Nothing can be done until `member` has reached `point` of its program; 0 is the call itself.
    Waiting {
        /// Whom it waits for.
        member: usize,
        /// Where that one has to come to.
        point: u64,
    },
}

/// An operation in flight. When it is dropped before it is done, the group is of no more use, and other members may
/// still write to memory of the arena that it was given, until they are told to stop.
pub struct MappedOp {
    group: Arc<Inner>,
    call: MappedCall,
    /// In a box, as an operation is moved several times.
    state: Box<State>,
}

/// How far an operation is.
struct State {
    number: u64,
    phase: Phase,
    way: Way,
    peers: Vec<Peer>,
    walk: Walk,
    /// Bytes of the current step that are done.
    done: usize,
    /// How far this member has come.
    point: u64,
    awaited: Awaited,
    trial: Trial,
}

/// What an operation knows of a member; of this member, its own memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Its progress, as last seen.
    seen: u64,
    pub(super) input: Memory,
    pub(super) output: Memory,
    pub(super) staging: Memory,
    /// In whose area its staging lies.
    lender: usize,
    in_arena: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for its context to be free, then tells the others what is called.
    Enter,
    /// Hears what each member calls, from this one on.
    Meet(usize),
    /// Learns where the staging of each member is, from this one on.
    Restage(usize),
    /// Works through the program.
    Work,
    /// Waits for others to be done with this member's memory, from this wait on.
    Leave(usize),
    Done,
}

/// Where the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Arena,
    Inline,
    Staged,
}

impl MappedOp {
    /// The operation with this number of its group, as far as it is. The call has been checked.
    pub(super) fn new(group: Arc<Inner>, call: MappedCall, number: u64, phase: Phase) -> Self {
        let me = group.me;
        let mut peers = vec![Peer::NOTHING; group.members.len()];
        (peers[me].input, peers[me].output) = (call.input, call.output);
        let plan = &call.plan;
        let state = State {
            number,
            phase,
            way: if plan.inline.is_some() {
                Way::Inline
            } else {
                Way::Staged
            },
            peers,
            walk: Walk::new(&plan.staged, plan.segments),
            done: 0,
            point: 0,
            awaited: Awaited {
                member: me,
                word: group.members[me].view.finished(),
                target: 0,
            },
            trial: Trial::NONE,
        };
        Self {
            group,
            call,
            state: Box::new(state),
        }
    }

    /// Moves what can be moved, up to some hundred KiB, without waiting.
    pub fn step(&mut self) -> Result<Progress, MappedError> {
        let Self { group, call, state } = self;
        loop {
            let go_on = match state.phase {
                Phase::Enter => state.enter(group, call)?,
                Phase::Meet(member) => state.meet(group, call, member)?,
                Phase::Restage(member) => state.restage(group, &call.plan, member)?,
                Phase::Work => match state.work(group, call) {
                    Some(true) => return Ok(Progress::Moved),
                    Some(false) => true,
                    None => false,
                },
                Phase::Leave(index) => state.leave(group, &call.plan, index),
                Phase::Done => return Ok(Progress::Done),
            };
            if !go_on {
                let awaited = &state.awaited;
                return Ok(Progress::Waiting {
                    member: awaited.member,
                    point: point(awaited),
                });
            }
        }
    }

    /// Steps until the operation is done, see [`super::MappedGroup::run`].
    pub fn run(
        &mut self,
        deadline: Instant,
        interrupt: &dyn Fn() -> bool,
    ) -> Result<(), MappedError> {
        let group = Arc::clone(&self.group);
        let mut waiter = Waiter::new(&group.segment, &group.spins, group.yielding);
        let number = self.state.number;
        loop {
            match self.step()? {
                Progress::Done => return Ok(()),
                Progress::Waiting { .. } => {
                    let awaited = self.state.awaited;
                    if group.pause(&mut waiter, &awaited, number, deadline, interrupt)? {
                        waiter.reset();
                    }
                }
                Progress::Moved => {
                    waiter.reset();
                    if interrupt() {
                        let Awaited { member, .. } = self.state.awaited;
                        let point = point(&self.state.awaited);
                        return Err(MappedError::Interrupted {
                            member,
                            op: number,
                            point,
                        });
                    }
                }
            }
        }
    }

    /// Asks for the rank's [`crate::shm::HostSegment::bell`] to be rung when a step may find something to do. For threads that
    /// wait for several things at once: they arm all operations, then run one [`ringway_sys::barrier::heavy`], which costs more
    /// than all else here, and sleep if none [may move](Self::may_move). Step again after the ring: it may be about something
    /// else.
    pub fn arm(&self) {
        let awaited = &self.state.awaited;
        let local = self.group.members[awaited.member].local;
        wait::arm(&self.group.segment, local);
    }

    /// Whether what it waited for at its last step is there.
    pub fn may_move(&self) -> bool {
        self.state.awaited.is_there()
    }

    /// Whether others can know of it. Until then it waits for earlier operations of its group, and so do later ones.
    pub fn has_begun(&self) -> bool {
        self.state.phase != Phase::Enter
    }

    /// The point of its program that this member has come to, and told the others; `None` before it has begun.
    pub fn point(&self) -> Option<u64> {
        self.has_begun().then_some(self.state.point)
    }

    /// The number of the operation in its group, from 1.
    pub const fn number(&self) -> u64 {
        self.state.number
    }

    /// The error of an operation that is given up after waiting for so long.
    pub fn timeout(&self, waited: Duration) -> MappedError {
        timeout(&self.state.awaited, self.state.number, waited)
    }
}

impl State {
    /// What a member's progress must be for a point of this operation.
    #[inline]
    const fn count(&self, point: u64) -> u64 {
        self.number << POINT_BITS | point
    }

    fn enter(&mut self, group: &Inner, call: &MappedCall) -> Result<bool, MappedError> {
        let inline = call.plan.inline.as_ref();
        let has_parcel = inline.is_some_and(|plan| plan.has_parcel);
        if let Some(awaited) = group.context_taken(self.number, has_parcel) {
            self.awaited = awaited;
            return Ok(false);
        }
        self.phase = Phase::Meet(0);
        if let Some(plan) = inline {
            inline::show(group, call, plan, self.number);
            return Ok(true);
        }
        let me = group.me;
        let context = group.members[me].context(self.number);
        context.describe(call.descriptor, group.sequence.finished());
        context.costs().store(call.plan.stores.word());
        match self.in_arena(group, call) {
            Some([input, output]) => {
                self.way = Way::Arena;
                self.peers[me].in_arena = [input, output];
                context.locate(input, output, 0);
            }
            None => {
                let staging = self.lend_staging(group, &call.plan)?;
                context.locate(NOWHERE, NOWHERE, staging);
                self.trial.resume();
                self.show(call);
                self.trial.rest();
            }
        }
        self.tell(group);
        Ok(true)
    }

    /// Tells the others how far this member has come.
    #[inline]
    fn tell(&self, group: &Inner) {
        let context = group.members[group.me].context(self.number);
        context.progress().store(self.count(self.point));
        group.waker.wake(&group.segment);
    }

    /// Offsets of the own memory in the arena, if it lies there in a row and that pays.
    fn in_arena(&self, group: &Inner, call: &MappedCall) -> Option<[u64; 2]> {
        let plan = &call.plan;
        plan.arena.as_ref().filter(|_| call.places.is_none())?;
        let own = &self.peers[group.me];
        let needed = plan.extent(group.me);
        let locate = |memory: Memory, needed| match needed {
            0 => Some(0),
            _ => group.segment.locate(memory).map(|offset| offset as u64),
        };
        Some([
            locate(own.input, needed[0])?,
            locate(own.output, needed[1])?,
        ])
    }

    /// Takes staging, if any is needed, and settles how it is filled; returns what the context says of it.
    fn lend_staging(&mut self, group: &Inner, plan: &MappedPlan) -> Result<u64, MappedError> {
        let bytes = plan.staging_bytes();
        if bytes == 0 {
            return Ok(Place::NONE_NEEDED);
        }
        if plan.rotates {
            self.trial = plan.stores.next();
        }
        let arena = group.segment.staging_arena();
        let take = |finished| match plan.exchanges {
            true => group.exchange.take(arena, group.me, bytes),
            false => {
                let op = (self.number, finished);
                let memory = group.staging.lend(arena, bytes, plan.rotates, op)?;
                Ok(Block {
                    member: group.me,
                    memory,
                })
            }
        };
        let block = take(group.sequence.finished_everywhere()).or_else(|_| {
            let finished = group.finished_everywhere();
            group.staging.trim(finished);
            take(finished)
        })?;
        self.peers[group.me].staging = block.memory;
        let area = group.staging_of(block.member);
        let offset = block.memory.as_ptr().addr() - area.as_ptr().addr();
        Ok(Place::new(block.member, offset).word())
    }

    /// Does the first steps, those that wait for nobody and only show memory.
    fn show(&mut self, call: &MappedCall) {
        let plan: &MappedPlan = &call.plan;
        let program = &plan.staged;
        while let Some((index, segment)) = self.walk.at(program) {
            let step = program.step(index);
            let shows = self.walk.round() == 0
                && step.waits.is_empty()
                && program
                    .operands(&step.destinations)
                    .iter()
                    .all(|o| o.base == Base::Staging);
            if !shows {
                return;
            }
            execute::step(
                call,
                program,
                &self.peers,
                step,
                (Some(segment), self.trial.stores),
                0..usize::MAX,
            );
            self.pass(plan, program, index);
        }
    }

    /// Counts a step as done, without telling anybody; returns whether somebody may wait for it.
    fn pass(&mut self, plan: &MappedPlan, program: &BoundProgram, index: usize) -> bool {
        let step = program.step(index);
        let unneeded = step.only_reuse && plan.segments <= plan.copies;
        let point = step.point.filter(|_| !unneeded);
        if let Some(point) = point {
            self.point = self.walk.round() * program.points() + u64::from(point);
        }
        self.walk.advance(program);
        point.is_some()
    }

    fn meet(
        &mut self,
        group: &Inner,
        call: &MappedCall,
        member: usize,
    ) -> Result<bool, MappedError> {
        if member == group.members.len() {
            return self.agree(group, &call.plan);
        }
        if member != group.me {
            let context = group.members[member].context(self.number);
            let word = context.progress();
            let (seen, target) = (word.load(), self.count(0));
            if seen < target {
                self.awaited = Awaited {
                    member,
                    word,
                    target,
                };
                return Ok(false);
            }
            if seen >> POINT_BITS != self.number {
                return Err(MappedError::Corrupt {
                    member,
                    what: "a number of operation",
                });
            }
            inline::hear(group, call, member, self.number)?;
            let peer = &mut self.peers[member];
            peer.seen = seen;
            peer.in_arena = [context.input(), context.output()];
        }
        self.phase = Phase::Meet(member + 1);
        Ok(true)
    }

    /// All have told: goes by the arena if everyone's memory is there.
    fn agree(&mut self, group: &Inner, plan: &MappedPlan) -> Result<bool, MappedError> {
        self.phase = Phase::Work;
        if self.way == Way::Inline {
            return Ok(true);
        }
        let everywhere = self
            .peers
            .iter()
            .all(|peer| !peer.in_arena.contains(&NOWHERE));
        match (&plan.arena, everywhere) {
            (Some(arena), true) => {
                self.walk = Walk::new(arena, 1);
                self.resolve_arena(group, plan)?;
            }
            _ => {
                if self.way == Way::Arena {
                    self.way = Way::Staged;
                    let staging = self.lend_staging(group, plan)?;
                    group.members[group.me]
                        .context(self.number)
                        .staging()
                        .store(staging);
                    group.waker.wake(&group.segment);
                }
                self.phase = Phase::Restage(0);
            }
        }
        Ok(true)
    }

    fn resolve_arena(&mut self, group: &Inner, plan: &MappedPlan) -> Result<(), MappedError> {
        for (member, peer) in self.peers.iter_mut().enumerate() {
            if member == group.me {
                continue;
            }
            let needed = plan.extent(member);
            let local = group.members[member].local;
            let resolve = |index: usize| {
                group
                    .segment
                    .resolve(local, peer.in_arena[index], needed[index])
                    .ok_or(MappedError::Corrupt {
                        member,
                        what: "an offset of memory in the arena",
                    })
            };
            let (input, output) = (resolve(0)?, resolve(1)?);
            (peer.input, peer.output) = (input, output);
        }
        Ok(())
    }

    fn restage(
        &mut self,
        group: &Inner,
        plan: &MappedPlan,
        member: usize,
    ) -> Result<bool, MappedError> {
        let needed = plan.block_bytes();
        if member == group.members.len() || needed == 0 {
            let costs = |member: usize| group.members[member].context(self.number).costs().load();
            let others = (0..group.members.len()).filter(|&member| member != group.me);
            plan.stores.hear(others.map(costs));
            self.phase = Phase::Work;
            self.trial.resume();
            return Ok(true);
        }
        if member != group.me {
            let word = group.members[member].context(self.number).staging();
            let staging = word.load();
            if staging == 0 {
                self.awaited = Awaited {
                    member,
                    word,
                    target: 1,
                };
                return Ok(false);
            }
            let staging = Place::of(staging)
                .filter(|place| {
                    place.member == member || (plan.exchanges && place.member == group.me)
                })
                .and_then(|place| {
                    let area = group.staging_of(place.member);
                    let range = place.offset..place.offset.checked_add(needed)?;
                    (range.end <= area.len()).then(|| (place.member, area.slice(range)))
                });
            let peer = &mut self.peers[member];
            (peer.lender, peer.staging) = staging.ok_or(MappedError::Corrupt {
                member,
                what: "an offset of staging",
            })?;
        }
        self.phase = Phase::Restage(member + 1);
        Ok(true)
    }

    /// Works until something big was moved (true), nothing is left (false), or a wait is not over (`None`).
    fn work(&mut self, group: &Inner, call: &MappedCall) -> Option<bool> {
        let plan: &MappedPlan = &call.plan;
        if let Some(inline) = &plan.inline {
            inline::work(group, call, inline, self.number);
            self.finish(group);
            return Some(false);
        }
        let program = match (&plan.arena, self.way) {
            (Some(arena), Way::Arena) => arena,
            _ => &plan.staged,
        };
        while let Some((index, segment)) = self.walk.at(program) {
            let step = program.step(index);
            if self.done == 0 && !self.ready(group, plan, program, (index, segment)) {
                return None;
            }
            let bytes = self.done..self.done + SLICE;
            let staged = (self.way == Way::Staged).then_some(segment);
            let moved = execute::step(
                call,
                program,
                &self.peers,
                step,
                (staged, self.trial.stores),
                bytes,
            );
            if moved == SLICE {
                self.done += moved;
                return Some(true);
            }
            self.done = 0;
            if self.pass(plan, program, index) {
                self.tell(group);
            }
            if moved >= SLICE / 4 {
                return Some(true);
            }
        }
        match self.way {
            Way::Arena => self.phase = Phase::Leave(0),
            _ => {
                self.trial.rest();
                plan.stores.learn(&self.trial);
                if plan.exchanges {
                    self.keep_staging(group);
                }
                self.finish(group);
            }
        }
        Some(false)
    }

    /// What the other of two members has shown is read: this member writes there next.
    fn keep_staging(&self, group: &Inner) {
        let other = &self.peers[1 - group.me];
        group.exchange.keep(Block {
            member: other.lender,
            memory: other.staging,
        });
    }

    /// Whether all that a step waits for is done.
    fn ready(
        &mut self,
        group: &Inner,
        plan: &MappedPlan,
        program: &BoundProgram,
        (index, segment): (usize, u64),
    ) -> bool {
        let step = program.step(index);
        let reused = segment.checked_sub(plan.copies);
        let waits = program
            .waits(&step.waits)
            .iter()
            .map(|wait| (wait, segment));
        let reuse = program
            .waits(&step.reuse)
            .iter()
            .zip(reused.iter().copied().cycle());
        waits
            .chain(reuse)
            .all(|(wait, segment)| self.over(group, wait, segment))
    }

    #[inline]
    fn over(&mut self, group: &Inner, wait: &Wait, segment: u64) -> bool {
        let target = self.count(wait.target(segment));
        let peer = &mut self.peers[wait.rank];
        if peer.seen >= target {
            return true;
        }
        let word = group.members[wait.rank].context(self.number).progress();
        peer.seen = word.load();
        if peer.seen < target {
            self.awaited = Awaited {
                member: wait.rank,
                word,
                target,
            };
        }
        peer.seen >= target
    }

    fn leave(&mut self, group: &Inner, plan: &MappedPlan, from: usize) -> bool {
        let last = plan.arena.as_ref().map_or(&[][..], BoundProgram::last);
        for (index, wait) in last.iter().enumerate().skip(from) {
            if !self.over(group, wait, 0) {
                self.phase = Phase::Leave(index);
                return false;
            }
        }
        self.finish(group);
        true
    }

    fn finish(&mut self, group: &Inner) {
        group.finish(self.number);
        self.phase = Phase::Done;
    }
}

impl fmt::Debug for MappedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedOp")
            .field("number", &self.state.number)
            .field("phase", &self.state.phase)
            .field("way", &self.state.way)
            .field("point", &self.state.point)
            .finish_non_exhaustive()
    }
}

impl Peer {
    const NOTHING: Self = Self {
        seen: 0,
        input: Memory::EMPTY,
        output: Memory::EMPTY,
        staging: Memory::EMPTY,
        lender: 0,
        in_arena: [NOWHERE; 2],
    };
}
