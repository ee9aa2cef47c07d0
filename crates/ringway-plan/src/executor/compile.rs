//! A rank's program for one layout: bytes in place of chunks, queues in place of lanes.

use std::{collections::BTreeMap, ops::Range};

use super::{Place, WINDOW, hazard::Hazards};
use crate::{
    layout::Layout,
    schedule::{Op, Order, Rank, Space, Span},
    verify::{Memory, Verified},
};

/// What the executor does for a step, and when it looks at what the step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Waits, then sends.
    Send,
    /// Waits, then receives into place.
    Recv,
    /// Receives, then waits, then reduces.
    RecvReduce(Order),
    /// Receives nothing but the signal itself, then waits.
    Signal,
    /// Waits, then copies.
    Copy,
    /// Waits, then reduces.
    Reduce,
    /// Waits, and that is all: a copy of memory to itself, or a step without bytes that orders others.
    Nothing,
}

/// A step, for the hot path. A step's slices have consecutive positions in its queue.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) finish: bool,
    pub(super) queue: u32,
    pub(super) message: u32,
    /// The position of its first slice.
    pub(super) first: u32,
    /// At least one.
    pub(super) slices: u32,
    /// Bytes.
    pub(super) len: usize,
    /// What it reads: first operand, and second.
    pub(super) reads: [Start; 2],
    /// What it writes.
    pub(super) writes: Start,
    /// What it waits for, in `Program::deps`.
    pub(super) deps: Range<u32>,
    /// Which steps wait for it, in `Program::wakes`.
    pub(super) wakes: Range<u32>,
}

/// Where an operand begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    space: Space,
    offset: usize,
}

impl Step {
    /// The bytes of slice `slice` of an operand.
    #[inline]
    pub(super) fn place(&self, operand: Start, slice: u32, slice_bytes: usize) -> Place {
        let start = slice as usize * slice_bytes;
        let len = (self.len - start).min(slice_bytes);
        Place {
            space: operand.space,
            offset: operand.offset + start,
            len,
        }
    }
}

/// Waiting for another step: slice k may start when `lag + k + 1` slices of the other are done, or all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dep {
    pub(super) queue: u32,
    pub(super) first: u32,
    pub(super) slices: u32,
    pub(super) lag: i32,
}

/// The lag of a step that waits for all of another.
const WHOLE: i32 = i32::MAX;

/// Steps whose slices start one after the other: the messages of a lane to or from one peer, or one
/// local step.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) lane: u16,
    /// Of messages.
    pub(super) peer: Rank,
    pub(super) steps: Range<u32>,
    /// Of receives: the number of the first view.
    pub(super) views: u32,
}

impl Queue {
    /// The number of the view that the slice at `position` is held in.
    pub(super) const fn view(&self, position: u32) -> usize {
        (self.views + position % WINDOW) as usize
    }
}

/// What [`super::Executor`] runs.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) slice_bytes: usize,
    /// Sorted by queue, and in a queue by order.
    pub(super) steps: Vec<Step>,
    /// For each of `steps`, its number in the rank's program, counted lane after lane.
    pub(super) source: Vec<usize>,
    /// Those that send, then those that receive, both by lane and peer; then local ones by lane and step.
    pub(super) queues: Vec<Queue>,
    pub(super) senders: usize,
    pub(super) receivers: usize,
    /// The queues of messages as the program comes to them, those that send first. Generators let ranks begin with
    /// different peers, so that they do not all send to one at a time.
    pub(super) begin: Vec<u32>,
    pub(super) deps: Vec<Dep>,
    pub(super) wakes: Vec<u32>,
    pub(super) slices: u64,
    pub(super) scratch_bytes: usize,
    /// Whether all chunks have the same length.
    pub(super) is_even: bool,
}

/// By this queues are sorted. Local steps have one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Send(u16, Rank),
    Recv(u16, Rank),
    Local(usize),
}

