//! Steps, the chunks they touch, and what comes before what.

use std::ops::Range;

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
    pub(super) first: Vec<Vec<usize>>,
    /// For each step the number of its first touch, and one more at the end.
    touches: Vec<usize>,
    /// The step that each touch is of.
    step_of: Vec<u32>,
    /// Where each rank's spaces begin.
    spaces: Vec<Spaces>,
    /// The other side of each message, by step.
    partner: Vec<u32>,
    /// The message before in the same lane, direction and pair of ranks, by step.
    pub(super) previous: Vec<u32>,
    /// For each touch, where its hazards start in `hazards`, and one more at the end.
    pub(super) hazard_start: Vec<usize>,
    /// Touches of the same lane that come before, because of a chunk that both touch.
    pub(super) hazards: Vec<u32>,
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
