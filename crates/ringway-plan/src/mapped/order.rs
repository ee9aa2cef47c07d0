//! One order of all steps of all ranks.

use std::collections::{BTreeMap, VecDeque};

use super::{
    action::{Loc, Place},
    cells::Cells,
};
use crate::schedule::{Op, Rank, Schedule, Span, StepRef};

/// A step at its place in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    pub(super) rank: Rank,
    pub(super) at: StepRef,
    pub(super) op: Op,
    /// For a receive, what its sender sends.
    pub(super) sent: Option<Span>,
}

/// Steps by number, with what each waits for.
struct Graph {
    steps: Vec<(Rank, StepRef, Op)>,
    /// The other side of each message.
    partner: Vec<Option<usize>>,
    missing: Vec<usize>,
    waiting: Vec<Vec<usize>>,
}

/// All steps but sends, in an order in which they can be done one after the other, each send at the place of the
/// receive that it meets. Steps that are ready together come in the order in which they became so, which is
/// about the order in time.
pub(super) fn order(schedule: &Schedule, cells: &Cells) -> Vec<Ordered> {
    let mut graph = Graph::new(schedule, cells);
    let mut order = Vec::with_capacity(graph.steps.len());
    let mut done = vec![false; graph.steps.len()];
    let mut ready: VecDeque<usize> = (0..graph.steps.len())
        .filter(|&step| graph.missing[step] == 0)
        .collect();
    while let Some(step) = ready.pop_front() {
        let partner = graph.partner[step];
        // A message is done when both its sides have begun; the later of the two does it.
        if done[step] || partner.is_some_and(|other| graph.missing[other] > 0) {
            continue;
        }
        let sides = [Some(step), partner].into_iter().flatten();
        for side in sides.clone() {
            done[side] = true;
            let (rank, at, op) = graph.steps[side];
            if !matches!(op, Op::Send { .. }) {
                let sent =
                    graph.partner[side].and_then(|other| graph.steps[other].2.reads().next());
                order.push(Ordered { rank, at, op, sent });
            }
        }
        for side in sides {
            for next in std::mem::take(&mut graph.waiting[side]) {
                graph.missing[next] -= 1;
                if graph.missing[next] == 0 {
                    ready.push_back(next);
                }
            }
        }
    }
    order
}

impl Graph {
    fn new(schedule: &Schedule, cells: &Cells) -> Self {
        let mut steps = Vec::with_capacity(schedule.steps());
        let mut firsts = Vec::with_capacity(schedule.ranks());
        for (rank, program) in schedule.programs.iter().enumerate() {
            let mut lanes = Vec::with_capacity(program.lanes.len());
            for (lane, l) in program.lanes.iter().enumerate() {
                lanes.push(steps.len());
                steps.extend(
                    l.steps
                        .iter()
                        .enumerate()
                        .map(|(step, s)| (rank, StepRef { lane, step }, s.op)),
                );
            }
            firsts.push(lanes);
        }
        let count = steps.len();
        let partner = partners(&steps);
        let mut graph = Self {
            steps,
            partner,
            missing: vec![0; count],
            waiting: vec![Vec::new(); count],
        };
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (lane, l) in program.lanes.iter().enumerate() {
                graph.lane_hazards(
                    firsts[rank][lane]..firsts[rank][lane] + l.steps.len(),
                    cells,
                );
                for (step, s) in l.steps.iter().enumerate() {
                    for after in &s.after {
                        let on = firsts[rank][after.lane] + after.step;
                        graph.wait(firsts[rank][lane] + step, on);
                    }
                }
            }
        }
        graph
    }

    fn wait(&mut self, step: usize, on: usize) {
        if step != on {
            self.missing[step] += 1;
            self.waiting[on].push(step);
        }
    }

    /// Steps of a lane wait for earlier ones where they touch a common chunk and one of them writes it.
    fn lane_hazards(&mut self, lane: std::ops::Range<usize>, cells: &Cells) {
        let mut writer: BTreeMap<usize, usize> = BTreeMap::new();
        let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for step in lane {
            let (rank, _, op) = self.steps[step];
            for cell in op
                .reads()
                .flat_map(|span| chunks(rank, span))
                .map(|loc| cells.of(loc))
            {
                if let Some(&on) = writer.get(&cell) {
                    self.wait(step, on);
                }
                readers.entry(cell).or_default().push(step);
            }
            for loc in op.writes().into_iter().flat_map(|span| chunks(rank, span)) {
                let cell = cells.of(loc);
                for on in readers.remove(&cell).unwrap_or_default() {
                    self.wait(step, on);
                }
                if let Some(on) = writer.insert(cell, step) {
                    self.wait(step, on);
                }
            }
        }
    }
}

/// The places of a span's chunks.
pub(super) fn chunks(rank: Rank, span: Span) -> impl Iterator<Item = Loc> {
    (span.chunk..span.chunk + span.count).map(move |chunk| Loc {
        rank,
        place: Place::of(span.space, chunk),
    })
}

/// The other side of each message: the k-th send of a lane to a rank meets the k-th receive.
fn partners(steps: &[(Rank, StepRef, Op)]) -> Vec<Option<usize>> {
    let mut channels: BTreeMap<(Rank, Rank, usize), [Vec<usize>; 2]> = BTreeMap::new();
    for (number, &(rank, at, op)) in steps.iter().enumerate() {
        match op {
            Op::Send { peer, .. } => {
                channels.entry((rank, peer, at.lane)).or_default()[0].push(number);
            }
            Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => {
                channels.entry((peer, rank, at.lane)).or_default()[1].push(number);
            }
            Op::Copy { .. } | Op::Reduce { .. } => {}
        }
    }
    let mut partner = vec![None; steps.len()];
    for [sends, receives] in channels.into_values() {
        for (send, receive) in sends.into_iter().zip(receives) {
            (partner[send], partner[receive]) = (Some(receive), Some(send));
        }
    }
    partner
}