impl Program {
    /// Compiles the program of `rank`.
    ///
    /// # Panics
    /// If there is no such rank, more than 2^16 lanes, or more than 2^32 slices in a lane.
    pub(super) fn new(
        schedule: &Verified,
        rank: Rank,
        layout: &Layout,
        slice_bytes: usize,
        memory: Memory,
    ) -> Self {
        let hazards = Hazards::new(schedule, rank, memory);
        let sizes = Sizes {
            hazards: &hazards,
            layout,
        };
        let kept = kept(&sizes);
        let mut program = Self {
            slice_bytes,
            steps: Vec::new(),
            source: Vec::new(),
            queues: Vec::new(),
            senders: 0,
            receivers: 0,
            begin: Vec::new(),
            deps: Vec::new(),
            wakes: Vec::new(),
            slices: 0,
            scratch_bytes: layout.scratch_bytes(),
            is_even: layout.is_even(),
        };
        let mut numbers = vec![None; hazards.at.len()];
        for (key, steps) in queues(&sizes, &kept) {
            let start = program.steps.len() as u32;
            program.open_queue(key, start..start + steps.len() as u32);
            let mut first = 0_u32;
            for (message, number) in steps {
                numbers[number] = Some(program.steps.len());
                let (at, op) = (hazards.at[number], hazards.ops[number]);
                let len = sizes.len(number);
                let slices = u32::try_from(len.div_ceil(slice_bytes).max(1));
                let next = slices.ok().and_then(|slices| first.checked_add(slices));
                let Some(next) = next else {
                    panic!("{at} of rank {rank} has more than 2^32 slices of {slice_bytes} bytes");
                };
                program.steps.push(Step {
                    kind: sizes.kind(number),
                    finish: schedule.completes(rank, at),
                    queue: program.queues.len() as u32 - 1,
                    message,
                    first,
                    slices: next - first,
                    len,
                    reads: sizes.reads(op),
                    writes: op.writes().map_or(NOWHERE, |span| sizes.start(span)),
                    deps: 0..0,
                    wakes: 0..0,
                });
                program.source.push(number);
                first = next;
            }
            program.slices += u64::from(first);
        }
        program.connect(&sizes, &numbers);
        let senders = program.senders as u32;
        program.begin = (0..senders + program.receivers as u32).collect();
        let steps = |&q: &u32| program.queues[q as usize].steps.start as usize;
        program
            .begin
            .sort_by_key(|q| (*q >= senders, program.source[steps(q)]));
        program
    }

    fn open_queue(&mut self, key: Key, steps: Range<u32>) {
        let (lane, peer) = match key {
            Key::Send(lane, peer) => {
                self.senders += 1;
                (lane, peer)
            }
            Key::Recv(lane, peer) => {
                self.receivers += 1;
                (lane, peer)
            }
            Key::Local(_) => (0, 0),
        };
        let views = self.receivers.saturating_sub(1) as u32 * WINDOW;
        self.queues.push(Queue {
            lane,
            peer,
            steps,
            views,
        });
    }

    /// Fills in what each step waits for, and who waits for it.
    fn connect(&mut self, sizes: &Sizes<'_>, numbers: &[Option<usize>]) {
        let mut wakes = vec![Vec::new(); self.steps.len()];
        for (number, edges) in sizes.hazards.edges.iter().enumerate() {
            let Some(step) = numbers[number] else {
                continue;
            };
            let mut lags = BTreeMap::new();
            for edge in edges {
                let Some(on) = numbers[edge.on] else { continue };
                let lag = match edge.spans {
                    None => Some(WHOLE),
                    Some((theirs, ours)) => sizes.lag(theirs, ours, self.slice_bytes),
                };
                if let Some(lag) = lag {
                    lags.entry(on)
                        .and_modify(|l: &mut i32| *l = lag.max(*l))
                        .or_insert(lag);
                }
            }
            let start = self.deps.len() as u32;
            for (on, lag) in lags {
                let Step {
                    queue,
                    first,
                    slices,
                    ..
                } = self.steps[on];
                self.deps.push(Dep {
                    queue,
                    first,
                    slices,
                    lag,
                });
                wakes[on].push(step as u32);
            }
            self.steps[step].deps = start..self.deps.len() as u32;
        }
        for (step, wakes) in self.steps.iter_mut().zip(wakes) {
            let start = self.wakes.len() as u32;
            self.wakes.extend(wakes);
            step.wakes = start..self.wakes.len() as u32;
        }
    }
}

const NOWHERE: Start = Start {
    space: Space::Scratch,
    offset: 0,
};

/// The bytes of a program's steps.
struct Sizes<'a> {
    hazards: &'a Hazards,
    layout: &'a Layout,
}

