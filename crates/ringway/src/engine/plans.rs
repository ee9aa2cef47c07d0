//! Which algorithm an operation takes, and what has been prepared for shapes that come again.

use std::collections::HashMap;

use ringway_plan::{
    Algorithm, Collective, Executor, Layout, Memory, Rank, Topology, Verified, generate, verify,
};

use crate::Error;

/// What makes two operations take the same prepared plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) elements: usize,
    pub(crate) element_size: usize,
    pub(crate) in_place: bool,
}

/// A group's schedules, and executors that wait for the next operation of their shape.
pub(crate) struct Plans {
    rank: Rank,
    topology: Topology,
    chosen: HashMap<(Collective, usize), Algorithm>,
    schedules: HashMap<(Collective, Algorithm), Verified>,
    executors: HashMap<Shape, Vec<Executor>>,
}

/// Shapes to keep executors for. Jobs use a few dozen; one that never repeats a shape must not fill memory.
const SHAPES: usize = 256;

impl Plans {
    pub(crate) fn new(rank: Rank, topology: Topology) -> Self {
        Self {
            rank,
            topology,
            chosen: HashMap::new(),
            schedules: HashMap::new(),
            executors: HashMap::new(),
        }
    }

    /// The algorithm for a vector of `bytes`: the settings' if they name one, else the selector's.
    pub(crate) fn algorithm(&mut self, collective: Collective, bytes: usize) -> Algorithm {
        if let Some(&algorithm) = self.chosen.get(&(collective, bytes)) {
            return algorithm;
        }
        let algorithm = Algorithm::Direct;
        if self.chosen.len() >= SHAPES {
            self.chosen.clear();
        }
        self.chosen.insert((collective, bytes), algorithm);
        algorithm
    }

    /// The verified schedule of an algorithm.
    pub(crate) fn schedule(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
    ) -> Result<Verified, Error> {
        if let Some(verified) = self.schedules.get(&(collective, algorithm)) {
            return Ok(verified.clone());
        }
        let verified = verify(generate(collective, algorithm, &self.topology)?)?;
        self.schedules
            .insert((collective, algorithm), verified.clone());
        Ok(verified)
    }

    /// An executor for `shape`, used before or new.
    pub(crate) fn executor(
        &mut self,
        shape: Shape,
        schedule: &Verified,
        layout: impl FnOnce() -> Layout,
        slice_bytes: usize,
    ) -> Executor {
        match self.executors.get_mut(&shape).and_then(Vec::pop) {
            Some(executor) => executor,
            None => Self::fresh(schedule, self.rank, &layout(), slice_bytes, shape.in_place),
        }
    }

    /// An executor for a shape that will not come again.
    pub(crate) fn fresh(
        schedule: &Verified,
        rank: Rank,
        layout: &Layout,
        slice_bytes: usize,
        in_place: bool,
    ) -> Executor {
        let memory = if in_place {
            Memory::Shared
        } else {
            Memory::Apart
        };
        Executor::new(schedule, rank, layout, slice_bytes, memory)
    }

    /// Takes back an executor whose operation has ended well.
    pub(crate) fn reuse(&mut self, shape: Shape, mut executor: Executor) {
        if self.executors.len() >= SHAPES && !self.executors.contains_key(&shape) {
            self.executors.clear();
        }
        executor.reset();
        self.executors.entry(shape).or_default().push(executor);
    }
}
