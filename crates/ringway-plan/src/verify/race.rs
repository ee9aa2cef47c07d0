//! Accesses that conflict must be ordered.

use super::{
    error::VerifyError,
    graph::{Graph, NONE},
    order::Order,
};
use crate::schedule::{Op, Rank, Span};

/// A touch of a place in memory.
#[derive(Clone, Copy)]
struct Access {
    place: usize,
    /// Where its step stands in the order.
    at: u32,
    step: usize,
    touch: usize,
    write: bool,
}

/// Checks that whatever touches a chunk while another step writes it, is ordered with that step.
///
/// The order found for the steps is one in which they may run; so of two accesses only the later can come
/// after the earlier, and it is enough to look at each write and what touched the place since the last.
pub(super) fn check(graph: &Graph<'_>, order: &Order) -> Result<(), VerifyError> {
    let mut search = Search::new(graph, order);
    let mut first = 0;
    for rank in 0..graph.schedule.ranks() {
        let lanes = &graph.schedule.programs[rank].lanes;
        let steps = first..first + lanes.iter().map(|l| l.steps.len()).sum::<usize>();
        first = steps.end;
        if lanes.len() < 2 {
            continue;
        }
        let mut accesses = accesses(graph, order, rank, steps);
        accesses.sort_unstable_by_key(|a| (a.place, a.at, a.write));
        for same in accesses.chunk_by(|a, b| a.place == b.place) {
            let lane = graph.lane(same[0].step);
            if same.iter().all(|a| graph.lane(a.step) == lane) {
                continue;
            }
            let mut since_write = 0;
            for (i, later) in same.iter().enumerate() {
                // Behind a write, a read need only be ordered with that; a write with all reads since, too.
                let window = if later.write {
                    &same[since_write..i]
                } else {
                    &same[since_write..i.min(since_write + 1)]
                };
                for earlier in window {
                    if (later.write || earlier.write) && !search.ordered(earlier, later) {
                        return Err(VerifyError::Race {
                            first: site(graph, earlier),
                            second: site(graph, later),
                            memory: graph.memory,
                        });
                    }
                }
                if later.write {
                    since_write = i;
                }
            }
        }
    }
    Ok(())
}

fn accesses(
    graph: &Graph<'_>,
    order: &Order,
    rank: Rank,
    steps: std::ops::Range<usize>,
) -> Vec<Access> {
    let mut all = Vec::new();
    for step in steps {
        let op = graph.step(step).op;
        let base = |s: Span| graph.place(rank, s.space, s.chunk);
        // A copy of memory to itself does nothing.
        if matches!(op, Op::Copy { src, dst } if base(src) == base(dst)) {
            continue;
        }
        let reads = op.reads().map(|s| (s, false));
        for (span, write) in reads.chain(op.writes().map(|s| (s, true))) {
            for (i, touch) in graph.touches(step).enumerate().take(span.count) {
                let place = graph.place(rank, span.space, span.chunk + i);
                all.push(Access {
                    place,
                    at: order.place[step],
                    step,
                    touch,
                    write,
                });
            }
        }
    }
    all
}

fn site(graph: &Graph<'_>, access: &Access) -> Box<super::Site> {
    let op = graph.step(access.step).op;
    let i = access.touch - graph.touches(access.step).start;
    let rank = graph.rank(access.step);
    let here = |span: &Span| graph.place(rank, span.space, span.chunk + i) == access.place;
    let span = match access.write {
        true => op.writes(),
        false => op.reads().find(here),
    };
    match span {
        Some(span) => graph.site_of(access.step, span, i),
        None => graph.site(access.step, i),
    }
}

/// A search backwards from a touch, through all that surely comes before it.
struct Search<'a> {
    graph: &'a Graph<'a>,
    order: &'a Order,
    /// The number of the search that last saw each touch.
    seen: Vec<u32>,
    searches: u32,
    open: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph<'a>, order: &'a Order) -> Self {
        Self {
            graph,
            order,
            seen: Vec::new(),
            searches: 0,
            open: Vec::new(),
        }
    }

    /// Whether `earlier` surely comes before `later`. Meeting a send from behind its receive counts: what
    /// the send reads is free again once the message has arrived.
    fn ordered(&mut self, earlier: &Access, later: &Access) -> bool {
        if self.graph.lane(earlier.step) == self.graph.lane(later.step) {
            return true;
        }
        self.seen.resize(self.graph.touch_count(), NONE);
        self.searches += 1;
        self.open.clear();
        self.open.push(later.touch as u32);
        while let Some(touch) = self.open.pop() {
            if self.expand(touch as usize, earlier) {
                return true;
            }
        }
        false
    }

    /// Opens what comes right before `touch`; true when that is `goal`.
    fn expand(&mut self, touch: usize, goal: &Access) -> bool {
        let graph = self.graph;
        for &before in graph.hazards(touch) {
            if self.visit(graph.step_of(before as usize), before as usize, goal) {
                return true;
            }
        }
        let step = graph.step_of(touch);
        for &at in &graph.step(step).after {
            let before = graph.number(graph.rank(step), at);
            for touch in graph.touches(before) {
                if self.visit(before, touch, goal) {
                    return true;
                }
            }
        }
        match (graph.step(step).op, graph.partner(step)) {
            (Op::Recv { .. } | Op::RecvReduce { .. }, Some(send)) => {
                let i = touch - graph.touches(step).start;
                self.visit(send, graph.touches(send).start + i, goal)
            }
            _ => false,
        }
    }

    fn visit(&mut self, step: usize, touch: usize, goal: &Access) -> bool {
        if touch == goal.touch {
            return true;
        }
        // Nothing before the goal in the order can come after it.
        if self.order.place[step] > goal.at && self.seen[touch] != self.searches {
            self.seen[touch] = self.searches;
            self.open.push(touch as u32);
        }
        false
    }
}
