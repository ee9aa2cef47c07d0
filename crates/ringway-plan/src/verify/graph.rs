//! Steps, the chunks they touch, and what comes before what.

use std::{collections::HashMap, ops::Range};

use super::{
    error::{Memory, Site, VerifyError},
    shape::{Chunks, main_span, one},
};
use crate::schedule::{Op, Rank, Schedule, Space, Span, Step, StepRef};

pub(super) const NONE: u32 = u32::MAX;

/// The schedule as a graph. Steps are numbered through all ranks and lanes; the *touches* of a step, one
/// for each chunk (and one for a signal, which has none), likewise.
pub(super) struct Graph<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) memory: Memory,
    /// Where each step stands.
    steps: Vec<(Rank, StepRef)>,
    /// For each rank and lane, the number of its first step.
    first: Vec<Vec<usize>>,
    /// For each step the number of its first touch, and one more at the end.
    touches: Vec<usize>,
    /// The step that each touch is of.
    step_of: Vec<u32>,
    /// Where each rank's spaces begin.
    spaces: Vec<Spaces>,
    /// The other side of each message, by step.
    partner: Vec<u32>,
    /// The message before in the same lane, direction and pair of ranks, by step.
    previous: Vec<u32>,
    /// For each touch, where its hazards start in `hazards`, and one more at the end.
    hazard_start: Vec<usize>,
    /// Touches of the same lane that come before, because of a chunk that both touch.
    hazards: Vec<u32>,
}

/// An order in which the steps can be done.
pub(super) struct Order {
    /// All steps; a receive right behind its send.
    pub(super) steps: Vec<u32>,
    /// The place of each step in that order.
    pub(super) place: Vec<u32>,
}

impl<'a> Graph<'a> {
    /// Builds the graph of a schedule that passed the checks of shape, with input and output apart.
    pub(super) fn new(schedule: &'a Schedule) -> Result<Self, VerifyError> {
        let mut steps = Vec::with_capacity(schedule.steps());
        let mut touches = Vec::with_capacity(schedule.steps() + 1);
        let mut first = Vec::with_capacity(schedule.ranks());
        let mut step_of = Vec::new();
        for (rank, program) in schedule.programs.iter().enumerate() {
            let mut lanes = Vec::with_capacity(program.lanes.len());
            for (lane, l) in program.lanes.iter().enumerate() {
                lanes.push(steps.len());
                for (step, s) in l.steps.iter().enumerate() {
                    touches.push(step_of.len());
                    let count = main_span(&s.op).count.max(1);
                    step_of.resize(step_of.len() + count, steps.len() as u32);
                    steps.push((rank, StepRef { lane, step }));
                }
            }
            first.push(lanes);
        }
        touches.push(step_of.len());
        let none = vec![NONE; steps.len()];
        let mut graph = Self {
            schedule,
            memory: Memory::Apart,
            steps,
            first,
            touches,
            step_of,
            spaces: (0..schedule.ranks())
                .map(|rank| Spaces::new(schedule, rank))
                .collect(),
            partner: none.clone(),
            previous: none,
            hazard_start: Vec::new(),
            hazards: Vec::new(),
        };
        graph.meet()?;
        graph.find_hazards()?;
        Ok(graph)
    }

    /// The same with input and output as the same memory.
    pub(super) fn in_place(mut self) -> Result<Self, VerifyError> {
        self.memory = Memory::Shared;
        self.find_hazards()?;
        Ok(self)
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn rank(&self, step: usize) -> Rank {
        self.steps[step].0
    }

    pub(super) fn lane(&self, step: usize) -> usize {
        self.steps[step].1.lane
    }

    pub(super) fn step(&self, step: usize) -> &'a Step {
        let (rank, at) = self.steps[step];
        &self.schedule.programs[rank].lanes[at.lane].steps[at.step]
    }

    pub(super) fn number(&self, rank: Rank, at: StepRef) -> usize {
        self.first[rank][at.lane] + at.step
    }

    pub(super) fn site(&self, step: usize, chunk: usize) -> Box<Site> {
        self.site_of(step, main_span(&self.step(step).op), chunk)
    }

