//! In which order steps can be done, if in any: deadlocks.

use super::{
    error::VerifyError,
    graph::{Graph, NONE},
};
use crate::schedule::Op;

/// An order in which the steps can be done.
pub(super) struct Order {
    /// All steps; a receive right behind its send.
    pub(super) steps: Vec<u32>,
    /// The place of each step in that order.
    pub(super) place: Vec<u32>,
}

impl Graph<'_> {
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
        let mut edges = Vec::with_capacity(graph.len());
        let mut missing = vec![0; graph.len()];
        for (step, missing) in missing.iter_mut().enumerate() {
            let before = edges.len();
            for on in graph.waits_for(step) {
                // The chunks of a step mostly wait for those of one other.
                let edge = (on as u32, step as u32);
                if edges.last() != Some(&edge) {
                    edges.push(edge);
                }
            }
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