impl Sizes<'_> {
    /// Bytes that a step moves.
    fn len(&self, step: usize) -> usize {
        let op = self.hazards.ops[step];
        let span = op.writes().or_else(|| op.reads().next());
        span.map_or(0, |span| self.layout.range(span).len())
    }

    fn start(&self, span: Span) -> Start {
        Start {
            space: span.space,
            offset: self.layout.range(span).start,
        }
    }

    fn reads(&self, op: Op) -> [Start; 2] {
        let mut reads = op.reads().map(|span| self.start(span));
        let first = reads.next().unwrap_or(NOWHERE);
        [first, reads.next().unwrap_or(first)]
    }

    fn kind(&self, step: usize) -> Kind {
        let op = self.hazards.ops[step];
        match op {
            Op::Recv { dst, .. } | Op::RecvReduce { dst, .. } if dst.count == 0 => Kind::Signal,
            Op::Send { src, .. } if src.count == 0 => Kind::Send,
            _ if self.len(step) == 0 => Kind::Nothing,
            Op::Copy { src, dst } if self.same(src, dst) => Kind::Nothing,
            Op::Copy { .. } => Kind::Copy,
            Op::Recv { .. } => Kind::Recv,
            Op::RecvReduce { order, .. } => Kind::RecvReduce(order),
            Op::Reduce { .. } => Kind::Reduce,
            Op::Send { .. } => Kind::Send,
        }
    }

    /// Whether two spans are the same memory.
    fn same(&self, one: Span, other: Span) -> bool {
        self.hazards.common(one, other) == Some((one, other))
    }

    /// By how many slices a step that touches `ours` stays behind one that touches `theirs`; `None` if they
    /// share no bytes.
    fn lag(&self, theirs: Span, ours: Span, slice_bytes: usize) -> Option<i32> {
        let (a, b) = self.hazards.common(theirs, ours)?;
        if self.layout.range(a).is_empty() {
            return None;
        }
        // Byte x of ours is byte x + offset of theirs.
        let within = |part, of| self.layout.range(part).start - self.layout.range(of).start;
        let (theirs, ours, slice) = (within(a, theirs), within(b, ours), slice_bytes);
        let lag = match theirs.checked_sub(ours) {
            Some(ahead) => i32::try_from(ahead.div_ceil(slice)).unwrap_or(WHOLE),
            None => -i32::try_from((ours - theirs) / slice).unwrap_or(0),
        };
        Some(lag)
    }
}

/// Which steps have something to do: those that move bytes, signals, and those that order others.
fn kept(sizes: &Sizes<'_>) -> Vec<bool> {
    let steps = sizes.hazards.at.len();
    let mut kept: Vec<bool> = (0..steps)
        .map(|s| sizes.kind(s) != Kind::Nothing || sizes.len(s) > 0)
        .collect();
    for (step, edges) in sizes.hazards.edges.iter().enumerate() {
        for edge in edges.iter().filter(|e| e.spans.is_none()) {
            kept[step] = true;
            kept[edge.on] = true;
        }
    }
    kept
}

/// The steps of each queue, each with the number of its message. Messages without bytes count there, so that
/// both sides agree, but are not sent.
fn queues(sizes: &Sizes<'_>, kept: &[bool]) -> BTreeMap<Key, Vec<(u32, usize)>> {
    let mut queues: BTreeMap<Key, Vec<(u32, usize)>> = BTreeMap::new();
    let mut messages: BTreeMap<Key, u32> = BTreeMap::new();
    for (number, (at, op)) in sizes.hazards.at.iter().zip(&sizes.hazards.ops).enumerate() {
        let Ok(lane) = u16::try_from(at.lane) else {
            panic!("{at}: a schedule has at most 2^16 lanes");
        };
        let mut key = match *op {
            Op::Send { peer, .. } => Key::Send(lane, peer),
            Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => Key::Recv(lane, peer),
            Op::Copy { .. } | Op::Reduce { .. } => Key::Local(number),
        };
        let next = messages.entry(key).or_default();
        let message = std::mem::replace(next, *next + 1);
        if sizes.kind(number) == Kind::Nothing {
            key = Key::Local(number);
        }
        if kept[number] {
            queues.entry(key).or_default().push((message, number));
        }
    }
    queues
}