    /// The site of a step, at chunk `chunk` of `span`.
    pub(super) fn site_of(&self, step: usize, span: Span, chunk: usize) -> Box<Site> {
        let (rank, at) = self.steps[step];
        Box::new(Site {
            rank,
            step: at,
            chunk: one(span, chunk),
            op: self.step(step).op,
        })
    }

    pub(super) fn touches(&self, step: usize) -> Range<usize> {
        self.touches[step]..self.touches[step + 1]
    }

    pub(super) fn touch_count(&self) -> usize {
        self.step_of.len()
    }

    pub(super) fn hazards(&self, touch: usize) -> &[u32] {
        &self.hazards[self.hazard_start[touch]..self.hazard_start[touch + 1]]
    }

    /// The other side of a message; `None` for steps of one rank.
    pub(super) fn partner(&self, step: usize) -> Option<usize> {
        Some(self.partner[step])
            .filter(|&p| p != NONE)
            .map(|p| p as usize)
    }

    /// The number of chunks of a rank's memory.
    pub(super) fn places(&self, rank: Rank) -> usize {
        self.spaces[rank].end
    }

    /// The number of a chunk in its rank's memory. In place, output chunks that are also input have the
    /// number of the input chunk.
    pub(super) fn place(&self, rank: Rank, space: Space, chunk: usize) -> usize {
        let spaces = &self.spaces[rank];
        match space {
            Space::Input => chunk,
            Space::Output if self.memory == Memory::Shared => {
                let vector = spaces.output.start + chunk;
                match spaces.input.contains(&vector) {
                    true => vector - spaces.input.start,
                    false => spaces.input.len() + chunk,
                }
            }
            Space::Output => spaces.input.len() + chunk,
            Space::Scratch => spaces.input.len() + spaces.output.len() + chunk,
        }
    }

    /// Finds the other side of every message.
    fn meet(&mut self) -> Result<(), VerifyError> {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (number, &(rank, at)) in self.steps.iter().enumerate() {
            match self.step(number).op {
                Op::Send { peer, .. } => sends.push((rank, peer, at.lane, number)),
                Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => {
                    receives.push((peer, rank, at.lane, number));
                }
                Op::Copy { .. } | Op::Reduce { .. } => {}
            }
        }
        sends.sort_unstable();
        receives.sort_unstable();
        let key = |m: &(Rank, Rank, usize, usize)| (m.0, m.1, m.2);
        for i in 0..sends.len().max(receives.len()) {
            let (send, receive) = (sends.get(i), receives.get(i));
            let odd = match (send, receive) {
                (Some(s), Some(r)) if key(s) == key(r) => {
                    self.partner[s.3] = r.3 as u32;
                    self.partner[r.3] = s.3 as u32;
                    continue;
                }
                (Some(s), Some(r)) if key(s) < key(r) => s,
                (Some(s), None) => s,
                (_, Some(r)) => r,
                (None, None) => unreachable!("i is below one of the lengths"),
            };
            let count = |of: &[_]| of.iter().filter(|m| key(m) == key(odd)).count();
            return Err(VerifyError::Unmatched {
                at: self.site(odd.3, 0),
                from: odd.0,
                to: odd.1,
                sends: count(&sends),
                receives: count(&receives),
            });
        }
        for messages in [&sends, &receives] {
            for pair in messages
                .windows(2)
                .filter(|pair| key(&pair[0]) == key(&pair[1]))
            {
                self.previous[pair[1].3] = pair[0].3 as u32;
            }
        }
        for &(from, to, _, send) in &sends {
            let receive = self.partner[send] as usize;
            let (src, dst) = (
                main_span(&self.step(send).op),
                main_span(&self.step(receive).op),
            );
            if let Some(i) = Chunks::new(self.schedule).differ((from, src), (to, dst)) {
                return Err(VerifyError::MessageSize {
                    send: self.site(send, i),
                    sent: src.count,
                    receive: self.site(receive, i),
                    received: dst.count,
                });
            }
        }
        Ok(())
    }

    /// Finds what comes before each touch in its lane.
    fn find_hazards(&mut self) -> Result<(), VerifyError> {
        let mut hazards = Vec::new();
        let mut hazard_start = Vec::with_capacity(self.touch_count() + 1);
        for rank in 0..self.schedule.ranks() {
            let mut uses = Uses::new(self.places(rank));
            for lane in 0..self.first[rank].len() {
                uses.forget();
                for step in 0..self.schedule.programs[rank].lanes[lane].steps.len() {
                    let number = self.number(rank, StepRef { lane, step });
                    let op = self.step(number).op;
                    self.no_overlap(number, &op)?;
                    for (i, touch) in self.touches(number).enumerate() {
                        hazard_start.push(hazards.len());
                        if main_span(&op).count == 0 {
                            continue;
                        }
                        for span in op.reads() {
                            let place = self.place(rank, span.space, span.chunk + i);
                            uses.read(place, touch as u32, &mut hazards);
                        }
                        if let Some(span) = op.writes() {
                            let place = self.place(rank, span.space, span.chunk + i);
                            uses.write(place, touch as u32, &mut hazards);
                        }
                    }
                }
            }
        }
        hazard_start.push(hazards.len());
        self.hazards = hazards;
        self.hazard_start = hazard_start;
        Ok(())
    }

    /// A step may write what it reads, but chunk for chunk.
    fn no_overlap(&self, number: usize, op: &Op) -> Result<(), VerifyError> {
        let Some(dst) = op.writes().filter(|s| s.count > 1) else {
            return Ok(());
        };
        let rank = self.rank(number);
        let place = |span: Span, i| self.place(rank, span.space, span.chunk + i);
        for src in op.reads() {
            if place(src, 0) == place(dst, 0)
                && place(src, src.count - 1) == place(dst, dst.count - 1)
            {
                continue;
            }
            let read = (0..src.count).map(|i| (place(src, i), i));
            let read: HashMap<_, _> = read.collect();
            let clash = (0..dst.count).find(|&i| read.get(&place(dst, i)).is_some_and(|&j| j != i));
            if let Some(i) = clash {
                return Err(VerifyError::Overlap {
                    at: self.site(number, i),
                    memory: self.memory,
                });
            }
        }
        Ok(())
    }

    /// Finds an order in which all steps can be done without any buffering, or the deadlock.
    pub(super) fn order(&self) -> Result<Order, VerifyError> {
        let mut waits = Waits::new(self);
        let mut order = Order {
            steps: Vec::with_capacity(self.len()),
            place: vec![NONE; self.len()],
        };
        let mut begun: Vec<u32> = (0..self.len() as u32)
            .filter(|&s| waits.missing[s as usize] == 0)
            .collect();
        // A step is done at once if it is alone, else when its partner has begun too.
        while let Some(step) = begun.pop() {
            let (sender, receiver) =
                match (self.partner(step as usize), self.step(step as usize).op) {
                    (None, _) => (step as usize, None),
                    (Some(other), _) if waits.missing[other] > 0 => continue,
                    (Some(other), Op::Send { .. }) => (step as usize, Some(other)),
                    (Some(other), _) => (other, Some(step as usize)),
                };
            if order.place[sender] != NONE {
                continue;
            }
            for done in [Some(sender), receiver].into_iter().flatten() {
                order.place[done] = order.steps.len() as u32;
                order.steps.push(done as u32);
            }
            for done in [Some(sender), receiver].into_iter().flatten() {
                waits.done(done, &mut begun);
            }
        }
        match order.steps.len() == self.len() {
            true => Ok(order),
            false => Err(self.deadlock(&waits, &order)),
        }
    }

    /// Follows the waits of a step that was never done until they close.
    fn deadlock(&self, waits: &Waits, order: &Order) -> VerifyError {
        let undone = |s: &usize| order.place[*s] == NONE;
        let Some(mut at) = (0..self.len()).find(undone) else {
            unreachable!("some step was not done")
        };
        let mut seen = vec![NONE; self.len()];
        let mut path = Vec::new();
        while seen[at] == NONE {
            seen[at] = path.len() as u32;
            path.push(at);
            // A step that has begun waits for its partner to begin; any other for one that is not done.
            let next = match waits.missing[at] {
                0 => self.partner(at),
                _ => self.waits_for(at).find(undone),
            };
            at = next.unwrap_or_else(|| unreachable!("a step that is not done waits for another"));
        }
        let cycle = path[seen[at] as usize..]
            .iter()
            .map(|&s| *self.site(s, 0))
            .collect();
        VerifyError::Deadlock {
            memory: self.memory,
            cycle,
        }
    }

    /// The steps of the rank that must be done before `step` begins.
    fn waits_for(&self, step: usize) -> impl Iterator<Item = usize> {
        let hazards = self.touches(step).flat_map(|t| self.hazards(t));
        let rank = self.rank(step);
        let after = self
            .step(step)
            .after
            .iter()
            .map(move |&at| self.number(rank, at));
        let previous = Some(self.previous[step])
            .filter(|&p| p != NONE)
            .map(|p| p as usize);
        hazards
            .map(|&t| self.step_of(t as usize))
            .chain(after)
            .chain(previous)
    }

    /// The step that a touch is of.
    pub(super) fn step_of(&self, touch: usize) -> usize {
        self.step_of[touch] as usize
    }
}

/// A rank's memory: its input, its output, its scratch.
struct Spaces {
    input: Range<usize>,
    output: Range<usize>,
    end: usize,
}

impl Spaces {
    fn new(s: &Schedule, rank: Rank) -> Self {
        let input = s.collective.input_chunks(s.ranks(), s.chunks, rank);
        let output = s.collective.output_chunks(s.ranks(), s.chunks, rank);
        let end = input.len() + output.len() + s.programs[rank].scratch.len();
        Self { input, output, end }
    }
}

/// Who reads and writes each place, in one lane.
struct Uses {
    writer: Vec<u32>,
    /// The latest reader since then, as an index in `readers`.
    latest: Vec<u32>,
    /// Readers, each with the index of the one before.
    readers: Vec<(u32, u32)>,
    used: Vec<usize>,
}

impl Uses {
    fn new(places: usize) -> Self {
        Self {
            writer: vec![NONE; places],
            latest: vec![NONE; places],
            readers: Vec::new(),
            used: Vec::new(),
        }
    }

    fn forget(&mut self) {
        for place in self.used.drain(..) {
            (self.writer[place], self.latest[place]) = (NONE, NONE);
        }
        self.readers.clear();
    }

    fn read(&mut self, place: usize, touch: u32, hazards: &mut Vec<u32>) {
        if self.writer[place] != NONE {
            hazards.push(self.writer[place]);
        }
        self.readers.push((touch, self.latest[place]));
        self.latest[place] = self.readers.len() as u32 - 1;
        self.used.push(place);
    }

    fn write(&mut self, place: usize, touch: u32, hazards: &mut Vec<u32>) {
        if self.writer[place] != NONE {
            hazards.push(self.writer[place]);
        }
        let mut reader = self.latest[place];
        while reader != NONE {
            let (by, before) = self.readers[reader as usize];
            if by != touch {
                hazards.push(by);
            }
            reader = before;
        }
        (self.writer[place], self.latest[place]) = (touch, NONE);
        self.used.push(place);
    }
}

/// What each step waits for on its rank, and who waits for it.
struct Waits {
    /// How many of them are not done; one that is waited for on several grounds counts as often.
    missing: Vec<u32>,
    start: Vec<u32>,
    waiting: Vec<u32>,
}

impl Waits {
    fn new(graph: &Graph<'_>) -> Self {
        let mut edges = Vec::with_capacity(graph.hazards.len());
        let mut missing = vec![0; graph.len()];
        for (step, missing) in missing.iter_mut().enumerate() {
            let before = edges.len();
            edges.extend(graph.waits_for(step).map(|on| (on as u32, step as u32)));
            *missing = (edges.len() - before) as u32;
        }
        let mut start = vec![0; graph.len() + 1];
        for &(on, _) in &edges {
            start[on as usize + 1] += 1;
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        let mut next = start.clone();
        let mut waiting = vec![0; edges.len()];
        for &(on, step) in &edges {
            waiting[next[on as usize] as usize] = step;
            next[on as usize] += 1;
        }
        Self {
            missing,
            start,
            waiting,
        }
    }

    fn done(&mut self, step: usize, begun: &mut Vec<u32>) {
        for i in self.start[step]..self.start[step + 1] {
            let waiter = self.waiting[i as usize];
            self.missing[waiter as usize] -= 1;
            if self.missing[waiter as usize] == 0 {
                begun.push(waiter);
            }
        }
    }
}
